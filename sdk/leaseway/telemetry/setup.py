"""Metrics of a process: served to Prometheus, sent by OTLP, both or neither.

See design.md#traces-metrics-and-logs.
"""

from __future__ import annotations

import asyncio
import resource
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

from leaseway.telemetry.diagnostics import StallMeter, measure_stalls
from leaseway.telemetry.exporters import describe_process, otel_resource
from leaseway.telemetry.metrics import Meter, Reading
from leaseway.telemetry.metrics_otlp import MetricsSender, metric_exporters
from leaseway.telemetry.prometheus_http import MetricsListener, Page, serve_metrics
from leaseway.wire.timing.running_tasks import keep_running

if TYPE_CHECKING:
    from opentelemetry.sdk.metrics.export import MetricExporter

_PAGE_SIZE: Final = resource.getpagesize()
_STATM: Final = Path("/proc/self/statm")


@asynccontextmanager
async def run_meter(
    listener: MetricsListener | None, service_name: str, *, instance: str = ""
) -> AsyncIterator[Meter | None]:
    """Yield a meter whose metrics are served and sent, or None if metrics are off.

    Args:
        listener: The port for Prometheus, or None.
        service_name: `service.name`, such as `leaseway-worker`.
        instance: `service.instance.id`, such as the worker's id.
    """
    exporters = metric_exporters()
    is_enabled = listener is not None or bool(exporters)
    if not is_enabled:
        yield None
        return
    with measure_stalls() as stalls:
        meter = Meter()
        _measure_loop(meter, stalls)
        async with _serving(meter, listener, exporters, describe_process(service_name, instance)):
            yield meter


@asynccontextmanager
async def _serving(
    meter: Meter,
    listener: MetricsListener | None,
    exporters: Sequence[MetricExporter],
    attributes: dict[str, str],
) -> AsyncIterator[None]:
    _measure_process(meter)
    sending = sender = None
    if exporters:
        sender = MetricsSender(meter, exporters, otel_resource(attributes))
        name = "send metrics"
        sending = asyncio.create_task(keep_running(sender.run, name), name=name)
    try:
        async with AsyncExitStack() as serving:
            if listener is not None:
                await serving.enter_async_context(serve_metrics(listener, _page(meter, attributes)))
            yield
    finally:
        if sender is not None and sending is not None:
            sending.cancel()
            await asyncio.wait([sending])
            await sender.close()


def _page(meter: Meter, attributes: dict[str, str]) -> Page:
    from leaseway.telemetry.prometheus import render  # imports prometheus_client only if needed

    def page() -> Callable[[str], tuple[bytes, str]]:
        families = meter.collect()
        return partial(render, families, attributes)

    return page


def _measure_process(meter: Meter) -> None:
    meter.observe(
        "process.cpu.time",
        "s",
        "Processor time used by this process.",
        _cpu_time,
        "cpu.mode",
        kind="counter",
    )
    meter.observe("process.memory.usage", "By", "Physical memory used by this process.", _memory)


def _measure_loop(meter: Meter, stalls: StallMeter) -> None:
    meter.observe(
        "leaseway.event_loop.stall",
        "s",
        "The longest time in the last one to two minutes that the event loop was blocked.",
        lambda: [((), stalls.recent())],
    )


def _cpu_time() -> Reading:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return ((("user",), used.ru_utime), (("system",), used.ru_stime))


def _memory() -> Iterator[tuple[tuple[str, ...], float]]:
    with suppress(OSError):  # only Linux has this file; elsewhere the metric is missing
        yield (), int(_STATM.read_text().split()[1]) * _PAGE_SIZE
