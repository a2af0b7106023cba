"""The page for Prometheus, parsed by its own client."""

from __future__ import annotations

from typing import Any

import pytest
from prometheus_client.openmetrics import parser as openmetrics
from prometheus_client.parser import text_string_to_metric_families

from leaseway.telemetry.metrics import Meter
from leaseway.telemetry.prometheus import render


def page(meter: Meter) -> str:
    return render(meter.collect())[0].decode()


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
    families = {f.name: f for f in text_string_to_metric_families(page(meter))}
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


def test_buckets_of_a_histogram_are_cumulative() -> None:
    meter = Meter()
    cell = meter.histogram("d", "s", "Durations.", "server", bounds=(0.5, 1.0)).cell("a")
    for amount in (0.5, 0.7, 3.0):
        cell.record(amount)
    server = ("server", "a")
    assert sample_values(page(meter)) == {
        ("d_seconds_bucket", (("le", "0.5"), server)): 1.0,
        ("d_seconds_bucket", (("le", "1.0"), server)): 2.0,
        ("d_seconds_bucket", (("le", "+Inf"), server)): 3.0,
        ("d_seconds_sum", (server,)): 4.2,
        ("d_seconds_count", (server,)): 3.0,
    }


def test_any_text_can_be_a_label_value() -> None:
    meter = Meter()
    odd = 'a"b\\c\nd{e},é'
    meter.counter("c", "{x}", 'Lines\nand \\ "quotes".', "label").cell(odd).add()
    [family] = text_string_to_metric_families(page(meter))
    assert family.samples[0].labels == {"label": odd}
    assert family.documentation == 'Lines\nand \\ "quotes".'


def test_a_page_has_target_info_and_describes_instruments_without_series() -> None:
    meter = Meter()
    meter.counter("c", "{x}", "Nothing yet.", "label")
    body, _ = render(meter.collect(), {"service.name": "leaseway-worker"})
    text = body.decode()
    assert 'target_info{service_name="leaseway-worker"} 1.0' in text
    assert "# TYPE c_total counter" in text
    assert text.endswith("\n")


def test_a_large_number_is_exact() -> None:
    meter = Meter()
    meter.observe("v", "{version}", "Version.", lambda: [((), 1795323122008148.0)])
    assert sample_values(page(meter)) == {("v", ()): 1795323122008148.0}


OPENMETRICS = "application/openmetrics-text"


@pytest.mark.parametrize(
    ("accept", "content_type"),
    [
        ("", "text/plain; version=0.0.4; charset=utf-8"),
        ("text/html, */*;q=0.1", "text/plain; version=0.0.4; charset=utf-8"),
        (f"{OPENMETRICS};version=1.0.0,text/plain;q=0.5", f"{OPENMETRICS}; version=1.0.0;"),
        (f"{OPENMETRICS};version=what", "text/plain; version=0.0.4; charset=utf-8"),
    ],
)
def test_the_accept_header_selects_the_format(accept: str, content_type: str) -> None:
    _, found = render(Meter().collect(), accept=accept)
    assert found.startswith(content_type)


def test_openmetrics_has_the_same_names_with_units() -> None:
    meter = Meter()
    meter.counter("leaseway.calls.refused", "{call}", "Refused.", "leaseway.reason").cell("X").add()
    meter.histogram("mcp.d", "s", "Durations.", "server", bounds=(0.5,)).cell("a").record(0.1)
    read: Any = openmetrics.text_string_to_metric_families
    body, _ = render(meter.collect(), {"service.name": "w"}, f"{OPENMETRICS};version=1.0.0")
    families = list(read(body.decode()))
    assert [(family.name, family.type, family.unit) for family in families] == [
        ("target", "info", ""),
        ("leaseway_calls_refused", "counter", ""),
        ("mcp_d_seconds", "histogram", "seconds"),
    ]
    assert families[1].samples[0].name == "leaseway_calls_refused_total"


def test_a_label_missing_in_one_series_is_empty() -> None:
    meter = Meter()
    cells = meter.counter("c", "{x}", "Counted.", "server", "tool")
    cells.cell("a", "t").add()
    cells.cell("b", "").add()
    assert sample_values(page(meter)) == {
        ("c_total", (("server", "a"), ("tool", "t"))): 1.0,
        ("c_total", (("server", "b"), ("tool", ""))): 1.0,
    }


def test_openmetrics_buckets_have_the_trace_of_their_last_amount() -> None:
    meter = Meter()
    cell = meter.histogram("d", "s", "Durations.", "server", bounds=(0.5, 1.0)).cell("a")
    cell.record(0.1, f"00-{'1' * 32}-{'2' * 16}-01")
    cell.record(0.2, f"00-{'3' * 32}-{'4' * 16}-01")
    cell.record(0.3)
    cell.record(0.6, "00-what a caller may send instead of a trace context is any text at all")
    cell.record(7.0, f"00-{'5' * 32}-{'6' * 16}-01")
    read: Any = openmetrics.text_string_to_metric_families
    body, _ = render(meter.collect(), accept=f"{OPENMETRICS};version=1.0.0")
    [family] = read(body.decode())
    found = {
        sample.labels["le"]: (sample.exemplar.labels, sample.exemplar.value)
        for sample in family.samples
        if sample.exemplar
    }
    assert found == {
        "0.5": ({"trace_id": "3" * 32, "span_id": "4" * 16}, 0.2),
        "+Inf": ({"trace_id": "5" * 32, "span_id": "6" * 16}, 7.0),
    }
    assert "trace_id" not in page(meter)
