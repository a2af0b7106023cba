"""Counts calls against limits, and says which limit is used up and when it renews.

Pure: time is a parameter.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Final

from leaseway.data_plane.core.tools.budgets import Demand, LimitReached, WorkerBudgets
from leaseway.spec.policy import OTHER_TENANTS
from leaseway.wire.errors import Fault, Reason
from leaseway.wire.sharing.limits import BudgetKey, CallQuota, limit_metadata

_MAX_TENANTS: Final = 10_000


class CallUsage:
    """The calls on this worker, checked against limits.

    Args:
        budgets: This worker's shares of the limits.

    Attributes:
        take_granted: `WorkerBudgets.take_granted`, which is enough for most calls.
        refused: How often each (tenant, limit) of tenants caused a rejection.
    """

    def __init__(self, budgets: WorkerBudgets) -> None:
        self._budgets = budgets
        self.take_granted = self._budgets.take_granted
        self.refused: Counter[tuple[str, CallQuota]] = Counter()

    def start_call(self, demands: Sequence[Demand], now: float) -> None:
        """Count a call that is about to run; `end_call` has to free its slots after it.

        Raises:
            Fault: RATE_LIMITED, with the delay after which to try again; nothing was counted.
            PermitNeeded: The control plane must be asked first; nothing was counted.
        """
        try:
            self._budgets.take(demands, now)
        except LimitReached as reached:
            raise self._fault(reached) from None

    def end_call(self, slots: Iterable[BudgetKey]) -> None:
        """Free the slots of a call that has ended."""
        self._budgets.end_call(slots)

    @property
    def in_flight(self) -> dict[str, int]:
        """The calls in flight of each tenant with a `concurrent` limit."""
        return {
            key.tenant: used for key, used in self._budgets.slots_in_use() if key.scope == "tenant"
        }

    def _fault(self, reached: LimitReached) -> Fault:
        demand, key, wait = reached.demand, reached.demand.key, reached.wait
        if key.scope == "tenant":
            has_room = len(self.refused) < _MAX_TENANTS
            self.refused[key.tenant if has_room else OTHER_TENANTS, key.quota] += 1
        metadata = {
            **limit_metadata(f"limits.{key.quota}", key.scope, demand.entry),
            "remaining": str(self._budgets.remaining(key)),
            "renews_in": f"{wait:.2f}",
        }
        return Fault(
            Reason.RATE_LIMITED,
            _sentence(demand, wait, is_shared=self._budgets.fleet is not None),
            metadata=metadata,
            retry_delay=wait,
        )


def _sentence(demand: Demand, wait: float, *, is_shared: bool) -> str:
    owner = demand.key.owner
    where = "all workers together" if is_shared else "this worker"
    if not demand.period:
        others = ", or other workers have just used the rest" if is_shared else ""
        return (
            f"{owner[0].upper()}{owner[1:]} has {demand.limit} calls in flight on {where}, its"
            f" limit{others}. Wait for some to end."
        )
    what = (
        f"External tools of server {demand.key.server_id}, by {owner},"
        if (demand.key.quota == "external")
        else f"Calls of {owner}"
    )
    return (
        f"{what} may be made {demand.limit} times in {demand.period:g} s on {where}, and no call"
        f" is left. The next one is possible in {wait:.2f} s."
    )
