"""Audit records of calls: caller, tool, arguments, outcome, without secrets.

A call that may change something has two records with the same number: `begin`, written before it
runs, and `call`, written after it ended. Other calls have only the second.

See design.md#traces-metrics-and-logs.
"""

from __future__ import annotations

import functools
import json
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, Protocol

import msgspec

from leaseway.data_plane.audit.log import AuditLog, AuditUnavailable, second_of, timestamp
from leaseway.data_plane.audit.redact import Redactor, Redactors, are_clean
from leaseway.data_plane.audit.shipping import Shipper
from leaseway.data_plane.core.calls.incoming import IncomingCall
from leaseway.data_plane.core.leases.table import WorkerLease
from leaseway.data_plane.core.tools.policy import ToolPolicy
from leaseway.identity.refusals import RpcRefusal
from leaseway.wire.bounds import KIB
from leaseway.wire.errors import Fault, Reason
from leaseway.wire.messages.states import CALL_OK, TOOL_ERROR
from leaseway.wire.secrets.secret_shapes import contains_secret

_MAX_PARSED: Final = 64 * KIB
"""Bytes of arguments; of longer ones only the length is recorded."""
_MAX_NAME: Final = 256
_RETRY: Final = 1.0
_TRACE_PARTS: Final = 4
_MAX_KNOWN: Final = 4_096
_SECOND: Final = 1_000
"""Milliseconds."""
_encode: Final = msgspec.json.Encoder().encode
_FIRST: Final = "[first of each name]"
_LAST: Final = "[last of each name]"
"""How arguments are shown of which a member occurs twice, so that none is missing."""
_decode = msgspec.json.Decoder(dict[str, Any]).decode


class AuditEntry(msgspec.Struct, eq=False, gc=False):
    """What is known of a call for its audit records alone.

    Attributes:
        written: Whether its `begin` record is written.
        tool: The tool, once it is found; None for other requests.
        approval: The id of its approval, or empty.
        approved_by: The credential that approved or denied it, or empty.
    """

    written: bool = False
    tool: ToolPolicy | None = None
    approval: str = ""
    approved_by: str = ""


class RecordedCall(Protocol):
    """A call in flight that is recorded.

    Attributes:
        number: Its id in the worker.
        call: What it asks for, and for whom.
        arguments: JSON.
        plan: What it runs, once its arguments are known to be a JSON object on one line, or None.
        caller: Whose credential it came with.
        audit: Its `AuditEntry`.
        arrived_at: When it arrived, as `time.perf_counter` counts.
    """

    number: int
    call: IncomingCall
    arguments: bytes
    plan: Any
    caller: Any
    audit: Any
    arrived_at: float

    @property
    def lease(self) -> WorkerLease | None:
        """The lease that it uses, or None."""


class Recorder:
    """Records calls in an audit.

    Args:
        log: Writes the records.
        shipper: Ships them to a sink, or None if there is none.
        now: Returns Unix time in seconds.
    """

    def __init__(
        self,
        log: AuditLog,
        shipper: Shipper | None = None,
        now: Callable[[], float] = time.time,
    ) -> None:
        self._log = log
        self._shipper = shipper if shipper is not None and shipper.holds_calls else None
        self._now = now
        self._redactors = Redactors()
        self._worker = _encode(log.worker)[1:-1]
        self._begins = b'Z","event":"begin",%b,"call":' % self._worker
        self._ended = b'Z","event":"call",%b,"call":' % self._worker
        self._second_at = 0.0  # when the second of `_time` began, on the clock of calls
        self._time = b""
        self._second_ends = self._millisecond_ends = 0.0
        self._begin_head = self._end_head = b""  # what the records of a millisecond begin with
        self._known: dict[tuple[ToolPolicy | None, str, str, str, str], bytes] = {}

    def start(self, calls: Sequence[RecordedCall]) -> None:
        """Record admitted calls before they run, all of them or none.

        Raises:
            Fault: OVERLOADED: they cannot be recorded, so they must not run.
        """
        now = time.perf_counter()
        if now >= self._millisecond_ends:
            self._start_millisecond(now)
        head = self._begin_head
        is_clean, known = are_clean([call.arguments for call in calls]), self._known
        records = []
        for recorded in calls:
            call, lease, names = recorded.call, recorded.lease, None
            if is_clean:
                lease_id = call.lease_id if lease is None else lease.id
                names = known.get(
                    (recorded.audit.tool, recorded.caller.name, call.user, call.session, lease_id)
                )
            if names is not None:
                trace = _trace_member(call.traceparent) if call.traceparent else b""
                records.append(
                    b'%b%d,%b,"arguments":%b%b'
                    % (head, recorded.number, names, recorded.arguments, trace)
                )
            else:
                records.append(self._call_record(head, b"", recorded))
        try:
            self._log.write(records)
        except AuditUnavailable as error:
            raise Fault(Reason.OVERLOADED, str(error), retry_delay=_RETRY) from None
        for recorded in calls:
            recorded.audit.written = True

    @property
    def holds_calls(self) -> bool:
        """Whether each call waits until a sink has acknowledged that it begins."""
        return self._shipper is not None

    async def acknowledged(self) -> None:
        """Wait until the sink has acknowledged what is written.

        Raises:
            Fault: OVERLOADED: the sink does not, so the calls must not run.
        """
        if self._shipper is None:
            return
        try:
            await self._shipper.acknowledged()
        except AuditUnavailable as error:
            raise Fault(Reason.OVERLOADED, str(error), retry_delay=_RETRY) from None

    def flush(self) -> None:
        """Write the records of ended calls now.

        Raises:
            Fault: OVERLOADED: they cannot be written, or some were lost.
        """
        try:
            self._log.flush()
        except AuditUnavailable as error:
            raise Fault(Reason.OVERLOADED, str(error)) from None

    def end(self, call: RecordedCall, fault: Fault | None, is_error: bool, now: float) -> None:
        """Record how a call has ended, within a moment.

        Args:
            call: The call.
            fault: Why it has no result, or None.
            is_error: `isError` of its result.
            now: The time, on the clock of the call's arrival.
        """
        if now >= self._millisecond_ends:
            self._start_millisecond(now)
        entry, head = call.audit, self._end_head
        took = (now - call.arrived_at) * 1000
        if entry.written and fault is None and not entry.approval:  # what most calls do
            self._log.add(b"%b%d%b%.3f" % (head, call.number, _ENDS[is_error], took))
            return
        ends = _ENDS[is_error] if fault is None else _outcome_member(fault.reason.value)
        end = b"%b%b%.3f" % (_optional_members(entry, fault), ends, took)
        if entry.written:
            self._log.add(b"%b%d%b" % (head, call.number, end))
        else:
            self._log.add(self._call_record(head, end, call))

    def record_approval(self, decision: Any) -> None:
        """Record a person's decision about a call that needs approval."""
        members = {
            "approval": decision.approval_id,
            "tenant": decision.tenant,
            "server": decision.server_id,
            "tool": decision.tool,
            "decided_by": decision.decided_by,
            "outcome": decision.outcome,
        }
        self._add(b"approval", members)

    def record_operator(self, action: Any) -> None:
        """Record an operator's action on this worker, a lease or a tenant."""
        members = {
            "action": action.action,
            "by": action.by,
            "reason": _name(action.reason),
            "target": _name(action.worker_id),
            "lease": _name(action.lease_id),
            "tenant": action.tenant,
            "session": _name(action.session),
            "server": action.server_id,
            "tool": action.tool,
            "outcome": action.outcome,
        }
        self._add(b"operator", {name: text for name, text in members.items() if text})

    def record_refusal(self, refusal: RpcRefusal, times: int, plane: str) -> None:
        """Record RPCs that a plane refused because of their sender's credential."""
        members: dict[str, str | int] = {
            "rpc": _name(refusal.rpc),
            "by": _name(refusal.by),
            "from": _name(refusal.peer),
            "plane": plane,
            "outcome": _name(refusal.outcome),
            "times": times,
        }
        self._add(b"refused", {name: member for name, member in members.items() if member})

    def _add(self, event: bytes, members: Mapping[str, str | int]) -> None:
        now = timestamp(self._now()).encode()
        head = b'"time":"%b","event":"%b",%b,' % (now, event, self._worker)
        self._log.add(head + _encode(members)[1:-1])

    def _start_millisecond(self, now: float) -> None:
        """Begin with another millisecond of the clock of calls.

        Within a second that clock says the time of day too: it has been read already.
        """
        if now >= self._second_ends:
            second, part = divmod(self._now(), 1.0)
            self._second_at = now - part
            self._second_ends = self._second_at + 1.0
            self._time = b'"time":"%b.' % second_of(int(second)).encode()
        millisecond = min(int((now - self._second_at) * _SECOND), _SECOND - 1)
        self._millisecond_ends = self._second_at + (millisecond + 1) / _SECOND
        stamp = b"%b%03d" % (self._time, millisecond)
        self._begin_head, self._end_head = stamp + self._begins, stamp + self._ended

    def _call_record(self, head: bytes, end: bytes, recorded: RecordedCall) -> bytes:
        """Return a record that describes a call, with what stands before and after that."""
        call, arguments, lease = recorded.call, recorded.arguments, recorded.lease
        tool, credential = recorded.audit.tool, recorded.caller.name
        lease_id = call.lease_id if lease is None else lease.id
        names = _name_members(
            call.tenant,
            call.agent,
            call.user,
            credential,
            call.session,
            lease_id,
            call.server_id,
            call.tool,
            call.method,
            tool.risk if tool is not None else "",
        )
        redactor = self._redactors.get(tool.definition if tool is not None else None)
        if tool is not None and not redactor.has_names:
            if len(self._known) >= _MAX_KNOWN:  # callers choose the names
                self._known.clear()
            self._known[tool, credential, call.user, call.session, lease_id] = names
        if call.traceparent:
            end = _trace_member(call.traceparent) + end
        if not arguments:
            arguments = b"{}"
        elif tool is None or recorded.plan is None or not redactor.is_clean(arguments):
            arguments = _redacted(redactor, arguments)
        return b'%b%d,%b,"arguments":%b%b' % (head, recorded.number, names, arguments, end)


def _outcome_member(outcome: str) -> bytes:
    """Return the last members of a call's record but for the duration itself."""
    return b',"outcome":"%b","duration_ms":' % outcome.encode()


_ENDS: Final = _outcome_member(CALL_OK), _outcome_member(TOOL_ERROR)
"""For results, by `isError`."""


def _trace_member(traceparent: str) -> bytes:
    trace = traceparent.split("-")
    return b',"trace":%b' % _encode(trace[1][:32]) if len(trace) == _TRACE_PARTS else b""


def _redacted(redactor: Redactor, arguments: bytes) -> bytes:
    """Return arguments that may hold secrets, or are long, as a record shows them."""
    if len(arguments) > _MAX_PARSED:
        return _encode({"[left out]": f"{len(arguments)} bytes"})
    try:
        parsed = _decode(arguments)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return _encode({"[left out]": f"{len(arguments)} bytes that are no JSON object"})
    if b"\n" in arguments or b"\r" in arguments:  # never in strings; a record is one line
        arguments = arguments.replace(b"\n", b" ").replace(b"\r", b" ")
    shown = redactor.redact(arguments, parsed)
    if isinstance(shown, msgspec.Raw):
        return _encode(shown)
    try:
        first = _first_values(arguments)
    except (ValueError, RecursionError):  # what one decoder reads, the other may not
        return _encode({"[left out]": f"{len(arguments)} bytes of JSON that decoders differ in"})
    if first is None:
        return _encode(shown)
    # Servers differ in which of two values of one name they read.
    return _encode({_FIRST: redactor.redact(_encode(first), first), _LAST: shown})


def _first_values(arguments: bytes) -> dict[str, Any] | None:
    """Return arguments with the first value of each name; None if no name occurs twice."""
    twice = False

    def first(members: list[tuple[str, Any]]) -> dict[str, Any]:
        nonlocal twice
        found = dict(reversed(members))
        twice = twice or len(found) < len(members)
        return found

    read = json.loads(arguments, object_pairs_hook=first)
    return read if twice else None


def _optional_members(entry: AuditEntry, fault: Fault | None) -> bytes:
    if fault is None and not entry.approval:
        return b""
    members: dict[str, Any] = {}
    if entry.approval:
        members["approval"] = entry.approval
        if entry.approved_by:
            members["decided_by"] = entry.approved_by
    if fault is not None:
        members["started"] = fault.started
        if "rule" in fault.metadata:
            members["rule"] = int(fault.metadata["rule"])
    return b"," + _encode(members)[1:-1]


@functools.lru_cache(_MAX_KNOWN)  # the search for secrets costs more than the rest of a record
def _name_members(  # noqa: PLR0913 - the fields of a record
    tenant: str,
    agent: str,
    user: str,
    credential: str,
    session: str,
    lease: str,
    server: str,
    tool: str,
    method: str,
    risk: str,
) -> bytes:
    """Return the members for a call's caller and tool, as JSON without braces."""
    members = {
        "tenant": _name(tenant),
        "agent": _name(agent),
        "credential": credential,
        "session": _name(session),
        "lease": lease[:_MAX_NAME],
        "server": _name(server),
        "tool": _name(tool),
    }
    if user:  # of the credential, or the one that a delegate speaks for
        members["user"] = _name(user)
    if method:
        members["method"] = _name(method)
    if risk:
        members["risk"] = risk
    return _encode(members)[1:-1]


def _name(text: str) -> str:
    """Return a name that a caller chose, which may be anything."""
    return "[redacted]" if contains_secret(text) else text[:_MAX_NAME]
