"""What one generation of a server has told operators, so that all of it is taken back."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, Literal

from leaseway.data_plane.core.problems import LIMIT_REASONS, UNREACHABLE, WorkerProblem
from leaseway.data_plane.core.tools.toolset import CompiledToolset, describe_differences
from leaseway.data_plane.instances.live_instance import LiveInstance
from leaseway.data_plane.instances.reports import Reports
from leaseway.server.faults import RAISED
from leaseway.spec.model import VariantKey
from leaseway.wire.errors import Fault

_CHANGED: Final = "TOOLS_CHANGED"


class ServerProblems:
    """The open problems of one generation.

    Args:
        key: Its server.
        worker_id: For messages.
        reports: Where problems go.
    """

    def __init__(self, key: VariantKey, worker_id: str, reports: Reports) -> None:
        self._key = key
        self._worker_id = worker_id
        self._reports = reports
        self._open: set[str] = set()
        self._until_start: set[str] = set()

    def report(
        self, reason: str, message: str, severity: Literal["error", "warning"] = "error"
    ) -> None:
        """Report a problem, until it is mended or its generation replaced."""
        self._open.add(reason)
        self._reports.report_problem(WorkerProblem("server", reason, message, self._key, severity))

    def fault(self, fault: Fault) -> None:
        reason = fault.metadata.get("problem", fault.reason.value)
        self._until_start.add(reason)
        self.report(reason, fault.message)

    def started(self, live: LiveInstance) -> None:
        """Note that a start succeeded, and what does not hold there as configured."""
        self.mend(*self._until_start, UNREACHABLE)
        self._until_start.clear()
        if live.spec.transport == "python":
            live.instance.stderr.watch(self.raised)
        warnings = dict(live.instance.warnings)
        for reason, text in warnings.items():
            where = f"On worker {self._worker_id}, server {self._key}"
            self.report(reason, f"{where}: {text}", "warning")
        self.mend(*(reason for reason in LIMIT_REASONS if reason not in warnings))

    def raised(self, line: str) -> None:
        """Note a line of stderr that says where a call of a Python class raised, if it is one."""
        place = line.removeprefix(RAISED)
        if place != line:
            self.report(
                "CALL_RAISED",
                f"On worker {self._worker_id}, a call of server {self._key} raised: {place}. Its "
                f"caller was told. See `leaseway logs {self._key.server_id}` for the traceback; "
                "this stays until the server is started in another way.",
                "warning",
            )

    def mend(self, *reasons: str) -> None:
        """Clear problems; those that were not reported are not touched."""
        for reason in reasons:
            if reason in self._open:
                self._open.discard(reason)
                self._reports.clear_problem(WorkerProblem("server", reason, "", self._key))

    def mend_all(self) -> None:
        self.mend(*tuple(self._open))

    def changed(self, how: str) -> None:
        """Note that a leased instance lists something else than what was recorded.

        Args:
            how: What was found, as the end of a sentence, with its full stop.
        """
        self.report(
            _CHANGED,
            f"On worker {self._worker_id}, a leased instance of server {self._key} says that what "
            f"it offers changed, and its list {how} Callers are shown what was recorded (see "
            "`leaseway servers`) until the server is tried again: when its entry starts it in "
            "another way, or when the control plane and the workers are restarted together.",
            "warning",
        )

    def compared(
        self, live: LiveInstance, lives: Iterable[LiveInstance], toolset: CompiledToolset
    ) -> None:
        """Note how the tools of an instance differ from the contract (DESIGN §3).

        Args:
            live: The instance, compared.
            lives: All instances of the generation.
            toolset: The contract.
        """
        if _CHANGED in self._open and not any(
            each.is_ready and each.lists_other(toolset) for each in lives
        ):
            self.mend(_CHANGED)
        if live.differing:
            differences = describe_differences(live.differing, live.instance.tools)
            self.report(
                "TOOL_DIFFERS",
                f"On worker {self._worker_id}, server {self._key} has other tools than were "
                f"listed: {differences}. Calls of them are refused there. Make the workers' "
                "installations of the server equal.",
            )
        elif not any(other.differing for other in lives):
            self.mend("TOOL_DIFFERS")
