"""The spans of a reload: one trace from the file event to each worker's apply.

The coordinator passes on a traceparent. It is the parent of the spans of probes and of the commit,
whose context is sent to the workers.

See design.md#traces-metrics-and-logs.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from opentelemetry.trace import Span, SpanKind, StatusCode

from leaseway.control_plane.core.catalog.listing import ServerListing
from leaseway.control_plane.core.catalog.snapshot import Snapshot
from leaseway.control_plane.core.problems import Problem
from leaseway.control_plane.core.workers.actions import (
    CancelProbe,
    PushDelta,
    StartProbe,
    WorkerAction,
)
from leaseway.telemetry.tracing import tracer, tracing_active
from leaseway.wire.channels.trace_context import context_from, traceparent_of
from leaseway.wire.span_attributes import Attr

_MAX_PROBES: Final = 4096


class ReloadTraces:
    """Open probe spans, and the context of the newest commit."""

    def __init__(self) -> None:
        self._probes: dict[int, Span] = {}
        self._commits: dict[int, str] = {}
        self._unclaimed: Snapshot | None = None

    def committed(self, snapshot: Snapshot) -> None:
        """Record a commit; its span is created with the first delta, which has the traceparent."""
        self._unclaimed = snapshot

    def traced(self, action: WorkerAction) -> WorkerAction:
        """Return an action with the context of its own span, if tracing is on."""
        if not tracing_active():
            return action
        match action:
            case StartProbe():
                return self._probe_started(action)
            case CancelProbe(probe_id):
                self._end(probe_id, "taken back")
            case PushDelta():
                return self._delta_sent(action)
            case _:
                pass
        return action

    def end_probe(self, probe_id: int, outcome: ServerListing | Problem) -> None:
        self._end(probe_id, outcome.reason if isinstance(outcome, Problem) else "")

    def _probe_started(self, action: StartProbe) -> StartProbe:
        key = action.spec.key
        span = tracer(__name__).start_span(
            f"probe {key.server_id}",
            context_from(action.trace, ""),
            kind=SpanKind.CLIENT,
            attributes={
                Attr.SERVER: key.server_id,
                Attr.TENANT: key.tenant,
                Attr.LAUNCH_HASH: action.spec.launch_hash,
            },
        )
        while len(self._probes) >= _MAX_PROBES:  # probes that were never answered
            self._end(next(iter(self._probes)), "lost")
        self._probes[action.id] = span
        return replace(action, trace=traceparent_of(span))

    def _delta_sent(self, action: PushDelta) -> PushDelta:
        version = action.push.version
        if self._unclaimed is not None and self._unclaimed.version == version:
            span = tracer(__name__).start_span(
                "commit",
                context_from(action.trace, ""),
                attributes={
                    Attr.REGISTRY_VERSION: version,
                    "leaseway.servers": len(self._unclaimed.served),
                },
            )
            span.end()
            self._commits = {version: traceparent_of(span)}
            self._unclaimed = None
        return replace(action, trace=self._commits.get(version, action.trace))

    def _end(self, probe_id: int, error: str) -> None:
        span = self._probes.pop(probe_id, None)
        if span is None:
            return
        if error:
            span.set_attribute(Attr.ERROR_TYPE, error)
            span.set_status(StatusCode.ERROR, error)
        span.end()
