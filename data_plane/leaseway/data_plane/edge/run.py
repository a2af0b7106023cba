"""One call under way: what it waits for, and how it ends, exactly once."""

from __future__ import annotations

import asyncio
import logging
from typing import Protocol

from leaseway.data_plane.core.calls import Ask, Outcome, PendingCall, too_large
from leaseway.data_plane.core.lease_table import Lease
from leaseway.data_plane.core.media import DATA_MARK
from leaseway.data_plane.edge.asks import OpenAsks
from leaseway.data_plane.edge.call_trace import CallTrace
from leaseway.data_plane.edge.live_instance import LiveInstance
from leaseway.data_plane.edge.meters import ToolTimer
from leaseway.v1 import execution_pb2
from leaseway.wire import bounds
from leaseway.wire.fault import Fault, Started
from leaseway.wire.reasons import Reason

__all__ = ["Run", "RunOwner", "Sink"]

_logger = logging.getLogger(__name__)


class Sink(Protocol):
    """Takes what becomes of calls; none of it may block."""

    def finish(self, run: Run, payload: bytes, is_error: bool) -> None:
        """Take a call's result."""

    def fail(self, run: Run, fault: Fault) -> None:
        """Take why a call has no result."""

    def progress(self, run: Run, progress: float, total: float | None, message: str) -> None:
        """Take a progress report."""

    def log(self, run: Run, level: str, logger: str, data: bytes) -> None:
        """Take a log message of the server."""

    def ask(self, run: Run, ask_id: int, ask: Ask) -> None:
        """Take what the server asks of the caller."""

    def withdraw_ask(self, run: Run, ask_id: int) -> None:
        """Take that the server does not want an answer any more."""

    def admit_updates(self, run: Run) -> None:
        """Make room for changes of a resource that a call follows.

        Raises:
            Fault: OVERLOADED: too many are followed.

        """

    def updated(self, run: Run, uri: str) -> None:
        """Take the URI of a resource that changed; empty once a subscription holds."""


class Run:
    """One call under way; ends exactly once, in its sink.

    Attributes:
        number: Names it in its worker; never reused.
        has_deadline: Whether its owner ends it in time.
        call: What was asked.
        arguments: Its arguments as JSON.
        lease: The lease that it runs on, or None.
        is_new_lease: Whether this call acquired it.
        asks: What the server has asked and nobody answered yet, or None where it asked nothing.
        timer: Takes the duration of the server's work, where that is measured.
        sent_at: When the server was sent the call, as `time.perf_counter` counts.

    """

    __slots__ = (
        "_owner",
        "_pending",
        "_sink",
        "arguments",
        "asks",
        "call",
        "has_deadline",
        "is_new_lease",
        "lease",
        "live",
        "number",
        "over",
        "sent_at",
        "task",
        "timer",
        "trace",
    )

    def __init__(
        self,
        owner: RunOwner,
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
        self.lease: Lease | None = None
        self.is_new_lease = False
        self.over = False
        self.task: asyncio.Task[None] | None = None
        self.has_deadline = False
        self.asks: OpenAsks | None = None
        self.trace: CallTrace | None = None
        self.timer: ToolTimer | None = None
        self.sent_at = 0.0

    def sent(self, pending: PendingCall) -> None:
        """Note that the instance has the call."""
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
        """End without a result."""
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
        """Pass a progress report on."""
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
            if self.trace is not None:
                self.trace.event(f"the caller is asked: {ask.method}")
            self._sink.ask(self, ask_id, ask)

    def answer(self, answer: execution_pb2.Answer) -> None:
        """Pass on what the caller answers."""
        if self.asks is not None:
            if self.trace is not None:
                self.trace.event("the caller has answered")
            self.asks.settle(answer)

    def refuse(self, ask_id: int, why: str) -> None:
        """Tell the server that the caller can't be asked."""
        if self.asks is not None:
            self.asks.refuse(ask_id, why)

    def _end(self, fault: Fault | None, is_error: bool) -> None:
        self.over = True
        if self.asks is not None:
            self.asks.end()
        if self.trace is not None:
            self.trace.end(fault, is_error)
        self._owner.ended(self, fault, is_error)


class RunOwner(Protocol):
    """Whoever runs calls: the executor."""

    def explain(self, run: Run, fault: Fault) -> Fault:
        """Return what a fault of the instance means for the call."""

    def keep_media(self, run: Run, outcome: Outcome) -> PendingCall | None:
        """Begin to keep the media of a result, and `finish` the call then; None: there are none."""

    def ended(self, run: Run, fault: Fault | None, is_error: bool) -> None:
        """Note that a call has ended, and how."""
