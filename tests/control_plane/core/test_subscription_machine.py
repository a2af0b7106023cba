"""The rules of ack and nack (design.md#sync) against a worker that answers as it likes.

The worker applies or refuses what it is sent, answers late, answers twice, and comes back
on a new stream. It is compared with what the control plane believes of it after every message.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cache

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)
from tests.control_plane.core.builders import listing, spec

from leaseway.control_plane.core.catalog.snapshot import Snapshot
from leaseway.control_plane.core.catalog.variants import Hashes, Served, build_good, serve
from leaseway.control_plane.core.workers.subscription import Push, Subscription, VariantRefusal
from leaseway.spec.model import VariantKey

Held = dict[VariantKey, Hashes]
KEYS = ("a", "b")
CONTENTS = ("x", "y", "z")
CONFIGS = st.dictionaries(st.sampled_from(KEYS), st.sampled_from(CONTENTS))

SOME = st.sets(st.sampled_from(KEYS))


@cache
def served(server_id: str, content: str) -> Served:
    good, _ = build_good(spec(server_id), listing(content))
    return serve(good, frozenset())


@dataclass(frozen=True)
class Message:
    """A message of a worker, and what it held when sending it."""

    held: Held
    nonce: int = 0
    refusals: tuple[VariantRefusal, ...] = ()

    @property
    def is_ack(self) -> bool:
        return not self.refusals


@dataclass
class Worker:
    """A worker's content and its undelivered messages."""

    held: Held = field(default_factory=dict)
    said: list[Message] = field(default_factory=list)

    def take(self, push: Push, refuses: set[str]) -> None:
        refusals = []
        for key in push.removals:
            self.held.pop(key, None)
        for upsert in push.upserts:
            if upsert.key.server_id in refuses:
                refusals.append(VariantRefusal(upsert.key, "BAD", f"{upsert.hashes} is bad"))
            else:
                self.held[upsert.key] = upsert.hashes
        if refusals:
            self.said.append(Message(dict(self.held), push.nonce, tuple(refusals)))
        self.said.append(Message(dict(self.held), push.nonce))


class Subscriptions(RuleBasedStateMachine):
    """The successive streams of one worker."""

    def __init__(self) -> None:
        super().__init__()
        self.snapshot = Snapshot(0)
        self.removals = False
        self.worker = Worker()
        self.state = Subscription()
        self.refused: dict[VariantKey, tuple[VariantRefusal, Hashes]] = {}
        self.believed: Held = {}
        self.stream()

    def stream(self) -> None:
        """Start a stream with a hello that lists the worker's content."""
        held = dict(self.worker.held)
        self.state = Subscription.resume(held, self.state)
        self.believed = held
        self.unanswered: list[Push] = []
        self.heard: list[Message] = []
        self.acked_version = self.stale = 0

    @rule(config=CONFIGS)
    def commit(self, config: dict[str, str]) -> None:
        wanted = [served(*pair) for pair in sorted(config.items())]
        self.snapshot = Snapshot(
            self.snapshot.version + 1, {message.key: message for message in wanted}
        )

    @rule()
    def allow_removals(self) -> None:
        self.removals = True

    @rule()
    def push(self) -> None:
        pending, acked = self.state.pending, dict(self.state.acked)
        push = self.state.push(self.snapshot, removals=self.removals)
        if pending is None:
            self.forget_refusals()
        assert self.state.acked == acked  # what it has moves on an acknowledgement only
        if push is None:
            return
        assert pending is None
        assert push is self.state.pending
        assert (push.version, self.state.sent_version) == (self.snapshot.version,) * 2
        for upsert in push.upserts:
            assert self.snapshot.served[upsert.key] is upsert
            _, refused = self.refused.get(upsert.key, (None, None))
            assert refused != upsert.hashes  # not again until it changes
            assert acked.get(upsert.key) != upsert.hashes  # nothing that it has
        assert not push.removals or self.removals
        for key in push.removals:
            assert key not in self.snapshot.served
            assert key in acked or key in self.refused
        self.unanswered.append(push)

    def forget_refusals(self) -> None:
        """A refusal ends when the worker has the current content."""
        for key in list(self.refused):
            if self.snapshot.hashes.get(key) == self.believed.get(key):
                del self.refused[key]

    @precondition(lambda self: self.unanswered)
    @rule(refuses=SOME)
    def answer(self, refuses: set[str]) -> None:
        self.worker.take(self.unanswered.pop(), refuses)

    @rule(config=CONFIGS, refuses=SOME)
    def exchange(self, config: dict[str, str], refuses: set[str]) -> None:
        """Commit, push, answer and deliver at once."""
        self.commit(config)
        self.push()
        if self.unanswered:
            self.answer(refuses)
        while self.worker.said:
            self.hear()

    @precondition(lambda self: self.worker.said)
    @rule()
    def hear(self) -> None:
        message = self.worker.said.pop(0)
        self.hear_answer(message)
        if message.is_ack:
            self.believed = message.held
        self.heard.append(message)

    def hear_answer(self, message: Message) -> None:
        pending = self.state.pending
        assert pending is not None
        assert pending.nonce == message.nonce
        sent = {upsert.key: upsert.hashes for upsert in pending.upserts}
        if message.refusals:
            assert self.state.nack(message.nonce, message.refusals) == message.refusals
            for refusal in message.refusals:
                self.refused.pop(refusal.key, None)
                self.refused[refusal.key] = (refusal, sent[refusal.key])
            return
        assert self.state.ack(message.nonce)
        self.acked_version = pending.version
        for key in (*sent, *pending.removals):
            if key in self.refused and self.refused[key][1] != sent.get(key):
                del self.refused[key]

    @precondition(lambda self: any(message.nonce for message in self.heard))
    @rule(data=st.data())
    def hear_again(self, data: st.DataObject) -> None:
        answered = [message for message in self.heard if message.is_ack]
        if answered:
            self.ignored(data.draw(st.sampled_from(answered)).nonce)

    @rule()
    def hear_of_what_was_never_sent(self) -> None:
        self.ignored(10_000)

    def ignored(self, nonce: int) -> None:
        """Send a stale nonce, which is only counted."""
        before = {name: repr(value) for name, value in vars(self.state).items()}
        refusal = VariantRefusal(VariantKey("a"), "BAD", "stale")
        assert not self.state.ack(nonce)
        assert not self.state.nack(nonce, [refusal])
        after = {name: repr(value) for name, value in vars(self.state).items()}
        self.stale += 2
        assert after == before | {"stale": repr(self.stale)}

    @rule(heard=st.booleans())
    def reconnect(self, heard: bool) -> None:
        """End the stream; undelivered messages are lost, but may have been applied."""
        if heard and self.unanswered:
            self.worker.take(self.unanswered[0], set())
        self.worker.said.clear()
        self.stream()
        first = self.state.push(self.snapshot, removals=self.removals)
        self.forget_refusals()
        for upsert in first.upserts if first is not None else ():
            assert self.worker.held.get(upsert.key) != upsert.hashes  # resync by hashes
        self.unanswered = [first] if first is not None else []

    @invariant()
    def what_it_has_is_what_it_said_it_has(self) -> None:
        assert self.state.acked == self.believed
        assert self.state.acked_version == self.acked_version
        assert self.state.stale == self.stale
        assert self.state.refused == self.refused
        newest = [refusal.message for refusal, _ in self.refused.values()][-1:]
        assert self.state.last_error == "".join(newest)

    def teardown(self) -> None:
        """Deliver everything: worker and control plane then agree."""
        self.removals = True
        while self.unanswered or self.worker.said:
            if self.worker.said:
                self.hear()
            elif self.unanswered:
                self.answer(set())
        self.push()
        while self.unanswered or self.worker.said:
            self.answer(set()) if self.unanswered else self.hear()
            self.push()
        assert self.state.pending is None
        assert self.state.acked == self.worker.held
        wanted = {k: v for k, v in self.snapshot.hashes.items() if k not in self.refused}
        assert {k: v for k, v in self.worker.held.items() if k not in self.refused} == wanted
        for key, (_, hashes) in self.refused.items():
            assert self.snapshot.hashes[key] == hashes


def test_acked_content_changes_only_by_acknowledgements() -> None:
    chosen = settings(max_examples=60, stateful_step_count=30, deadline=None)
    run_state_machine_as_test(Subscriptions, settings=chosen)
