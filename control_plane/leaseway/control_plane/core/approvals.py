"""Calls that need a person's approval, and the decisions. Pure.

An approval is bound to the caller, the tool and the exact arguments, is used once, and expires.
Approvals are not persisted: after a restart, people are asked again.
"""

from __future__ import annotations

import secrets
from collections import Counter, OrderedDict
from dataclasses import dataclass, replace
from typing import Final, Literal

from leaseway.control_plane.core.moment import Moment
from leaseway.wire.bounds import MAX_APPROVAL
from leaseway.wire.errors import Fault, Reason
from leaseway.wire.messages.states import ApprovalState
from leaseway.wire.signals import Signal

Verdict = Literal["approved", "waiting", "denied", "full"]

LIFETIME: Final = 900.0
"""Seconds to wait for a decision, and again for the call after an approval."""
MAX_OPEN: Final = 1_000
MAX_TENANT_OPEN: Final = 100
"""Limit of a tenant's approvals that wait for a decision or for their call."""
_MAX_RECORDS: Final = 4_096
_RETENTION: Final = 3_600.0
_MAX_NOTE: Final = 512
_SHOWN: Final = 64


@dataclass(frozen=True, slots=True)
class ApprovalRequest:
    """A call that needs a person's approval.

    Attributes:
        of_session: Whether an approval counts in that session only, as the server keeps its state.
        tool: The tool's original name.
        digest: A hash of the exact arguments and extra members.
        arguments: The arguments as people see them.
        extra: The caller's other members for the server as people see them, or empty.
        asked_by: The credential of the caller.
        worker_id: The worker that runs the call.
    """

    tenant: str
    agent: str
    session: str
    of_session: bool
    server_id: str
    tool: str
    digest: str
    arguments: str
    asked_by: str
    extra: str = ""
    worker_id: str = ""

    @property
    def bound_to(self) -> tuple[str, ...]:
        """Equal for calls that count as the same one."""
        session = self.session if self.of_session else ""
        return self.tenant, self.agent, session, self.server_id, self.tool, self.digest


@dataclass(frozen=True, slots=True)
class ApprovalRecord:
    """A request for approval and its state.

    Attributes:
        number: Its position in the order of requests.
        asked: Time of the request in Unix seconds.
        until: When it expires in Unix seconds.
        ends: When it expires on the monotonic clock.
        decided_by: The credential that decided, or empty.
        note: A comment on the decision.
    """

    id: str
    number: int
    question: ApprovalRequest
    state: ApprovalState
    asked: float
    until: float
    ends: float
    decided_by: str = ""
    note: str = ""


class Approvals:
    """All approvals of a control plane.

    Attributes:
        changed: One was `asked`, `approved`, `denied`, `used` or `expired`.
    """

    def __init__(self) -> None:
        self.changed = Signal[ApprovalRecord, str]()
        self._all: OrderedDict[str, ApprovalRecord] = OrderedDict()
        self._live: dict[tuple[str, ...], str] = {}
        self._open: Counter[str] = Counter()
        self._number = 0

    def ask(
        self, question: ApprovalRequest, now: Moment, *, use: bool
    ) -> tuple[Verdict, ApprovalRecord | None]:
        """Return whether a call may run; an unknown call becomes a waiting request.

        Args:
            question: The call.
            now: The time.
            use: Whether an approved call runs at once, which uses up its approval.
        """
        self.expire(now)
        known = self._live.get(question.bound_to)
        if known is None:
            return self._add(question, now)
        approval = self._all[known]
        if approval.state == "approved":
            if use:
                approval = self._set_state(approval, "used")
            return "approved", approval
        return ("denied" if approval.state == "denied" else "waiting"), approval

    def decide(
        self, approval_id: str, tenant: str, by: str, now: Moment, *, approve: bool, note: str = ""
    ) -> ApprovalRecord:
        """Approve or deny a call.

        Args:
            approval_id: The approval.
            tenant: The tenant of the person who decides; empty for all tenants.
            by: The credential that decides.
            now: The time.
            approve: Whether the call may run.
            note: A comment.

        Raises:
            Fault: INVALID_REQUEST: it is unknown or no longer waiting.
        """
        self.expire(now)
        approval = self._all.get(approval_id)
        if approval is None or tenant not in ("", approval.question.tenant):
            raise Fault(
                Reason.INVALID_REQUEST,
                f"There is no approval '{approval_id[:_SHOWN]}'. It may have expired, or the "
                "control plane was restarted. The caller can try again.",
            )
        if approval.state != "waiting":
            raise Fault(Reason.INVALID_REQUEST, _not_waiting(approval))
        approval = replace(approval, decided_by=by, note=note[:_MAX_NOTE])
        if not approve:
            return self._set_state(approval, "denied")
        approval = replace(approval, until=now.unix + LIFETIME, ends=now.mono + LIFETIME)
        return self._set_state(approval, "approved")

    def get(self, approval_id: str, tenant: str) -> ApprovalRecord | None:
        """Return an approval of a tenant, or of any tenant (empty), if it is known."""
        approval = self._all.get(approval_id)
        return approval if approval and tenant in ("", approval.question.tenant) else None

    def expire(self, now: Moment) -> None:
        """Expire approvals, and remove old ones."""
        for approval_id in list(self._live.values()):
            approval = self._all[approval_id]
            if approval.ends <= now.mono:
                if approval.state == "denied":
                    del self._live[approval.question.bound_to]
                else:
                    self._set_state(approval, "expired")
        while self._all:
            oldest = next(iter(self._all.values()))
            is_old = oldest.ends + _RETENTION <= now.mono or len(self._all) > _MAX_RECORDS
            if not is_old or self._live.get(oldest.question.bound_to) == oldest.id:
                break
            del self._all[oldest.id]

    def next_deadline(self) -> float | None:
        """Return when the next approval expires on the monotonic clock, or None."""
        return min(
            (self._all[approval_id].ends for approval_id in self._live.values()), default=None
        )

    def listed(self, tenant: str, now: Moment) -> list[ApprovalRecord]:
        """Return the approvals of a tenant, or of all tenants (empty), newest first."""
        self.expire(now)
        found = (record for record in self._all.values() if tenant in ("", record.question.tenant))
        return sorted(found, key=lambda one: -one.number)

    def _add(self, question: ApprovalRequest, now: Moment) -> tuple[Verdict, ApprovalRecord | None]:
        too_long = len(question.arguments) + len(question.extra) > MAX_APPROVAL
        if (
            too_long  # no worker asks this: it would have to be cut, and nobody decides on a part
            or self._open[question.tenant] >= MAX_TENANT_OPEN
            or self._open.total() >= MAX_OPEN
        ):
            return "full", None
        self._number += 1
        approval = ApprovalRecord(
            id=secrets.token_hex(8),
            number=self._number,
            question=question,
            state="waiting",
            asked=now.unix,
            until=now.unix + LIFETIME,
            ends=now.mono + LIFETIME,
        )
        self._all[approval.id] = approval
        self._live[question.bound_to] = approval.id
        self._open[question.tenant] += 1
        self.changed.emit(approval, "asked")
        return "waiting", approval

    def _set_state(self, approval: ApprovalRecord, state: ApprovalState) -> ApprovalRecord:
        approval = replace(approval, state=state)
        self._all[approval.id] = approval
        question = approval.question
        if state in ("used", "expired"):
            del self._live[question.bound_to]
        if state != "approved":  # an approved one stays open until its call is made
            self._open[question.tenant] -= 1
            if not self._open[question.tenant]:
                del self._open[question.tenant]
        self.changed.emit(approval, state)
        return approval


def _not_waiting(approval: ApprovalRecord) -> str:
    if approval.state == "expired":
        return f"Approval {approval.id} has expired. The caller can try again."
    verb = "denied" if approval.state == "denied" else "approved"
    return f"Approval {approval.id} was already {verb} by {approval.decided_by}."
