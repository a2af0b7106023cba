"""The stage in which a call waits for a person's approval."""

from __future__ import annotations

from leaseway.data_plane.calls.call import ActiveCall
from leaseway.data_plane.calls.confirmation import Confirmation
from leaseway.data_plane.core.tools.toolset import ToolPlan


class ApprovalStage:
    """Asks for the approval of a call, and spends it right before the call is sent.

    A call enters twice: `ask` before it obtains an instance, so that a call without an approval
    starts none; `spend` after everything else that it may have to wait for.

    Args:
        confirmation: Asks people.
    """

    def __init__(self, confirmation: Confirmation) -> None:
        self._confirmation = confirmation

    def ask(self, active: ActiveCall) -> bool:
        """Let a call pass once it is approved."""
        if active.approval:
            return True
        active.wait_for(self._ask)
        return False

    def spend(self, active: ActiveCall) -> bool:
        """Let a call pass once its approval is spent on it."""
        if active.approval == "spent":
            return True
        active.wait_for(self._spend)
        return False

    async def _ask(self, active: ActiveCall) -> None:
        await self._check(active, use=False)
        active.approval = "given"

    async def _spend(self, active: ActiveCall) -> None:
        await self._check(active, use=True)
        active.approval = "spent"

    async def _check(self, active: ActiveCall, *, use: bool) -> None:
        plan = active.plan
        assert isinstance(plan, ToolPlan), "Only tools need approvals."
        active.event("waiting for an approval")
        is_shared = active.generation.is_shared
        await self._confirmation.check(active, plan, is_shared=is_shared, use=use)
