"""A worker's instruments for calls, leases and instances, written at each event.

`state` reads the rest from the worker's parts. Callers cannot choose any label: servers and tools
come from the configuration and the servers' lists.

See design.md#traces-metrics-and-logs.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final, Protocol

from leaseway.data_plane.core.ports import InstancePort
from leaseway.identity.limit_counter import LimitCounter
from leaseway.spec.model import ServerSpec
from leaseway.telemetry.metrics import DURATIONS, MAX_SERIES, CellT, Histogram, Instrument, Meter
from leaseway.wire.errors import Fault, Reason
from leaseway.wire.messages.states import CALL_OK
from leaseway.wire.span_attributes import Attr
from leaseway.wire.status import code_of

if TYPE_CHECKING:
    from leaseway.data_plane.core.leases.table import WorkerLease

_SHORT: Final = (0.001, 0.002, 0.005, *DURATIONS)
"""An existing lease, or one on a spare instance, takes milliseconds."""
_MAX_ERROR_TYPES: Final = 16
"""Error types of one tool; further ones are `_OTHER`, because servers choose their own codes."""
_MAX_SERIES: Final = MAX_SERIES // 2
"""Series of one server's calls; further tools and errors are `_OTHER`. One that lists other names
ever again would take the series of all other servers."""
_OTHER: Final = "_OTHER"
_CANCELLED: Final = "CANCELLED"
_EXISTING: Final = "existing"
_WARM: Final = "warm"
_COLD: Final = "cold"


class MeasuredInstance(Protocol):
    """An instance of a server, as metrics see it."""

    @property
    def spec(self) -> ServerSpec:
        """Its server."""

    @property
    def up_since(self) -> float | None:
        """When it became ready, or None."""

    @property
    def fault(self) -> Fault | None:
        """Why it ended by itself, or None."""

    @property
    def instance(self) -> InstancePort:
        """The MCP client."""


class MeasuredEnd(Protocol):
    """The end of an instance, as metrics see it."""

    @property
    def live(self) -> MeasuredInstance:
        """The instance."""


class WorkerMeters:
    """The instruments of a worker that are written at events.

    Args:
        meter: Registers the instruments.
        clock: The event loop's clock, as in `MeasuredInstance.up_since`.

    Attributes:
        limits: Counts rejections by the limit that was reached.
    """

    def __init__(self, meter: Meter, clock: Callable[[], float]) -> None:
        self.meter = meter
        self._clock = clock
        self.limits = LimitCounter(meter)
        self._calls = meter.histogram(
            "mcp.client.operation.duration",
            "s",
            "How long MCP servers took for tool calls, from sending (from the arrival if the "
            "deadline passed before) to the answer.",
            Attr.MCP_METHOD_NAME,
            Attr.GEN_AI_OPERATION_NAME,
            Attr.GEN_AI_TOOL_NAME,
            Attr.SERVER,
            Attr.NETWORK_TRANSPORT,
            Attr.ERROR_TYPE,
            Attr.RPC_RESPONSE_STATUS_CODE,
        )
        self._sessions = meter.histogram(
            "mcp.client.session.duration",
            "s",
            "How long MCP clients were up, from ready to their end.",
            Attr.SERVER,
            Attr.NETWORK_TRANSPORT,
            Attr.ERROR_TYPE,
        )
        self._refused = meter.counter(
            "leaseway.calls.refused",
            "{call}",
            "Calls that ended before a server had them, by reason.",
            Attr.REASON,
        )
        self._waits = meter.histogram(
            "leaseway.lease.wait.duration",
            "s",
            "How long acquiring a lease took, its instance's start included.",
            Attr.SERVER,
            Attr.LEASE_START,
            Attr.OUTCOME,
            bounds=_SHORT,
        )
        self._leases_ended = meter.counter(
            "leaseway.leases.ended",
            "{lease}",
            "Leases that ended, by how: released, expired, revoked or lost.",
            Attr.SERVER,
            Attr.OUTCOME,
        )
        self._starts = meter.histogram(
            "leaseway.instance.start.duration",
            "s",
            "How long starts of MCP clients took, tools listed, by outcome.",
            Attr.SERVER,
            Attr.OUTCOME,
        )
        self._restarts = meter.counter(
            "leaseway.instance.restarts",
            "{restart}",
            "Times that an MCP client came up after one had ended by itself or failed to start.",
            Attr.SERVER,
        )
        self._dropped = meter.counter(
            "leaseway.frames.dropped",
            "{frame}",
            "Progress reports and log messages dropped because their caller reads too slowly.",
            Attr.FRAME,
        )
        self._late = meter.counter(
            "leaseway.replies.late",
            "{reply}",
            "Replies of MCP servers that arrived after their call had ended.",
            Attr.SERVER,
        )
        self._late_seen: dict[str, int] = {}
        self._touched: set[str] = set()
        # By server, for each transport.
        self._pipe: dict[str, _ServerSeries] = {}
        self._tcp: dict[str, _ServerSeries] = {}

    def timer(self, spec: ServerSpec, tool: str, method: str = "") -> ToolTimer:
        """Return the timer of a tool, or of requests other than tool calls by their method."""
        servers = self._pipe if spec.part.uses_pipes else self._tcp
        server = servers.get(spec.key.server_id)
        if server is None:
            server = servers[spec.key.server_id] = _ServerSeries(self._calls, spec)
        timers, name = (server.methods, method) if method else (server.tools, tool)
        timer = timers.get(name)
        if timer is None and len(timers) >= _MAX_SERIES:
            name = _OTHER
            timer = timers.get(name)
        if timer is None:
            timer = timers[name] = ToolTimer(server, name, is_method=bool(method))
            self._touched.add(spec.key.server_id)
        return timer

    def record_call(
        self,
        timer: ToolTimer | None,
        sent_at: float,
        fault: Fault | None,
        is_error: bool,
        traceparent: str = "",
    ) -> None:
        """Record an ended call, except calls of Leaseway's own tools.

        Args:
            timer: The timer of its tool, or None if it was not sent.
            sent_at: When it was sent, as `time.perf_counter` counts; when it arrived if its
                deadline passed before.
            fault: Why there is no result, or None.
            is_error: `isError` of the result.
            traceparent: The call's span, if it is sampled; the exemplar of its duration.
        """
        if fault is not None and (timer is None or fault.started == "no"):
            self.record_refusal(fault)
            # A server that is too slow to take its calls fails its objective.
            is_of_server = fault.reason is Reason.DEADLINE_EXCEEDED
        else:
            is_of_server = True
        if timer is not None and is_of_server:
            timer.record(time.perf_counter() - sent_at, fault, is_error, traceparent)

    def record_refusal(self, fault: Fault) -> None:
        """Record a call that never reached a server, or a refused stream, and the limit reached."""
        self._refused.cell(fault.reason.value).add()
        if fault.reason is not Reason.CAPACITY:  # recorded with the wait for the lease
            self.limits.record(fault.metadata)

    def record_lease(self, server_id: str, waited: float, start: str) -> None:
        """Record a granted lease.

        Args:
            server_id: The server.
            waited: Seconds that the caller waited.
            start: `existing`, `warm` (on a running instance) or `cold`.
        """
        self._cell(self._waits, server_id, start, CALL_OK).record(waited)

    def record_lease_refusal(self, server_id: str, waited: float, fault: Fault) -> None:
        label = "" if fault.reason is Reason.TOOL_NOT_FOUND else server_id  # it may be any text
        self._cell(self._waits, label, "", fault.reason.value).record(waited)
        if fault.reason is Reason.CAPACITY:
            self.limits.record(fault.metadata)

    def record_lease_end(self, lease: WorkerLease, how: str) -> None:
        self._cell(self._leases_ended, lease.key.server_id, how).add()

    def record_start(self, spec: ServerSpec, took: float, error: BaseException | None) -> None:
        """Record a start of an instance, or its error."""
        outcome = CALL_OK
        if isinstance(error, Fault):
            outcome = error.metadata.get("problem", error.reason.value)
        elif error is not None:
            outcome = _CANCELLED
        self._cell(self._starts, spec.key.server_id, outcome).record(took)

    def instance_started(self, live: MeasuredInstance, again: bool) -> None:
        """Count a restart (`InstanceEvents.started`)."""
        if again:
            self._cell(self._restarts, live.spec.key.server_id).add()

    def instance_ended(self, end: MeasuredEnd) -> None:
        """Record the lifetime of an instance (`InstanceEvents.ended`)."""
        live = end.live
        spec = live.spec
        reason = live.fault.reason.value if live.fault is not None else ""
        lifetime = self._clock() - live.up_since if live.up_since is not None else 0.0
        self._cell(self._sessions, spec.key.server_id, _transport(spec), reason).record(lifetime)
        self.count_late_replies(live)
        self._late_seen.pop(live.instance.id, None)

    def count_late_replies(self, live: MeasuredInstance) -> None:
        """Count the late replies of an instance since the last call of this method."""
        late = live.instance.late_replies
        seen = self._late_seen.get(live.instance.id, 0)
        if late > seen:
            self._cell(self._late, live.spec.key.server_id).add(late - seen)
            self._late_seen[live.instance.id] = late

    def record_rejected_read(self, fault: Fault) -> None:
        """Count the limit for which a read of an artifact was rejected."""
        self.limits.record(fault.metadata)

    def record_dropped_frame(self, kind: str) -> None:
        """Record a dropped `progress` or `log` frame."""
        self._dropped.cell(kind).add()

    def _cell(self, instrument: Instrument[CellT], server_id: str, *others: str) -> CellT:
        """Return a series of a server, whose series then stay until they are collected."""
        self._touched.add(server_id)
        return instrument.cell(server_id, *others)

    def take_touched(self) -> set[str]:
        """Return the servers whose series were written since the last call of this method."""
        touched, self._touched = self._touched, set()
        return touched

    def keep(self, wanted: Callable[[str], bool]) -> None:
        """Keep only the series of wanted servers, and those of none."""
        self.meter.remove_unless(Attr.SERVER, wanted)
        for servers in (self._pipe, self._tcp):
            for server_id in [server_id for server_id in servers if not wanted(server_id)]:
                del servers[server_id]


@contextmanager
def measure_lease_wait(
    meters: WorkerMeters | None, server_id: str
) -> Iterator[Callable[[WorkerLease, bool, MeasuredInstance | None], None]]:
    """Record how long a caller waits for a lease.

    Yields:
        A function to call with the granted lease, whether it is new, and its instance.
    """
    if meters is None:
        yield _ignore_grant
        return
    started_at = time.perf_counter()

    def on_granted(lease: WorkerLease, is_new: bool, live: MeasuredInstance | None) -> None:
        start = _EXISTING
        if is_new:
            up_since = live.up_since if live is not None else None
            start = _WARM if up_since is not None and up_since < lease.granted_at else _COLD
        meters.record_lease(server_id, time.perf_counter() - started_at, start)

    try:
        yield on_granted
    except Fault as fault:
        meters.record_lease_refusal(server_id, time.perf_counter() - started_at, fault)
        raise


def _ignore_grant(lease: WorkerLease, is_new: bool, live: MeasuredInstance | None) -> None:
    """Stand in for a record of a granted lease while metrics are off."""


@contextmanager
def measure_start(meters: WorkerMeters | None, spec: ServerSpec) -> Iterator[None]:
    """Record how long an instance takes to start, or to fail."""
    started_at = time.perf_counter()
    error: BaseException | None = None
    try:
        yield
    except BaseException as raised:
        error = raised
        raise
    finally:
        if meters is not None:
            meters.record_start(spec, time.perf_counter() - started_at, error)


class _ServerSeries:
    """The series of one server's calls, and the timers that write them, by tool or method."""

    def __init__(self, calls: Instrument[Histogram], spec: ServerSpec) -> None:
        self._calls = calls
        self._labels = (spec.key.server_id, _transport(spec))
        self.tools: dict[str, ToolTimer] = {}
        self.methods: dict[str, ToolTimer] = {}
        self._left = _MAX_SERIES

    def cell(self, name: str, error: str, status: str, *, is_method: bool) -> Histogram:
        """Return a new series of a tool, or one of `_OTHER` if there is no room for it."""
        if self._left:
            self._left -= 1
        else:
            name = name if is_method else _OTHER
            error, status = error and _OTHER, ""
        labels = (name, "", "") if is_method else ("tools/call", Attr.EXECUTE_TOOL, name)
        return self._calls.cell(*labels, *self._labels, error, status)


class ToolTimer:
    """Records the durations of one tool's calls, in a series for each outcome."""

    __slots__ = ("_errors", "_is_method", "_name", "_ok", "_server")

    def __init__(self, server: _ServerSeries, name: str, *, is_method: bool) -> None:
        self._server = server
        self._name = name
        self._is_method = is_method
        self._ok: Histogram | None = None
        self._errors: dict[tuple[str, str], Histogram] = {}

    def record(
        self, took: float, fault: Fault | None, is_error: bool, traceparent: str = ""
    ) -> None:
        if fault is None and not is_error:
            if self._ok is None:
                self._ok = self._cell("", "")
            self._ok.record(took, traceparent)
        else:
            self._error_cell(fault).record(took, traceparent)

    def _error_cell(self, fault: Fault | None) -> Histogram:
        kind = error_type(fault) if fault is not None else (Attr.TOOL_ERROR, "")
        cell = self._errors.get(kind)
        if cell is None and len(self._errors) >= _MAX_ERROR_TYPES:
            kind = (_OTHER, "")
            cell = self._errors.get(kind)
        if cell is None:
            cell = self._errors[kind] = self._cell(*kind)
        return cell

    def _cell(self, error: str, status: str) -> Histogram:
        return self._server.cell(self._name, error, status, is_method=self._is_method)


class _NoOpTimer(ToolTimer):
    def __init__(self) -> None:
        pass

    def record(
        self, took: float, fault: Fault | None, is_error: bool, traceparent: str = ""
    ) -> None:
        pass


ALREADY_RECORDED: Final = _NoOpTimer()
"""The timer of a call whose duration was recorded before its end."""


def error_type(fault: Fault) -> tuple[str, str]:
    """Return the `error.type` and `rpc.response.status_code` of a failed call."""
    code = fault.metadata.get("code", "") if fault.reason is Reason.SERVER_ERROR else ""
    return code or fault.reason.value, code or code_of(fault).name


def _transport(spec: ServerSpec) -> str:
    return Attr.PIPE if spec.part.uses_pipes else Attr.TCP
