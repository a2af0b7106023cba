"""Set-up of tracing, and helpers for the W3C trace context.

The standard `OTEL_*` variables choose the exporters. `opentelemetry.sdk` is imported only if they
name one, so that tracing costs nothing when it is off (design.md).
"""

from __future__ import annotations

import logging
import os
import sys
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from opentelemetry import trace
from opentelemetry.trace import ProxyTracerProvider, Tracer

from leaseway.telemetry.exporters import (
    GrpcOptions,
    describe_process,
    ignore_missing_plugins,
    logged_if_unusable,
    make_exporters,
    otel_resource,
)
from leaseway.telemetry.logs_otlp import OtlpHandler
from leaseway.wire.version import PACKAGE_VERSION

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import SpanProcessor, TracerProvider
    from opentelemetry.sdk.trace.export import SpanExporter

    from leaseway.telemetry.otlp.http_settings import HttpSettings
    from leaseway.telemetry.spans.pairs import PairSource

_logger = logging.getLogger(__name__)

_QUEUE: Final = 8_192
"""Spans that can wait for export. A busy worker ends 2,048, the standard limit, in 0.2 s."""


class Telemetry:
    """The telemetry that a process sends: spans, and log lines (`OtlpHandler`); maybe neither."""

    def __init__(self, provider: TracerProvider | None = None) -> None:
        self._provider = provider

    @property
    def exporting(self) -> bool:
        """Whether spans are exported."""
        return self._provider is not None

    def shutdown(self, timeout: float = 5.0) -> None:
        """Send what is queued, all at once and for at most `timeout` seconds, and stop. Blocks."""
        ends: dict[str, Callable[[], None]] = {}
        if self._provider is not None:
            ends["spans"] = self._provider.shutdown
        root = logging.getLogger()
        for handler in [each for each in root.handlers if isinstance(each, OtlpHandler)]:
            root.removeHandler(handler)
            ends["log lines"] = handler.close
        # A provider itself would wait 30 s for an unresponsive collector.
        deadline = time.monotonic() + timeout
        threads = {
            what: threading.Thread(target=end, name=f"last {what}", daemon=True)
            for what, end in ends.items()
        }
        for thread in threads.values():
            thread.start()
        for what, thread in threads.items():
            thread.join(max(0.0, deadline - time.monotonic()))
            if thread.is_alive():
                _logger.warning(
                    f"The last {what} were not exported within {timeout:g} s and are lost; check "
                    "the collector."
                )


def configure_telemetry(service_name: str, *, instance: str = "") -> Telemetry:
    """Install a tracer provider if the `OTEL_*` variables name an exporter (see `make_exporters`).

    `OTEL_SERVICE_NAME` and `OTEL_RESOURCE_ATTRIBUTES` override the arguments. OpenTelemetry itself
    reads the sampler and `OTEL_BSP_*`; only the default queue is longer. Unusable settings are
    logged and never stop the process. A process has one provider: later calls do nothing.

    Args:
        service_name: `service.name`, such as `leaseway-worker`.
        instance: `service.instance.id`, such as the worker's id.
    """
    ignore_missing_plugins()
    provider = None
    if not tracing_active():
        with logged_if_unusable("TRACES"):
            provider = _install_provider(service_name, instance)
    return Telemetry(provider)


def _install_provider(service_name: str, instance: str) -> TracerProvider | None:
    exporters = span_exporters()
    if not exporters:
        return None
    from leaseway.telemetry.spans.lean import LeanTracerProvider

    resource = otel_resource(describe_process(service_name, instance))
    provider = LeanTracerProvider(resource=resource, shutdown_on_exit=False)
    for exporter in exporters:
        provider.add_span_processor(_batches(exporter))
    trace.set_tracer_provider(provider)
    return provider


def span_exporters() -> list[SpanExporter]:
    """Return the exporters that the standard variables name (see `make_exporters`)."""
    return make_exporters("TRACES", console=_to_stderr, otlp=_by_otlp, otlp_http=_by_http)


def _batches(exporter: SpanExporter) -> SpanProcessor:
    from opentelemetry.sdk.trace.export import BatchSpanProcessor

    queue = None if os.environ.get("OTEL_BSP_MAX_QUEUE_SIZE") else _QUEUE
    try:
        return BatchSpanProcessor(exporter, queue)
    except ValueError as error:
        _logger.warning(
            f"The OTEL_BSP_* variables are invalid, so the defaults apply: {error} Set each to a "
            "positive whole number, and a queue at least as long as a batch."
        )
        return BatchSpanProcessor(exporter, _QUEUE, 5_000, 512)


def _to_stderr() -> SpanExporter:
    from leaseway.telemetry.spans.lean import SpanPrinter

    return SpanPrinter(out=sys.stderr)  # stdout belongs to results


def _by_otlp(options: GrpcOptions) -> SpanExporter:
    from leaseway.telemetry.spans.otlp_encoding import OtlpSpanExporter

    return OtlpSpanExporter(**options)


def _by_http(settings: HttpSettings) -> SpanExporter:
    from leaseway.telemetry.otlp.http_exporters import HttpSpanExporter
    from leaseway.telemetry.otlp.http_sender import HttpSender

    return HttpSpanExporter(HttpSender(settings))


_active = False


def tracing_active() -> bool:
    """Return whether this process has a tracer provider, so that spans are needed.

    Cheap enough for every call: once true, the result is cached.
    """
    global _active
    if not _active:
        _active = not isinstance(trace.get_tracer_provider(), ProxyTracerProvider)
    return _active


def span_pairs(name: str) -> PairSource | None:
    """Return the source of a module's pairs of spans; None if its spans are made one by one."""
    provider = trace.get_tracer_provider()
    make: Callable[[str, str], PairSource | None] | None = getattr(provider, "span_pairs", None)
    return make(name, PACKAGE_VERSION) if make is not None else None


def tracer(name: str) -> Tracer:
    """Return the tracer of a module, such as `leaseway.sdk`."""
    return trace.get_tracer(name, PACKAGE_VERSION)
