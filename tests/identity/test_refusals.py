"""Reports of refused RPCs for the audit."""

from __future__ import annotations

import asyncio
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.conftest import BOUND

from leaseway.identity import refusals as module
from leaseway.identity.refusals import MAX_KINDS, OTHERS, RpcRefusal, RpcRefusals
from leaseway.wire.errors import Fault, Reason

DENIED = Fault(Reason.PERMISSION_DENIED, "No.")
PEER = "ipv4:192.0.2.7:41234"


async def test_the_first_of_equal_refusals_is_reported_at_once_and_the_others_as_one() -> None:
    reported: list[tuple[RpcRefusal, int]] = []
    refusals = RpcRefusals()
    refusals.refused.connect(lambda refusal, times: reported.append((refusal, times)))
    rpc = "AdminService/DrainWorker"
    for port in range(100):
        refusals.record(rpc, "key abc", f"ipv4:192.0.2.7:{port}", DENIED)
    refusal = RpcRefusal(rpc, "key abc", "ipv4:192.0.2.7", "PERMISSION_DENIED")
    assert reported == [(refusal, 1)]
    refusals.flush()
    assert reported == [(refusal, 1), (refusal, 99)]
    refusals.flush()
    assert len(reported) == 2


async def test_counted_refusals_are_reported_after_the_window(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "WINDOW", 0.0)
    reported: asyncio.Queue[int] = asyncio.Queue()
    refusals = RpcRefusals()
    refusals.refused.connect(lambda _, times: reported.put_nowait(times))
    for _ in range(3):
        refusals.record("", "", PEER, DENIED)
    async with asyncio.timeout(BOUND):
        assert [await reported.get(), await reported.get()] == [1, 2]
    refusals.record("", "", PEER, DENIED)
    assert reported.get_nowait() == 1


def test_without_a_callback_refusals_are_not_counted() -> None:
    refusals = RpcRefusals()
    refusals.record("", "", PEER, DENIED)  # counting would need an event loop


@given(st.lists(st.integers(0, 3 * MAX_KINDS), max_size=500))
def test_a_flood_makes_few_reports_that_count_every_refusal(senders: list[int]) -> None:
    reported: Counter[RpcRefusal] = Counter()
    records = 0

    def on_refused(refusal: RpcRefusal, times: int) -> None:
        nonlocal records
        records += 1
        reported[refusal] += times

    async def flood() -> None:
        refusals = RpcRefusals()
        refusals.refused.connect(on_refused)
        for sender in senders:
            refusals.record("AdminService/GetStatus", f"key {sender}", PEER, DENIED)
        refusals.flush()

    asyncio.run(flood())
    assert reported.total() == len(senders)
    assert records <= 2 * MAX_KINDS + 1
    assert (OTHERS in reported) == (len(set(senders)) > MAX_KINDS)
