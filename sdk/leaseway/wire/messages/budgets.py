"""Converts the keys of budgets, which both planes exchange."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from leaseway.v1 import sync_pb2
from leaseway.wire.limits import BudgetKey, CallQuota

QUOTAS: Final[Mapping[CallQuota, sync_pb2.BudgetQuota.ValueType]] = {
    "calls": sync_pb2.BUDGET_QUOTA_CALLS,
    "external": sync_pb2.BUDGET_QUOTA_EXTERNAL,
    "concurrent": sync_pb2.BUDGET_QUOTA_CONCURRENT,
}
_NAMES: Final[dict[int, CallQuota]] = {number: quota for quota, number in QUOTAS.items()}


def budget_key_to_proto(key: BudgetKey) -> sync_pb2.BudgetKey:
    return sync_pb2.BudgetKey(tenant=key.tenant, quota=QUOTAS[key.quota], server_id=key.server_id)


def budget_key_from_proto(message: sync_pb2.BudgetKey) -> BudgetKey | None:
    """Return the key of a message, or None if it names a quota of a newer version."""
    quota = _NAMES.get(message.quota)
    return None if quota is None else BudgetKey(message.tenant, quota, message.server_id)
