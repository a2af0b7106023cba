"""A file of spans from several processes, for `leaseway up --trace-file`.

A small OTLP receiver on loopback appends each span as one line of JSON; `read_spans` and
`format_tree` print one trace. It is for a few calls on one machine; otherwise send the same OTLP to
a collector. A file exporter in each process would miss the spans of MCP servers, which send OTLP.

See design.md#traces-metrics-and-logs.
"""

from __future__ import annotations

import hmac
import json
import logging
import os
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from operator import attrgetter
from pathlib import Path
from typing import IO, Any, Final, Self

import grpc

from leaseway.telemetry.logs import open_private
from leaseway.wire import bounds
from leaseway.wire.channels.endpoint import Endpoint
from leaseway.wire.channels.serving import bind, make_server

MAX_TRACE_FILE: Final = 256 * bounds.MIB
"""The maximum size of a trace file in bytes."""

SPAN_HEADER: Final = "x-leaseway-trace"
"""The metadata key of the collector's token."""

_KINDS: Final = ("internal", "internal", "server", "client", "producer", "consumer")
_STATUSES: Final = ("unset", "ok", "error")
# Built once; `asdict` would copy the spans.
_as_json: Final = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"), default=vars).encode

_logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class SpanEvent:
    """An event of a span."""

    name: str
    time_ns: int
    attributes: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class SpanRecord:
    """One span of the file, with ids in hex digits and times in nanoseconds since 1970.

    Attributes:
        parent_span_id: Empty for the first span of a trace.
        kind: `internal`, `server`, `client`, `producer` or `consumer`.
        service: `service.name` of the process.
        status: `unset`, `ok` or `error`.
    """

    trace_id: str
    span_id: str
    parent_span_id: str
    name: str
    kind: str
    service: str
    start_ns: int
    end_ns: int
    attributes: Mapping[str, Any] = field(default_factory=dict)
    events: tuple[SpanEvent, ...] = ()
    status: str = "unset"
    status_message: str = ""

    @property
    def duration(self) -> float:
        """The duration in seconds."""
        return (self.end_ns - self.start_ns) / 1e9


class _TokenGate(grpc.aio.ServerInterceptor):
    """Refuses spans without the token of this run, before they are received."""

    def __init__(self, token: str) -> None:
        self._token = token.encode()
        # A handler of a stream reads nothing by itself.
        self._refusal: Any = grpc.stream_stream_rpc_method_handler(_refuse)

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[Any]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> Any:
        """Pass on an RPC with the token, or refuse it."""
        sent = dict(handler_call_details.invocation_metadata or ()).get(SPAN_HEADER, "")
        if hmac.compare_digest(str(sent).encode(), self._token):
            return await continuation(handler_call_details)
        return self._refusal


async def _refuse(_requests: Any, context: grpc.aio.ServicerContext[Any, Any]) -> None:
    await context.abort(
        grpc.StatusCode.UNAUTHENTICATED,
        f"Spans need the header {SPAN_HEADER} that `leaseway up` prints.",
    )


class TraceCollector:
    """An async context that receives OTLP over gRPC on loopback and appends spans to a file.

    `otlp_environment` returns the variables that send a process's spans to its `endpoint`. A file
    of `max_bytes` accepts no more spans, which is logged once. With a token, spans without it are
    rejected, so that other users of this machine cannot fill the file.
    """

    endpoint: Endpoint

    def __init__(
        self, path: str | Path, *, max_bytes: int = MAX_TRACE_FILE, token: str = ""
    ) -> None:
        self._path = Path(path)
        self._token = token
        self._max_bytes = max_bytes
        self._full = False
        self._torn = False
        self._file: IO[bytes] | None = None

    async def __aenter__(self) -> Self:
        from opentelemetry.proto.collector.trace.v1 import trace_service_pb2_grpc

        self._file = _open(self._path)
        self._torn = _is_torn(self._path)
        self._server = make_server(interceptors=(_TokenGate(self._token),) if self._token else ())
        register: Any = trace_service_pb2_grpc.add_TraceServiceServicer_to_server
        register(self, self._server)
        self.endpoint = bind(self._server, Endpoint("127.0.0.1", 0))
        await self._server.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._server.stop(grace=1.0)
        if self._file is not None:
            self._file.close()
            self._file = None

    async def Export(  # noqa: N802 - the method of OTLP's service
        self, request: Any, context: grpc.aio.ServicerContext[Any, Any]
    ) -> Any:
        """Receive one batch of spans."""
        from opentelemetry.proto.collector.trace.v1 import trace_service_pb2

        lines = b"".join(_as_json(vars(span)).encode() + b"\n" for span in _records(request))
        self._append(lines)
        return trace_service_pb2.ExportTraceServiceResponse()

    def _append(self, lines: bytes) -> None:
        if self._file is None or self._full:
            return
        if self._file.tell() + len(lines) > self._max_bytes:
            self._full = True
            _logger.warning(
                "The trace file has reached its maximum size; further spans are dropped. Move it "
                "away and start again.",
                extra={"path": str(self._path), "max_bytes": self._max_bytes},
            )
            return
        try:
            _write_all(self._file, b"\n" + lines if self._torn else lines)
        except OSError as error:
            if not self._torn:
                _logger.warning(
                    "Spans could not be written to the trace file and are dropped: %s.",
                    error.strerror,
                    extra={"path": str(self._path)},
                )
            self._torn = True
        else:
            self._torn = False


def _write_all(file: IO[bytes], lines: bytes) -> None:
    rest = memoryview(lines)
    while rest:
        rest = rest[file.write(rest) :]


def _open(path: Path) -> IO[bytes]:
    return open(path, "ab", buffering=0, opener=open_private)


def _is_torn(path: Path) -> bool:
    """Return whether a file ends in the middle of a line, for example after a full disk."""
    with path.open("rb") as file:
        if file.seek(0, os.SEEK_END) == 0:
            return False
        file.seek(-1, os.SEEK_END)
        return file.read(1) != b"\n"


def otlp_environment(endpoint: Endpoint, token: str = "") -> dict[str, str]:
    """Return the variables that make a process send its spans to a collector without delay."""
    headers = {"OTEL_EXPORTER_OTLP_TRACES_HEADERS": f"{SPAN_HEADER}={token}"} if token else {}
    return {
        **headers,
        "OTEL_TRACES_EXPORTER": "otlp",
        # Only for traces: this collector does not change where metrics are sent.
        "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL": "grpc",
        "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": f"http://{endpoint}",
        "OTEL_EXPORTER_OTLP_TRACES_INSECURE": "true",
        "OTEL_BSP_SCHEDULE_DELAY": "200",
    }


def _records(request: Any) -> Iterator[SpanRecord]:
    for resource_spans in request.resource_spans:
        service = str(_attributes(resource_spans.resource.attributes).get("service.name", ""))
        for scope_spans in resource_spans.scope_spans:
            for span in scope_spans.spans:
                yield _record(service, span)


def _record(service: str, span: Any) -> SpanRecord:
    return SpanRecord(
        trace_id=span.trace_id.hex(),
        span_id=span.span_id.hex(),
        parent_span_id=span.parent_span_id.hex(),
        name=span.name,
        kind=_KINDS[span.kind] if span.kind < len(_KINDS) else "internal",
        service=service,
        start_ns=span.start_time_unix_nano,
        end_ns=span.end_time_unix_nano,
        attributes=_attributes(span.attributes),
        events=tuple(
            SpanEvent(event.name, event.time_unix_nano, _attributes(event.attributes))
            for event in span.events
        ),
        status=_STATUSES[span.status.code] if span.status.code < len(_STATUSES) else "unset",
        status_message=span.status.message,
    )


def _attributes(pairs: Iterable[Any]) -> dict[str, Any]:
    return {pair.key: _value(pair.value) for pair in pairs}


def _value(value: Any) -> Any:
    kind = value.WhichOneof("value")
    match kind:
        case None:
            return None
        case "array_value":
            return [_value(item) for item in value.array_value.values]
        case "kvlist_value":
            return _attributes(value.kvlist_value.values)
        case "bytes_value":
            return value.bytes_value.hex()
        case _:
            return getattr(value, kind)


def read_spans(path: str | Path) -> list[SpanRecord]:
    """Return the spans of a trace file, in the order they arrived.

    Skips an unfinished last line and truncated lines.

    Raises:
        OSError: The file cannot be read.
        ValueError: No line of it is a span.
    """
    spans: list[SpanRecord] = []
    bad = 0
    with Path(path).open("rb") as file:
        for number, line in enumerate(file, start=1):
            if not line.endswith(b"\n"):
                break
            try:
                entry = json.loads(line)
                events = tuple(SpanEvent(**event) for event in entry.pop("events", ()))
                spans.append(SpanRecord(**entry, events=events))
            except (TypeError, ValueError, AttributeError):
                bad = bad or number
    if bad and not spans:
        raise ValueError(f"{path} is not a trace file: line {bad} is not a span.")
    return spans


def format_tree(spans: Iterable[SpanRecord], trace_id: str) -> str:
    """Return one trace as an indented tree with durations, services and errors.

    A span whose parent is missing from `spans` is not indented, like a first span.
    """
    members = sorted((s for s in spans if s.trace_id == trace_id), key=attrgetter("start_ns"))
    span_ids = {span.span_id for span in members}
    children: dict[str, list[SpanRecord]] = {}
    for span in members:
        parent = span.parent_span_id if span.parent_span_id in span_ids else ""
        children.setdefault(parent, []).append(span)
    rows: list[tuple[str, SpanRecord]] = []
    _walk(children, "", "", rows)
    width = max((len(label) for label, _ in rows), default=0)
    lines = [f"trace {trace_id}"]
    lines += [f"{label:<{width}}  {_facts(span)}" for label, span in rows]
    return "\n".join(lines)


def _walk(
    children: Mapping[str, list[SpanRecord]],
    parent: str,
    indent: str,
    rows: list[tuple[str, SpanRecord]],
) -> None:
    siblings = children.get(parent, [])
    for index, span in enumerate(siblings):
        last = index == len(siblings) - 1
        branch = "" if not parent else ("└─ " if last else "├─ ")
        rows.append((f"{indent}{branch}{span.name}", span))
        deeper = "" if not parent else ("   " if last else "│  ")
        if span.span_id:
            _walk(children, span.span_id, indent + deeper, rows)


def _facts(span: SpanRecord) -> str:
    facts = f"{span.duration * 1000:8.2f} ms  {span.kind:<8}  {span.service}"
    if span.status == "error":
        facts += f"  ERROR {span.status_message}".rstrip()
    return facts
