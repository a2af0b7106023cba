"""Leader election with an API in memory."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.conftest import BOUND

from leaseway.control_plane.app import lead_until_lost
from leaseway.control_plane.core.approvals import ApprovalRequest
from leaseway.control_plane.leadership import (
    Elector,
    LeaseConflict,
    LeaseFailure,
    LeaseRecord,
    Observed,
    candidate,
    decide,
    epoch_of,
)
from leaseway.control_plane.plane import Plane
from leaseway.control_plane.store.memory import MemoryStore
from leaseway.wire.errors import Fault

_A, _B = "10.0.0.1:7600_a", "10.0.0.2:7600_b"


class LeaseInMemory:
    """The API: one record with optimistic locking."""

    def __init__(self) -> None:
        self.record: LeaseRecord | None = None
        self.down = False
        self._writes = 0

    async def read(self) -> LeaseRecord | None:
        self._check()
        return self.record

    async def create(self, record: LeaseRecord) -> LeaseRecord:
        self._check()
        if self.record is not None:
            raise LeaseConflict
        return self._keep(replace(record, created=1_700_000_000))

    async def replace(self, record: LeaseRecord) -> LeaseRecord:
        self._check()
        if self.record is None or record.version != self.record.version:
            raise LeaseConflict
        return self._keep(record)

    def _keep(self, record: LeaseRecord) -> LeaseRecord:
        self._writes += 1
        version = str(self._writes)
        self.record = replace(record, version=version, renewed=version)
        return self.record

    def _check(self) -> None:
        if self.down:
            raise LeaseFailure("it is down")


@pytest.fixture
def lease() -> LeaseInMemory:
    return LeaseInMemory()


def _record(**fields: object) -> LeaseRecord:
    return replace(LeaseRecord(_A, 3, 0, created=1_700_000_000), **fields)  # type: ignore[arg-type]


def test_a_lease_is_taken_when_it_is_unchanged_for_its_duration() -> None:
    observed = Observed(_record(), since=10.0)

    assert decide(observed, _B, 12.9) == "wait"
    assert decide(observed, _B, 13.0) == "take"
    assert decide(observed, _A, 99.0) == "renew"


def test_a_released_lease_is_taken_at_once() -> None:
    assert decide(Observed(_record(holder=""), since=10.0), _B, 10.0) == "take"


def test_a_renewal_restarts_the_wait() -> None:
    observed = Observed(_record(renewed="1"), since=10.0)

    assert observed.update(_record(renewed="1", version="7"), 12.0).since == 10.0
    assert observed.update(_record(renewed="2"), 12.0).since == 12.0


@given(st.lists(st.booleans(), min_size=1, max_size=30))
def test_epochs_never_decrease(made_anew: list[bool]) -> None:
    """Neither after a change of holder nor after the Lease was deleted."""
    created, transitions, before = 1_700_000_000, 0, 0
    for anew in made_anew:
        created, transitions = (created + 1, 0) if anew else (created, transitions + 1)
        epoch = epoch_of(_record(created=created, transitions=transitions))
        assert epoch > before
        before = epoch


def test_an_epoch_is_higher_than_that_of_a_control_plane_without_a_lease() -> None:
    assert epoch_of(_record(created=1_700_000_100)) > 1_700_000_000 * 10**6


def test_a_record_contains_the_address_of_its_holder() -> None:
    assert LeaseRecord(candidate("[::1]:7600"), 3, 0).leader == "[::1]:7600"
    assert LeaseRecord("", 3, 0).leader == ""


async def test_the_first_candidate_leads_and_the_second_knows_where(lease: LeaseInMemory) -> None:
    first, second = Elector(lease, _A, 2), Elector(lease, _B, 2)

    epoch = await first.lead()
    waiting = asyncio.create_task(second.lead())
    async with asyncio.timeout(BOUND):
        while second.leader != "10.0.0.1:7600":
            await asyncio.sleep(0)
    await first.release()
    async with asyncio.timeout(BOUND):
        assert await waiting > epoch
    assert (first.leading, second.leading) == (False, True)


async def test_one_of_two_concurrent_candidates_leads(lease: LeaseInMemory) -> None:
    both = [Elector(lease, me, 2) for me in (_A, _B)]
    attempts = [asyncio.create_task(replica.lead()) for replica in both]

    done, pending = await asyncio.wait(attempts, return_when=asyncio.FIRST_COMPLETED, timeout=10)

    assert len(done) == 1
    for task in pending:
        task.cancel()
    assert [replica.leading for replica in both].count(True) == 1


async def test_a_leader_that_cannot_renew_gives_up_before_the_lease_expires(
    lease: LeaseInMemory,
) -> None:
    leader, loop = Elector(lease, _A, 2), asyncio.get_running_loop()
    await leader.lead()
    lease.down = True
    began = loop.time()

    async with asyncio.timeout(BOUND):
        why = await leader.renew_until_lost()

    assert not leader.leading
    assert "could not be renewed" in why
    assert loop.time() - began >= 1.0


async def test_a_leader_whose_lease_was_stolen_gives_up_at_its_next_renewal(
    lease: LeaseInMemory,
) -> None:
    leader = Elector(lease, _A, 3)
    await leader.lead()
    assert lease.record is not None
    await lease.replace(replace(lease.record, holder=_B, transitions=1))

    async with asyncio.timeout(BOUND):
        why = await leader.renew_until_lost()

    assert not leader.leading
    assert leader.leader == "10.0.0.2:7600"
    assert "The new leader is: 10.0.0.2:7600" in why


async def test_a_follower_releases_nothing(lease: LeaseInMemory) -> None:
    await Elector(lease, _A, 3).lead()
    other = Elector(lease, _B, 3)

    await other.release()

    assert lease.record is not None
    assert lease.record.holder == _A


class CutLease(LeaseInMemory):
    """An API whose answer to a write gets lost: the writer is stopped meanwhile."""

    def __init__(self) -> None:
        super().__init__()
        self.written = asyncio.Event()
        self.cuts = False

    async def create(self, record: LeaseRecord) -> LeaseRecord:
        return await self._cut(await super().create(record))

    async def replace(self, record: LeaseRecord) -> LeaseRecord:
        return await self._cut(await super().replace(record))

    async def _cut(self, record: LeaseRecord) -> LeaseRecord:
        if self.cuts:
            self.written.set()
            await asyncio.Event().wait()
        return record


@pytest.mark.parametrize("leads", [False, True], ids=["taking it", "renewing it"])
async def test_a_lease_whose_last_write_was_cut_is_released(leads: bool) -> None:
    lease = CutLease()
    stopped = Elector(lease, _A, 1)
    if leads:
        await stopped.lead()
    lease.cuts = True
    writing = asyncio.create_task(stopped.renew_until_lost() if leads else _lead(stopped))
    async with asyncio.timeout(BOUND):
        await lease.written.wait()
    writing.cancel()
    lease.cuts = False

    await stopped.release()

    assert lease.record is not None
    assert lease.record.holder == ""


async def _lead(candidate: Elector) -> str:
    return str(await candidate.lead())


async def test_a_candidate_that_takes_its_own_lease_again_gets_a_later_epoch(
    lease: LeaseInMemory,
) -> None:
    """Its workers may have followed another leader since its earlier term."""
    before = await Elector(lease, _A, 2).lead()

    assert await Elector(lease, _A, 2).lead() > before


async def test_a_leader_whose_store_a_newer_one_has_claimed_steps_down(
    lease: LeaseInMemory,
) -> None:
    store = MemoryStore()
    stale, newer = (Plane(epoch=1, store=store, follows=True) for _ in range(2))
    elector = Elector(lease, _A, 60)
    leading = asyncio.create_task(lead_until_lost(stale, elector))
    async with asyncio.timeout(BOUND):
        while not stale.approvals.term.elected:
            await asyncio.sleep(0)
        await stale.approvals.refresh()
        assert lease.record is not None
        newer.lead(epoch_of(lease.record) + 1)
        await newer.approvals.refresh()
        pay = ApprovalRequest(
            tenant="acme",
            agent="",
            session="",
            of_session=False,
            server_id="bank",
            tool="pay",
            digest="1",
            arguments="{}",
            asked_by="key 1",
        )
        with pytest.raises(Fault, match="no longer the leader"):
            await stale.approvals.ask(pay, use=False)
        await leading
    assert not elector.leading
    assert (await newer.approvals.ask(pay, use=False)).verdict == "waiting"
