"""Requests for permits that name no limit."""

from __future__ import annotations

import pytest

from leaseway.control_plane.plane import Plane
from leaseway.control_plane.sync.budgets import BudgetAnswers
from leaseway.control_plane.sync.toolsets import MalformedMessage
from leaseway.v1 import sync_pb2
from leaseway.wire.names import MAX_KEY_LENGTH
from leaseway.wire.timing.durations import duration

CALLS, SLOTS = sync_pb2.BUDGET_QUOTA_CALLS, sync_pb2.BUDGET_QUOTA_CONCURRENT
MINUTE, NEGATIVE = duration(60.0), duration(-1.0)


@pytest.mark.parametrize(
    "ask",
    [
        sync_pb2.BudgetAsk(limit=6, period=MINUTE),
        sync_pb2.BudgetAsk(key=sync_pb2.BudgetKey(quota=CALLS), period=MINUTE),
        sync_pb2.BudgetAsk(key=sync_pb2.BudgetKey(quota=CALLS), limit=6),
        sync_pb2.BudgetAsk(key=sync_pb2.BudgetKey(quota=CALLS), limit=6, period=NEGATIVE),
        sync_pb2.BudgetAsk(key=sync_pb2.BudgetKey(quota=SLOTS), limit=6, period=MINUTE),
        sync_pb2.BudgetAsk(
            key=sync_pb2.BudgetKey(quota=CALLS, tenant="x" * (MAX_KEY_LENGTH + 1)),
            limit=6,
            period=MINUTE,
        ),
    ],
    ids=["no quota", "no limit", "no period", "negative period", "slots of a period", "long name"],
)
def test_a_request_that_names_no_limit_is_malformed(ask: sync_pb2.BudgetAsk) -> None:
    with pytest.raises(MalformedMessage, match="asked for permits"):
        BudgetAnswers(Plane(epoch=1)).answer("w1", ask)
