"""One call under way: what it waits for, and how it ends, exactly once.

What the server of one call asks its caller, until it is answered or the call ends.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import time
from collections.abc import Callable
from operator import itemgetter
from typing import Any, Final, Protocol

import msgspec

from leaseway.data_plane.audit.record import AuditEntry
from leaseway.data_plane.calls.recent import OK, TOOL_ERROR, PastCall, RecentCalls
from leaseway.data_plane.calls.tracing import CallTrace
from leaseway.data_plane.core.artifacts.media import DATA_MARK
from leaseway.data_plane.core.calls.call import Ask, Outcome, PendingCall, too_large
from leaseway.data_plane.core.leases.table import WorkerLease
from leaseway.data_plane.core.tools.policy import ToolPolicy
from leaseway.data_plane.instances.live_instance import LiveInstance
from leaseway.data_plane.metrics.instruments import ToolTimer
from leaseway.telemetry.tracing import is_sampled
from leaseway.v1 import execution_pb2
from leaseway.wire import bounds
from leaseway.wire.bounds import MAX_ASK, MAX_ASKS, MAX_META
from leaseway.wire.errors import Fault, Reason, Started
from leaseway.wire.messages.mcp import is_reserved_meta
from leaseway.wire.names import DEFAULT_TENANT

_logger = logging.getLogger(__name__)
_numbers: Final = itertools.count(1)
"""A question's id is unique in the worker, and so on every stream."""

_MAX_TEXT: Final = 1024
INTERNAL_ERROR: Final = -32603
INVALID_PARAMS: Final = -32602
"""JSON-RPC's numbers for what went wrong; `mcp_types`, which has them too, takes long to load."""


class OpenAsks:
    """The open questions of one call, by their ids.

    Args:
        on_withdrawn: Called with the id of a question that the server takes back.
    """

    __slots__ = ("_on_withdrawn", "_open")

    def __init__(self, on_withdrawn: Callable[[int], None]) -> None:
        self._on_withdrawn = on_withdrawn
        self._open: dict[int, Ask] = {}

    def __len__(self) -> int:
        return len(self._open)

    def items(self) -> list[tuple[int, Ask]]:
        """Return them, the oldest first."""
        return list(self._open.items())

    def add(self, ask: Ask) -> int:
        """Receive a question; return its id, or 0 where it is refused at once."""
        if len(self._open) >= MAX_ASKS:
            text = f"{MAX_ASKS} questions of this call are open already; wait for their answers."
            ask.refuse(INTERNAL_ERROR, text)
            return 0
        if len(ask.params) > MAX_ASK:
            text = f"The params have {len(ask.params)} bytes; a question may have {MAX_ASK}."
            ask.refuse(INVALID_PARAMS, text)
            return 0
        ask_id = next(_numbers)
        self._open[ask_id] = ask
        ask.on_withdrawn = lambda: self._withdraw(ask_id)
        return ask_id

    def _withdraw(self, ask_id: int) -> None:
        if self._open.pop(ask_id, None) is not None:
            self._on_withdrawn(ask_id)

    def settle(self, answer: execution_pb2.Answer) -> None:
        """Give the server its answer; one that nobody waits for any more is dropped."""
        ask = self._open.pop(answer.ask_id, None)
        if ask is None:
            _logger.debug("An answer came to question %d, which is not open.", answer.ask_id)
        elif answer.HasField("error"):
            why = answer.error.message[:_MAX_TEXT] or "The caller has no answer and says not why."
            ask.refuse(INTERNAL_ERROR, why)
        else:
            try:
                ask.answer(parse_answer(answer.result))
            except ValueError as error:
                ask.refuse(INTERNAL_ERROR, f"The caller's answer can't be passed on: {error}")

    def refuse(self, ask_id: int, why: str) -> None:
        """Tell the server that one of them is not answered."""
        ask = self._open.pop(ask_id, None)
        if ask is not None:
            ask.refuse(INTERNAL_ERROR, why)

    def end(self) -> None:
        """Tell the server that none is answered any more: the call has ended."""
        asks, self._open = self._open, {}
        for ask in asks.values():
            ask.refuse(INTERNAL_ERROR, "The call that asked this has ended.")


def parse_answer(result: bytes) -> bytes:
    """Return an answer as it goes to a server: on one line.

    Raises:
        ValueError: It is no JSON object in UTF-8, or too large; the text says which.
    """
    if len(result) > MAX_ASK:
        raise ValueError(f"it has {len(result)} bytes, and {MAX_ASK} is the most")
    try:
        parsed: Any = msgspec.json.decode(result)
        result.decode()
    except (ValueError, RecursionError):
        parsed = None
    if not isinstance(parsed, dict):
        raise ValueError("it is no JSON object in UTF-8")
    # In valid JSON a line break is only whitespace, and on a pipe it would end the message.
    return result.replace(b"\n", b" ").replace(b"\r", b" ").strip()


class _Input(msgspec.Struct, omit_defaults=True):
    inputResponses: dict[str, msgspec.Raw] | msgspec.UnsetType = msgspec.UNSET  # noqa: N815 - MCP's
    requestState: str | msgspec.UnsetType = msgspec.UNSET  # noqa: N815


def parse_input(sent: bytes) -> bytes:
    """Return what a caller answers to an `input_required` result, as further members of params.

    Raises:
        Fault: INVALID_REQUEST: it is not of that shape, or too large.
    """
    if not sent:
        return b""
    try:
        parsed = msgspec.json.decode(sent, type=_Input) if len(sent) <= MAX_ASK else None
    except (ValueError, RecursionError):
        parsed = None
    if parsed is None:
        raise Fault(
            Reason.INVALID_REQUEST,
            f"The answers to an `input_required` result are a JSON object of at most {MAX_ASK} "
            "bytes with `inputResponses`, an object, and `requestState`, a text.",
        )
    members = msgspec.json.format(msgspec.json.encode(parsed), indent=-1)[1:-1]
    return b"," + members if members else b""


def parse_meta(sent: bytes) -> dict[str, object]:
    """Return what a caller wants in a request's `_meta`, without what belongs to a connection.

    Raises:
        Fault: INVALID_REQUEST: it is no JSON object, or too large.
    """
    try:
        parsed = msgspec.json.decode(sent, type=dict[str, Any]) if len(sent) <= MAX_META else None
    except (ValueError, RecursionError):
        parsed = None
    if parsed is None:
        raise Fault(
            Reason.INVALID_REQUEST,
            f"The `_meta` of a call is a JSON object of at most {MAX_META} bytes.",
        )
    return {key: value for key, value in parsed.items() if not is_reserved_meta(key)}


class Sink(Protocol):
    """Takes what becomes of calls; none of it may block."""

    def finish(self, active: ActiveCall, payload: bytes, is_error: bool) -> None:
        """Receive a call's result."""

    def fail(self, active: ActiveCall, fault: Fault) -> None:
        """Receive why a call has no result."""

    def progress(
        self, active: ActiveCall, progress: float, total: float | None, message: str
    ) -> None:
        """Receive a progress report."""

    def log(self, active: ActiveCall, level: str, logger: str, data: bytes) -> None:
        """Receive a log message of the server."""

    def ask(self, active: ActiveCall, ask_id: int, ask: Ask) -> None:
        """Receive what the server asks of the caller."""

    def withdraw_ask(self, active: ActiveCall, ask_id: int) -> None:
        """Called when the server does not want an answer any more."""

    def admit_updates(self, active: ActiveCall) -> None:
        """Make room for changes of a resource that a call follows.

        Raises:
            Fault: OVERLOADED: too many are followed.
        """

    def updated(self, active: ActiveCall, uri: str) -> None:
        """Receive the URI of a resource that changed; empty once a subscription holds."""


class ActiveCall:
    """One call under way; ends exactly once, in its sink.

    Attributes:
        number: Names it in its worker; never reused.
        has_deadline: Whether its owner ends it in time.
        call: What was asked.
        arguments: Its arguments as JSON.
        lease: The lease that it runs on, or None.
        is_new_lease: Whether this call acquired it.
        is_counted: Whether its end is to be told to `Admission`.
        audit: What is recorded of it, or None where nothing is recorded.
        policy: What it is judged by, or None where its server has no policy.
        facts: What rules are to judge it by; None where there are none, or they have.
        asks: What the server has asked and nobody answered yet, or None where it asked nothing.
        timer: Takes the duration of the server's work, where that is measured.
        sent_at: When the server was sent the call, as `time.perf_counter` counts.
        began: When it came, on the same clock; 0 where nobody remembers calls.
        marks: What it went through since, and when; None where that was nothing but the server.
    """

    __slots__ = (
        "_owner",
        "_pending",
        "_sink",
        "arguments",
        "asks",
        "audit",
        "began",
        "call",
        "facts",
        "has_deadline",
        "is_counted",
        "is_new_lease",
        "is_permitted",
        "lease",
        "live",
        "marks",
        "number",
        "over",
        "policy",
        "sent_at",
        "task",
        "timer",
        "trace",
    )

    def __init__(
        self,
        owner: CallOwner,
        number: int,
        call: execution_pb2.Call,
        arguments: bytes,
        sink: Sink,
    ) -> None:
        self._owner = owner
        self.number = number
        self._sink = sink
        self._pending: PendingCall | None = None
        self.call = call
        self.arguments = arguments
        self.live: LiveInstance | None = None
        self.lease: WorkerLease | None = None
        self.is_new_lease = False
        self.is_counted = False
        self.is_permitted = False
        self.policy: ToolPolicy | None = None
        self.facts: dict[str, Any] | None = None
        self.audit: AuditEntry | None = None
        self.over = False
        self.task: asyncio.Task[None] | None = None
        self.has_deadline = False
        self.asks: OpenAsks | None = None
        self.trace: CallTrace | None = None
        self.timer: ToolTimer | None = None
        self.sent_at = 0.0
        self.began = 0.0
        self.marks: list[tuple[str, float]] | None = None

    def event(self, name: str) -> None:
        """Note what the call goes through, in its trace and for those who look at it later."""
        if self.trace is not None:
            self.trace.event(name)
        self.mark(name)

    def mark(self, name: str) -> None:
        """Note what the call goes through, for those who look at it later."""
        if self.began:
            if self.marks is None:
                self.marks = []
            self.marks.append((name, time.perf_counter()))

    def recorded_trace(self) -> str:
        """Return the `traceparent` of its span, or else of its caller's, where that is recorded."""
        if self.trace is not None:
            return self.trace.traceparent
        parent = self.call.traceparent
        return parent if parent and is_sampled(parent) else ""

    def sent(self, pending: PendingCall) -> None:
        self._pending = pending
        if self.trace is not None:
            self.trace.sent(getattr(pending, "id", None))

    def done(self, outcome: Outcome) -> None:
        """End with what the instance says."""
        self._pending = None
        fault = outcome.fault
        if fault is not None:
            self.fail(self._owner.explain(self, fault))
        elif not self.over:
            if outcome.payload.find(DATA_MARK) >= 0:  # faster than `in`
                self.mark("keeping images and sounds")
                self._pending = self._owner.keep_media(self, outcome)
                if self._pending is None:  # else `finish` follows
                    self.finish(outcome.payload, outcome.is_error)
                return
            self._end(None, outcome.is_error)
            self._sink.finish(self, outcome.payload, outcome.is_error)

    def finish(self, payload: bytes, is_error: bool) -> None:
        """End with a result whose media were kept, or stay in it."""
        self._pending = None
        if len(payload) > bounds.MAX_RESULT:
            self.fail(too_large(self.call.server_id, len(payload)))
        elif not self.over:
            self._end(None, is_error)
            self._sink.finish(self, payload, is_error)

    def fail(self, fault: Fault) -> None:
        if not self.over:
            self._end(fault, False)
            self._sink.fail(self, fault)

    def expire(self) -> None:
        """End because the deadline has passed; the server is told."""
        self.fail(
            Fault(
                Reason.DEADLINE_EXCEEDED,
                f"The deadline of the call of {self.call.server_id}:{self.call.tool} has passed.",
                self.withdraw("the deadline has passed"),
            )
        )

    def cancel(self, reason: str) -> None:
        """End because the caller does not wait; the server is told."""
        self.fail(Fault(Reason.CANCELLED, "The caller cancelled the call.", self.withdraw(reason)))

    def withdraw(self, reason: str) -> Started:
        """Tell the server and whoever waits for it that nobody wants the result."""
        pending, self._pending = self._pending, None
        if self.task is not None:
            self.task.cancel()
        if pending is None:
            return "no"
        started: Started = "yes" if pending.written else "no"
        pending.cancel(reason)
        return started

    def progress(self, progress: float, total: float | None, message: str) -> None:
        if not self.over:
            self._sink.progress(self, progress, total, message)

    def log(self, level: str, logger: str, data: bytes) -> None:
        """Pass a log message on; one that would fill the caller's stream is dropped, and said."""
        if self.over:
            return
        if len(data) > bounds.BATCH_SIZE:
            _logger.warning(
                "A log message of %d bytes of the server %s was dropped; the bound is %d.",
                len(data),
                self.call.server_id,
                bounds.BATCH_SIZE,
            )
            return
        self._sink.log(self, level, logger, data)

    def admit_updates(self) -> None:
        """Make room for changes of a resource.

        Raises:
            Fault: OVERLOADED: the caller follows too many.
        """
        self._sink.admit_updates(self)

    def updated(self, uri: str) -> None:
        """Pass on that a resource changed, or by an empty URI that its subscription holds."""
        if not self.over:
            self._sink.updated(self, uri)

    def ask(self, ask: Ask) -> None:
        """Pass on what the server asks of the caller."""
        if self.asks is None:
            self.asks = OpenAsks(lambda ask_id: self._sink.withdraw_ask(self, ask_id))
        ask_id = self.asks.add(ask)
        if ask_id:
            self.event(f"the caller is asked: {ask.method}")
            self._sink.ask(self, ask_id, ask)

    def answer(self, answer: execution_pb2.Answer) -> None:
        if self.asks is not None:
            self.event("the caller has answered")
            self.asks.settle(answer)

    def refuse(self, ask_id: int, why: str) -> None:
        """Tell the server that the caller can't be asked."""
        if self.asks is not None:
            self.asks.refuse(ask_id, why)

    def remember(self, recent: RecentCalls) -> None:
        """Record that it ended well, at the price of a few lines. Arguments are not kept."""
        live = self.live
        server_id = live.spec.key.server_id if live is not None else self.call.server_id
        ended = time.perf_counter()
        if recent.count_success(server_id, ended - self.began, ended):
            recent.keep(self.past(None, False))

    def past(self, fault: Fault | None, is_error: bool) -> PastCall:
        """Return what is remembered of the call, now that it has ended."""
        took = time.perf_counter() - self.began
        lease, live = self.lease, self.live
        call = self.call
        return PastCall(
            self.number,
            time.time() - took,
            took,
            call.server_id,
            call.tool[:_LONGEST_KEPT],
            call.method,
            call.tenant or DEFAULT_TENANT,
            call.agent,
            call.session,
            lease.id if lease is not None else "",
            live.instance.id if live is not None else "",
            call.traceparent[:_LONGEST_KEPT],
            fault.reason.value if fault is not None else TOOL_ERROR if is_error else OK,
            fault.message if fault is not None else "",
            _parts(self.began, self.sent_at, self.marks),
        )

    def _end(self, fault: Fault | None, is_error: bool) -> None:
        self.over = True
        if self.asks is not None:
            self.asks.end()
        if self.trace is not None:
            self.trace.end(fault, is_error)
        self._owner.ended(self, fault, is_error)


_second = itemgetter(1)
_LONGEST_KEPT: Final = 2_048
"""Characters of what a call names that are kept: a URI has no bound of its own."""
_ADMISSION: Final = ("the worker admits it", 0.0)
_ADMITTED: Final = (_ADMISSION,)


class CallOwner(Protocol):
    """Whoever runs calls: the executor."""

    def explain(self, active: ActiveCall, fault: Fault) -> Fault:
        """Return what a fault of the instance means for the call."""

    def keep_media(self, active: ActiveCall, outcome: Outcome) -> PendingCall | None:
        """Begin to keep the media of a result, and `finish` the call then; None: there are none."""

    def ended(self, active: ActiveCall, fault: Fault | None, is_error: bool) -> None:
        """Note that a call has ended, and how."""


def _parts(
    began: float, sent_at: float, marks: list[tuple[str, float]] | None
) -> tuple[tuple[str, float], ...]:
    if marks is None:  # as nearly always
        if not sent_at:
            return _ADMITTED
        return _ADMISSION, ("the server works", sent_at - began)
    marks = list(marks)
    if sent_at:
        marks.append(("the server works", sent_at))
        marks.sort(key=_second)
    return _ADMISSION, *((name, at - began) for name, at in marks)
