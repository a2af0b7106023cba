"""The leases of a client's sessions, over random orders of events."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from leaseway.sdk.leases.book import LeaseBook
from leaseway.sdk.leases.state import Flight, Granted, Purpose, SessionLeases, Terms
from leaseway.sdk.transport.workers import WorkerRun
from leaseway.wire.errors import Fault, Reason
from leaseway.wire.names import LeaseKey

TTL = 60.0
REMEMBERED = 8
W1, W2 = (WorkerRun(f"w{number}", f"run-{number}", "127.0.0.1:1") for number in (1, 2))
KEYS = st.sampled_from([LeaseKey("", session, server) for session in "ab" for server in "xy"])
WORKERS = st.sampled_from([W1, W2])


@dataclass
class Sent:
    """A request in flight that may acquire a lease of a key.

    Attributes:
        at: When it was sent.
        lease_id: The lease that its worker granted and has not reported yet.
        flight: The shared request, if the request is one and not a first call.
    """

    key: LeaseKey
    worker: WorkerRun
    at: float
    lease_id: str
    flight: Flight | None = None


@dataclass
class Model:
    """What is true of a key.

    Attributes:
        held: The lease to renew, its worker and when it expires.
        ended: The lease whose end every call must get.
        gone: When each lease ended or was released.
    """

    held: tuple[str, WorkerRun, float] | None = None
    ended: str = ""
    gone: dict[str, float] = field(default_factory=dict)


class Leases(RuleBasedStateMachine):
    """Compares the book with what the workers granted and the callers were told.

    Attributes:
        sent: Requests that may have acquired a lease and that were not answered.
        waiting: The callers of shared requests that were not answered.
        pending: Where first calls were sent, and whether a caller gave one up.
    """

    def __init__(self) -> None:
        super().__init__()
        self.book = LeaseBook("")
        self.now = 0.0
        self.count = 0
        self.models: dict[LeaseKey, Model] = {}
        self.sent: list[Sent] = []
        self.waiting: dict[int, tuple[LeaseKey, Terms]] = {}
        self.pending: dict[tuple[LeaseKey, WorkerRun], bool] = {}

    def session(self, key: LeaseKey) -> SessionLeases:
        return self.book.session(key.session)

    def model(self, key: LeaseKey) -> Model:
        return self.models.setdefault(key, Model())

    def number(self) -> int:
        self.count += 1
        return self.count

    def drop(self, key: LeaseKey) -> str:
        """Drop the held lease of a key from the model; return its id, or an empty string."""
        model = self.model(key)
        lease_id = model.held[0] if model.held else ""
        if lease_id:
            model.gone[lease_id] = self.now
            if len(model.gone) > REMEMBERED:
                del model.gone[next(iter(model.gone))]
        model.held = None
        return lease_id

    @rule(key=KEYS, worker=WORKERS, is_new=st.booleans())
    def call_first(self, key: LeaseKey, worker: WorkerRun, is_new: bool) -> None:
        """Send a first call, whose worker grants a new lease or that which it has granted."""
        self.session(key).place(key.server_id, worker, self.now)
        assert self.session(key).placed_on(key.server_id, self.now) == worker
        self.pending.setdefault((key, worker), False)
        known = [sent.lease_id for sent in self.sent if (sent.key, sent.worker) == (key, worker)]
        lease_id = f"l{self.number()}" if is_new or not known else known[-1]
        self.sent.append(Sent(key, worker, self.now, lease_id))

    @rule(key=KEYS, worker=WORKERS, ttl=st.sampled_from([TTL, TTL / 2]))
    def acquire(self, key: LeaseKey, worker: WorkerRun, ttl: float) -> None:
        """Ask for a lease; at most one request of a key is in flight."""
        terms, caller = Terms(worker, ttl, 0), self.number()
        in_flight = [sent for sent in self.sent if sent.flight and sent.key == key]
        self.session(key).place(key.server_id, worker, self.now)
        self.pending.setdefault((key, worker), False)
        flight = self.session(key).ask(key.server_id, Purpose.ACQUIRE, terms, 1.0, caller)
        assert (flight is None) == bool(in_flight)
        self.waiting[caller] = (key, terms)
        if flight is not None:
            self.sent.append(
                Sent(
                    key=key, worker=worker, at=self.now, lease_id=f"l{self.number()}", flight=flight
                )
            )

    @precondition(lambda self: self.sent)
    @rule(data=st.data(), owned=st.booleans())
    def grant(self, data: st.DataObject, owned: bool) -> None:
        """Answer a request: the lease is held, unless it has ended or was released meanwhile."""
        sent = data.draw(st.sampled_from(self.sent))
        key, model = sent.key, self.model(sent.key)
        granted = Granted(lease_id=sent.lease_id, worker=sent.worker, ttl=TTL, owned=owned)
        self.session(key).grant(
            key.server_id, granted, sent_at=sent.at, now=self.now, wall=self.now
        )
        self.pending.pop((key, sent.worker), None)
        if sent.at > model.gone.get(sent.lease_id, -1.0):
            held = model.held[0] if model.held else ""
            if held != sent.lease_id:
                self.drop(key)
            since = max(sent.at, self.now - TTL / 3)
            expires = since + TTL
            if model.held:
                expires = max(expires, model.held[2])
            model.held, model.ended = (sent.lease_id, sent.worker, expires), ""
            model.gone.pop(sent.lease_id, None)
        self.settle(sent)

    @precondition(lambda self: self.sent)
    @rule(data=st.data(), started=st.sampled_from(["no", "unknown"]))
    def reject(self, data: st.DataObject, started: str) -> None:
        sent = data.draw(st.sampled_from(self.sent))
        fault = Fault(Reason.WORKER_LOST, "Cut.", "no" if started == "no" else "unknown")
        self.session(sent.key).fail(sent.key.server_id, sent.worker, fault)
        place = (sent.key, sent.worker)
        if started != "no":
            self.give_back(place)
        elif self.pending.get(place) is False:
            del self.pending[place]
        self.settle(sent)

    def give_back(self, place: tuple[LeaseKey, WorkerRun]) -> None:
        """Note that a lease may exist whose id nobody knows."""
        if place in self.pending:
            self.pending[place] = True

    def settle(self, sent: Sent) -> None:
        """End a request: each of its callers is answered, or asks again."""
        self.sent.remove(sent)
        if sent.flight is None:
            return
        answered, later = self.session(sent.key).answer(sent.flight)
        expected = {caller for caller, (key, _) in self.waiting.items() if key == sent.key}
        assert {*answered, *later} == expected
        assert all(self.waiting.pop(caller)[1] == sent.flight.terms for caller in answered)
        assert all(self.waiting.pop(caller)[1] != sent.flight.terms for caller in later)

    @precondition(lambda self: self.waiting)
    @rule(data=st.data())
    def give_up(self, data: st.DataObject) -> None:
        """Cancel a caller: a request that nobody waits for ends, and its lease is looked for."""
        caller = data.draw(st.sampled_from(sorted(self.waiting)))
        key, _ = self.waiting.pop(caller)
        flight = self.session(key).give_up(key.server_id, Purpose.ACQUIRE, caller)
        (sent,) = (sent for sent in self.sent if sent.flight and sent.key == key)
        waits = any(
            other == (key, sent.flight.terms) for other in self.waiting.values() if sent.flight
        )
        assert (flight is None) == waits
        if flight is not None:
            assert flight is sent.flight
            self.give_back((key, sent.worker))
            self.settle(sent)

    @rule(key=KEYS, is_lost=st.booleans())
    def end(self, key: LeaseKey, is_lost: bool) -> None:
        """Learn the end of a lease."""
        lease_id = self.drop(key)
        fault = Fault(Reason.LEASE_REVOKED, "It was revoked.")
        self.book.end(lease_id or "another", fault, self.now, is_lost=is_lost)
        if lease_id:
            self.model(key).ended = lease_id

    @rule(key=KEYS)
    def release(self, key: LeaseKey) -> None:
        released = self.session(key).release(key.server_id, self.now)
        assert (released.lease_id if released else "") == self.drop(key)
        self.model(key).ended = ""

    @rule(seconds=st.sampled_from([0.1, TTL / 2, TTL]))
    def wait(self, seconds: float) -> None:
        self.now += seconds

    @rule(session=st.sampled_from("ab"), is_closing=st.booleans())
    def leave(self, session: str, is_closing: bool) -> None:
        """Leave a session: every lease that it holds or may hold is given back."""
        keys = [key for key in self.models if key.session == session]
        held, unknown = self.book.leave(session, self.now, is_closing=is_closing)
        expected = {self.drop(key) for key in keys} - {""}
        assert {lease.lease_id for lease in held} == expected
        for key in keys:
            self.model(key).ended = ""
            self.model(key).gone.clear()
        places = [
            place
            for place, is_given_up in self.pending.items()
            if place[0].session == session and (is_given_up or is_closing)
        ]
        assert sorted(unknown) == sorted(places)
        for place in places:
            del self.pending[place]
        # The worker has ended what was left, so that later answers report other leases.
        for sent in self.sent:
            if sent.key.session == session:
                sent.lease_id = f"l{self.number()}"

    @rule(key=KEYS)
    def find(self, key: LeaseKey) -> None:
        """Each caller is answered: with the lease, with its end, or with nothing."""
        model = self.model(key)
        if model.held and self.now >= model.held[2]:
            model.ended = self.drop(key)
        if model.ended:
            with pytest.raises(Fault) as caught:
                self.book.find(key.session, key.server_id, self.now)
            assert caught.value.metadata["lease"] == model.ended
        else:
            lease = self.book.find(key.session, key.server_id, self.now)
            assert (lease.lease_id if lease else None) == (model.held[0] if model.held else None)

    @invariant()
    def exactly_the_held_leases_are_renewed(self) -> None:
        held = [model.held for model in self.models.values() if model.held]
        renewed = {(lease.lease_id, lease.worker) for lease in self.book.held_leases()}
        assert renewed == {(lease_id, worker) for lease_id, worker, _ in held}
        for worker in (W1, W2):
            mine = [expires for _, on, expires in held if on == worker]
            due = self.book.next_renewal(worker)
            assert (due is None) == (not mine)
            assert due is None or due <= min(mine)

    @invariant()
    def a_key_is_tracked_as_long_as_it_is_held_or_its_end_is_unheard(self) -> None:
        for key, model in self.models.items():
            tracks = self.book.tracks(key.session, key.server_id)
            assert tracks == bool(model.held or model.ended)


def test_no_lease_is_leaked_renewed_after_its_end_or_replaced_in_silence() -> None:
    run_state_machine_as_test(
        Leases, settings=settings(max_examples=200, stateful_step_count=40, deadline=None)
    )
