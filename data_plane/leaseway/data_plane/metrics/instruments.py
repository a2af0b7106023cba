"""What a worker measures of calls, leases and instances (DESIGN §11).

Whoever calls, grants or starts something says so here, where metrics are wanted at all; what can
be read from the worker's state is read in `meter_state`. No label holds what a caller can choose:
servers and tools are those that the configuration and the listings name.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final, Protocol

from leaseway.data_plane.core.ports import InstancePort
from leaseway.identity.limit_counter import LimitCounter
from leaseway.spec.model import ServerSpec
from leaseway.telemetry.metrics import DURATIONS, Histogram, Instrument, Meter
from leaseway.wire.errors import Fault, Reason
from leaseway.wire.span_attributes import Attr
from leaseway.wire.status import code_of

if TYPE_CHECKING:
    from leaseway.data_plane.core.leases.table import WorkerLease

_SHORT: Final = (0.001, 0.002, 0.005, *DURATIONS)
"""A lease that is held already, or is given a spare, takes milliseconds."""
_OK: Final = "ok"
_MOST_ERROR_TYPES: Final = 16
"""Error types of one tool; further ones are `_OTHER`, since servers choose their own codes."""
_OTHER_ERROR: Final = "_OTHER"
_CANCELLED: Final = "CANCELLED"
_EXISTING: Final = "existing"
_WARM: Final = "warm"
_COLD: Final = "cold"


class MeasuredInstance(Protocol):
    """An instance of a server, as far as it is measured."""

    @property
    def spec(self) -> ServerSpec:
        """What it is an instance of."""

    @property
    def up_since(self) -> float | None:
        """When it came up, or None."""

    @property
    def fault(self) -> Fault | None:
        """Why it ended by itself, or None."""

    @property
    def instance(self) -> InstancePort:
        """The MCP client."""


class WorkerMeters:
    """The instruments of a worker that are written when something happens.

    Attributes:
        meter: Where they are registered.
        limits: Counts what callers were refused for one of their bounds.

    Args:
        meter: Where they are registered.
        clock: The loop's, which says since when an instance is up.
    """

    def __init__(self, meter: Meter, clock: Callable[[], float]) -> None:
        self.meter = meter
        self._clock = clock
        self.limits = LimitCounter(meter)
        self._calls = meter.histogram(
            "mcp.client.operation.duration",
            "s",
            "How long MCP servers took for tool calls, from sending to the answer.",
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
            "Answers of MCP servers that nobody waited for any more.",
            Attr.SERVER,
        )
        self._late_seen: dict[str, int] = {}
        self._touched: set[str] = set()
        # One cache a transport; the cells are the calls' own.
        self._pipe: dict[str, dict[str, ToolTimer]] = {}
        self._tcp: dict[str, dict[str, ToolTimer]] = {}

    def timer(self, spec: ServerSpec, tool: str) -> ToolTimer:
        """Return what takes the durations of one tool's calls; two lookups once it is known.

        Of requests other than tool calls, `tool` is the method: what they name has no bounds.
        """
        servers = self._pipe if spec.is_process else self._tcp
        tools = servers.get(spec.key.server_id)
        if tools is None:
            tools = servers[spec.key.server_id] = {}
        timer = tools.get(tool)
        if timer is None:
            timer = tools[tool] = ToolTimer(self._calls, spec, tool)
            self._touched.add(spec.key.server_id)
        return timer

    def call_ended(
        self,
        timer: ToolTimer | None,
        sent_at: float,
        fault: Fault | None,
        is_error: bool,
        traceparent: str = "",
    ) -> None:
        """Note the end of a call; one of Leaseway's own tools, which no server runs, is none.

        Args:
            timer: What takes its duration, or None where it was not sent.
            sent_at: When it was sent, as `time.perf_counter` counts.
            fault: Why there is no result, or None.
            is_error: Whether the result says that the tool failed.
            traceparent: Of the call's span, if it is recorded; its duration's exemplar.
        """
        if fault is not None and (timer is None or fault.started == "no"):
            self.call_refused(fault)
        elif timer is not None:
            timer.note(time.perf_counter() - sent_at, fault, is_error, traceparent)

    def call_refused(self, fault: Fault) -> None:
        """Note a call or a stream that ended before a server had it, and the bound it reached."""
        self._refused.cell(fault.reason.value).add()
        if fault.reason is not Reason.CAPACITY:  # noted with the wait for its lease
            self.limits.note(fault.metadata)

    def lease_granted(self, server_id: str, waited: float, start: str) -> None:
        """Note that a caller has its lease.

        Args:
            server_id: Of which server.
            waited: For how long, in seconds.
            start: `existing`, `warm` (its instance was up before) or `cold`.
        """
        self._touched.add(server_id)
        self._waits.cell(server_id, start, _OK).record(waited)

    def lease_refused(self, server_id: str, waited: float, fault: Fault) -> None:
        """Note that a caller did not get a lease."""
        known = "" if fault.reason is Reason.TOOL_NOT_FOUND else server_id
        self._touched.add(known)
        self._waits.cell(known, "", fault.reason.value).record(waited)
        if fault.reason is Reason.CAPACITY:
            self.limits.note(fault.metadata)

    def lease_ended(self, lease: WorkerLease, how: str) -> None:
        self._touched.add(lease.key.server_id)
        self._leases_ended.cell(lease.key.server_id, how).add()

    def start_ended(self, spec: ServerSpec, took: float, error: BaseException | None) -> None:
        """Note that an instance came up, or why it did not."""
        outcome = _OK
        if isinstance(error, Fault):
            outcome = error.metadata.get("problem", error.reason.value)
        elif error is not None:
            outcome = _CANCELLED
        self._touched.add(spec.key.server_id)
        self._starts.cell(spec.key.server_id, outcome).record(took)

    def instance_started(self, live: MeasuredInstance, *, again: bool) -> None:
        """Note that an instance serves from now on (`Hooks.on_instance_started`)."""
        if again:
            self._touched.add(live.spec.key.server_id)
            self._restarts.cell(live.spec.key.server_id).add()

    def instance_ended(self, live: MeasuredInstance, _how: str) -> None:
        """Note that an instance that was up is no more (`Hooks.on_instance_ended`)."""
        spec = live.spec
        why = live.fault.reason.value if live.fault is not None else ""
        was_up = self._clock() - live.up_since if live.up_since is not None else 0.0
        self._touched.add(spec.key.server_id)
        self._sessions.cell(spec.key.server_id, _transport(spec), why).record(was_up)
        self.count_late_replies(live)
        self._late_seen.pop(live.instance.id, None)

    def count_late_replies(self, live: MeasuredInstance) -> None:
        """Count the late replies that an instance, up until now, has got since the last time."""
        late = live.instance.late_replies
        seen = self._late_seen.get(live.instance.id, 0)
        if late > seen:
            self._late.cell(live.spec.key.server_id).add(late - seen)
            self._late_seen[live.instance.id] = late

    def frame_dropped(self, kind: str) -> None:
        """Note a `progress` or `log` frame that was not sent."""
        self._dropped.cell(kind).add()

    def take_touched(self) -> set[str]:
        """Return the servers whose series were written since the last time, and forget them."""
        touched, self._touched = self._touched, set()
        return touched

    def keep(self, wanted: Callable[[str], bool]) -> None:
        """Drop the series of servers that are not wanted any more."""
        for instrument in (
            self._calls,
            self._sessions,
            self._waits,
            self._leases_ended,
            self._starts,
            self._late,
            self._restarts,
        ):
            instrument.keep(Attr.SERVER, lambda server_id: not server_id or wanted(server_id))
        for servers in (self._pipe, self._tcp):
            for server_id in [each for each in servers if not wanted(each)]:
                del servers[server_id]


@contextmanager
def lease_wait(
    meters: WorkerMeters | None, server_id: str
) -> Iterator[Callable[[WorkerLease, bool, MeasuredInstance | None], None]]:
    """Measure how long a caller waits for a lease, or is refused one.

    What is given is to be called with the lease, whether it is new, and its instance.
    """
    if meters is None:
        yield _unmeasured
        return
    began = time.perf_counter()

    def granted(lease: WorkerLease, is_new: bool, live: MeasuredInstance | None) -> None:
        start = _EXISTING
        if is_new:
            up_since = live.up_since if live is not None else None
            start = _WARM if up_since is not None and up_since < lease.granted_at else _COLD
        meters.lease_granted(server_id, time.perf_counter() - began, start)

    try:
        yield granted
    except Fault as fault:
        meters.lease_refused(server_id, time.perf_counter() - began, fault)
        raise


def _unmeasured(_lease: WorkerLease, _is_new: bool, _live: MeasuredInstance | None) -> None:
    """No-op recorder, used when metrics are off."""


@contextmanager
def start_time(meters: WorkerMeters | None, spec: ServerSpec) -> Iterator[None]:
    """Measure how long an instance takes to come up, or to fail."""
    began = time.perf_counter()
    error: BaseException | None = None
    try:
        yield
    except BaseException as raised:
        error = raised
        raise
    finally:
        if meters is not None:
            meters.start_ended(spec, time.perf_counter() - began, error)


class ToolTimer:
    """Takes the durations of one tool's calls, each outcome in a series of its own."""

    __slots__ = ("_calls", "_labels", "_ok", "_other")

    def __init__(self, calls: Instrument[Histogram], spec: ServerSpec, tool: str) -> None:
        self._calls = calls
        other = "/" in tool  # no tool's name has one: it is the method of another request
        self._labels = (
            tool if other else "tools/call",
            "" if other else Attr.EXECUTE_TOOL,
            "" if other else tool,
            spec.key.server_id,
            _transport(spec),
        )
        self._ok: Histogram | None = None
        self._other: dict[tuple[str, str], Histogram] = {}

    def note(self, took: float, fault: Fault | None, is_error: bool, traceparent: str = "") -> None:
        """Note a call that took some seconds."""
        if fault is None and not is_error:
            if self._ok is None:
                self._ok = self._calls.cell(*self._labels, "", "")
            self._ok.record(took, traceparent)
        else:
            self._failed(fault).record(took, traceparent)

    def _failed(self, fault: Fault | None) -> Histogram:
        kind = error_type(fault) if fault is not None else (Attr.TOOL_ERROR, "")
        cell = self._other.get(kind)
        if cell is None:
            if len(self._other) >= _MOST_ERROR_TYPES:
                kind = (_OTHER_ERROR, "")
            cell = self._calls.cell(*self._labels, *kind)
            self._other.setdefault(kind, cell)
        return cell


class _Settled(ToolTimer):
    """The timer of what was noted already."""

    def __init__(self) -> None:
        pass

    def note(self, took: float, fault: Fault | None, is_error: bool, traceparent: str = "") -> None:
        """Do nothing."""


SETTLED: Final = _Settled()
"""Stands in for the timer of a call whose duration was noted before its end."""


def error_type(fault: Fault) -> tuple[str, str]:
    """Return the `error.type` and `rpc.response.status_code` of a failed call, as its spans do."""
    code = fault.metadata.get("code", "") if fault.reason is Reason.SERVER_ERROR else ""
    return code or fault.reason.value, code or code_of(fault).name


def _transport(spec: ServerSpec) -> str:
    return Attr.PIPE if spec.is_process else Attr.TCP
