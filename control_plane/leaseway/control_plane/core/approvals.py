"""Calls that need a person: which of them wait, and what was decided. Pure.

An approval is bound to who calls what with which exact arguments, is used once, and expires. It
has no life beyond its control plane: after a restart people are asked again.
"""

from __future__ import annotations

import secrets
from collections import Counter, OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final, Literal

from leaseway.control_plane.core.moment import Moment
from leaseway.wire.errors import Fault, Reason

State = Literal["waiting", "approved", "denied", "used", "expired"]
Verdict = Literal["approved", "waiting", "denied", "full"]

LASTS: Final = 900.0
"""Seconds that one waits for a person, and again for the call once a person has agreed."""
MOST_WAITING: Final = 1_000
MOST_OF_TENANT: Final = 100
"""How many of one tenant wait for a person, or for their call."""
_MOST_KEPT: Final = 4_096
_KEPT_FOR: Final = 3_600.0
_LONGEST_NOTE: Final = 512
_SHOWN: Final = 64


@dataclass(frozen=True, slots=True)
class ApprovalRequest:
    """A call that needs a person.

    Attributes:
        tenant: Whose it is.
        agent: Which of the tenant's agents calls.
        session: The session that it is made in.
        of_session: Whether agreement counts in that session only: the server keeps state for it.
        server_id: The server.
        tool: The tool by its original name.
        digest: Of the exact arguments.
        arguments: What people see of them.
        asked_by: The credential.
        worker_id: The worker that asks.
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
    worker_id: str = ""

    @property
    def bound_to(self) -> tuple[str, ...]:
        """What another call has to have in common with it to be the same one."""
        session = self.session if self.of_session else ""
        return self.tenant, self.agent, session, self.server_id, self.tool, self.digest


@dataclass(frozen=True, slots=True)
class ApprovalRecord:
    """One question and what became of it.

    Attributes:
        id: Names it.
        number: Counts them.
        question: The call.
        state: What became of it.
        asked: When, in Unix seconds.
        until: When it ends, in Unix seconds.
        ends: The same on the monotonic clock.
        decided_by: The credential that decided, or empty.
        note: What it had to say.
    """

    id: str
    number: int
    question: ApprovalRequest
    state: State
    asked: float
    until: float
    ends: float
    decided_by: str = ""
    note: str = ""


def _nothing(_approval: ApprovalRecord, _action: str) -> None:
    """Tell nobody."""


class Approvals:
    """What one control plane knows of them.

    Attributes:
        on_change: Told of each that was `asked`, `approved`, `denied`, `used` or has `expired`.
    """

    def __init__(self, on_change: Callable[[ApprovalRecord, str], None] = _nothing) -> None:
        self.on_change = on_change
        self._all: OrderedDict[str, ApprovalRecord] = OrderedDict()
        self._live: dict[tuple[str, ...], str] = {}
        self._open: Counter[str] = Counter()
        self._number = 0

    def ask(
        self, question: ApprovalRequest, now: Moment, *, use: bool
    ) -> tuple[Verdict, ApprovalRecord | None]:
        """Return whether a call may run; what nobody was asked about yet begins to wait.

        Args:
            question: The call.
            now: The present.
            use: Whether the call runs at once if it may; its approval is used up by that.
        """
        self.expire(now)
        known = self._live.get(question.bound_to)
        if known is None:
            return self._begin(question, now)
        approval = self._all[known]
        if approval.state == "approved":
            if use:
                approval = self._become(approval, "used")
            return "approved", approval
        return ("denied" if approval.state == "denied" else "waiting"), approval

    def decide(
        self, approval_id: str, tenant: str, by: str, now: Moment, *, approve: bool, note: str = ""
    ) -> ApprovalRecord:
        """Agree to a call, or refuse it.

        Args:
            approval_id: Which one.
            tenant: Of whoever decides; empty for all tenants.
            by: The credential that decides.
            now: The present.
            approve: Whether the call may run.
            note: What the credential has to say.

        Raises:
            Fault: INVALID_REQUEST: there is none, or it does not wait any more.
        """
        self.expire(now)
        approval = self._all.get(approval_id)
        if approval is None or tenant not in ("", approval.question.tenant):
            raise Fault(
                Reason.INVALID_REQUEST,
                f"There is no approval '{approval_id[:_SHOWN]}'. It may have ended long ago, or "
                "with a control plane that was restarted: have the caller try again.",
            )
        if approval.state != "waiting":
            raise Fault(Reason.INVALID_REQUEST, _does_not_wait(approval))
        approval = replace(approval, decided_by=by, note=note[:_LONGEST_NOTE])
        if not approve:
            return self._become(approval, "denied")
        approval = replace(approval, until=now.unix + LASTS, ends=now.mono + LASTS)
        return self._become(approval, "approved")

    def get(self, approval_id: str, tenant: str) -> ApprovalRecord | None:
        """Return one that is known, to whom it belongs."""
        approval = self._all.get(approval_id)
        return approval if approval and tenant in ("", approval.question.tenant) else None

    def expire(self, now: Moment) -> None:
        """End what has lasted long enough, and forget what ended long ago."""
        for approval_id in list(self._live.values()):
            approval = self._all[approval_id]
            if approval.ends <= now.mono:
                if approval.state == "denied":
                    del self._live[approval.question.bound_to]
                else:
                    self._become(approval, "expired")
        while self._all:
            oldest = next(iter(self._all.values()))
            is_old = oldest.ends + _KEPT_FOR <= now.mono or len(self._all) > _MOST_KEPT
            if not is_old or self._live.get(oldest.question.bound_to) == oldest.id:
                break
            del self._all[oldest.id]

    def next_deadline(self) -> float | None:
        """Return when the next one expires, on the monotonic clock; None if there is none."""
        return min((self._all[each].ends for each in self._live.values()), default=None)

    def listed(self, tenant: str, now: Moment) -> list[ApprovalRecord]:
        """Return those of a tenant, or of all (empty), the newest first."""
        self.expire(now)
        found = (one for one in self._all.values() if tenant in ("", one.question.tenant))
        return sorted(found, key=lambda one: -one.number)

    def _begin(
        self, question: ApprovalRequest, now: Moment
    ) -> tuple[Verdict, ApprovalRecord | None]:
        tenant_load = self._open[question.tenant]
        if tenant_load >= MOST_OF_TENANT or self._open.total() >= MOST_WAITING:
            return "full", None
        self._number += 1
        approval = ApprovalRecord(
            secrets.token_hex(8),
            self._number,
            question,
            "waiting",
            now.unix,
            now.unix + LASTS,
            now.mono + LASTS,
        )
        self._all[approval.id] = approval
        self._live[question.bound_to] = approval.id
        self._open[question.tenant] += 1
        self.on_change(approval, "asked")
        return "waiting", approval

    def _become(self, approval: ApprovalRecord, state: State) -> ApprovalRecord:
        approval = replace(approval, state=state)
        self._all[approval.id] = approval
        question = approval.question
        if state in ("used", "expired"):
            del self._live[question.bound_to]
        if state != "approved":  # which still counts, until its call comes
            self._open[question.tenant] -= 1
            if not self._open[question.tenant]:
                del self._open[question.tenant]
        self.on_change(approval, state)
        return approval


def _does_not_wait(approval: ApprovalRecord) -> str:
    if approval.state == "expired":
        return f"ApprovalRecord {approval.id} has expired. Have the caller try again."
    verb = "denied" if approval.state == "denied" else "approved"
    return f"ApprovalRecord {approval.id} was {verb} already, by {approval.decided_by}."
