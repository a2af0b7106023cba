"""Calls that need a person's approval, and the decisions. Pure.

An approval is bound to the caller, the tool and the exact arguments, is used once, and expires.
`ask` and `decide` only say what is to change; `apply` changes it, when the change is kept where it
outlives this process (design.md#what-lasts). Time needs no keeping: a record says when it expires.
"""

from __future__ import annotations

import secrets
from collections import Counter, OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass, replace
from operator import attrgetter
from typing import Final, Literal

from leaseway.control_plane.core.moment import Moment
from leaseway.wire.bounds import KIB, MAX_APPROVAL
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
_MAX_NAMES: Final = 16 * KIB
"""Characters of all names of a request; those that workers send are much shorter."""
_SHOWN: Final = 64
_OPEN: Final = frozenset[ApprovalState]({"waiting", "approved"})


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

    @property
    def is_too_long(self) -> bool:
        """Whether it exceeds a bound; no worker asks this.

        It would have to be cut, and nobody decides on a part.
        """
        names = (*self.bound_to, self.session, self.asked_by, self.worker_id)
        shown = len(self.arguments) + len(self.extra)
        return shown > MAX_APPROVAL or sum(map(len, names)) > _MAX_NAMES


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
        use_id: The call that has used it, or empty; older workers do not name their calls.
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
    use_id: str = ""


@dataclass(frozen=True, slots=True)
class Answer:
    """Whether a call may run.

    Attributes:
        record: The approval, as it is after the change; None if there is none.
        changes: Whether the record has to be applied before the answer holds.
    """

    verdict: Verdict
    record: ApprovalRecord | None = None
    changes: bool = False


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
        self._uses: dict[str, str] = {}
        self._removed: set[str] = set()
        self._number = 0

    def ask(self, question: ApprovalRequest, now: Moment, *, use: bool, use_id: str = "") -> Answer:
        """Return whether a call may run; an unknown call becomes a waiting request.

        Args:
            now: The time.
            use: Whether an approved call runs at once, which uses up its approval.
            use_id: Identifies the call. Who asks again for it, because the answer was lost, gets
                the same answer; any other call gets it never. Empty for an older worker.
        """
        self.expire(now)
        used = self._all.get(self._uses.get(use_id, ""))
        if use and used is not None and used.question.bound_to == question.bound_to:
            return Answer("approved", used)
        known = self._live.get(question.bound_to)
        if known is None:
            return self._requested(question, now)
        approval = self._all[known]
        if approval.state == "approved":
            if use:
                return Answer("approved", replace(approval, state="used", use_id=use_id), True)
            return Answer("approved", approval)
        return Answer("denied" if approval.state == "denied" else "waiting", approval)

    def decide(
        self, approval_id: str, tenant: str, by: str, now: Moment, *, approve: bool, note: str = ""
    ) -> ApprovalRecord:
        """Return an approval as it is when the decision is applied.

        Args:
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
                f"There is no approval '{approval_id[:_SHOWN]}'. It may have expired, or a control"
                " plane that keeps approvals in memory was restarted. The caller can try again.",
            )
        if approval.state != "waiting":
            raise Fault(Reason.INVALID_REQUEST, _not_waiting(approval))
        approval = replace(approval, decided_by=by, note=note[:_MAX_NOTE])
        if not approve:
            return replace(approval, state="denied")
        return replace(
            approval, state="approved", until=now.unix + LIFETIME, ends=now.mono + LIFETIME
        )

    def apply(self, approval: ApprovalRecord) -> None:
        """Replace or add an approval, and tell what has changed."""
        known = self._all.get(approval.id)
        self._put(approval)
        if known is None or known.state != approval.state:
            action = "asked" if approval.state == "waiting" else approval.state
            self.changed.emit(approval, action)

    def restore(self, approvals: Iterable[ApprovalRecord], now: Moment) -> None:
        """Add the approvals of an earlier control plane, without telling anybody."""
        for approval in sorted(approvals, key=attrgetter("number")):
            is_over = approval.state in _OPEN and approval.ends <= now.mono
            self._put(replace(approval, state="expired") if is_over else approval)

    def discard(self, approval_id: str) -> None:
        """Forget an approval, if it is known; what is kept of it elsewhere stays there."""
        known = self._all.pop(approval_id, None)
        if known is not None:
            self._forget(known)

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
                    self.apply(replace(approval, state="expired"))
        while self._all:
            oldest = next(iter(self._all.values()))
            is_old = oldest.ends + _RETENTION <= now.mono or len(self._all) > _MAX_RECORDS
            if not is_old or self._live.get(oldest.question.bound_to) == oldest.id:
                break
            self._forget(oldest)
            del self._all[oldest.id]
            self._removed.add(oldest.id)

    def next_deadline(self) -> float | None:
        """Return when the next approval expires or is removed, on the monotonic clock, or None."""
        times = [self._all[approval_id].ends for approval_id in self._live.values()]
        if self._all:
            oldest = next(iter(self._all.values()))
            times.append(oldest.ends + _RETENTION)
        return min(times, default=None)

    def removed(self) -> frozenset[str]:
        """Return the ids of removed approvals whose records may still be kept elsewhere."""
        return frozenset(self._removed)

    def confirm_removed(self, approval_ids: Iterable[str]) -> None:
        """Note that the records of removed approvals are not kept any more."""
        self._removed.difference_update(approval_ids)

    def listed(self, tenant: str, now: Moment) -> list[ApprovalRecord]:
        """Return the approvals of a tenant, or of all tenants (empty), newest first."""
        self.expire(now)
        found = (record for record in self._all.values() if tenant in ("", record.question.tenant))
        return sorted(found, key=lambda one: -one.number)

    def _requested(self, question: ApprovalRequest, now: Moment) -> Answer:
        if (
            question.is_too_long
            or self._open[question.tenant] >= MAX_TENANT_OPEN
            or self._open.total() >= MAX_OPEN
        ):
            return Answer("full")
        approval = ApprovalRecord(
            id=secrets.token_hex(8),
            number=self._number + 1,
            question=question,
            state="waiting",
            asked=now.unix,
            until=now.unix + LIFETIME,
            ends=now.mono + LIFETIME,
        )
        return Answer("waiting", approval, True)

    def _put(self, approval: ApprovalRecord) -> None:
        known = self._all.get(approval.id)
        if known is not None:
            self._forget(known)
        self._all[approval.id] = approval
        self._number = max(self._number, approval.number)
        question = approval.question
        if approval.state in _OPEN:  # an approved one stays open until its call is made
            self._open[question.tenant] += 1
        if approval.state in _OPEN or approval.state == "denied":
            self._live[question.bound_to] = approval.id
        if approval.use_id:
            self._uses[approval.use_id] = approval.id

    def _forget(self, approval: ApprovalRecord) -> None:
        """Remove an approval from the indexes."""
        question = approval.question
        if approval.state in _OPEN:
            self._open[question.tenant] -= 1
            if not self._open[question.tenant]:
                del self._open[question.tenant]
        if self._live.get(question.bound_to) == approval.id:
            del self._live[question.bound_to]
        self._uses.pop(approval.use_id, None)


def _not_waiting(approval: ApprovalRecord) -> str:
    if approval.state == "expired":
        return f"Approval {approval.id} has expired. The caller can try again."
    verb = "denied" if approval.state == "denied" else "approved"
    return f"Approval {approval.id} was already {verb} by {approval.decided_by}."
