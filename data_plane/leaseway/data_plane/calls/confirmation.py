"""Calls that need a person's agreement: what is asked of the control plane, and what it means.

A call is sent only with arguments written anew from what was parsed, so that the server reads the
very values that the person saw: of a key that is there twice there is one left.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Awaitable, Callable
from typing import Any, Final

import msgspec

from leaseway.data_plane.audit.record import Plan
from leaseway.data_plane.audit.redact import Redactors
from leaseway.data_plane.calls.call import ActiveCall
from leaseway.identity.interceptor import caller
from leaseway.identity.principal import Role
from leaseway.v1 import sync_pb2
from leaseway.wire.bounds import KIB
from leaseway.wire.errors import Fault, Reason
from leaseway.wire.names import DEFAULT_TENANT
from leaseway.wire.timing.durations import seconds

Ask = Callable[[sync_pb2.ApprovalQuestion], Awaitable[sync_pb2.ApprovalAnswer]]

_LONGEST_SHOWN: Final = 8 * KIB
_FULL_RETRY: Final = 30.0


class Confirmation:
    """Has calls wait until a person agrees.

    Args:
        ask: Asks the control plane.
    """

    def __init__(self, ask: Ask) -> None:
        self._ask = ask
        self._redactors = Redactors()

    async def check(self, active: ActiveCall, plan: Plan, *, is_shared: bool, use: bool) -> None:
        """Return if a person agrees to a call.

        Args:
            active: The call; its arguments are written anew.
            plan: Its tool.
            is_shared: Whether its server keeps no state for its session.
            use: Whether it runs at once: the agreement is used up by that.

        Raises:
            Fault: CONFIRMATION_REQUIRED, PERMISSION_DENIED, OVERLOADED, CONTROL_PLANE_UNAVAILABLE.
        """
        parsed = msgspec.json.decode(active.arguments)
        active.arguments = json.dumps(parsed, sort_keys=True, separators=(",", ":")).encode()
        call = active.call
        question = sync_pb2.ApprovalQuestion(
            use=use,
            tenant=call.tenant or DEFAULT_TENANT,
            agent=call.agent,
            session=call.session,
            of_session=not is_shared,
            server_id=call.server_id,
            tool=call.tool,
            digest=hashlib.sha256(active.arguments).hexdigest(),
            arguments=self._shown(plan, active.arguments, parsed),
            asked_by=caller().name,
        )
        answer = await self._ask(question)
        if active.audit is not None:
            active.audit.approval, active.audit.approved_by = answer.approval_id, answer.decided_by
        if answer.state != "approved":
            raise _refusal(active, answer)

    def _shown(self, plan: Plan, arguments: bytes, parsed: dict[str, Any]) -> str:
        redacted = self._redactors.of(plan.definition).redacted(arguments, parsed)
        shown = msgspec.json.encode(redacted).decode(errors="replace")
        if len(shown) <= _LONGEST_SHOWN:
            return shown
        return f"{shown[:_LONGEST_SHOWN]} … ({len(shown)} characters)"


def _refusal(active: ActiveCall, answer: sync_pb2.ApprovalAnswer) -> Fault:
    what = f"{active.call.server_id}:{active.call.tool}"
    if answer.state == "full":
        return Fault(
            Reason.OVERLOADED,
            f"Too many calls of this tenant wait for a person already; {what} is not asked about. "
            "Have them approved or denied: leaseway approvals.",
            retry_delay=_FULL_RETRY,
        )
    approval = answer.approval_id
    if answer.state == "denied":
        return Fault(
            Reason.PERMISSION_DENIED,
            f"{answer.decided_by} has denied this call of {what} (approval {approval}).",
            metadata={"confirmation_id": approval, "server": active.call.server_id},
        )
    left = seconds(answer.expires_in)
    return Fault(
        Reason.CONFIRMATION_REQUIRED,
        f"A person has to agree to this call of {what}: leaseway approvals approve {approval}. "
        f"Then make the same call again, within {left / 60:.0f} minutes.",
        metadata={
            "confirmation_id": approval,
            "server": active.call.server_id,
            "expires_in": f"{left:.0f}",
            "may_approve": "yes" if caller().has({Role.APPROVER}) else "no",
        },
    )
