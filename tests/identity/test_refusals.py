"""What an audit is told of RPCs that were refused."""

from __future__ import annotations

import asyncio
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from leaseway.identity import refusals as module
from leaseway.identity.refusals import MOST_KINDS, OTHERS, Refusal, Refusals
from leaseway.wire.errors import Fault, Reason

DENIED = Fault(Reason.PERMISSION_DENIED, "No.")
PEER = "ipv4:192.0.2.7:41234"


async def test_the_first_is_told_at_once_and_those_after_it_as_one() -> None:
    told: list[tuple[Refusal, int]] = []
    refusals = Refusals()
    refusals.tell = lambda refusal, times: told.append((refusal, times))
    for port in range(100):
        refusals.note("AdminService/DrainWorker", "key abc", f"ipv4:192.0.2.7:{port}", DENIED)
    one = Refusal("AdminService/DrainWorker", "key abc", "ipv4:192.0.2.7", "PERMISSION_DENIED")
    assert told == [(one, 1)]
    refusals.flush()
    assert told == [(one, 1), (one, 99)]
    refusals.flush()
    assert len(told) == 2


async def test_those_of_a_minute_are_told_when_it_has_passed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "WINDOW", 0.0)
    told: asyncio.Queue[int] = asyncio.Queue()
    refusals = Refusals()
    refusals.tell = lambda _, times: told.put_nowait(times)
    for _ in range(3):
        refusals.note("", "", PEER, DENIED)
    async with asyncio.timeout(10):
        assert [await told.get(), await told.get()] == [1, 2]
    refusals.note("", "", PEER, DENIED)
    assert told.get_nowait() == 1


def test_where_nobody_wants_to_know_nothing_is_kept() -> None:
    refusals = Refusals()
    refusals.note("", "", PEER, DENIED)  # it needs a loop where it keeps something


@given(st.lists(st.integers(0, 3 * MOST_KINDS), max_size=500))
def test_a_flood_tells_little_and_forgets_none(senders: list[int]) -> None:
    told: Counter[Refusal] = Counter()
    records = 0

    def tell(refusal: Refusal, times: int) -> None:
        nonlocal records
        records += 1
        told[refusal] += times

    async def flood() -> None:
        refusals = Refusals()
        refusals.tell = tell
        for sender in senders:
            refusals.note("AdminService/GetStatus", f"key {sender}", PEER, DENIED)
        refusals.flush()

    asyncio.run(flood())
    assert told.total() == len(senders)
    assert records <= 2 * MOST_KINDS + 1
    assert (OTHERS in told) == (len(set(senders)) > MOST_KINDS)
