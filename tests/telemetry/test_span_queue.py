"""Spans reach the exporter in batches, and those that do not are counted in the log."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterator, Sequence

import pytest
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF, ALWAYS_ON, Sampler
from opentelemetry.trace import Tracer

from leaseway.telemetry.spans import BatchLimits, SpanQueue

NEVER = 3600.0
WAIT = 60.0


class Collector(SpanExporter):
    """Takes batches; can be held, can fail."""

    def __init__(self) -> None:
        self.batches: list[list[str]] = []
        self.result = SpanExportResult.SUCCESS
        self.error: Exception | None = None
        self.called = threading.Event()
        self.open = threading.Event()
        self.open.set()
        self.closed = False

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        self.called.set()
        assert self.open.wait(WAIT)
        if self.error is not None:
            raise self.error
        self.batches.append([span.name for span in spans])
        return self.result

    def shutdown(self) -> None:
        self.closed = True


class Bench:
    """A queue behind a tracer, in front of a collector."""

    def __init__(self, limits: BatchLimits, sampler: Sampler = ALWAYS_ON) -> None:
        self.collector = Collector()
        self.queue = SpanQueue(self.collector, limits)
        provider = TracerProvider(sampler=sampler, shutdown_on_exit=False)
        provider.add_span_processor(self.queue)
        self._tracer: Tracer = provider.get_tracer("t")

    def end(self, *names: str) -> None:
        for name in names:
            self._tracer.start_span(name).end()


@pytest.fixture
def said(caplog: pytest.LogCaptureFixture) -> Iterator[pytest.LogCaptureFixture]:
    with caplog.at_level(logging.WARNING):
        yield caplog


def lost(said: pytest.LogCaptureFixture) -> list[int]:
    """Return how many spans each line says were lost."""
    return [
        vars(record)["spans"]
        for record in said.records
        if record.getMessage().startswith("Spans were lost:")
    ]


def test_a_full_batch_is_exported_at_once_and_in_order() -> None:
    bench = Bench(BatchLimits(delay=NEVER, batch=2))
    bench.end("a")
    assert not bench.collector.called.is_set()
    bench.end("b")
    assert bench.collector.called.wait(WAIT)
    bench.queue.shutdown()
    assert bench.collector.batches == [["a", "b"]]


def test_a_single_span_is_exported_after_the_delay() -> None:
    bench = Bench(BatchLimits(delay=0.01))
    bench.end("a")
    assert bench.collector.called.wait(WAIT)
    bench.queue.shutdown()
    assert bench.collector.batches == [["a"]]


def test_a_flush_exports_all_that_waits_in_batches() -> None:
    bench = Bench(BatchLimits(delay=NEVER, batch=10))
    bench.collector.open.clear()
    bench.end(*"abcdefghij")
    assert bench.collector.called.wait(WAIT)
    bench.end("k")
    bench.collector.open.set()
    assert bench.queue.force_flush(int(WAIT * 1000))
    assert bench.collector.batches == [list("abcdefghij"), ["k"]]
    bench.queue.shutdown()


def test_a_flush_of_nothing_waits_for_nothing() -> None:
    assert Bench(BatchLimits(delay=NEVER)).queue.force_flush(1)


def test_a_flush_gives_a_collector_up_that_does_not_answer() -> None:
    bench = Bench(BatchLimits(delay=NEVER))
    bench.collector.open.clear()
    bench.end("a")
    assert not bench.queue.force_flush(1)
    bench.collector.open.set()
    bench.queue.shutdown()


def test_what_finds_no_room_is_counted_in_one_line(said: pytest.LogCaptureFixture) -> None:
    bench = Bench(BatchLimits(delay=NEVER, batch=1, queue=2))
    bench.collector.open.clear()
    bench.end("a")
    assert bench.collector.called.wait(WAIT)
    bench.end("b", "c", "d", "e", "f")
    bench.collector.open.set()
    bench.queue.shutdown()
    assert bench.collector.batches == [["a"], ["b"], ["c"]]
    assert lost(said) == [3]


def test_what_is_not_taken_counts_as_lost(said: pytest.LogCaptureFixture) -> None:
    bench = Bench(BatchLimits(delay=NEVER))
    bench.collector.result = SpanExportResult.FAILURE
    bench.end("a", "b")
    bench.queue.shutdown()
    assert lost(said) == [2]


def test_an_exporter_that_raises_does_not_end_the_exports(said: pytest.LogCaptureFixture) -> None:
    bench = Bench(BatchLimits(delay=NEVER))
    bench.collector.error = ValueError("no")
    bench.end("a")
    assert bench.queue.force_flush(int(WAIT * 1000))
    bench.collector.error = None
    bench.end("b")
    bench.queue.shutdown()
    assert bench.collector.batches == [["b"]]
    assert lost(said) == [1]


def test_spans_that_are_not_sampled_are_not_exported() -> None:
    bench = Bench(BatchLimits(delay=NEVER), ALWAYS_OFF)
    bench.end("a")
    bench.queue.shutdown()
    assert bench.collector.batches == []


def test_the_end_exports_what_waits_and_takes_no_more(said: pytest.LogCaptureFixture) -> None:
    bench = Bench(BatchLimits(delay=NEVER))
    bench.end("a")
    bench.queue.shutdown()
    assert bench.collector.batches == [["a"]]
    assert bench.collector.closed
    bench.end("b")
    assert bench.collector.batches == [["a"]]


def test_spans_of_many_threads_all_arrive() -> None:
    bench = Bench(BatchLimits(delay=0.001, batch=7))
    threads = [threading.Thread(target=bench.end, args=["x"] * 50) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    bench.queue.shutdown()
    assert sum(map(len, bench.collector.batches)) == 400


def test_the_standard_variables_are_read() -> None:
    limits = BatchLimits.of_environment(
        {
            "OTEL_BSP_SCHEDULE_DELAY": "200",
            "OTEL_BSP_MAX_EXPORT_BATCH_SIZE": "64",
            "OTEL_BSP_MAX_QUEUE_SIZE": "128",
        }
    )
    assert limits == BatchLimits(delay=0.2, batch=64, queue=128)
    assert BatchLimits.of_environment({}) == BatchLimits()


@pytest.mark.parametrize("text", ["soon", "0", "-5", "1.5"])
def test_a_variable_that_is_no_number_is_said_and_not_followed(
    text: str, said: pytest.LogCaptureFixture
) -> None:
    assert BatchLimits.of_environment({"OTEL_BSP_SCHEDULE_DELAY": text}) == BatchLimits()
    assert "OTEL_BSP_SCHEDULE_DELAY" in said.text


def test_a_queue_is_never_smaller_than_a_batch() -> None:
    limits = BatchLimits.of_environment({"OTEL_BSP_MAX_QUEUE_SIZE": "10"})
    assert limits.queue == limits.batch


def test_nobody_waits_for_an_exporter_that_was_closed() -> None:
    bench = Bench(BatchLimits(delay=NEVER))
    bench.end("one")
    bench.queue.shutdown()
    begun = time.monotonic()
    assert bench.queue.force_flush()
    bench.end("late")
    assert bench.queue.force_flush()
    assert time.monotonic() - begun < WAIT
    assert bench.collector.batches == [["one"]]
