"""Approval of calls by a person, asked for at the control plane.

What is decided on is exactly what runs: the approval is bound to the arguments, to the caller's
`_meta` and to its answers to the server, and all of them are shown (`approval_view`). It is also
bound to the user, or to the caller's token, if the server acts for whoever calls.
"""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Awaitable, Callable
from typing import Any, Final

import msgspec

from leaseway.data_plane.audit.redact import Redactors
from leaseway.data_plane.calls.approval_view import ApprovalView, view_call
from leaseway.data_plane.calls.call import ActiveCall, approved_meta, parse_input
from leaseway.data_plane.core.tools.toolset import ToolPlan
from leaseway.identity.principal import Role
from leaseway.v1 import sync_pb2
from leaseway.wire.advice import for_operators
from leaseway.wire.errors import Fault, Reason
from leaseway.wire.secrets.redaction import redact
from leaseway.wire.timing.durations import seconds

AskApproval = Callable[[sync_pb2.ApprovalQuestion], Awaitable[sync_pb2.ApprovalAnswer]]

_MAX_DECLARED: Final = 1_000


class Confirmation:
    """Makes calls wait until a person approves them.

    Args:
        ask: Asks the control plane.
    """

    def __init__(self, ask: AskApproval) -> None:
        self._ask = ask
        self._redactors = Redactors()

    async def check(
        self, active: ActiveCall, plan: ToolPlan, *, is_shared: bool, use: bool
    ) -> None:
        """Wait until a person approves a call.

        Args:
            active: The call; its arguments are encoded anew.
            plan: Its tool.
            is_shared: Whether its server keeps no state for sessions.
            use: Whether to spend the approval because the call runs at once.

        Raises:
            Fault: CONFIRMATION_REQUIRED, PERMISSION_DENIED, RATE_LIMITED,
                CONTROL_PLANE_UNAVAILABLE, STORE_UNAVAILABLE.
        """
        view = self._view(active, plan)
        active.arguments = view.arguments
        call = active.call
        question = sync_pb2.ApprovalQuestion(
            use=use,
            tenant=call.tenant,
            agent=call.agent,
            session=call.session,
            of_session=not is_shared,
            server_id=call.server_id,
            tool=call.tool,
            digest=_digest(view, _subject(active)),
            arguments=view.shown_arguments,
            extra=view.shown_extra,
            asked_by=_asked_by(active),
            use_id=secrets.token_hex(16),
        )
        answer = await self._ask(question)
        if active.audit is not None:
            active.audit.approval, active.audit.approved_by = answer.approval_id, answer.decided_by
        if answer.state != "approved":
            raise _refusal(active, answer)

    def _view(self, active: ActiveCall, plan: ToolPlan) -> ApprovalView:
        call = active.call
        extra: dict[str, Any] = {}
        if call.meta and (meta := approved_meta(call.meta)):
            extra["_meta"] = meta
        if call.passes_input and (members := parse_input(call.input)):
            extra |= msgspec.json.decode(b"{" + members.removeprefix(b",") + b"}")
        redactor = self._redactors.get(plan.definition)

        def is_hidden(name: str | None, text: str) -> bool:
            # Messages to the control plane are redacted, which would hide a server's secret there.
            texts = (text, name or "")
            return redactor.hides(name, text) or any(redact(text) != text for text in texts)

        return view_call(
            f"{call.server_id}:{call.tool}",
            active.arguments,
            extra,
            _declared_arguments(plan.definition),
            is_hidden,
        )


def _digest(view: ApprovalView, subject: str) -> str:
    """Hash all that runs. The shown extra members have the same meaning as those that run."""
    runs = view.arguments + b"\n" + view.shown_extra.encode()
    return hashlib.sha256(runs + (b"\n" + subject.encode() if subject else b"")).hexdigest()


def _subject(active: ActiveCall) -> str:
    """Return as whom a call runs, if that is not the same for all calls of its tenant.

    Other workers must get the same, so that it is the token itself if that names nobody. Only its
    hash, together with the arguments, leaves the worker.
    """
    call = active.call
    match active.generation.variant.subject:
        case "user":
            return f"user {call.user}"
        case "caller":
            return f"user {call.user}" if call.user else f"token {call.subject_token}"
    return ""


def _asked_by(active: ActiveCall) -> str:
    name, user = active.caller.name, active.call.user
    return f"{name} for the user {user}" if user else name


def _declared_arguments(definition: bytes) -> list[str]:
    """Return the names of a tool's declared arguments, the required ones first."""
    schema = msgspec.json.decode(definition).get("inputSchema")
    if not isinstance(schema, dict):
        return []
    required, properties = schema.get("required"), schema.get("properties")
    names = [name for name in required or () if isinstance(name, str)]
    names += properties if isinstance(properties, dict) else ()
    return list(dict.fromkeys(names))[:_MAX_DECLARED]


def _refusal(active: ActiveCall, answer: sync_pb2.ApprovalAnswer) -> Fault:
    tool = f"{active.call.server_id}:{active.call.tool}"
    if answer.state == "full":
        return Fault(
            Reason.RATE_LIMITED,  # without a delay, so that the caller learns it at once
            "Too many calls of this tenant wait for an approval, so none was requested for "
            f"{tool}.",
            metadata=for_operators("Approve or deny the waiting calls: leaseway approvals."),
        )
    if answer.state == "unavailable":
        return Fault(
            Reason.STORE_UNAVAILABLE,
            f"This call of {tool} needs a person's approval, and the control plane cannot use the"
            " store that keeps approvals. Try again later.",
            metadata=for_operators("`leaseway problems` says why."),
            retry_delay=2.0,
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
        f"This call of {tool} needs a person's approval ({approval}). Once it is given, make the "
        f"same call again, within {valid_for / 60:.0f} minutes.",
        metadata={
            **for_operators(f"To approve it: leaseway approvals approve {approval}."),
            "confirmation_id": approval,
            "server": active.call.server_id,
            "expires_in": f"{valid_for:.0f}",
            "may_approve": "yes" if active.caller.has({Role.APPROVER}) else "no",
        },
    )
