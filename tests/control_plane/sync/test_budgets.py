"""Requests for permits that name no limit."""

from __future__ import annotations

import pytest

from leaseway.control_plane.plane import Plane
from leaseway.control_plane.sync.budgets import BudgetAnswers
from leaseway.v1 import sync_pb2
from leaseway.wire.names import MAX_KEY_LENGTH
from leaseway.wire.timing.durations import duration

CALLS, SLOTS = sync_pb2.BUDGET_QUOTA_CALLS, sync_pb2.BUDGET_QUOTA_CONCURRENT
MINUTE, NEGATIVE = duration(60.0), duration(-1.0)


@pytest.mark.parametrize(
    "ask",
    [
        sync_pb2.BudgetAsk(limit=6, period=MINUTE),
        sync_pb2.BudgetAsk(key=sync_pb2.BudgetKey(quota=CALLS, tenant="a"), period=MINUTE),
        sync_pb2.BudgetAsk(key=sync_pb2.BudgetKey(quota=CALLS, tenant="a"), limit=6),
        sync_pb2.BudgetAsk(
            key=sync_pb2.BudgetKey(quota=CALLS, tenant="a"), limit=6, period=NEGATIVE
        ),
        sync_pb2.BudgetAsk(key=sync_pb2.BudgetKey(quota=SLOTS, tenant="a"), limit=6, period=MINUTE),
        sync_pb2.BudgetAsk(
            key=sync_pb2.BudgetKey(quota=CALLS, tenant="x" * (MAX_KEY_LENGTH + 1)),
            limit=6,
            period=MINUTE,
        ),
        sync_pb2.BudgetAsk(key=sync_pb2.BudgetKey(quota=CALLS), limit=6, period=MINUTE),
        sync_pb2.BudgetAsk(
            key=sync_pb2.BudgetKey(quota=CALLS, tenant="a", agent="b"), limit=6, period=MINUTE
        ),
    ],
    ids=[
        "no quota",
        "no limit",
        "no period",
        "negative period",
        "slots of a period",
        "long name",
        "no owner",
        "another owner",
    ],
)
def test_a_request_that_names_no_limit_costs_its_worker_nothing_else(
    ask: sync_pb2.BudgetAsk, caplog: pytest.LogCaptureFixture
) -> None:
    plane = Plane(epoch=1)
    ask.needed = 1
    BudgetAnswers(plane).answer("w1", ask)
    assert len(plane.budgets) == 0
    assert "does not know" in caplog.text
