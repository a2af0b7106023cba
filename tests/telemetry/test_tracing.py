"""Which exporters the standard variables give, and the W3C helpers."""

from __future__ import annotations

import os
import socket
import subprocess
import sys

import pytest
from opentelemetry import trace
from opentelemetry.trace import INVALID_SPAN, NonRecordingSpan, SpanContext, TraceFlags

from leaseway.telemetry.tracing import (
    context_from,
    is_sampled,
    traceparent_of,
    tracing_active,
)

PARENT = f"00-{'a' * 32}-{'b' * 16}-01"

# A provider is installed once a process: each set of variables gets a process of its own.
_SETUP = """
import logging, sys
from leaseway.telemetry.tracing import configure_telemetry, is_sampled, traceparent_of
from leaseway.telemetry.tracing import tracer, tracing_active
logging.basicConfig(stream=sys.stdout, format="log: %(message)s")
telemetry = configure_telemetry("unit", instance="i1")
assert not configure_telemetry("again").exporting
print("exporting", telemetry.exporting, tracing_active())
print("sdk loaded", "opentelemetry.sdk.trace" in sys.modules)
with tracer("t").start_as_current_span("work") as span:
    print("sampled", is_sampled(traceparent_of(span)))
telemetry.shutdown(2)
"""


def _run(**variables: str) -> subprocess.CompletedProcess[str]:
    clean = {name: value for name, value in os.environ.items() if not name.startswith("OTEL_")}
    return subprocess.run(
        [sys.executable, "-c", _SETUP],
        env=clean | variables,
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )


def test_without_variables_nothing_is_exported_and_the_sdk_is_not_loaded() -> None:
    out = _run().stdout.splitlines()
    assert out == ["exporting False False", "sdk loaded False", "sampled False"]


def test_the_console_exporter_writes_to_stderr_with_names_of_the_process() -> None:
    done = _run(OTEL_TRACES_EXPORTER="console", OTEL_RESOURCE_ATTRIBUTES="team=core")
    assert done.stdout.splitlines() == [
        "exporting True True",
        "sdk loaded True",
        "sampled True",
    ]
    for expected in ('"name": "work"', '"service.name": "unit"', '"i1"', '"team": "core"'):
        assert expected in done.stderr


def test_the_sampler_variable_is_honoured() -> None:
    done = _run(OTEL_TRACES_EXPORTER="console", OTEL_TRACES_SAMPLER="always_off")
    assert "sampled False" in done.stdout


def test_the_service_name_variable_wins() -> None:
    done = _run(OTEL_TRACES_EXPORTER="console", OTEL_SERVICE_NAME="mine")
    assert '"service.name": "mine"' in done.stderr


@pytest.mark.parametrize(
    "variables",
    [
        {"OTEL_TRACES_EXPORTER": "none", "OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:1"},
        {"OTEL_TRACES_EXPORTER": "console", "OTEL_SDK_DISABLED": "TRUE"},
    ],
)
def test_none_and_disabled_win(variables: dict[str, str]) -> None:
    assert "exporting False False" in _run(**variables).stdout


def test_an_otlp_endpoint_alone_asks_for_export() -> None:
    done = _run(OTEL_EXPORTER_OTLP_ENDPOINT="http://127.0.0.1:1", OTEL_EXPORTER_OTLP_TIMEOUT="1")
    assert "exporting True True" in done.stdout


@pytest.mark.parametrize(
    ("variables", "sentence"),
    [
        ({"OTEL_TRACES_EXPORTER": "zipkin"}, "use otlp, console or none"),
        (
            {"OTEL_TRACES_EXPORTER": "otlp", "OTEL_EXPORTER_OTLP_PROTOCOL": "http/protobuf"},
            "OTLP over grpc only",
        ),
    ],
)
def test_what_cannot_be_used_is_said_and_stops_nothing(
    variables: dict[str, str], sentence: str
) -> None:
    done = _run(**variables)
    assert sentence in done.stdout
    assert "exporting False" in done.stdout


def test_a_collector_that_does_not_answer_does_not_hold_up_the_end() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = silent.getsockname()[1]
        done = _run(OTEL_EXPORTER_OTLP_ENDPOINT=f"http://127.0.0.1:{port}")
    assert "The last spans were not taken within 2 s and are lost" in done.stdout


@pytest.mark.parametrize(
    "variables",
    [
        {"OTEL_BSP_SCHEDULE_DELAY": "0"},
        {"OTEL_BSP_MAX_QUEUE_SIZE": "10", "OTEL_BSP_MAX_EXPORT_BATCH_SIZE": "20"},
    ],
)
def test_bounds_that_cannot_hold_are_said_and_the_defaults_do(variables: dict[str, str]) -> None:
    done = _run(OTEL_TRACES_EXPORTER="console", **variables)
    assert "The OTEL_BSP_* variables can't be used" in done.stdout
    assert '"name": "work"' in done.stderr


def test_this_process_has_no_provider_of_its_own() -> None:
    assert not tracing_active()


def test_a_traceparent_survives_the_way_to_a_context_and_back() -> None:
    context = context_from(PARENT, "vendor=1")
    span = trace.get_current_span(context)
    assert traceparent_of(span) == PARENT
    assert span.get_span_context().trace_state.get("vendor") == "1"
    assert span.get_span_context().is_remote


@pytest.mark.parametrize("parent", ["", "nonsense", f"00-{'0' * 32}-{'b' * 16}-01"])
def test_an_invalid_traceparent_starts_a_new_trace(parent: str) -> None:
    assert traceparent_of(trace.get_current_span(context_from(parent))) == ""


def test_a_span_gives_its_traceparent() -> None:
    context = SpanContext(1, 2, is_remote=False, trace_flags=TraceFlags(1))
    assert traceparent_of(NonRecordingSpan(context)) == f"00-{1:032x}-{2:016x}-01"
    assert traceparent_of(INVALID_SPAN) == ""


@pytest.mark.parametrize(
    ("traceparent", "sampled"),
    [
        (PARENT, True),
        (PARENT[:-2] + "00", False),
        (PARENT[:-2] + "03", True),
        (PARENT[:-2] + "zz", False),
        ("", False),
    ],
)
def test_the_sampled_flag_is_read_without_a_context(traceparent: str, sampled: bool) -> None:
    assert is_sampled(traceparent) is sampled
