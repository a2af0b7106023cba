"""Anchors of the audit in a store: what a restart knows, and what happens while the store fails."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from tests.conftest import BOUND
from tests.control_plane.core.builders import PAY

from leaseway.control_plane.core.approvals import LIFETIME
from leaseway.control_plane.core.audit_anchors import AuditAnchors
from leaseway.control_plane.core.moment import Moment
from leaseway.control_plane.plane import Plane
from leaseway.control_plane.store.memory import MemoryStore
from leaseway.control_plane.store.port import Change, Put, Room, StoreUnavailable
from leaseway.control_plane.store.sqlite import SqliteStore
from leaseway.control_plane.stored_anchors import INTERVAL, StoredAnchors
from leaseway.control_plane.stored_approvals import RETRY, StoredApprovals, Term
from leaseway.wire.audit_heads import AuditAnchor, AuditHead, Mark
from leaseway.wire.errors import Fault, Reason

HEAD = AuditHead("w1.a", "s3://audit", Mark(5, "a" * 64), Mark(4, "b" * 64))
ENDED = replace(HEAD, run="w2.b", has_ended=True)


class Clock:
    """A clock that stands still."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def __call__(self) -> Moment:
        return Moment(self.seconds, 1_800_000_000.0 + self.seconds)


class FailingStore(MemoryStore):
    """A store that may be down."""

    down = False

    async def claim(self, epoch: int, *, elected: bool) -> int:
        self._check()
        return await super().claim(epoch, elected=elected)

    async def write(self, epoch: int, changes: Sequence[Change]) -> None:
        self._check()
        await super().write(epoch, changes)

    def _check(self) -> None:
        if self.down:
            raise StoreUnavailable("It is down.")


async def maintain(plane: Plane) -> None:
    """Do what `Plane.run` does when the store is due."""
    if plane.approvals.needs_maintenance():
        await plane.approvals.maintain()
    if plane.stored_anchors.needs_maintenance():
        await plane.stored_anchors.maintain()


def told(plane: Plane) -> dict[str, AuditAnchor]:
    return {anchor.head.run: anchor for anchor in plane.audit_anchors.listed()}


async def test_a_restart_keeps_ended_runs_and_counts_others_as_lost_until_they_are_told(
    tmp_path: Path,
) -> None:
    clock, store = Clock(), SqliteStore(tmp_path, exclusive=True)
    first = Plane(epoch=1, clock=clock, store=store)
    first.audit_anchors.record("w1", HEAD, clock().unix)
    first.audit_anchors.record("w2", ENDED, clock().unix)
    await maintain(first)
    kept = told(first)
    await store.close()

    clock.seconds, store = 100.0, SqliteStore(tmp_path, exclusive=True)
    second = Plane(epoch=1, clock=clock, store=store)
    later = replace(HEAD, run="w3.c")
    second.audit_anchors.record("w3", later, clock().unix)  # before it has read the store
    await second.stored_anchors.refresh()
    assert told(second)["w2.b"] == kept["w2.b"]
    assert told(second)["w1.a"] == replace(kept["w1.a"], lost_at=clock().unix)
    assert told(second)["w3.c"].lost_at is None
    second.audit_anchors.record("w1", replace(HEAD, written=Mark(9, "c" * 64)), clock().unix)
    assert told(second)["w1.a"].head.written.seq == 9
    assert told(second)["w1.a"].lost_at is None
    second.audit_anchors.record("w2", replace(ENDED, written=Mark(6, "c" * 64)), clock().unix)
    assert told(second)["w2.b"].is_contradicted, "records after the end that the first one was told"
    await store.close()


async def test_anchors_are_written_together_after_some_seconds() -> None:
    clock, store = Clock(), MemoryStore()
    plane = Plane(epoch=1, clock=clock, store=store)
    await maintain(plane)
    plane.audit_anchors.record("w1", HEAD, clock().unix)
    await maintain(plane)
    assert not await store.read(Room.ANCHORS)
    clock.seconds = INTERVAL
    assert plane.stored_anchors.next_deadline() == INTERVAL
    await maintain(plane)
    (record,) = await store.read(Room.ANCHORS)
    clock.seconds = 2 * INTERVAL
    await maintain(plane)
    assert await store.read(Room.ANCHORS) == [record], "nothing has changed"


async def test_while_the_store_is_down_anchors_are_in_memory_and_are_written_later() -> None:
    clock, store = Clock(), FailingStore()
    plane = Plane(epoch=1, clock=clock, store=store)
    await maintain(plane)
    store.down, clock.seconds = True, INTERVAL
    plane.audit_anchors.record("w1", HEAD, clock().unix)
    await maintain(plane)
    assert [entry.problem.reason for entry in plane.state.problems.open()] == ["STORE_UNAVAILABLE"]
    plane.audit_anchors.record("w2", ENDED, clock().unix)
    await plane.stored_anchors.refresh()
    assert set(told(plane)) == {"w1.a", "w2.b"}
    assert plane.stored_anchors.next_deadline() is None, "approvals find out when it works again"

    store.down, clock.seconds = False, 2 * INTERVAL + RETRY
    await maintain(plane)
    assert not plane.state.problems.open()
    assert [record.key for record in await store.read(Room.ANCHORS)] == ["w1.a", "w2.b"]


async def test_anchors_that_were_never_read_are_not_listed_in_part() -> None:
    store = FailingStore()
    store.down = True
    plane = Plane(epoch=1, clock=Clock(), store=store)
    plane.audit_anchors.record("w1", HEAD, 0.0)
    with pytest.raises(Fault) as refused:
        await plane.stored_anchors.refresh()
    assert refused.value.reason is Reason.STORE_UNAVAILABLE


def with_a_newer_field(value: bytes) -> bytes:
    """Return the record as a newer release may write it: the field 100 is 1."""
    return value + b"\xa0\x06\x01"


@pytest.mark.parametrize(
    "damage", [lambda value: b"\xff", lambda value: value[:-3], bytes.upper, with_a_newer_field]
)
async def test_what_is_no_anchor_costs_only_itself_and_is_kept(
    damage: Callable[[bytes], bytes],
) -> None:
    clock, store = Clock(), MemoryStore()
    first = Plane(epoch=1, clock=clock, store=store)
    first.audit_anchors.record("w1", HEAD, clock().unix)
    first.audit_anchors.record("w2", ENDED, clock().unix)
    await maintain(first)
    [record, _] = await store.read(Room.ANCHORS)
    await store.write(1, [Put(Room.ANCHORS, record.key, damage(record.value))])
    [damaged, _] = await store.read(Room.ANCHORS)

    second = Plane(epoch=2, clock=clock, store=store)
    later = replace(HEAD, written=Mark(9, "c" * 64))
    second.audit_anchors.record("w1", later, clock().unix)
    second.audit_anchors.record("w3", replace(HEAD, run="w3.c"), clock().unix)
    await maintain(second)
    assert second.stored_anchors.unreadable == ("w1.a",)
    assert set(told(second)) == {"w1.a", "w2.b", "w3.c"}
    assert [record.key for record in await store.read(Room.ANCHORS)] == ["w1.a", "w2.b", "w3.c"]
    assert (await store.read(Room.ANCHORS))[0] == damaged
    [entry] = second.state.problems.open()
    assert entry.problem.reason == "STORE_RECORDS_UNREADABLE"
    assert "'w1.a'" in entry.problem.message
    clock.seconds = INTERVAL
    await maintain(second)
    assert not second.audit_anchors.changed(10), "what cannot be written is not tried for ever"


async def test_a_follower_keeps_no_anchors_and_the_next_leader_reads_them() -> None:
    store = MemoryStore()
    leader, follower = (Plane(epoch=1, store=store, follows=True) for _ in range(2))
    leader.lead(10)
    leader.audit_anchors.record("w2", ENDED, 0.0)
    await maintain(leader)
    await maintain(follower)
    assert not told(follower)
    assert not follower.state.problems.open()
    follower.lead(11)
    await maintain(follower)
    assert set(told(follower)) == {"w2.b"}


async def test_what_is_forgotten_is_deleted_from_the_store() -> None:
    clock, store, anchors = Clock(), MemoryStore(), AuditAnchors(limit=2)
    approvals = StoredApprovals(store, clock, Term(1))
    await approvals.maintain()
    stored = StoredAnchors(anchors, approvals, clock)
    for number in range(2):
        anchors.record("w2", replace(ENDED, run=f"w2.{number}"), float(number))
    await stored.maintain()
    anchors.record("w2", replace(ENDED, run="w2.2"), 2.0)
    await stored.maintain()
    assert [record.key for record in await store.read(Room.ANCHORS)] == ["w2.1", "w2.2"]


class SlowStore(MemoryStore):
    """A store whose writes of anchors wait."""

    def __init__(self) -> None:
        super().__init__()
        self.writes = asyncio.Event()
        self.goes_on = asyncio.Event()

    async def write(self, epoch: int, changes: Sequence[Change]) -> None:
        if any(change.room is Room.ANCHORS for change in changes):
            self.writes.set()
            await self.goes_on.wait()
        await super().write(epoch, changes)


async def test_a_plane_rests_while_a_slow_store_delays_the_deletion_of_approvals() -> None:
    clock, store = Clock(), SlowStore()
    plane = Plane(epoch=1, clock=clock, store=store)
    await plane.approvals.ask(PAY, use=False)
    plane.audit_anchors.record("w1", HEAD, clock().unix)
    running = asyncio.create_task(plane.run())
    async with asyncio.timeout(BOUND):
        await store.writes.wait()
        clock.seconds = 10 * LIFETIME
        plane.approvals.expire()  # and remove
        with plane.transition() as (state, now):
            state.tick(now)
        before = plane.transitions
        for _ in range(1_000):
            await asyncio.sleep(0)
    assert plane.transitions - before < 10
    store.goes_on.set()
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
