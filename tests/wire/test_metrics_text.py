"""The page for Prometheus, read back by its own client."""

from __future__ import annotations

from prometheus_client.parser import text_string_to_metric_families

from leaseway.wire.metrics import Meter
from leaseway.wire.metrics_text import render


def sample_values(text: str) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def test_names_units_and_kinds_are_translated() -> None:
    meter = Meter()
    meter.counter("leaseway.calls.refused", "{call}", "Refused.", "leaseway.reason").cell("X").add()
    meter.observe("process.memory.usage", "By", "Memory.", lambda: [((), 4096.0)])
    meter.observe("process.cpu.time", "s", "Time.", lambda: [((), 0.25)], kind="counter")
    families = {f.name: f for f in text_string_to_metric_families(render(meter.collect()))}
    assert {name: family.type for name, family in families.items()} == {
        "leaseway_calls_refused": "counter",
        "process_memory_usage_bytes": "gauge",
        "process_cpu_time_seconds": "counter",
    }
    [refused] = families["leaseway_calls_refused"].samples
    assert (refused.name, refused.labels, refused.value) == (
        "leaseway_calls_refused_total",
        {"leaseway_reason": "X"},
        1.0,
    )
    assert families["process_cpu_time_seconds"].samples[0].value == 0.25


def test_a_histogram_counts_what_is_at_most_each_bound() -> None:
    meter = Meter()
    cell = meter.histogram("d", "s", "Durations.", "server", bounds=(0.5, 1.0)).cell("a")
    for amount in (0.5, 0.7, 3.0):
        cell.record(amount)
    server = ("server", "a")
    assert sample_values(render(meter.collect())) == {
        ("d_seconds_bucket", (("le", "0.5"), server)): 1.0,
        ("d_seconds_bucket", (("le", "1"), server)): 2.0,
        ("d_seconds_bucket", (("le", "+Inf"), server)): 3.0,
        ("d_seconds_sum", (server,)): 4.2,
        ("d_seconds_count", (server,)): 3.0,
    }


def test_any_text_survives_as_a_label() -> None:
    meter = Meter()
    odd = 'a"b\\c\nd{e},é'
    meter.counter("c", "{x}", 'Lines\nand \\ "quotes".', "label").cell(odd).add()
    [family] = text_string_to_metric_families(render(meter.collect()))
    assert family.samples[0].labels == {"label": odd}
    assert family.documentation == 'Lines\nand \\ "quotes".'


def test_a_process_says_what_it_is_and_an_instrument_without_series_what_it_would_count() -> None:
    meter = Meter()
    meter.counter("c", "{x}", "Nothing yet.", "label")
    text = render(meter.collect(), {"service.name": "leaseway-worker"})
    assert 'target_info{service_name="leaseway-worker"} 1' in text
    assert "# TYPE c_total counter" in text
    assert text.endswith("\n")


def test_a_large_number_is_exact() -> None:
    meter = Meter()
    meter.observe("v", "{version}", "Version.", lambda: [((), 1795323122008148.0)])
    assert "v 1795323122008148\n" in render(meter.collect())
