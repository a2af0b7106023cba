"""Converts the requests for permits of limits, and their answers, which both planes exchange."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from leaseway.v1 import sync_pb2
from leaseway.wire.names import MAX_KEY_LENGTH
from leaseway.wire.sharing.limits import BudgetAsk, BudgetGrant, BudgetKey, BudgetScope, CallQuota
from leaseway.wire.timing.durations import duration, seconds

QUOTAS: Final[Mapping[tuple[BudgetScope, CallQuota], sync_pb2.BudgetQuota.ValueType]] = {
    ("tenant", "calls"): sync_pb2.BUDGET_QUOTA_CALLS,
    ("tenant", "external"): sync_pb2.BUDGET_QUOTA_EXTERNAL,
    ("tenant", "concurrent"): sync_pb2.BUDGET_QUOTA_CONCURRENT,
    ("agent", "calls"): sync_pb2.BUDGET_QUOTA_AGENT_CALLS,
    ("agent", "concurrent"): sync_pb2.BUDGET_QUOTA_AGENT_CONCURRENT,
    ("server", "calls"): sync_pb2.BUDGET_QUOTA_SERVER_CALLS,
    ("server", "concurrent"): sync_pb2.BUDGET_QUOTA_SERVER_CONCURRENT,
    ("tool", "calls"): sync_pb2.BUDGET_QUOTA_TOOL_CALLS,
    ("tool", "concurrent"): sync_pb2.BUDGET_QUOTA_TOOL_CONCURRENT,
}
_NAMES: Final[dict[int, tuple[BudgetScope, CallQuota]]] = {
    number: name for name, number in QUOTAS.items()
}


def budget_key_to_proto(key: BudgetKey) -> sync_pb2.BudgetKey:
    return sync_pb2.BudgetKey(
        tenant=key.tenant,
        quota=QUOTAS[key.scope, key.quota],
        server_id=key.server_id,
        agent=key.agent,
        tool=key.tool,
    )


def budget_key_from_proto(message: sync_pb2.BudgetKey) -> BudgetKey | None:
    """Return the key of a message; None if it is of a newer version, or its parts do not fit."""
    scope, quota = _NAMES.get(message.quota, ("tenant", None))
    if quota is None:
        return None
    key = BudgetKey(
        tenant=message.tenant,
        quota=quota,
        server_id=message.server_id,
        agent=message.agent,
        tool=message.tool,
    )
    is_whole = key.scope == scope and max(map(len, key)) <= MAX_KEY_LENGTH
    return key if is_whole else None


def budget_ask_to_proto(ask: BudgetAsk) -> sync_pb2.BudgetAsk:
    message = sync_pb2.BudgetAsk(
        key=budget_key_to_proto(ask.key),
        limit=ask.limit,
        needed=ask.needed,
        expected=ask.expected,
        returned=ask.returned,
        held=ask.held,
        leased=ask.leased,
    )
    if ask.period:
        message.period.CopyFrom(duration(ask.period))
    if ask.renews_in:
        message.renews_in.CopyFrom(duration(ask.renews_in))
    return message


def budget_ask_from_proto(message: sync_pb2.BudgetAsk) -> BudgetAsk | None:
    """Return a worker's request, or None if it is for no limit of this version."""
    key = budget_key_from_proto(message.key)
    period = seconds(message.period)
    if key is None or not message.limit or period < 0:
        return None
    if (key.quota == "concurrent") != (not period):
        return None
    return BudgetAsk(
        key=key,
        limit=message.limit,
        period=period,
        needed=message.needed,
        expected=message.expected,
        returned=message.returned,
        held=min(message.held, message.limit),
        renews_in=seconds(message.renews_in),
        leased=min(message.leased, message.limit) if period else 0,
    )


def budget_grant_to_proto(grant: BudgetGrant) -> sync_pb2.BudgetGrant:
    message = sync_pb2.BudgetGrant(
        key=budget_key_to_proto(grant.key), granted=grant.granted, remaining=grant.remaining
    )
    if grant.renews_in > 0:
        message.renews_in.CopyFrom(duration(grant.renews_in))
    if grant.retry_in > 0:
        message.retry_in.CopyFrom(duration(grant.retry_in))
    return message


def budget_grant_from_proto(message: sync_pb2.BudgetGrant) -> BudgetGrant | None:
    """Return an answer, or None if it is about no limit of this version."""
    key = budget_key_from_proto(message.key)
    if key is None:
        return None
    return BudgetGrant(
        key=key,
        granted=message.granted,
        remaining=message.remaining,
        renews_in=seconds(message.renews_in),
        retry_in=seconds(message.retry_in),
    )
