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

from leaseway.data_plane.audit.log import AuditLog, AuditUnavailable, timestamp, timestamp_of
from leaseway.data_plane.audit.redact import Redactor, Redactors
from leaseway.data_plane.audit.shipping import Shipper
from leaseway.identity.refusals import RpcRefusal
from leaseway.wire.bounds import KIB
from leaseway.wire.errors import Fault, Reason
from leaseway.wire.names import DEFAULT_TENANT
from leaseway.wire.secrets.secret_shapes import contains_secret

_MAX_PARSED: Final = 64 * KIB
"""Bytes of arguments; of longer ones only the length is recorded."""
_MAX_NAME: Final = 256
_RETRY: Final = 1.0
_TRACE_PARTS: Final = 4
_encode: Final = msgspec.json.Encoder().encode
_FIRST: Final = "[first of each name]"
_LAST: Final = "[last of each name]"
"""How arguments are shown of which a member occurs twice, so that none is missing."""
_decode = msgspec.json.Decoder(dict[str, Any]).decode


class Plan(Protocol):
    """A tool."""

    @property
    def definition(self) -> bytes:
        """The tool as its server listed it, as JSON."""


class AuditEntry(msgspec.Struct, eq=False, gc=False):
    """The facts about a call that its audit records need.

    Attributes:
        credential: The credential of the caller.
        started_at: When the call arrived, as `time.perf_counter` counts.
        written: Whether its `begin` record is written.
        holds_reply: Whether its reply waits until the sink has the record of its end.
        plan: The tool, once it is found.
        risk: The risk of the tool; empty until it is found.
        writes_first: Whether the call must be recorded before it runs.
        parsed: Whether the arguments are known to be a JSON object on one line.
        approval: The id of its approval, or empty.
        approved_by: The credential that approved or denied it, or empty.
    """

    credential: str
    started_at: float
    written: bool = False
    holds_reply: bool = False
    plan: Plan | None = None
    risk: str = ""
    writes_first: bool = False
    parsed: bool = False
    approval: str = ""
    approved_by: str = ""


class HeldLease(Protocol):
    """A lease."""

    @property
    def id(self) -> str:
        """Its id."""


class RecordedCall(Protocol):
    """A call in flight.

    Attributes:
        number: Its id in the worker.
        call: What it asks for, and for whom.
        arguments: JSON.
    """

    number: int
    call: Any
    arguments: bytes

    @property
    def audit(self) -> AuditEntry | None:
        """What else its records need; None if it is not recorded."""

    @property
    def lease(self) -> HeldLease | None:
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
        self._millisecond = -1
        self._heads = b"", b""

    def start(self, calls: Sequence[RecordedCall]) -> None:
        """Record calls before they run, all of them or none.

        Raises:
            Fault: OVERLOADED: they cannot be recorded, so they must not run.
        """
        begin, _ = self._new_heads(int(self._now() * 1000))
        entries = [(call.audit, call) for call in calls if call.audit is not None]
        try:
            self._log.write(
                [self._call_record(begin, b"}", entry, call) for entry, call in entries]
            )
        except AuditUnavailable as error:
            raise Fault(Reason.OVERLOADED, str(error), retry_delay=_RETRY) from None
        for entry, _call in entries:
            entry.written = True

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

    def end(self, entry: AuditEntry, call: RecordedCall, outcome: str, fault: Fault | None) -> None:
        """Record how a call has ended, within a moment."""
        millisecond = int(self._now() * 1000)
        _, head = self._heads if millisecond == self._millisecond else self._new_heads(millisecond)
        took = (time.perf_counter() - entry.started_at) * 1000
        more = _optional_members(entry, fault) if entry.approval or fault is not None else b""
        ended = more, outcome.encode(), took
        if entry.written:
            self._log.add(
                b'%b%d%b,"outcome":"%b","duration_ms":%.3f}' % (head, call.number, *ended)
            )
        else:
            end = b'%b,"outcome":"%b","duration_ms":%.3f}' % ended
            self._log.add(self._call_record(head, end, entry, call))

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
        head = b'{"time":"%b","event":"%b",%b,' % (now, event, self._worker)
        self._log.add(head + _encode(members)[1:])

    def _new_heads(self, millisecond: int) -> tuple[bytes, bytes]:
        """Return the starts of both records in a millisecond, up to the call's number."""
        moment, worker = timestamp_of(millisecond).encode(), self._worker
        self._millisecond = millisecond
        self._heads = (
            b'{"time":"%b","event":"begin",%b,"call":' % (moment, worker),
            b'{"time":"%b","event":"call",%b,"call":' % (moment, worker),
        )
        return self._heads

    def _call_record(
        self, head: bytes, end: bytes, entry: AuditEntry, recorded: RecordedCall
    ) -> bytes:
        """Return a record that describes a call, with what stands before and after that."""
        call, arguments, lease = recorded.call, recorded.arguments, recorded.lease
        names = _name_members(
            call.tenant,
            call.agent,
            call.user,
            entry.credential,
            call.session,
            call.lease_id if lease is None else lease.id,
            call.server_id,
            call.tool,
            call.method,
            entry.risk,
        )
        if call.traceparent:
            trace = call.traceparent.split("-")
            if len(trace) == _TRACE_PARTS:
                end = b',"trace":%b%b' % (_encode(trace[1][:32]), end)
        redactor = self._redactors.get(entry.plan.definition if entry.plan is not None else None)
        if not arguments:
            arguments = b"{}"
        elif not (entry.parsed and redactor.is_clean(arguments)):
            arguments = _redacted(redactor, arguments)
        return b'%b%d,%b,"arguments":%b%b' % (head, recorded.number, names, arguments, end)


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


@functools.lru_cache(4_096)  # the search for secrets costs more than the rest of a record
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
        "tenant": _name(tenant) or DEFAULT_TENANT,
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
