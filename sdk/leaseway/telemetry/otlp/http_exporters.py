"""The exporters of all signals over an HTTP sender.

They encode as the exporters over gRPC do, and log what a collector accepts only in part.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any, Final

from google.protobuf.message import DecodeError, Message
from opentelemetry.exporter.otlp.proto.common._log_encoder import encode_logs
from opentelemetry.exporter.otlp.proto.common.metrics_encoder import encode_metrics
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceResponse
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsServiceResponse,
)
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceResponse
from opentelemetry.sdk._logs import ReadableLogRecord
from opentelemetry.sdk._logs.export import LogRecordExporter, LogRecordExportResult
from opentelemetry.sdk.metrics.export import MetricExporter, MetricExportResult, MetricsData
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult

from leaseway.telemetry.otlp.http_sender import HttpSender
from leaseway.telemetry.spans.otlp_encoding import encode_spans
from leaseway.wire.secrets.redaction import redact

_logger = logging.getLogger(__name__)
_MAX_DETAIL: Final = 200


class HttpSpanExporter(SpanExporter):
    """Exports spans, and pairs of spans."""

    def __init__(self, sender: HttpSender) -> None:
        self._sender = sender

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        answer = self._sender.send(encode_spans(spans))
        _log_rejected(ExportTraceServiceResponse, "rejected_spans", answer)
        return SpanExportResult.FAILURE if answer is None else SpanExportResult.SUCCESS

    def shutdown(self) -> None:
        self._sender.close()


class HttpMetricExporter(MetricExporter):
    """Exports metrics."""

    def __init__(self, sender: HttpSender) -> None:
        super().__init__()
        self._sender = sender

    def export(
        self, metrics_data: MetricsData, timeout_millis: float = 10_000, **_: Any
    ) -> MetricExportResult:
        answer = self._sender.send(encode_metrics(metrics_data).SerializeToString())
        _log_rejected(ExportMetricsServiceResponse, "rejected_data_points", answer)
        return MetricExportResult.FAILURE if answer is None else MetricExportResult.SUCCESS

    def force_flush(self, timeout_millis: float = 10_000) -> bool:
        return True  # nothing waits here

    def shutdown(self, timeout_millis: float = 30_000, **_: Any) -> None:
        self._sender.close()


class HttpLogExporter(LogRecordExporter):
    """Exports log lines and audit records."""

    def __init__(self, sender: HttpSender) -> None:
        self._sender = sender

    def export(self, batch: Sequence[ReadableLogRecord]) -> LogRecordExportResult:
        answer = self._sender.send(encode_logs(batch).SerializeToString())
        _log_rejected(ExportLogsServiceResponse, "rejected_log_records", answer)
        return LogRecordExportResult.FAILURE if answer is None else LogRecordExportResult.SUCCESS

    def force_flush(self, timeout_millis: int = 10_000) -> bool:
        return True  # nothing waits here

    def shutdown(self) -> None:
        self._sender.close()


def _log_rejected(kind: type[Message], field: str, answer: bytes | None) -> None:
    """Log what a collector has not accepted of a request."""
    if not answer:
        return
    try:
        partial: Any = kind.FromString(answer)
    except DecodeError:
        return  # such as the JSON of a collector that answers all requests alike
    success = partial.partial_success
    rejected = getattr(success, field)
    if rejected or success.error_message:
        what = field.removeprefix("rejected_").replace("_", " ")
        said = redact(success.error_message[:_MAX_DETAIL]) or "it does not say why"
        _logger.warning(f"The collector rejected {rejected} {what} of a request: {said}")
