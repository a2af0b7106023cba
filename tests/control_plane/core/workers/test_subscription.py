"""Sent, acknowledged and refused variants of one worker."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st
from tests.control_plane.core.builders import listing, spec

from leaseway.control_plane.core.catalog.building import SnapshotBuilder
from leaseway.control_plane.core.catalog.snapshot import Snapshot
from leaseway.control_plane.core.catalog.variants import build_good
from leaseway.control_plane.core.workers.subscription import Subscription, VariantRefusal
from leaseway.spec.model import VariantKey


def snapshot(version: int, **tools: str) -> Snapshot:
    last_known_good = {
        VariantKey(name): build_good(spec(name), listing(tool))[0] for name, tool in tools.items()
    }
    return SnapshotBuilder().build(version, last_known_good)[0]


def test_one_push_is_pending_and_later_changes_merge_into_the_next() -> None:
    worker = Subscription()
    first = worker.push(snapshot(1, a="x"), removals=True)
    assert first is not None
    assert worker.push(snapshot(2, a="y"), removals=True) is None
    assert worker.push(snapshot(3, a="z", b="x"), removals=True) is None
    assert worker.ack(first.nonce)
    second = worker.push(snapshot(3, a="z", b="x"), removals=True)
    assert second is not None
    assert [upsert.key.server_id for upsert in second.upserts] == ["a", "b"]


def test_workers_with_equal_content_share_one_delta() -> None:
    old, new = snapshot(1, a="x", b="x"), snapshot(2, a="y", c="x")
    workers = [Subscription(), Subscription()]
    for worker in workers:
        push = worker.push(old, removals=True)
        assert push is not None
        worker.ack(push.nonce)
    first, second = (worker.push(new, removals=True) for worker in workers)
    assert first is not None
    assert second is not None
    assert [upsert.key.server_id for upsert in first.upserts] == ["a", "c"]
    assert first.removals == (VariantKey("b"),)
    assert first.upserts is second.upserts


def test_a_worker_with_refusals_gets_its_own_delta() -> None:
    old, new = snapshot(1, a="x", b="x"), snapshot(2, a="x", b="y")
    worker = Subscription()
    push = worker.push(old, removals=True)
    assert push is not None
    worker.nack(push.nonce, [VariantRefusal(VariantKey("a"), "BAD", "a is bad")])
    worker.ack(push.nonce)
    again = worker.push(new, removals=True)
    assert again is not None
    assert [upsert.key.server_id for upsert in again.upserts] == ["b"]


def test_deferred_removals_are_in_the_next_push() -> None:
    first, later = snapshot(1, a="x"), snapshot(2, a="y")
    worker = Subscription.resume(snapshot(9, gone="x").hashes)
    push = worker.push(first, removals=False)
    assert push is not None
    assert push.removals == ()
    worker.ack(push.nonce)
    push = worker.push(later, removals=True)
    assert push is not None
    assert push.removals == (VariantKey("gone"),)


def test_acked_content_changes_on_an_acknowledgement_only() -> None:
    worker = Subscription()
    push = worker.push(snapshot(1, a="x"), removals=True)
    assert push is not None
    assert (worker.sent_version, worker.acked_version, worker.acked) == (1, 0, {})
    worker.ack(push.nonce)
    assert worker.acked_version == 1
    assert list(worker.acked) == [VariantKey("a")]


def test_a_stale_nonce_is_counted_and_ignored() -> None:
    worker = Subscription()
    push = worker.push(snapshot(1, a="x"), removals=True)
    assert push is not None
    assert not worker.ack(push.nonce + 7)
    assert not worker.nack(push.nonce + 7, [])
    assert (worker.stale, worker.acked_version) == (2, 0)


def test_the_good_ones_of_a_refused_delta_apply() -> None:
    worker = Subscription()
    state = snapshot(1, a="x", b="x")
    push = worker.push(state, removals=True)
    assert push is not None
    refusal = VariantRefusal(VariantKey("a"), "BAD", "cannot be run here")
    worker.nack(push.nonce, [refusal])
    worker.ack(push.nonce)
    assert list(worker.acked) == [VariantKey("b")]
    assert worker.last_error == "cannot be run here"
    again = worker.push(snapshot(2, a="x", b="x"), removals=True)
    assert again is not None
    assert again.upserts == ()
    worker.ack(again.nonce)
    changed = worker.push(snapshot(3, a="y", b="x"), removals=True)
    assert changed is not None
    assert [upsert.key.server_id for upsert in changed.upserts] == ["a"]
    worker.ack(changed.nonce)
    assert set(worker.acked) == {VariantKey("a"), VariantKey("b")}
    assert worker.last_error == ""


def test_a_variant_counts_as_sent_from_the_push_until_its_removal() -> None:
    key, launch = VariantKey("a"), spec("a").launch_hash
    worker = Subscription()
    assert not worker.was_sent(key, launch)
    push = worker.push(snapshot(1, a="x"), removals=True)
    assert push is not None
    assert worker.was_sent(key, launch), "it may list before it acknowledges"
    assert not worker.was_sent(key, "another launch")
    worker.ack(push.nonce)
    assert worker.was_sent(key, launch)
    gone = worker.push(snapshot(2, b="x"), removals=True)
    assert gone is not None
    worker.ack(gone.nonce)
    assert not worker.was_sent(key, launch)
    assert Subscription.resume(snapshot(1, a="x").hashes).was_sent(key, launch)


def test_the_last_error_is_of_a_variant_that_is_still_refused() -> None:
    worker = Subscription()
    push = worker.push(snapshot(1, a="x", b="x"), removals=True)
    assert push is not None
    first = VariantRefusal(VariantKey("a"), "BAD", "a is bad")
    worker.nack(push.nonce, [first, VariantRefusal(VariantKey("b"), "WORSE", "b is worse")])
    worker.ack(push.nonce)
    assert worker.last_error == "b is worse"
    changed = worker.push(snapshot(2, a="x", b="y"), removals=True)
    assert changed is not None
    worker.ack(changed.nonce)
    assert worker.last_error == "a is bad"


def test_a_refused_variant_is_not_sent_again_on_a_new_stream() -> None:
    before, state = Subscription(), snapshot(1, a="x", b="x")
    push = before.push(state, removals=True)
    assert push is not None
    assert before.nack(push.nonce, [VariantRefusal(VariantKey("a"), "BAD", "a is bad")])
    after = Subscription.resume({}, before)
    first = after.push(state, removals=True)
    assert first is not None
    assert [upsert.key.server_id for upsert in first.upserts] == ["b"]
    assert after.last_error == "a is bad"


def test_a_refusal_ends_when_the_worker_has_the_current_content() -> None:
    good = snapshot(1, a="x")
    worker = Subscription.resume(good.hashes)
    push = worker.push(snapshot(2, a="y"), removals=True)
    assert push is not None
    worker.nack(push.nonce, [VariantRefusal(VariantKey("a"), "BAD", "a is bad")])
    worker.ack(push.nonce)
    undone = worker.push(snapshot(3, a="x"), removals=True)
    assert undone is not None
    assert (undone.upserts, worker.last_error) == ((), "")


def test_removals_wait_until_they_are_allowed() -> None:
    worker = Subscription(acked=dict(snapshot(1, a="x").hashes))
    held_back = worker.push(snapshot(2), removals=False)
    assert held_back is not None
    assert held_back.removals == ()
    worker.ack(held_back.nonce)
    allowed = worker.push(snapshot(2), removals=True)
    assert allowed is not None
    assert allowed.removals == (VariantKey("a"),)


STATES = st.dictionaries(st.sampled_from("abc"), st.sampled_from(["x", "y"]), max_size=3)


@settings(max_examples=200, deadline=None)
@given(st.lists(st.tuples(STATES, st.booleans()), min_size=1, max_size=8))
def test_applying_every_delta_gives_the_last_snapshot(
    steps: list[tuple[dict[str, str], bool]],
) -> None:
    """A worker that acknowledges every push ends with the newest state."""
    worker, held, state = Subscription(), {}, Snapshot(0)
    for version, (tools, acks) in enumerate(steps, start=1):
        state = snapshot(version, **tools)
        push = worker.push(state, removals=True) or worker.pending
        if acks and push:
            held.update({upsert.key: upsert.hashes for upsert in push.upserts})
            for key in push.removals:
                held.pop(key)
            worker.ack(push.nonce)
    while push := worker.pending or worker.push(state, removals=True):
        held.update({upsert.key: upsert.hashes for upsert in push.upserts})
        for key in push.removals:
            held.pop(key)
        worker.ack(push.nonce)
    assert held == state.hashes == worker.acked
