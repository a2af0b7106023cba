"""What is recorded of a call: who, what, when, how it ended; never a secret (DESIGN §11).

A call that may change something has two records with one number: `begin`, written before it runs,
and `call`, when it has ended. Any other call has the second one alone.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, Protocol

import msgspec

from leaseway.data_plane.audit.log import AuditLog, AuditUnavailable, timestamp, timestamp_of
from leaseway.data_plane.audit.redact import Redactors
from leaseway.identity.refusals import Refusal
from leaseway.wire.bounds import KIB
from leaseway.wire.errors import Fault, Reason
from leaseway.wire.names import DEFAULT_TENANT
from leaseway.wire.secrets.secret_shapes import holds_secret

_LONGEST_PARSED: Final = 64 * KIB
"""Bytes of arguments that are looked into; of longer ones only their length is recorded."""
_LONGEST_NAME: Final = 256
_RETRY: Final = 1.0
_TRACE_PARTS: Final = 4
_encode: Final = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(dict[str, Any]).decode


class Plan(Protocol):
    """What is known of a tool."""

    @property
    def definition(self) -> bytes:
        """As its server listed it, as JSON."""


class AuditEntry:
    """One call, from its beginning to its record.

    Attributes:
        who: The credential that it came with.
        began: When, as `time.perf_counter` counts.
        written: Whether its beginning is recorded.
        plan: The tool, once it is found.
        risk: Of the tool; empty until it is found.
        writes_first: Whether the call must be recorded before it runs.
        parsed: Whether the arguments are known to be a JSON object on one line.
        approval: The approval that it needs; empty for none.
        approved_by: The credential that decided about that; empty for none.
    """

    __slots__ = (
        "approval",
        "approved_by",
        "began",
        "parsed",
        "plan",
        "risk",
        "who",
        "writes_first",
        "written",
    )

    def __init__(self, who: str) -> None:
        self.who = who
        self.began = time.perf_counter()
        self.written = False
        self.plan: Plan | None = None
        self.risk = ""
        self.writes_first = self.parsed = False
        self.approval = self.approved_by = ""


Begun = tuple[AuditEntry, int, Any, bytes, str]
"""A call that begins: its entry, its number, what was asked, its arguments, its lease's id."""


class Recorder:
    """Records calls in an audit.

    Args:
        log: Takes the records.
        now: Seconds since 1970.
    """

    def __init__(self, log: AuditLog, now: Callable[[], float] = time.time) -> None:
        self._log = log
        self._now = now
        self._redactors = Redactors()
        self._where = _encode(log.about)[1:-1]
        self._millisecond = -1
        self._heads: dict[bytes, bytes] = {}

    def begin(self, calls: Sequence[Begun]) -> None:
        """Record calls before they run, all of them or none.

        Raises:
            Fault: OVERLOADED: they cannot be recorded, and so must not run here.
        """
        try:
            head = self._head(b"begin")
            self._log.begin([b"%b%b}" % (head, self._about(*each)) for each in calls])
        except AuditUnavailable as error:
            raise Fault(Reason.OVERLOADED, str(error), retry_delay=_RETRY) from None
        for entry, *_ in calls:
            entry.written = True

    def end(
        self,
        entry: AuditEntry,
        number: int,
        call: Any,
        arguments: bytes,
        lease_id: str,
        outcome: str,
        fault: Fault | None,
    ) -> None:
        head = self._head(b"call")
        if entry.written:
            about = b"%d" % number
        else:
            about = self._about(entry, number, call, arguments, lease_id)
        if entry.approval or fault is not None:
            about += _more(entry, fault)
        took = (time.perf_counter() - entry.began) * 1000
        self._log.add(
            b'%b%b,"outcome":"%b","duration_ms":%.3f}' % (head, about, outcome.encode(), took)
        )

    def decided(self, decision: Any) -> None:
        """Record what a person has decided about a call that needs one."""
        members = {
            "approval": decision.approval_id,
            "tenant": decision.tenant,
            "server": decision.server_id,
            "tool": decision.tool,
            "decided_by": decision.decided_by,
            "outcome": decision.outcome,
        }
        self._add(b"approval", members)

    def operated(self, action: Any) -> None:
        """Record what an operator does to this worker, to a lease or for a tenant."""
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

    def refused(self, refusal: Refusal, times: int, plane: str) -> None:
        """Record RPCs that one of the planes refused for what their sender proved to be."""
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
        head = b'{"time":"%b","event":"%b",%b,' % (now, event, self._where)
        self._log.add(head + _encode(members)[1:])

    def _head(self, event: bytes) -> bytes:
        """Return how records of this millisecond begin, up to their call's number."""
        millisecond = int(self._now() * 1000)
        if millisecond != self._millisecond:
            self._millisecond = millisecond
            self._heads.clear()
        head = self._heads.get(event)
        if head is None:
            moment = timestamp_of(millisecond).encode()
            head = b'{"time":"%b","event":"%b",%b,"call":' % (moment, event, self._where)
            self._heads[event] = head
        return head

    def _about(
        self, entry: AuditEntry, number: int, call: Any, arguments: bytes, lease_id: str
    ) -> bytes:
        facts = _facts(
            call.tenant,
            call.agent,
            entry.who,
            call.session,
            lease_id or call.lease_id,
            call.server_id,
            call.tool,
            call.method,
            entry.risk,
        )
        body = b'%d,%b,"arguments":%b' % (number, facts, self._arguments(entry, arguments))
        if call.traceparent:
            trace = call.traceparent.split("-")
            if len(trace) == _TRACE_PARTS:
                body += b',"trace":%b' % _encode(trace[1][:32])
        return body

    def _arguments(self, entry: AuditEntry, arguments: bytes) -> bytes:
        if not arguments:
            return b"{}"
        redactor = self._redactors.of(entry.plan.definition if entry.plan is not None else None)
        if entry.parsed and redactor.passes(arguments):
            return arguments
        if len(arguments) > _LONGEST_PARSED:
            return _encode({"[left out]": f"{len(arguments)} bytes"})
        try:
            parsed = _decode(arguments)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            return _encode({"[left out]": f"{len(arguments)} bytes that are no JSON object"})
        if b"\n" in arguments or b"\r" in arguments:  # outside of texts; a record is one line
            arguments = arguments.replace(b"\n", b" ").replace(b"\r", b" ")
        return _encode(redactor.redacted(arguments, parsed))


def _more(entry: AuditEntry, fault: Fault | None) -> bytes:
    """Return the members that few records have."""
    more: dict[str, Any] = {}
    if entry.approval:
        more["approval"] = entry.approval
        if entry.approved_by:
            more["decided_by"] = entry.approved_by
    if fault is not None:
        more["started"] = fault.started
        if "rule" in fault.metadata:
            more["rule"] = int(fault.metadata["rule"])
    return b"," + _encode(more)[1:-1]


@functools.lru_cache(4_096)  # looking for secrets costs more than all the rest of a record
def _facts(
    tenant: str,
    agent: str,
    who: str,
    session: str,
    lease: str,
    server: str,
    tool: str,
    method: str,
    risk: str,
) -> bytes:
    """Return the members that say whose call it is and of what, between the braces."""
    facts = {
        "tenant": _name(tenant) or DEFAULT_TENANT,
        "agent": _name(agent),
        "credential": who,
        "session": _name(session),
        "lease": lease[:_LONGEST_NAME],
        "server": _name(server),
        "tool": _name(tool),
    }
    if method:
        facts["method"] = _name(method)
    if risk:
        facts["risk"] = risk
    return _encode(facts)[1:-1]


def _name(text: str) -> str:
    """Return a name that a caller chose, which may be anything."""
    return "[redacted]" if holds_secret(text) else text[:_LONGEST_NAME]
