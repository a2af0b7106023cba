"""Approval of calls by a person, asked for at the control plane.

The server gets the arguments encoded anew from the parsed ones, so that it reads the same values as
the person: of a duplicate key, only one value is left.
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

AskApproval = Callable[[sync_pb2.ApprovalQuestion], Awaitable[sync_pb2.ApprovalAnswer]]

_MAX_SHOWN: Final = 8 * KIB
_FULL_RETRY: Final = 30.0


class Confirmation:
    """Makes calls wait until a person approves them.

    Args:
        ask: Asks the control plane.
    """

    def __init__(self, ask: AskApproval) -> None:
        self._ask = ask
        self._redactors = Redactors()

    async def check(self, active: ActiveCall, plan: Plan, *, is_shared: bool, use: bool) -> None:
        """Wait until a person approves a call.

        Args:
            active: The call; its arguments are encoded anew.
            plan: Its tool.
            is_shared: Whether its server keeps no state for sessions.
            use: Whether to spend the approval because the call runs at once.

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
            arguments=self._display(plan, active.arguments, parsed),
            asked_by=caller().name,
        )
        answer = await self._ask(question)
        if active.audit is not None:
            active.audit.approval, active.audit.approved_by = answer.approval_id, answer.decided_by
        if answer.state != "approved":
            raise _refusal(active, answer)

    def _display(self, plan: Plan, arguments: bytes, parsed: dict[str, Any]) -> str:
        redacted = self._redactors.get(plan.definition).redact(arguments, parsed)
        shown = msgspec.json.encode(redacted).decode(errors="replace")
        if len(shown) <= _MAX_SHOWN:
            return shown
        return f"{shown[:_MAX_SHOWN]} … ({len(shown)} characters)"


def _refusal(active: ActiveCall, answer: sync_pb2.ApprovalAnswer) -> Fault:
    tool = f"{active.call.server_id}:{active.call.tool}"
    if answer.state == "full":
        return Fault(
            Reason.OVERLOADED,
            f"Too many calls of this tenant wait for an approval, so none was requested for "
            f"{tool}. Approve or deny the waiting calls: leaseway approvals.",
            retry_delay=_FULL_RETRY,
        )
    approval = answer.approval_id
    if answer.state == "denied":
        return Fault(
            Reason.PERMISSION_DENIED,
            f"{answer.decided_by} has denied this call of {tool} (approval {approval}).",
            metadata={"confirmation_id": approval, "server": active.call.server_id},
        )
    valid_for = seconds(answer.expires_in)
    return Fault(
        Reason.CONFIRMATION_REQUIRED,
        f"This call of {tool} needs a person's approval: leaseway approvals approve {approval}. "
        f"Then make the same call again, within {valid_for / 60:.0f} minutes.",
        metadata={
            "confirmation_id": approval,
            "server": active.call.server_id,
            "expires_in": f"{valid_for:.0f}",
            "may_approve": "yes" if caller().has({Role.APPROVER}) else "no",
        },
    )
