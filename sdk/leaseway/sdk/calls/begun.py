"""Calls that are sent without a task, by a relay whose next step is to pass the result on.

Nearly every call of a relay needs no wait before it is sent: its name, its worker and its lease are
known. Its result then arrives as a function call. What needs more than its result, such as another
try after a fault, goes on in a task (`CallRunner.run`).
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING

from leaseway.sdk.calls import tracing
from leaseway.sdk.calls.requests import CallState
from leaseway.wire.channels.trace_context import NO_TRACE
from leaseway.wire.errors import Fault

if TYPE_CHECKING:
    from opentelemetry.trace import Span

    from leaseway.sdk.catalog.targets import Target
    from leaseway.sdk.leases.lease import ClientLease
    from leaseway.sdk.leases.manager import LeaseManager
    from leaseway.sdk.leases.state import SessionLeases
    from leaseway.sdk.transport.events import CallEvents
    from leaseway.sdk.transport.exchange import Exchange
    from leaseway.sdk.transport.in_flight import RawResult
    from leaseway.sdk.transport.workers import WorkerLink


class CallWay:
    """What calls of one tool in one session share, as the last one found it.

    Args:
        session: The session.
        name: The tool's name, or its qualified name.

    Attributes:
        runtime: That in which the last call has begun; only compared.
        leases: Those of the session, then.
        target: The tool, then.
        user: The user of the session.
        lease_id: The lease that the calls name, or empty.
        log_level: That of the events.
        wants_progress: That of the events.
        fields: The fields of a `Call` with these, or empty.
        timeout_ms: The timeout of the tool.
    """

    __slots__ = (
        "fields",
        "lease_id",
        "leases",
        "log_level",
        "name",
        "runtime",
        "session",
        "target",
        "timeout_ms",
        "user",
        "wants_progress",
    )

    def __init__(self, session: str, name: str) -> None:
        self.session = session
        self.name = name
        self.runtime: object = None
        self.leases: SessionLeases | None = None
        self.target: Target | None = None
        self.user = ""
        self.lease_id = ""
        self.log_level = ""
        self.wants_progress = False
        self.fields = b""
        self.timeout_ms = 0


class BegunCall(ABC):
    """A call of a tool whose first try is sent without a task; a subclass takes its result.

    The exchange calls `set_result` or `set_exception` once, perhaps before `CallRunner.begin` has
    returned, and neither after `cancel` or `detach`.

    Args:
        way: What it shares with others, whose events may differ in the log level, in whether they
            want progress, and in their `meta`.
        payload: The arguments, as one JSON object in UTF-8.
        events: Receives the events of the call.

    Attributes:
        trace: The `traceparent` and `tracestate` that it continues, whatever the current context;
            once it was sent, those that it has sent.
        span: Its span if one is recorded, until the call has ended or goes on in a task.
    """

    __slots__ = (
        "_is_done",
        "_outcome",
        "call_id",
        "events",
        "exchange",
        "lease",
        "leases",
        "link",
        "payload",
        "sent_at",
        "span",
        "target",
        "ticket",
        "trace",
        "way",
    )
    # Set by `CallRunner.begin`, before the call is sent.
    target: Target
    link: WorkerLink
    exchange: Exchange
    lease: ClientLease | None
    leases: LeaseManager
    sent_at: float
    call_id: int
    ticket: int

    def __init__(self, way: CallWay, payload: bytes, events: CallEvents) -> None:
        self.way = way
        self.payload = payload
        self.ticket = 0
        self.trace = NO_TRACE
        self.span: Span | None = None
        self.events = events
        self._is_done = False
        self._outcome: RawResult | BaseException | asyncio.Future[RawResult] | None = None

    @abstractmethod
    def on_payload(self, payload: bytes) -> None:
        """Take the result, which ends the call; must neither block nor raise."""

    @abstractmethod
    def on_other(self) -> None:
        """Take note of another outcome: the call goes on in a task; must not raise."""

    @property
    def reply(self) -> BegunCall:
        """Itself, which the exchange tells the outcome."""
        return self

    @property
    def what(self) -> str:
        """The tool, for messages."""
        return self.target.what

    @property
    def chunked(self) -> bool:
        """False: longer arguments need a task."""
        return False

    def done(self) -> bool:
        """Return whether its first try has an outcome, was cancelled or detached."""
        return self._is_done

    def set_result(self, outcome: RawResult, /) -> None:
        """Take the outcome of the first try."""
        self._is_done = True
        result, payload = outcome
        lease = self.lease
        if not payload or (lease is None and result.HasField("lease")):
            self._outcome = outcome
            self.on_other()
            return
        if lease is not None:
            self.leases.record_call(lease, self.sent_at)
        if self.span is not None:
            self.span.end()
        self.on_payload(payload)

    def set_exception(self, fault: BaseException, /) -> None:
        """Take the fault of the first try."""
        self._is_done = True
        self._outcome = fault
        self.on_other()

    def cancel(self, reason: str) -> None:
        """Give the call up, with a reason for its server; no-op once it has an outcome."""
        if not self._is_done:
            self._is_done = True
            self.give_up(reason)

    def give_up(self, reason: str) -> None:
        """Stop waiting for its outcome, and end its span, unless it goes on in a task already."""
        self.exchange.abandon(self.call_id, reason)
        span, self.span = self.span, None
        if span is not None:
            tracing.record_cancellation(span)
            span.end()

    def detach(self) -> None:
        """Let the outcome of its first try wait for `state`: the call goes on in a task already."""
        self._is_done = True
        self._outcome = self.exchange.hand_over(self.call_id)

    async def state(self) -> CallState:
        """Return the call as it goes on after the outcome of its first try, once there is one."""
        way, outcome = self.way, self._outcome
        if isinstance(outcome, asyncio.Future):
            try:
                outcome = await outcome
            except Fault as fault:
                outcome = fault
            except asyncio.CancelledError:
                self.give_up(self.events.cancel_reason)
                raise
        state = CallState(way.session, way.name, None, self.events)
        state.outcome = outcome
        state.trace = self.trace
        state.span, self.span = self.span, None
        state.payload = self.payload
        state.user = way.user
        state.target, state.link, state.lease = self.target, self.link, self.lease
        state.deadline, state.sent_at = self.events.deadline, self.sent_at
        state.tries = 1
        return state
