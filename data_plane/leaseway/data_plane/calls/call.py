"""An in-flight call: its way to the outcome, its end, and what it tells its caller meanwhile."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Iterator
from functools import partial
from operator import itemgetter
from typing import Any, Final, Protocol

import msgspec
from msgspec import Struct

from leaseway.data_plane.audit.record import AuditEntry
from leaseway.data_plane.calls.open_asks import OpenAsks
from leaseway.data_plane.calls.recent import PastCall, call_outcome
from leaseway.data_plane.calls.tracing import CallTrace
from leaseway.data_plane.core.artifacts.media import DATA_MARK
from leaseway.data_plane.core.calls.call import Ask, Outcome, PendingCall, too_large
from leaseway.data_plane.core.calls.incoming import IncomingCall
from leaseway.data_plane.core.desired_state import DesiredState
from leaseway.data_plane.core.leases.table import WorkerLease
from leaseway.data_plane.core.tools.policy import JudgedCall, ToolPolicy
from leaseway.data_plane.core.tools.prompts_resources import AdmittedRequest
from leaseway.data_plane.core.tools.toolset import ToolPlan
from leaseway.data_plane.instances.generation import Generation
from leaseway.data_plane.instances.live_instance import LiveInstance
from leaseway.data_plane.metrics.instruments import ToolTimer
from leaseway.data_plane.oauth.caller_tokens import CallToken
from leaseway.identity.principal import Principal
from leaseway.v1 import execution_pb2
from leaseway.wire import bounds
from leaseway.wire.bounds import MAX_ASK, MAX_META, MAX_NESTING
from leaseway.wire.channels.trace_context import is_sampled
from leaseway.wire.clients.mcp_client import McpClient
from leaseway.wire.errors import Fault, Reason, Started
from leaseway.wire.messages.mcp import CALL_KEYS, is_reserved_meta
from leaseway.wire.messages.portable_json import is_deep
from leaseway.wire.sharing.limits import BudgetKey

_logger = logging.getLogger(__name__)
_MAX_REMEMBERED: Final = 2_048
"""Characters of a name or trace context that are remembered: URIs have no other limit."""

_ADMISSION: Final = ("the worker admits it", 0.0)
_ONLY_ADMISSION: Final = (_ADMISSION,)
_mark_time = itemgetter(1)
_UNADMITTED: Final[Any] = None
"""Stands for what a call has once it is admitted."""


class _Input(msgspec.Struct, omit_defaults=True):
    inputResponses: dict[str, msgspec.Raw] | msgspec.UnsetType = msgspec.UNSET  # noqa: N815 - MCP's
    requestState: str | msgspec.UnsetType = msgspec.UNSET  # noqa: N815


def parse_input(encoded: bytes) -> bytes:
    """Return a caller's answers to an `input_required` result as extra members of `params`.

    Raises:
        Fault: INVALID_REQUEST: they have another shape, or are too large.
    """
    if not encoded:
        return b""
    try:
        parsed = msgspec.json.decode(encoded, type=_Input) if len(encoded) <= MAX_ASK else None
        if parsed is not None and is_deep(encoded, msgspec.json.decode(encoded)):
            parsed = None
    except (ValueError, RecursionError):
        parsed = None
    if parsed is None:
        raise Fault(
            Reason.INVALID_REQUEST,
            f"The answers to an `input_required` result are a JSON object of at most {MAX_ASK} "
            f"bytes and {MAX_NESTING} levels with `inputResponses`, an object, and `requestState`, "
            "a text.",
        )
    members = msgspec.json.format(msgspec.json.encode(parsed), indent=-1)[1:-1]
    return b"," + members if members else b""


def parse_meta(encoded: bytes) -> dict[str, object]:
    """Return a caller's keys for a request's `_meta`, without those reserved for a connection.

    Raises:
        Fault: INVALID_REQUEST: it is no JSON object, or too large.
    """
    try:
        parsed = (
            msgspec.json.decode(encoded, type=dict[str, Any]) if len(encoded) <= MAX_META else None
        )
    except (ValueError, RecursionError):
        parsed = None
    if parsed is None or is_deep(encoded, parsed):
        raise Fault(
            Reason.INVALID_REQUEST,
            f"The `_meta` of a call is a JSON object of at most {MAX_META} bytes and "
            f"{MAX_NESTING} levels.",
        )
    return {key: value for key, value in parsed.items() if not is_reserved_meta(key)}


def approved_meta(encoded: bytes) -> dict[str, object]:
    """Return the keys of a call that needs approval: those that the same call has again later.

    Hosts name each of their calls. What would differ in the call after the approval is neither
    shown nor passed on.

    Raises:
        Fault: As `parse_meta`.
    """
    return {key: value for key, value in parse_meta(encoded).items() if key not in CALL_KEYS}


class CallSink(Protocol):
    """Receives the events and the result of calls. No method may block."""

    def finish(self, active: ActiveCall, payload: bytes, is_error: bool) -> None:
        """Called once if the call has a result."""

    def fail(self, active: ActiveCall, fault: Fault) -> None:
        """Called once if the call has no result."""

    def progress(
        self, active: ActiveCall, progress: float, total: float | None, message: str, extra: bytes
    ) -> None:
        """Called with a progress report; `extra` are its other members as JSON, or empty."""

    def log(self, active: ActiveCall, level: str, logger: str, data: bytes, extra: bytes) -> None:
        """Called with a log message of the server; `extra` as for progress."""

    def ask(self, active: ActiveCall, ask_id: int, ask: Ask) -> None:
        """Called with a question of the server to the caller."""

    def withdraw_ask(self, active: ActiveCall, ask_id: int) -> None:
        """Called when the server withdraws a question."""

    def add_subscription(self, active: ActiveCall) -> None:
        """Called before a call subscribes to a resource.

        Raises:
            Fault: OVERLOADED: the caller has too many subscriptions.
        """

    def resource_updated(self, active: ActiveCall, uri: str) -> None:
        """Called with the URI of a changed resource; empty once the subscription is confirmed."""

    def notify(self, session: str, server_id: str, method: str, params: bytes) -> None:
        """Called with a notification of a leased server that belongs to no call."""

    def tell_lease_end(self, lease_id: str, ended: Fault) -> None:
        """Called when a lease has ended on which the caller made a call for an MCP client."""


class CallOwner(Protocol):
    """What a call needs of the executor that runs it."""

    def resume(self, active: ActiveCall) -> None:
        """Let a call that has waited in a stage go on. Never raises."""

    def wait_for(self, active: ActiveCall, work: Callable[[ActiveCall], Awaitable[None]]) -> None:
        """Do a stage's work in a task, then resume the call."""

    def fail(self, active: ActiveCall, error: Exception) -> None:
        """End a call with a fault; log any other error and end the call with INTERNAL."""

    def call_fault(self, active: ActiveCall, fault: Fault) -> Fault:
        """Return the fault of a call whose instance failed with another fault."""

    def wait_for_login(self, active: ActiveCall, required: Fault) -> None:
        """Let a call that was not sent for want of a login wait for it, and send it then."""

    def store_media(self, active: ActiveCall, outcome: Outcome) -> PendingCall | None:
        """Store the media of a result and then `finish` the call; None if it has no media."""

    def hold_reply(
        self, deliver: Callable[[], object], withhold: Callable[[Fault], object]
    ) -> None:
        """Deliver the reply of an ended call when the audit's sink has the record of its end."""

    def on_call_ended(self, active: ActiveCall, fault: Fault | None, is_error: bool) -> None:
        """Called when a call has ended, before its sink is called."""


class ActiveCall(Struct, eq=False):
    """An in-flight call. It ends exactly once, by calling its sink.

    Attributes:
        number: Its id in the worker; never reused.
        arguments: JSON.
        sink: Receives its events and its result.
        caller: Whose credential it came with.
        pending: Its request at the instance; None before it is sent.
        live: Its instance, on which it counts; None before the stage that finds it.
        generation: Its server, once it is admitted.
        plan: Its tool or other request, once it is admitted.
        line: The stages that it still has to pass.
        configuration: The state of the registry that admitted it, or None.
        approval: `given` before its instance is found, then `spent`; empty without one.
        is_new_lease: Whether this call acquired its lease.
        slots: The limits of calls at once that count it.
        was_counted: Whether its limits were checked already.
        has_waited_for_lists: Whether it has waited for a change of its lease's tools.
        audit: Its audit record, or None if nothing is recorded.
        holds_reply: Whether its reply waits until the audit's sink has the record of its end.
        was_asked_to_log_in: Whether its caller was asked for a login that its request lacked.
        login_changes: How many changes of logins there had been when it was sent again; None if it
            never was.
        policy: The policy of its tool, or None if its server has none.
        judged: Input of the rules and permissions that must still be checked, or None.
        deadline: When it expires, by the event loop's clock; None until the executor knows.
        asks: Unanswered questions of the server, or None if it never asked any.
        timer: Timer for the server's work, or None if metrics are off.
        sent_at: When the call was sent to the server, as `time.perf_counter` counts.
        arrived_at: When it arrived, on the same clock.
        started_at: The same; 0 if the call is not remembered.
        client: The MCP client that the caller speaks for, once it is admitted, or None.
        given: The token that its requests use, or None if its server asks for no caller's token.
        marks: Waits and other phases with their start times, or None if there were none.
    """

    _owner: CallOwner
    __repr__ = object.__repr__
    number: int
    call: IncomingCall
    arguments: bytes
    sink: CallSink
    caller: Principal
    trace: CallTrace | None = None
    generation: Generation = _UNADMITTED
    plan: ToolPlan | AdmittedRequest = _UNADMITTED
    line: Iterator[Callable[[ActiveCall], bool]] = _UNADMITTED
    configuration: DesiredState | None = None
    pending: PendingCall | None = None
    live: LiveInstance | None = None
    lease: WorkerLease | None = None
    is_new_lease: bool = False
    slots: tuple[BudgetKey, ...] = ()
    was_counted: bool = False
    has_waited_for_lists: bool = False
    approval: str = ""
    policy: ToolPolicy | None = None
    judged: JudgedCall | None = None
    audit: AuditEntry | None = None
    holds_reply: bool = False
    has_ended: bool = False
    was_asked_to_log_in: bool = False
    login_changes: int | None = None
    task: asyncio.Task[None] | None = None
    deadline: float | None = None
    asks: OpenAsks | None = None
    timer: ToolTimer | None = None
    sent_at: float = 0.0
    arrived_at: float = 0.0
    started_at: float = 0.0
    marks: list[tuple[str, float]] | None = None
    client: McpClient | None = None
    given: CallToken | None = None

    def event(self, name: str) -> None:
        """Add an event to the call's span, and to the record of the call."""
        if self.trace is not None:
            self.trace.event(name)
        self.mark(name)

    def mark(self, name: str) -> None:
        """Start a phase in the record of the call."""
        if self.started_at:
            if self.marks is None:
                self.marks = []
            self.marks.append((name, time.perf_counter()))

    def sampled_traceparent(self) -> str:
        """Return the `traceparent` of its span, or of its caller's; empty if it is not sampled."""
        if self.trace is not None:
            return self.trace.traceparent
        parent = self.call.traceparent
        return parent if parent and is_sampled(parent) else ""

    def resume(self) -> None:
        """Go on to the next stage after a wait. Never raises."""
        self._owner.resume(self)

    def wait_for(self, work: Callable[[ActiveCall], Awaitable[None]]) -> None:
        """Do a stage's work in a task, then go on to the next stage."""
        self._owner.wait_for(self, work)

    def fail_with(self, error: Exception) -> None:
        """End the call with an error that a stage met. Never raises."""
        self._owner.fail(self, error)

    def handle_outcome(self, outcome: Outcome) -> None:
        """End the call with the instance's outcome, after its media are stored."""
        self.pending = None
        fault = outcome.fault
        if fault is not None:
            if self._may_log_in(fault):
                self._owner.wait_for_login(self, fault)
            else:
                self.fail(self._owner.call_fault(self, fault))
        elif not self.has_ended:
            # `find` is faster than `in`, and still takes longer than all else for a large result.
            if not outcome.lacks_media and outcome.payload.find(DATA_MARK) >= 0:
                self.mark("keeping images and sounds")
                self.pending = self._owner.store_media(self, outcome)
                if self.pending is None:  # otherwise the store calls `finish`
                    self.finish(outcome.payload, outcome.is_error)
                return
            self._end(None, outcome.is_error)
            # `_reply`, without a function call
            if not self.holds_reply:
                self.sink.finish(self, outcome.payload, outcome.is_error)
            else:
                self._reply(outcome.payload, outcome.is_error)

    def _may_log_in(self, fault: Fault) -> bool:
        """Return whether the call can be sent after a login: no subscription, not started."""
        is_sendable = self.live is not None and not self.has_ended
        return fault.reason is Reason.LOGIN_REQUIRED and fault.started == "no" and is_sendable

    def handle_unchecked(self, outcome: Outcome) -> None:
        """End a call of a tool with an output schema, after its result is checked."""
        check = self.plan.results if isinstance(self.plan, ToolPlan) else None
        if check is not None and outcome.fault is None:
            outcome.payload, why = check.fitted(outcome.payload, is_error=outcome.is_error)
            if why and not outcome.is_error and not check.was_reported:
                check.was_reported = True
                _logger.warning(
                    "A result of %s:%s does not fit the output schema that the server lists (%s); "
                    "MCP clients get such results as errors, with all that they say. Ask the "
                    "server's maintainer to fix it.",
                    self.call.server_id,
                    self.call.tool,
                    why,
                )
        self.handle_outcome(outcome)

    def finish(self, payload: bytes, is_error: bool) -> None:
        """End the call with a result whose media were stored, or remain in it."""
        self.pending = None
        if len(payload) > bounds.MAX_RESULT:
            self.fail(too_large(self.call.server_id, len(payload)))
        elif not self.has_ended:
            self._end(None, is_error)
            self._reply(payload, is_error)

    def fail(self, fault: Fault) -> None:
        if not self.has_ended:
            self._end(fault, False)
            if self.holds_reply:
                fail = partial(self.sink.fail, self)
                self._owner.hold_reply(partial(fail, fault), fail)
            else:
                self.sink.fail(self, fault)

    def _reply(self, payload: bytes, is_error: bool) -> None:
        """Send the result to the caller, when the audit allows it."""
        if not self.holds_reply:
            self.sink.finish(self, payload, is_error)
            return
        self._owner.hold_reply(
            partial(self.sink.finish, self, payload, is_error), partial(self.sink.fail, self)
        )

    def expire(self) -> None:
        """Cancel the request and end the call because its deadline has passed."""
        self.fail(
            Fault(
                Reason.DEADLINE_EXCEEDED,
                f"The deadline of the call of {self.call.server_id}:{self.call.tool} has passed.",
                self.cancel_request("the deadline has passed"),
            )
        )

    def cancel(self, reason: str, *, timed_out: bool = False, slack: float = 0.0) -> None:
        """Cancel the request and end the call for its caller.

        Caller and worker measure the same timeout from different moments, so either may be first:
        a call whose caller timed out ends like one whose deadline passed here.

        Args:
            reason: The reason, for the server.
            timed_out: Whether the caller says that its timeout passed.
            slack: Seconds by which the deadline of a caller that says nothing may be early.
        """
        if timed_out or self._is_overdue(slack):
            self.expire()
            return
        started = self.cancel_request(reason)
        self.fail(Fault(Reason.CANCELLED, "The caller cancelled the call.", started))

    def _is_overdue(self, slack: float) -> bool:
        if self.deadline is None:
            return False
        return asyncio.get_running_loop().time() >= self.deadline - slack

    def abort(self, fault: Fault, reason: str) -> None:
        """Cancel the request, with the reason for the server, and end the call with a fault."""
        started = self.cancel_request(reason)
        self.fail(Fault(fault.reason, fault.message, started))

    def cancel_request(self, reason: str) -> Started:
        """Cancel the request at the server, or the task that waits to send it."""
        pending, self.pending = self.pending, None
        if self.task is not None:
            self.task.cancel()
        if pending is None:
            return "no"
        started: Started = "yes" if pending.written else "no"
        pending.cancel(reason)
        return started

    def progress(
        self, progress: float, total: float | None, message: str, extra: bytes = b""
    ) -> None:
        if not self.has_ended:
            self.sink.progress(self, progress, total, message, extra)

    def log(self, level: str, logger: str, data: bytes, extra: bytes = b"") -> None:
        """Pass on a log message; drop one that would fill the caller's stream, with a warning."""
        if self.has_ended:
            return
        if len(data) > bounds.BATCH_SIZE:
            _logger.warning(
                "A log message of %d bytes of the server %s was dropped; the limit is %d.",
                len(data),
                self.call.server_id,
                bounds.BATCH_SIZE,
            )
            return
        self.sink.log(self, level, logger, data, extra)

    def add_subscription(self) -> None:
        """Reserve a subscription on the caller's stream.

        Raises:
            Fault: OVERLOADED: the caller has too many subscriptions.
        """
        self.sink.add_subscription(self)

    def resource_updated(self, uri: str) -> None:
        """Pass on a change of a resource; an empty URI confirms the subscription."""
        if not self.has_ended:
            self.sink.resource_updated(self, uri)

    def ask(self, ask: Ask) -> None:
        """Pass on a question of the server to the caller."""
        if self.asks is None:
            self.asks = OpenAsks(partial(self.sink.withdraw_ask, self))
        ask_id = self.asks.add(ask)
        if ask_id:
            self.event(f"the caller is asked: {ask.method}")
            self.sink.ask(self, ask_id, ask)

    def answer(self, answer: execution_pb2.Answer) -> None:
        if self.asks is not None:
            self.event("the caller has answered")
            why = self.asks.answer(answer, self.policy)
            if why:
                message = (
                    f"The permissions of server {self.call.server_id} deny the caller's answer in "
                    f"this call of {self.call.tool}: {why}. Its operator configures them under "
                    "'permissions'."
                )
                started = self.cancel_request("an answer of the caller is not permitted")
                self.fail(Fault(Reason.PERMISSION_DENIED, message, started, {"rule": "0"}))

    def refuse(self, ask_id: int, reason: str) -> None:
        """Refuse a question of the server that cannot reach the caller."""
        if self.asks is not None:
            self.asks.refuse(ask_id, reason)

    def past_call(self, fault: Fault | None, is_error: bool) -> PastCall:
        """Return the record of the ended call."""
        took = time.perf_counter() - self.started_at
        lease, live = self.lease, self.live
        call = self.call
        return PastCall(
            number=self.number,
            started_at=time.time() - took,
            duration=took,
            server_id=call.server_id,
            tool=call.tool[:_MAX_REMEMBERED],
            method=call.method,
            tenant=call.tenant,
            agent=call.agent,
            session=call.session,
            lease_id=lease.id if lease is not None else "",
            instance_id=live.instance.id if live is not None else "",
            traceparent=call.traceparent[:_MAX_REMEMBERED],
            outcome=call_outcome(fault, is_error),
            message=fault.message if fault is not None else "",
            marks=self._phase_starts(),
        )

    def _phase_starts(self) -> tuple[tuple[str, float], ...]:
        if self.marks is None:  # the usual case
            if not self.sent_at:
                return _ONLY_ADMISSION
            return _ADMISSION, ("the server works", self.sent_at - self.started_at)
        marks = list(self.marks)
        if self.sent_at:
            marks.append(("the server works", self.sent_at))
            marks.sort(key=_mark_time)
        return _ADMISSION, *((name, at - self.started_at) for name, at in marks)

    def _end(self, fault: Fault | None, is_error: bool) -> None:
        self.has_ended = True
        if self.asks is not None:
            self.asks.refuse_all()
        if self.trace is not None:
            self.trace.end(fault, is_error)
        self._owner.on_call_ended(self, fault, is_error)
