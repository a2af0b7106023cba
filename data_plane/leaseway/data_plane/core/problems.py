"""The problems of a worker, for operators (DESIGN §1)."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final, Literal

from leaseway.spec.model import VariantKey

LIMIT_NOT_ENFORCED: Final = "LIMIT_NOT_ENFORCED"
LIMIT_PARTLY_ENFORCED: Final = "LIMIT_PARTLY_ENFORCED"
NO_BACK_CHANNEL: Final = "NO_BACK_CHANNEL"
LIMIT_REASONS: Final = (LIMIT_NOT_ENFORCED, LIMIT_PARTLY_ENFORCED)
"""The reasons of problems with limits."""

UNREACHABLE: Final = "SERVER_UNREACHABLE"
"""Calls do not reach the server of a ready instance."""

_MAX_OPEN: Final = 4096
_MAX_MESSAGE: Final = 4096


@dataclass(frozen=True)
class WorkerProblem:
    """A problem that an operator should know or fix.

    Attributes:
        reason: A constant in capitals.
        message: What happened, where, and what to do.
        key: The variant with the problem, or None.
    """

    scope: Literal["server", "worker"]
    reason: str
    message: str
    key: VariantKey | None = None
    severity: Literal["error", "warning"] = "error"

    @property
    def identity(self) -> tuple[str, VariantKey | None, str]:
        """Two problems with the same identity are the same problem."""
        return (self.scope, self.key, self.reason)


class ProblemBook:
    """The open problems of one worker, and the changes since the last report.

    Bounded: 4,096 open problems; beyond that the oldest is dropped.
    """

    def __init__(self) -> None:
        self._open: dict[tuple[str, VariantKey | None, str], WorkerProblem] = {}
        self._seen: dict[tuple[str, VariantKey | None, str], WorkerProblem] = {}
        self._cleared: dict[tuple[str, VariantKey | None, str], WorkerProblem] = {}

    @property
    def open(self) -> tuple[WorkerProblem, ...]:
        """All open problems, oldest first."""
        return tuple(self._open.values())

    def add(self, problem: WorkerProblem) -> bool:
        """Add a problem; return whether it, or its message, is new."""
        if len(problem.message) > _MAX_MESSAGE:
            problem = replace(problem, message=problem.message[:_MAX_MESSAGE])
        if problem.identity not in self._open and len(self._open) >= _MAX_OPEN:
            oldest = next(iter(self._open))
            self._cleared[oldest] = self._open.pop(oldest)
            self._seen.pop(oldest, None)
        is_new = self._open.get(problem.identity) != problem
        self._open[problem.identity] = problem
        self._seen[problem.identity] = problem
        self._cleared.pop(problem.identity, None)
        return is_new

    def clear(self, key: VariantKey | None, *reasons: str) -> bool:
        """Clear a variant's problems with the given reasons, or all; return whether any was open.

        A problem that is cleared before it was reported is only reported as cleared: one report
        does not show in which order the two happened.
        """
        cleared = [
            identity
            for identity in self._open
            if identity[1] == key and (not reasons or identity[2] in reasons)
        ]
        for identity in cleared:
            self._cleared[identity] = self._open.pop(identity)
            self._seen.pop(identity, None)
        return bool(cleared)

    def add_cleared(self, problem: WorkerProblem) -> None:
        """Report a problem as cleared that the control plane knows from a probe's result."""
        self._cleared[problem.identity] = problem

    def pop_changes(self) -> tuple[tuple[WorkerProblem, ...], tuple[WorkerProblem, ...]]:
        """Return (seen, cleared) since the last call."""
        seen, cleared = tuple(self._seen.values()), tuple(self._cleared.values())
        self._seen.clear()
        self._cleared.clear()
        return seen, cleared

    def report_all_again(self) -> None:
        """Report all open problems again, to a control plane that may know none of them."""
        self._seen = dict(self._open)
