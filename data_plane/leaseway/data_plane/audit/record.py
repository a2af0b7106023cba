"""What is recorded of a call: who, what, when, how it ended; never a secret (DESIGN §11).

A call that may change something has two records with one number: `begin`, written before it runs,
and `call`, when it has ended. Any other call has the second one alone.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable
from typing import Any, Final, Protocol

import msgspec

from leaseway.data_plane.audit.log import AuditLog, AuditUnavailable, timestamp
from leaseway.data_plane.audit.redact import Arguments, Redactors
from leaseway.wire.bounds import KIB
from leaseway.wire.errors import Fault, Reason
from leaseway.wire.names import DEFAULT_TENANT
from leaseway.wire.secret_shapes import holds_secret

_LONGEST_PARSED: Final = 64 * KIB
"""Bytes of arguments that are looked into; of longer ones only their length is recorded."""
_LONGEST_NAME: Final = 256
_RETRY: Final = 1.0
_TRACE_PARTS: Final = 4
_decode = msgspec.json.Decoder(dict[str, Any]).decode


class Plan(Protocol):
    """What is known of a tool."""

    @property
    def definition(self) -> bytes:
        """As its server listed it, as JSON."""


class Entry:
    """One call, from its beginning to its record.

    Attributes:
        who: The credential that it came with.
        began: When, as `time.perf_counter` counts.
        written: Whether its beginning is recorded.
        plan: The tool, once it is found.
        risk: Of the tool; empty until it is found.
        writes_first: Whether the call must be recorded before it runs.
        approval: The approval that it needs; empty for none.
        approved_by: The credential that decided about that; empty for none.

    """

    __slots__ = (
        "approval",
        "approved_by",
        "began",
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
        self.writes_first = False
        self.approval = self.approved_by = ""


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

    def begin(self, entry: Entry, number: int, call: Any, arguments: bytes, lease_id: str) -> None:
        """Record a call before it runs.

        Raises:
            Fault: OVERLOADED: it cannot be recorded, and so must not run here.

        """
        record = self._about("begin", entry, number, call, arguments, lease_id)
        try:
            self._log.begin(record)
        except AuditUnavailable as error:
            raise Fault(Reason.OVERLOADED, str(error), retry_delay=_RETRY) from None
        entry.written = True

    def end(
        self,
        entry: Entry,
        number: int,
        call: Any,
        arguments: bytes,
        lease_id: str,
        outcome: str,
        fault: Fault | None,
    ) -> None:
        """Record how a call ended."""
        record: dict[str, Any]
        if entry.written:
            record = {
                "time": timestamp(self._now()),
                "event": "call",
                **self._log.about,
                "call": number,
            }
        else:
            record = self._about("call", entry, number, call, arguments, lease_id)
        if entry.approval:
            record["approval"] = entry.approval
            if entry.approved_by:
                record["decided_by"] = entry.approved_by
        record["outcome"] = outcome
        if fault is not None:
            record["started"] = fault.started
            if "rule" in fault.metadata:
                record["rule"] = int(fault.metadata["rule"])
        took = time.perf_counter() - entry.began
        record["duration_ms"] = round(took * 1000, 3)
        self._log.add(record)

    def _about(
        self, event: str, entry: Entry, number: int, call: Any, arguments: bytes, lease_id: str
    ) -> dict[str, Any]:
        record: dict[str, Any] = {
            "time": timestamp(self._now()),
            "event": event,
            **self._log.about,
            "call": number,
            "tenant": _name(call.tenant) or DEFAULT_TENANT,
            "agent": _name(call.agent),
            "credential": entry.who,
            "session": _name(call.session),
            "lease": lease_id or call.lease_id[:_LONGEST_NAME],
            "server": _name(call.server_id),
            "tool": _name(call.tool),
            "arguments": self._arguments(entry.plan, arguments),
        }
        if call.method:
            record["method"] = _name(call.method)
        if entry.risk:
            record["risk"] = entry.risk
        trace = call.traceparent.split("-")
        if len(trace) == _TRACE_PARTS:
            record["trace"] = trace[1][:32]
        return record

    def _arguments(self, plan: Plan | None, arguments: bytes) -> Arguments:
        if not arguments:
            return {}
        if len(arguments) > _LONGEST_PARSED:
            return {"[left out]": f"{len(arguments)} bytes"}
        try:
            parsed = _decode(arguments)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            return {"[left out]": f"{len(arguments)} bytes that are no JSON object"}
        definition = plan.definition if plan is not None else None
        return self._redactors.of(definition).redacted(arguments, parsed)


@functools.lru_cache(4_096)  # looking for secrets costs more than all the rest of a record
def _name(text: str) -> str:
    """Return a name that a caller chose, which may be anything."""
    return "[redacted]" if holds_secret(text) else text[:_LONGEST_NAME]
