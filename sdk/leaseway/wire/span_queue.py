"""Ended spans on their way out: kept where they end, exported in batches by a thread.

What OpenTelemetry's own batches do, with two differences: ending a span costs an append, and
spans that are lost are counted and said, instead of being dropped one by one without a number.
"""

from __future__ import annotations

import logging
import os
import threading
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Self

from opentelemetry.sdk.trace import ReadableSpan, SpanProcessor
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult

__all__ = ["BatchLimits", "SpanQueue"]

_logger = logging.getLogger(__name__)
_LAST_EXPORT: Final = 5.0
"""Seconds that the end of a process waits for its last spans."""


@dataclass(frozen=True)
class BatchLimits:
    """When spans are exported, and how many wait.

    Attributes:
        delay: Seconds that a span waits at most while nothing hinders its export.
        batch: Spans of one export; so many waiting ones are exported at once.
        queue: Spans that wait at most; further ones are lost.

    """

    delay: float = 5.0
    batch: int = 512
    queue: int = 8192

    @classmethod
    def of_environment(cls, environment: Mapping[str, str]) -> Self:
        """Return what `OTEL_BSP_*` ask for; a value that is no positive number is logged."""
        batch = _positive(environment, "OTEL_BSP_MAX_EXPORT_BATCH_SIZE", cls.batch)
        return cls(
            _positive(environment, "OTEL_BSP_SCHEDULE_DELAY", int(cls.delay * 1000)) / 1000,
            batch,
            max(batch, _positive(environment, "OTEL_BSP_MAX_QUEUE_SIZE", cls.queue)),
        )


def _positive(environment: Mapping[str, str], name: str, default: int) -> int:
    text = environment.get(name, "").strip()
    if not text:
        return default
    if text.isdecimal() and int(text) > 0:
        return int(text)
    _logger.warning(f"{name} is no positive whole number; it counts as {default}.")
    return default


class SpanQueue(SpanProcessor):
    """Takes ended spans of any thread to one exporter, in a thread that the first span starts."""

    def __init__(self, exporter: SpanExporter, limits: BatchLimits | None = None) -> None:
        self._exporter = exporter
        self._limits = limits or BatchLimits.of_environment(os.environ)
        self._begin()
        if hasattr(os, "register_at_fork"):
            # A child has neither the thread nor any business with its parent's spans.
            os.register_at_fork(after_in_child=self._begin)

    def _begin(self) -> None:
        self._spans: deque[ReadableSpan] = deque()
        self._lost = 0
        self._flushes: list[threading.Event] = []
        self._lock = threading.Lock()
        self._awake = threading.Event()
        self._thread: threading.Thread | None = None
        self._closed = False

    def on_end(self, span: ReadableSpan) -> None:
        """Keep a span that is to be exported."""
        if span.context is None or not span.context.trace_flags.sampled:
            return
        waiting = len(self._spans)
        if waiting >= self._limits.queue or self._closed:
            with self._lock:
                self._lost += 1
            return
        self._spans.append(span)
        if waiting + 1 >= self._limits.batch and not self._awake.is_set():
            self._awake.set()
        if self._thread is None:
            self._start()

    def force_flush(self, timeout_millis: int = 30000) -> bool:
        """Have all that waits exported; return whether that was done within the time."""
        flushed = threading.Event()
        with self._lock:
            if self._thread is None or self._closed:
                return not self._spans
            self._flushes.append(flushed)
        self._awake.set()
        return flushed.wait(timeout_millis / 1000)

    def shutdown(self) -> None:
        """Export what waits, for at most 5 s, and take no more."""
        with self._lock:
            self._closed = True
            thread = self._thread
        self._awake.set()
        if thread is not None:
            thread.join(_LAST_EXPORT)
        self._exporter.shutdown()
        self._say_lost()

    def _start(self) -> None:
        with self._lock:
            if self._thread is None and not self._closed:
                self._thread = threading.Thread(target=self._run, name="export spans", daemon=True)
                self._thread.start()

    def _run(self) -> None:
        while not self._closed:
            self._awake.wait(self._limits.delay)
            self._awake.clear()
            self._flush()
        self._flush()  # what came before the end, and whoever waits for it

    def _flush(self) -> None:
        with self._lock:
            flushes, self._flushes = self._flushes, []
        self._export_all()
        self._say_lost()
        for flushed in flushes:
            flushed.set()

    def _export_all(self) -> None:
        spans = self._spans
        while spans:
            # Only this thread takes spans away.
            batch = [spans.popleft() for _ in range(min(len(spans), self._limits.batch))]
            if not self._export(batch):
                with self._lock:
                    self._lost += len(batch)

    def _export(self, batch: list[ReadableSpan]) -> bool:
        try:
            return self._exporter.export(batch) is SpanExportResult.SUCCESS
        except Exception:  # whatever an exporter does must not end the traced process
            _logger.warning("Spans could not be exported.", exc_info=True)
            return False

    def _say_lost(self) -> None:
        with self._lock:
            lost, self._lost = self._lost, 0
        if lost:
            _logger.warning(
                "Spans were lost: whoever collects them does not take them, or not fast enough. "
                "Look at the collector, or record fewer with OTEL_TRACES_SAMPLER.",
                extra={"spans": lost},
            )
