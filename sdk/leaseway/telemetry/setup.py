"""How a process's numbers get out: a page for Prometheus, OTLP, both or none (DESIGN §11)."""

from __future__ import annotations

import asyncio
import resource
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final

from leaseway.telemetry.diagnostics import StallMeter, measuring_stalls
from leaseway.telemetry.exporters import describe_process, otel_resource
from leaseway.telemetry.metrics import Meter, Reading
from leaseway.telemetry.metrics_otlp import MetricsPump, metric_exporters
from leaseway.telemetry.prometheus_http import MetricsListener, Page, serve_metrics

if TYPE_CHECKING:
    from opentelemetry.sdk.metrics.export import MetricExporter

_PAGE_SIZE: Final = resource.getpagesize()
_STATM: Final = Path("/proc/self/statm")


@asynccontextmanager
async def measuring(
    listener: MetricsListener | None, service_name: str, *, instance: str = ""
) -> AsyncIterator[Meter | None]:
    """Give a meter whose numbers are served and sent; None where nobody wants them.

    Args:
        listener: Where Prometheus asks for them, or None.
        service_name: `service.name`, such as `leaseway-worker`.
        instance: `service.instance.id`, such as the worker's id.
    """
    exporters = metric_exporters()
    measured = listener is not None or bool(exporters)
    with measuring_stalls(service_name, wanted=measured) as stalls:
        if not measured:
            yield None
            return
        meter = Meter()
        if stalls is not None:
            _measure_loop(meter, stalls)
        async with _serving(meter, listener, exporters, describe_process(service_name, instance)):
            yield meter


@asynccontextmanager
async def _serving(
    meter: Meter,
    listener: MetricsListener | None,
    exporters: Sequence[MetricExporter],
    described: dict[str, str],
) -> AsyncIterator[None]:
    _measure_process(meter)
    server = pumping = pump = None
    if listener is not None:
        server = await serve_metrics(listener, _page(meter, described))
    if exporters:
        pump = MetricsPump(meter, exporters, otel_resource(described))
        pumping = asyncio.create_task(pump.run(), name="send metrics")
    try:
        yield
    finally:
        if server is not None:
            server.close()
        if pump is not None and pumping is not None:
            pumping.cancel()
            await asyncio.wait([pumping])
            await pump.close()


def _page(meter: Meter, described: dict[str, str]) -> Page:
    from leaseway.telemetry.prometheus import render  # its library only where somebody wants pages

    def page() -> Callable[[str], tuple[bytes, str]]:
        families = meter.collect()
        return lambda accept: render(families, described, accept)

    return page


def _measure_process(meter: Meter) -> None:
    meter.observe(
        "process.cpu.time",
        "s",
        "Processor time that this process has used.",
        _cpu_time,
        "cpu.mode",
        kind="counter",
    )
    meter.observe("process.memory.usage", "By", "Physical memory that this process holds.", _memory)


def _measure_loop(meter: Meter, stalls: StallMeter) -> None:
    meter.observe(
        "leaseway.event_loop.stall",
        "s",
        "The longest time in the last minute or two that the event loop stood still.",
        lambda: [((), stalls.recent())],
    )


def _cpu_time() -> Reading:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return ((("user",), used.ru_utime), (("system",), used.ru_stime))


def _memory() -> Iterator[tuple[tuple[str, ...], float]]:
    with suppress(OSError):  # only Linux tells it like this; elsewhere there is no such number
        yield (), int(_STATM.read_text().split()[1]) * _PAGE_SIZE
