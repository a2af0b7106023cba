"""Approvals in a store: what holds after a crash, while the store fails, and under two leaders."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
from tests.conftest import BOUND
from tests.control_plane.core.builders import PAY

from leaseway.control_plane.core.approvals import LIFETIME, ApprovalRequest
from leaseway.control_plane.core.moment import Moment
from leaseway.control_plane.plane import Plane
from leaseway.control_plane.store.memory import MemoryStore
from leaseway.control_plane.store.port import Change, Put, Room, Store, StoreUnavailable
from leaseway.control_plane.store.postgresql import PostgresStore
from leaseway.control_plane.store.sqlite import SqliteStore
from leaseway.control_plane.stored_approvals import RETRY
from leaseway.wire.errors import Fault, Reason


class Clock:
    """A clock that stands still."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def __call__(self) -> Moment:
        return Moment(self.seconds, 1_800_000_000.0 + self.seconds)


class FailingStore(MemoryStore):
    """Fails writes: before they happen (`down`), or after (`mute`)."""

    down = mute = False

    async def claim(self, epoch: int, *, elected: bool) -> int:
        if self.down:
            raise StoreUnavailable("It is down.")
        return await super().claim(epoch, elected=elected)

    async def write(self, epoch: int, changes: Sequence[Change]) -> None:
        if self.down:
            raise StoreUnavailable("It is down.")
        await super().write(epoch, changes)
        if self.mute:
            raise StoreUnavailable("It did not answer.")


async def requested(plane: Plane, question: ApprovalRequest = PAY) -> str:
    """Request an approval; return its id."""
    asked = await plane.approvals.ask(question, use=False)
    assert asked.record is not None
    return asked.record.id


async def approved(plane: Plane) -> str:
    """Request an approval and give it; return its id."""
    approval_id = await requested(plane)
    await plane.decide_approval(approval_id, "", "ann", approve=True)
    return approval_id


async def use(plane: Plane, use_id: str) -> str:
    return (await plane.approvals.ask(PAY, use=True, use_id=use_id)).verdict


def states(plane: Plane) -> list[str]:
    return [record.state for record in plane.approvals.listed("")]


def problems(plane: Plane) -> list[str]:
    return [entry.problem.reason for entry in plane.state.problems.open()]


def with_a_vote(value: bytes) -> bytes:
    """Return the record as a newer release may write it."""
    return value.replace(b'{"id"', b'{"vote":2,"id"', 1)


def of_another(value: bytes) -> bytes:
    """Return the record under another key."""
    return value.replace(b'{"id":"', b'{"id":"f', 1)


@pytest.fixture(params=["sqlite", "postgresql"])
def open_store(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[], Store]:
    """Open one and the same store, as each of several control planes does."""
    if request.param == "sqlite":
        return partial(SqliteStore, tmp_path, exclusive=False)
    server = request.getfixturevalue("postgres")
    return partial(PostgresStore, partial(server.dsn, server.database()))


async def test_an_approval_holds_exactly_once_under_the_next_leader(
    open_store: Callable[[], Store],
) -> None:
    old, new = open_store(), open_store()
    first = Plane(epoch=1, store=old, follows=True)
    first.lead(10)
    approval_id = await approved(first)

    second = Plane(epoch=1, store=new, follows=True)  # the first one did not get to close its store
    second.lead(11)
    both = await asyncio.gather(use(second, "call-1"), use(second, "call-2"))
    assert sorted(both) == ["approved", "waiting"]
    winner = f"call-{1 + both.index('approved')}"
    assert await use(second, winner) == "approved", "it asks again: the answer was lost"
    used = second.approvals.get(approval_id, "acme")
    assert used is not None
    assert (used.state, used.use_id, used.decided_by) == ("used", winner, "ann")

    # The first one does not know that it leads no more.
    assert (await first.approvals.ask(PAY, use=False)).verdict == "approved"
    with pytest.raises(Fault) as refused:
        await use(first, "call-3")
    assert refused.value.reason is Reason.NOT_LEADER
    assert first.deposed.is_set()
    assert not second.deposed.is_set()
    for store in (old, new):
        await store.close()


async def test_a_follower_leaves_the_store_to_the_leader() -> None:
    store = MemoryStore()
    leader, follower = (Plane(epoch=1, store=store, follows=True) for _ in range(2))
    leader.lead(10)
    await requested(leader)
    await follower.approvals.refresh()
    assert (states(leader), states(follower)) == (["waiting"], [])
    follower.lead(11)
    await follower.approvals.refresh()
    assert states(follower) == ["waiting"]


async def test_while_the_store_is_down_nothing_is_decided_and_nothing_else_fails() -> None:
    clock, store = Clock(), FailingStore()
    plane = Plane(epoch=1, clock=clock, store=store)
    approval_id = await requested(plane)
    store.down = True
    with pytest.raises(Fault) as refused:
        await plane.decide_approval(approval_id, "", "ann", approve=True)
    assert refused.value.reason is Reason.STORE_UNAVAILABLE
    assert problems(plane) == ["STORE_UNAVAILABLE"]
    await plane.approvals.refresh()
    assert states(plane) == ["waiting"]

    store.down = False  # which is not known yet: the store is left alone for a while
    with pytest.raises(Fault):
        await use(plane, "call-1")
    assert plane.approvals.next_deadline() == RETRY
    clock.seconds = RETRY
    assert plane.approvals.needs_maintenance()
    await plane.approvals.maintain()
    assert not problems(plane)
    await plane.decide_approval(approval_id, "", "ann", approve=True)
    assert await use(plane, "call-1") == "approved"


async def test_a_store_that_is_down_at_the_start_is_logged_once_and_used_when_it_is_up(
    caplog: pytest.LogCaptureFixture,
) -> None:
    clock, store = Clock(), FailingStore()
    store.down = True
    plane = Plane(epoch=1, clock=clock, store=store)
    for clock.seconds in (0.0, RETRY, 2 * RETRY):
        await plane.approvals.maintain()
    with pytest.raises(Fault):
        await plane.approvals.refresh()
    assert [record.getMessage() for record in caplog.records if record.levelname == "WARNING"] == [
        "The store cannot be used: It is down."
    ]
    store.down, clock.seconds = False, 3 * RETRY
    await plane.approvals.maintain()
    assert not problems(plane)
    await requested(plane)


async def test_a_decision_of_unknown_outcome_is_read_before_anything_else_is_decided() -> None:
    clock, store = Clock(), FailingStore()
    plane = Plane(epoch=1, clock=clock, store=store)
    approval_id = await requested(plane)
    store.mute = True
    with pytest.raises(Fault, match="may have been kept"):
        await plane.decide_approval(approval_id, "", "ann", approve=True)
    assert states(plane) == ["waiting"]
    store.mute, clock.seconds = False, RETRY
    with pytest.raises(Fault, match="already approved by ann"):
        await plane.decide_approval(approval_id, "", "bob", approve=False)
    assert states(plane) == ["approved"]
    recorded = [event.action for event in plane.events.history.select(kinds=("approval",))]
    assert recorded == ["asked", "refused", "approved", "refused"]


async def test_a_use_of_unknown_outcome_counts_for_its_call_alone() -> None:
    clock, store = Clock(), FailingStore()
    plane = Plane(epoch=1, clock=clock, store=store)
    await approved(plane)
    store.mute = True
    with pytest.raises(Fault):
        await use(plane, "call-1")
    store.mute, clock.seconds = False, RETRY
    assert await use(plane, "call-2") == "waiting"
    assert await use(plane, "call-1") == "approved"


async def test_a_decision_is_kept_although_whoever_made_it_stops_waiting() -> None:
    plane = Plane(epoch=1)
    approval_id = await requested(plane)
    deciding = asyncio.create_task(plane.decide_approval(approval_id, "", "ann", approve=True))
    await asyncio.sleep(0)
    deciding.cancel()
    async with asyncio.timeout(BOUND):
        while await use(plane, "call-1") == "waiting":
            await asyncio.sleep(0)
    assert states(plane) == ["used"]


async def test_two_control_planes_without_an_election_do_not_share_a_store() -> None:
    clock, store = Clock(), MemoryStore()
    first, second = (Plane(epoch=1, clock=clock, store=store) for _ in range(2))
    await approved(first)
    await second.approvals.refresh()
    with pytest.raises(Fault) as refused:
        await use(first, "call-1")
    assert refused.value.reason is Reason.STORE_UNAVAILABLE
    clock.seconds = LIFETIME / 2
    assert not first.approvals.needs_maintenance(), "it does not claim the store again"
    assert problems(first) == ["STORE_UNAVAILABLE"]
    assert await use(second, "call-1") == "approved"


async def test_old_records_are_deleted_from_the_store() -> None:
    clock, store = Clock(), MemoryStore()
    plane = Plane(epoch=1, clock=clock, store=store)
    await requested(plane)
    assert len(await store.read(Room.APPROVALS)) == 1
    clock.seconds = 2 * LIFETIME + 3_600
    plane.approvals.expire()
    assert plane.approvals.needs_maintenance()
    await plane.approvals.maintain()
    assert not await store.read(Room.APPROVALS)
    assert not plane.approvals.needs_maintenance()


@pytest.mark.parametrize(
    "changed",
    [lambda value: b"{", lambda value: b"[]", lambda value: b"\xff", with_a_vote, of_another],
)
async def test_a_record_that_is_not_understood_costs_only_itself_and_is_kept(
    changed: Callable[[bytes], bytes],
) -> None:
    clock, store = Clock(), MemoryStore()
    first = Plane(epoch=1, clock=clock, store=store)
    bad, good = await approved(first), await requested(first, replace(PAY, tool="refund"))
    bytes_of = {record.key: record.value for record in await store.read(Room.APPROVALS)}
    await store.write(1, [Put(Room.APPROVALS, bad, changed(bytes_of[bad]))])
    [kept] = await store.read(Room.APPROVALS, prefix=bad)

    plane = Plane(epoch=2, clock=clock, store=store)
    await plane.decide_approval(good, "", "ann", approve=True)
    with pytest.raises(Fault, match=f"does not understand the record of approval '{bad}'"):
        await plane.decide_approval(bad, "", "ann", approve=True)
    assert await use(plane, "call-1") == "waiting", "nothing runs on what is not understood"
    assert states(plane) == ["waiting", "approved"]
    [entry] = plane.state.problems.open()
    assert (entry.problem.reason, entry.count) == ("STORE_RECORDS_UNREADABLE", 1)
    assert bad in entry.problem.message

    clock.seconds = 3 * LIFETIME + 3_600
    plane.approvals.expire()
    await plane.approvals.maintain()
    assert await store.read(Room.APPROVALS) == [kept]


async def test_a_record_of_unknown_outcome_that_is_not_understood_is_not_written_over() -> None:
    clock, store = Clock(), FailingStore()
    plane = Plane(epoch=1, clock=clock, store=store)
    approval_id = await requested(plane)
    store.mute = True
    with pytest.raises(Fault):
        await plane.decide_approval(approval_id, "", "ann", approve=True)
    store.mute, clock.seconds = False, RETRY
    await store.write(1, [Put(Room.APPROVALS, approval_id, b"{}")])
    assert await use(plane, "call-1") == "waiting"
    assert [record.value for record in await store.read(Room.APPROVALS, prefix=approval_id)] == [
        b"{}"
    ]
    assert len(states(plane)) == 1
