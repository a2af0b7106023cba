"""Private parts of other packages that the product uses, and what breaks if they change."""

from __future__ import annotations

import subprocess
import sys

from grpc._cython import cygrpc  # type: ignore[attr-defined]
from opentelemetry.exporter.otlp.proto.grpc.exporter import OTLPExporterMixin
from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SpanExportResult

from leaseway.telemetry.spans.otlp_encoding import OtlpSpanExporter


def test_the_grpc_coroutine_that_closing_waits_for_has_its_name() -> None:
    # Otherwise `sdk.runtime` does not wait, and the next event loop gets errors of the last one.
    coroutine = cygrpc._AioCall._handle_status_once_received
    assert coroutine.__qualname__ == "_AioCall._handle_status_once_received"


PROVIDERS = """
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
trace.get_tracer_provider()
print(type(trace._TRACER_PROVIDER).__name__)
provider = TracerProvider()
trace.set_tracer_provider(provider)
print(trace._TRACER_PROVIDER is provider)
"""


def test_a_tracer_provider_is_set_where_each_call_reads_it() -> None:
    # Otherwise `sdk.calls.tracing` creates no spans for providers set after the first call.
    done = subprocess.run(
        [sys.executable, "-c", PROVIDERS], capture_output=True, text=True, check=True, timeout=60
    )
    before, found = done.stdout.split()
    assert before in ("ProxyTracerProvider", "NoneType")
    assert found == "True"


def test_the_standard_exporter_encodes_by_the_method_that_ours_replaces() -> None:
    # Otherwise `telemetry.spans.otlp_encoding` is unused, and traces cost twice as much.
    asked: list[int] = []

    class Exporter(OTLPSpanExporter):
        def _translate_data(self, data):  # type: ignore[no-untyped-def]
            asked.append(len(data))
            raise RuntimeError("enough")

    assert "_translate_data" in vars(OtlpSpanExporter)
    assert "_initialize_channel_and_stub" in vars(OTLPExporterMixin)
    exporter = Exporter(endpoint="127.0.0.1:1", insecure=True, timeout=1)
    span = TracerProvider(shutdown_on_exit=False).get_tracer("t").start_span("s")
    span.end()
    try:
        assert exporter.export([span]) is not SpanExportResult.SUCCESS  # type: ignore[list-item]
    except RuntimeError:
        pass
    finally:
        exporter.shutdown()
    assert asked == [1]


def test_the_exporter_of_log_records_is_where_logs_over_otlp_import_it() -> None:
    # Otherwise `telemetry.logs_otlp` fails at the start if an endpoint for logs is set.
    from opentelemetry.exporter.otlp.proto.grpc._log_exporter import OTLPLogExporter
    from opentelemetry.sdk._logs.export import BatchLogRecordProcessor, LogRecordExporter

    assert issubclass(OTLPLogExporter, LogRecordExporter)
    assert callable(BatchLogRecordProcessor)
