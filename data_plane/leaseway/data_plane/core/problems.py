"""Problems that a worker sees, for operators (DESIGN §1): what is open, and what was mended."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

from leaseway.spec.model import VariantKey

LIMIT_NOT_ENFORCED: Final = "LIMIT_NOT_ENFORCED"
LIMIT_PARTLY_ENFORCED: Final = "LIMIT_PARTLY_ENFORCED"
NO_BACK_CHANNEL: Final = "NO_BACK_CHANNEL"
LIMIT_REASONS: Final = (LIMIT_NOT_ENFORCED, LIMIT_PARTLY_ENFORCED)
"""The reasons of the problems that limits can have."""

UNREACHABLE: Final = "SERVER_UNREACHABLE"
"""Calls of an instance that counts as up do not get to its server."""

_MOST_OPEN: Final = 4096
_LONGEST_MESSAGE: Final = 4096


@dataclass(frozen=True)
class WorkerProblem:
    """Something for an operator to know or to mend.

    Attributes:
        scope: `server` or `worker`.
        reason: A constant in capitals.
        message: What happened, where, and what to do.
        key: The variant that it is about, or None.
        severity: `error` or `warning`.
    """

    scope: Literal["server", "worker"]
    reason: str
    message: str
    key: VariantKey | None = None
    severity: Literal["error", "warning"] = "error"

    @property
    def identity(self) -> tuple[str, VariantKey | None, str]:
        """What makes two reports the same problem."""
        return (self.scope, self.key, self.reason)


class ProblemBook:
    """The open problems of one worker, and what changed since the last report.

    Bounded: at 4,096 open problems the oldest makes room.
    """

    def __init__(self) -> None:
        self._open: dict[tuple[str, VariantKey | None, str], WorkerProblem] = {}
        self._seen: dict[tuple[str, VariantKey | None, str], WorkerProblem] = {}
        self._cleared: dict[tuple[str, VariantKey | None, str], WorkerProblem] = {}

    @property
    def open(self) -> tuple[WorkerProblem, ...]:
        """All open problems, the oldest first."""
        return tuple(self._open.values())

    def add(self, problem: WorkerProblem) -> bool:
        """Note a problem; say whether it, or its message, is new."""
        cut = problem.message[:_LONGEST_MESSAGE]
        if cut != problem.message:
            problem = WorkerProblem(
                problem.scope, problem.reason, cut, problem.key, problem.severity
            )
        if problem.identity not in self._open and len(self._open) >= _MOST_OPEN:
            oldest = next(iter(self._open))
            self._cleared[oldest] = self._open.pop(oldest)
            self._seen.pop(oldest, None)
        is_new = self._open.get(problem.identity) != problem
        self._open[problem.identity] = problem
        self._seen[problem.identity] = problem
        self._cleared.pop(problem.identity, None)
        return is_new

    def clear(self, key: VariantKey | None, *reasons: str) -> bool:
        """Note that problems of a variant are mended; without reasons all. Say whether any was.

        One that was mended before it was reported is reported as mended only: a reader of one
        report could not tell in which order the two happened.
        """
        mended = [
            identity
            for identity in self._open
            if identity[1] == key and (not reasons or identity[2] in reasons)
        ]
        for identity in mended:
            self._cleared[identity] = self._open.pop(identity)
            self._seen.pop(identity, None)
        return bool(mended)

    def add_cleared(self, problem: WorkerProblem) -> None:
        """Report a problem as mended that the control plane knows from a probe's result."""
        self._cleared[problem.identity] = problem

    def pop_changes(self) -> tuple[tuple[WorkerProblem, ...], tuple[WorkerProblem, ...]]:
        """Return (seen, mended) since the last call."""
        seen, mended = tuple(self._seen.values()), tuple(self._cleared.values())
        self._seen.clear()
        self._cleared.clear()
        return seen, mended

    def report_all_again(self) -> None:
        """Report all open problems again: to a control plane that may know none of them."""
        self._seen = dict(self._open)
