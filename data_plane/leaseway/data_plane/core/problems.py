"""Problems of a worker that operators see: which are open, and what changed. Pure.

See design.md#vocabulary.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final, Literal

from leaseway.spec.model import VariantKey
from leaseway.wire.errors import Fault
from leaseway.wire.messages.states import Severity

LIMIT_NOT_ENFORCED: Final = "LIMIT_NOT_ENFORCED"
LIMIT_PARTLY_ENFORCED: Final = "LIMIT_PARTLY_ENFORCED"
LIMIT_REASONS: Final = (LIMIT_NOT_ENFORCED, LIMIT_PARTLY_ENFORCED)
NO_BACK_CHANNEL: Final = "NO_BACK_CHANNEL"
UNREACHABLE: Final = "SERVER_UNREACHABLE"
"""Calls do not reach the server of an instance that counts as ready."""

REFUSING: Final = "SERVER_REFUSING"
"""A server answers, but refuses every request."""

_MAX_OPEN: Final = 4096
_MAX_MESSAGE: Final = 4096

_Identity = tuple[str, VariantKey | None, str]


@dataclass(frozen=True)
class WorkerProblem:
    """A problem for an operator to know or to fix.

    Attributes:
        scope: `server` or `worker`.
        reason: A constant in capitals.
        message: What happened and where; if callers are not told, also what to do.
        key: The variant that has the problem, or None.
        severity: `error` or `warning`.
        advice: What an operator does about what callers are told, or empty.
        launch_hash: The launch of its variant that it is about; empty for any.
    """

    scope: Literal["server", "worker"]
    reason: str
    message: str
    key: VariantKey | None = None
    severity: Severity = "error"
    advice: str = ""
    launch_hash: str = ""

    @classmethod
    def of_fault(cls, fault: Fault, key: VariantKey) -> WorkerProblem:
        """Return the problem of a server whose start or listing failed."""
        return cls("server", problem_reason(fault), fault.message, key, advice=fault.advice)

    @property
    def text(self) -> str:
        """All that an operator reads."""
        return f"{self.message} {self.advice}".rstrip()

    @property
    def identity(self) -> _Identity:
        """Equal for two reports of the same problem."""
        return (self.scope, self.key, self.reason)


def sentence(text: str) -> str:
    """Return a text, such as the last words of a process, with a mark at its end."""
    return text if text.endswith((".", "!", "?", ")")) else f"{text}."


class ProblemBook:
    """The open problems of one worker, and the changes since the last report.

    At 4,096 open problems, a new one replaces the oldest.
    """

    def __init__(self) -> None:
        self._open: dict[_Identity, WorkerProblem] = {}
        self._added: dict[_Identity, WorkerProblem] = {}
        self._cleared: dict[_Identity, WorkerProblem] = {}

    @property
    def open(self) -> tuple[WorkerProblem, ...]:
        """All open problems, the oldest first."""
        return tuple(self._open.values())

    def add(self, problem: WorkerProblem) -> bool:
        """Add a problem; return whether it or its message is new."""
        problem = replace(problem, message=problem.message[:_MAX_MESSAGE])
        identity = problem.identity
        if identity not in self._open and len(self._open) >= _MAX_OPEN:
            self._clear(next(iter(self._open)))
        is_new = self._open.get(identity) != problem
        self._open[identity] = self._added[identity] = problem
        self._cleared.pop(identity, None)
        return is_new

    def clear(self, problem: WorkerProblem) -> bool:
        """Clear a problem, whatever its message; return whether it was open.

        A problem that is cleared before it was reported is reported as cleared only: one report
        does not tell in which order both happened.
        """
        if problem.identity not in self._open:
            return False
        self._clear(problem.identity)
        return True

    def clear_outdated(self, launches: Mapping[VariantKey, str]) -> bool:
        """Clear what is about earlier launches of variants; return whether anything was.

        Args:
            launches: Their present launch hashes; empty for a removed variant, of which nothing
                stays.
        """
        found = [
            identity
            for identity, problem in self._open.items()
            if problem.key is not None and _is_outdated(problem, launches.get(problem.key))
        ]
        for identity in found:
            self._clear(identity)
        return bool(found)

    def _clear(self, identity: _Identity) -> None:
        self._cleared[identity] = self._open.pop(identity)
        self._added.pop(identity, None)

    def add_cleared(self, problem: WorkerProblem) -> None:
        """Report a problem as cleared that the control plane knows from a probe's result."""
        self._cleared[problem.identity] = problem

    def pop_changes(self) -> tuple[tuple[WorkerProblem, ...], tuple[WorkerProblem, ...]]:
        """Return the problems (added, cleared) since the last call."""
        added, cleared = tuple(self._added.values()), tuple(self._cleared.values())
        self._added.clear()
        self._cleared.clear()
        return added, cleared

    def report_all_again(self) -> None:
        """Report all open problems, to a control plane that may know none of them."""
        self._added = dict(self._open)


def _is_outdated(problem: WorkerProblem, launch_hash: str | None) -> bool:
    return launch_hash == "" or (
        launch_hash is not None and problem.launch_hash not in ("", launch_hash)
    )


def problem_reason(fault: Fault) -> str:
    """Return the reason of the problem that a fault is to operators."""
    return fault.metadata.get("problem", fault.reason.value)
