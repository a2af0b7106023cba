"""Calls of a fake that need a person's agreement."""

from __future__ import annotations

import hashlib
import json
import secrets
from collections.abc import Mapping
from typing import Any, Final

from leaseway.v1 import admin_pb2, execution_pb2
from leaseway.wire.durations import timestamp
from leaseway.wire.errors import Fault, Reason
from leaseway.wire.names import DEFAULT_TENANT

_LASTS: Final = 900
_MOST: Final = 1_000
_LONGEST_SHOWN: Final = 8_192


class FakeApprovals:
    """What waits for a person, and what was decided; nothing expires.

    Every credential may agree, as it is on loopback without credentials.
    """

    def __init__(self) -> None:
        self._all: dict[str, admin_pb2.Approval] = {}
        self._live: dict[tuple[str, ...], str] = {}

    def use(
        self, call: execution_pb2.Call, arguments: Mapping[str, Any], *, of_session: bool
    ) -> None:
        """Return if a person has agreed to a call; that is used up by it.

        Raises:
            Fault: CONFIRMATION_REQUIRED, PERMISSION_DENIED, OVERLOADED.

        """
        text = json.dumps(arguments, sort_keys=True, separators=(",", ":"))
        digest = hashlib.sha256(text.encode()).hexdigest()
        tenant = call.tenant or DEFAULT_TENANT
        session = call.session if of_session else ""
        key = (tenant, call.agent, session, call.server_id, call.tool, digest)
        known = self._all.get(self._live.get(key, ""))
        if known is None:
            if len(self._all) >= _MOST:
                raise Fault(Reason.OVERLOADED, f"{_MOST} calls were asked about already.")
            known = admin_pb2.Approval(
                id=secrets.token_hex(8),
                state="waiting",
                tenant=tenant,
                agent=call.agent,
                session=call.session,
                server_id=call.server_id,
                tool=call.tool,
                arguments=text[:_LONGEST_SHOWN],
                asked_by="nobody (leaseway.sdk.testing)",
                digest=digest,
            )
            known.asked_at.GetCurrentTime()
            known.expires_at.CopyFrom(timestamp(known.asked_at.seconds + _LASTS))
            self._all[known.id] = known
            self._live[key] = known.id
        what = f"{call.server_id}:{call.tool}"
        metadata = {"confirmation_id": known.id, "server": call.server_id}
        if known.state == "approved":
            known.state = "used"
            del self._live[key]
        elif known.state == "denied":
            message = f"{known.decided_by} has denied this call of {what} (approval {known.id})."
            raise Fault(Reason.PERMISSION_DENIED, message, metadata=metadata)
        else:
            raise Fault(
                Reason.CONFIRMATION_REQUIRED,
                f"A person has to agree to this call of {what} (approval {known.id}).",
                metadata={**metadata, "expires_in": str(_LASTS), "may_approve": "yes"},
            )

    def listed(self, tenant: str) -> list[tuple[tuple[str], admin_pb2.Approval]]:
        """Return those of a tenant, or of all (empty), the newest first, each with its place."""
        newest = list(self._all.values())[::-1]
        return [
            ((f"{place:06}",), each)
            for place, each in enumerate(newest)
            if tenant in ("", each.tenant)
        ]

    def decide(self, request: admin_pb2.DecideApprovalRequest) -> admin_pb2.Approval:
        """Agree to a call, or refuse it.

        Raises:
            Fault: INVALID_REQUEST: there is none, or it does not wait any more.

        """
        approval = self._all.get(request.id)
        if approval is None or request.tenant not in ("", approval.tenant):
            raise Fault(Reason.INVALID_REQUEST, f"There is no approval '{request.id[:64]}'.")
        if approval.state != "waiting":
            verb = "denied" if approval.state == "denied" else "approved"
            message = f"Approval {approval.id} was {verb} already, by {approval.decided_by}."
            raise Fault(Reason.INVALID_REQUEST, message)
        approval.state = "approved" if request.approve else "denied"
        approval.decided_by, approval.note = "nobody (leaseway.sdk.testing)", request.note
        return approval
