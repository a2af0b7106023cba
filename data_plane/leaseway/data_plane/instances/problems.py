"""The problems that operators see: of a worker, and of one generation until it is replaced."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from functools import partial
from typing import Final

from leaseway.data_plane.background import Alarm
from leaseway.data_plane.core.instances.circuit_breaker import CrashHistory
from leaseway.data_plane.core.problems import (
    LIMIT_REASONS,
    REFUSING,
    UNREACHABLE,
    WorkerProblem,
    sentence,
)
from leaseway.data_plane.core.tools.toolset import CompiledToolset, describe_differences
from leaseway.data_plane.instances.live_instance import LiveInstance
from leaseway.data_plane.instances.reports import Reports
from leaseway.data_plane.kinds.watched import ProblemIn, problem_finder
from leaseway.spec.model import VariantKey
from leaseway.wire.errors import Fault
from leaseway.wire.messages.states import Severity

_TOOLS_CHANGED: Final = "TOOLS_CHANGED"
_TOOL_DIFFERS: Final = "TOOL_DIFFERS"


class ServerProblems:
    """The open problems of one generation of a server."""

    def __init__(self, key: VariantKey, worker_id: str, reports: Reports) -> None:
        self._key = key
        self._worker_id = worker_id
        self._reports = reports
        self._open: set[str] = set()
        self._has_ended = False
        self._until_start: set[str] = set()
        self._until_stable: set[str] = set()
        self._crashes = CrashHistory()
        self._loop = asyncio.get_running_loop()
        self._stable = Alarm(self._on_stable)

    @property
    def place(self) -> str:
        """The end of each message: operators read the cause first."""
        return f"(Server {self._key} on worker {self._worker_id}.)"

    def report(
        self, reason: str, message: str, severity: Severity = "error", advice: str = ""
    ) -> None:
        """Report a problem, which stays open until it is cleared."""
        if self._has_ended:
            return
        self._open.add(reason)
        self._reports.report_problem(
            WorkerProblem(
                scope="server",
                reason=reason,
                message=message,
                key=self._key,
                severity=severity,
                advice=advice,
            )
        )

    def report_fault(self, fault: Fault) -> None:
        """Report a fault, which stays open until an instance starts."""
        if self._has_ended:
            return
        of_user = fault.metadata.get("login") == "missing" or fault.metadata.get("whose")
        if self._key.user and of_user:
            return  # nobody but the user can change that, and the caller is told
        problem = WorkerProblem.of_fault(fault, self._key)
        self._until_start.add(problem.reason)
        self._open.add(problem.reason)
        self._reports.report_problem(problem)

    def report_crash(self, fault: Fault) -> None:
        """Report that an instance ended by itself, until later ones run for long enough.

        In a crash loop each restart succeeds; the problem stays open and counts.
        """
        self._stable.clear()
        self._crashes = self._crashes.crashed(self._loop.time())
        self.report_fault(fault)
        self._until_stable |= self._until_start

    def _on_stable(self) -> None:
        self.clear(*self._until_stable)
        self._until_stable.clear()

    def on_started(self, live: LiveInstance) -> None:
        """Clear the problems of failed starts, and report the warnings of a started instance."""
        self.clear(*(self._until_start - self._until_stable), UNREACHABLE, REFUSING)
        self._until_start.clear()
        if self._until_stable:
            self._stable.set(self._loop.time() + self._crashes.quiet)
        find = problem_finder(live.spec)
        if find is not None:
            live.instance.stderr.watch(partial(self._report_told, find))
        warnings = dict(live.instance.warnings)
        for reason, text in warnings.items():
            self.report(reason, f"{sentence(text)} {self.place}", "warning")
        self.clear(*(reason for reason in LIMIT_REASONS if reason not in warnings))

    def _report_told(self, find: ProblemIn, line: str) -> None:
        """Report the problem that a line of stderr tells of, if it tells of one."""
        told = find(line)
        if told is not None:
            reason, message = told
            self.report(reason, f"{message} {self.place}", "warning")

    def clear(self, *reasons: str) -> None:
        """Clear problems; reasons without an open problem are ignored."""
        for reason in reasons:
            if reason in self._open:
                self._open.discard(reason)
                self._reports.clear_problem(WorkerProblem("server", reason, "", self._key))

    def end(self) -> None:
        """Clear all problems, and report no more: nothing would clear them."""
        self._has_ended = True
        self._stable.clear()
        self._until_stable.clear()
        self.clear(*tuple(self._open))

    def report_changed_lists(self, finding: str) -> None:
        """Report that a leased instance lists something else than what was recorded.

        Args:
            finding: Completes "its list ...", with a full stop.
        """
        self.report(
            _TOOLS_CHANGED,
            "A leased instance reports that its tools, prompts or resources changed, and its list "
            f"{finding} Its session has the tools that it lists. Everything else is as recorded "
            "(see `leaseway servers`) until the server is probed again: when its entry changes how "
            f"it starts, or when the control plane and the workers restart. {self.place}",
            "warning",
        )

    def update_tools(
        self, live: LiveInstance, instances: Iterable[LiveInstance], toolset: CompiledToolset
    ) -> None:
        """Report or clear differences between the tools of instances and the contract.

        Args:
            live: The instance that was compared last.
            instances: All instances of the generation.
            toolset: The contract.

        See design.md#reload.
        """
        if _TOOLS_CHANGED in self._open and not any(
            other.is_ready and other.is_typical and other.serves_other(toolset)
            for other in instances
        ):
            self.clear(_TOOLS_CHANGED)
        if _rejects_calls(live, toolset):
            differences = describe_differences(live.unexplained, live.instance.tools)
            self.report(
                _TOOL_DIFFERS,
                f"It has other tools than the listed ones: {differences}. Calls of them are "
                f"rejected there. Install the same server on all workers. {self.place}",
            )
        elif not any(_rejects_calls(other, toolset) for other in instances):
            self.clear(_TOOL_DIFFERS)


def _rejects_calls(live: LiveInstance, toolset: CompiledToolset) -> bool:
    return bool(live.unexplained) and not live.may_have_own_tools(toolset)


class WorkerProblems:
    """Reports the problems of a worker that are no server's.

    Args:
        worker_id: The worker.
        reports: Gets the problems.
    """

    def __init__(self, worker_id: str, reports: Reports) -> None:
        self._worker_id = worker_id
        self._reports = reports

    def on_artifact_storage(self, failure: str) -> None:
        """Report why artifacts cannot be written; empty if they can again."""
        message = (
            f"Worker '{self._worker_id}' cannot keep images and sounds of results: {failure}. They "
            "stay in their results. Make room on its disk, or name another folder with --artifacts."
        )
        self._reports.set_problem(
            WorkerProblem("worker", "ARTIFACTS_NOT_KEPT", message, severity="warning"),
            bool(failure),
        )

    def on_audit_sink(self, failure: str) -> None:
        """Report why the audit's sink acknowledges no records; empty if it does again."""
        problem = WorkerProblem("worker", "AUDIT_NOT_SHIPPED", failure)
        self._reports.set_problem(problem, bool(failure))

    def on_audit(self, failure: str) -> None:
        """Report why the audit cannot be written; empty if it can again."""
        problem = WorkerProblem("worker", "AUDIT_NOT_WRITTEN", failure)
        self._reports.set_problem(problem, bool(failure))
