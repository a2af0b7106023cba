"""Exporters by the standard variables, and the helpers for the W3C trace context."""

from __future__ import annotations

import logging
import os
import socket
import subprocess
import sys
import threading
from typing import Any, cast

import pytest
from opentelemetry import trace
from opentelemetry.trace import INVALID_SPAN, NonRecordingSpan, SpanContext, TraceFlags
from tests.conftest import BOUND

from leaseway.telemetry.logs_otlp import OtlpHandler
from leaseway.telemetry.tracing import Telemetry, tracing_active
from leaseway.wire.channels.trace_context import (
    context_from,
    continued,
    headers_of,
    is_sampled,
    traceparent_of,
)

PARENT = f"00-{'a' * 32}-{'b' * 16}-01"

# A process has one provider, so each set of variables needs its own process.
_SETUP = """
import logging, sys
from leaseway.telemetry.tracing import configure_telemetry
from leaseway.wire.channels.trace_context import is_sampled, traceparent_of
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


def _run(_script: str = _SETUP, **variables: str) -> subprocess.CompletedProcess[str]:
    clean = {name: value for name, value in os.environ.items() if not name.startswith("OTEL_")}
    return subprocess.run(
        [sys.executable, "-c", _script],
        env=clean | variables,
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )


def test_without_variables_nothing_is_exported_and_the_sdk_is_not_loaded() -> None:
    out = _run().stdout.splitlines()
    assert out == ["exporting False False", "sdk loaded False", "sampled False"]


def test_the_console_exporter_writes_to_stderr_with_the_resource_of_the_process() -> None:
    done = _run(
        OTEL_TRACES_EXPORTER="console",
        OTEL_SERVICE_NAME="mine",
        OTEL_RESOURCE_ATTRIBUTES="team=core",
    )
    assert done.stdout.splitlines() == [
        "exporting True True",
        "sdk loaded True",
        "sampled True",
    ]
    for expected in ('"name": "work"', '"service.name": "mine"', '"i1"', '"team": "core"'):
        assert expected in done.stderr


def test_the_sampler_variable_applies() -> None:
    done = _run(OTEL_TRACES_EXPORTER="console", OTEL_TRACES_SAMPLER="always_off")
    assert "sampled False" in done.stdout


def test_an_otlp_endpoint_alone_turns_export_on() -> None:
    done = _run(OTEL_EXPORTER_OTLP_ENDPOINT="http://127.0.0.1:1", OTEL_EXPORTER_OTLP_TIMEOUT="1")
    assert "exporting True True" in done.stdout


def test_the_variable_can_say_that_requests_are_not_compressed() -> None:
    done = _run(OTEL_TRACES_EXPORTER="otlp", OTEL_EXPORTER_OTLP_COMPRESSION="none")
    assert "exporting True True" in done.stdout


def test_an_unresponsive_collector_does_not_delay_the_shutdown() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = silent.getsockname()[1]
        done = _run(OTEL_EXPORTER_OTLP_ENDPOINT=f"http://127.0.0.1:{port}")
    assert "The last spans were not exported within 2 s and are lost" in done.stdout


@pytest.mark.parametrize(
    "variables",
    [
        {"OTEL_BSP_SCHEDULE_DELAY": "0"},
        {"OTEL_BSP_MAX_QUEUE_SIZE": "10", "OTEL_BSP_MAX_EXPORT_BATCH_SIZE": "20"},
    ],
)
def test_invalid_batch_settings_are_logged_and_replaced_by_the_defaults(
    variables: dict[str, str],
) -> None:
    done = _run(OTEL_TRACES_EXPORTER="console", **variables)
    assert "The OTEL_BSP_* variables are invalid" in done.stdout
    assert '"name": "work"' in done.stderr


@pytest.mark.parametrize(
    "variables",
    [
        {"OTEL_SPAN_ATTRIBUTE_COUNT_LIMIT": "many"},
        {"OTEL_ATTRIBUTE_VALUE_LENGTH_LIMIT": "-1"},
        {"OTEL_EXPORTER_OTLP_TIMEOUT": "10s"},
        {"OTEL_EXPORTER_OTLP_COMPRESSION": "zstd"},
        {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://[bad"},
    ],
)
def test_a_variable_that_cannot_be_read_turns_its_signal_off_and_stops_no_process(
    variables: dict[str, str],
) -> None:
    done = _run(OTEL_TRACES_EXPORTER="otlp", **variables)
    assert "log: Traces are not exported, because a variable OTEL_* cannot" in done.stdout
    assert "exporting False False" in done.stdout


@pytest.mark.parametrize("exporter", ["console", "none"])
def test_a_provider_that_is_not_installed_is_ignored(exporter: str) -> None:
    done = _run(OTEL_TRACES_EXPORTER=exporter, OTEL_PYTHON_TRACER_PROVIDER="nonsense")
    assert "log: OTEL_PYTHON_TRACER_PROVIDER is ignored" in done.stdout
    is_on = exporter == "console"
    assert f"exporting {is_on} {is_on}" in done.stdout
    assert f"sampled {is_on}" in done.stdout


def test_propagators_that_are_not_installed_leave_the_traces_of_w3c() -> None:
    shows = """
import os
from mcp.shared import _otel
from opentelemetry.propagate import get_global_textmap
print("fields", sorted(get_global_textmap().fields), os.environ["OTEL_PROPAGATORS"])
"""
    done = _run(_SETUP + shows, OTEL_PROPAGATORS="b3,nonsense")
    assert "log: OTEL_PROPAGATORS is ignored" in done.stdout
    assert "fields ['baggage', 'traceparent', 'tracestate'] b3,nonsense" in done.stdout


def test_a_process_has_no_provider_by_default() -> None:
    assert not tracing_active()


def test_a_traceparent_survives_conversion_to_a_context() -> None:
    context = context_from(PARENT, "vendor=1")
    span = trace.get_current_span(context)
    assert traceparent_of(span) == PARENT
    assert span.get_span_context().trace_state.get("vendor") == "1"
    assert span.get_span_context().is_remote


@pytest.mark.parametrize("parent", ["", "nonsense", f"00-{'0' * 32}-{'b' * 16}-01"])
def test_an_invalid_traceparent_starts_a_new_trace(parent: str) -> None:
    assert traceparent_of(trace.get_current_span(context_from(parent))) == ""


@pytest.mark.parametrize(
    ("traceparent", "tracestate", "passed_on"),
    [
        (f"00-{'1' * 32}-{'2' * 16}-01", "", (f"00-{'1' * 32}-{'2' * 16}-01", "")),
        (f"00-{'1' * 32}-{'2' * 16}-00", "a=b", (f"00-{'1' * 32}-{'2' * 16}-00", "a=b")),
        (f"01-{'1' * 32}-{'2' * 16}-01-more", "", (f"00-{'1' * 32}-{'2' * 16}-01", "")),
        (f"00-{'0' * 32}-{'2' * 16}-01", "", ("", "")),
        (f"00-{'1' * 32}-{'0' * 16}-01", "", ("", "")),
        (f"ff-{'1' * 32}-{'2' * 16}-01", "", ("", "")),
        ("none", "a=b", ("", "")),
        ("", "", ("", "")),
    ],
)
def test_a_valid_trace_is_continued(
    traceparent: str, tracestate: str, passed_on: tuple[str, str]
) -> None:
    assert continued(traceparent, tracestate) == passed_on
    assert headers_of(trace.get_current_span(context_from(traceparent, tracestate))) == passed_on


def test_a_span_has_a_traceparent() -> None:
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


class _HungProvider:
    """A provider whose collector does not answer."""

    def __init__(self) -> None:
        self.ending, self.may_end = threading.Event(), threading.Event()

    def get_logger(self, _name: str) -> None:
        return None

    def shutdown(self) -> None:
        self.ending.set()
        self.may_end.wait(BOUND)


def test_what_is_queued_is_sent_all_at_once_within_one_bound(
    caplog: pytest.LogCaptureFixture,
) -> None:
    spans, lines = _HungProvider(), _HungProvider()
    handler = OtlpHandler(cast("Any", lines), logging.INFO)
    logging.getLogger().addHandler(handler)
    try:
        Telemetry(cast("Any", spans)).shutdown(0.05)
        assert spans.ending.wait(BOUND)
        assert lines.ending.wait(BOUND)
        assert [record.getMessage().split(" were ")[0] for record in caplog.records] == [
            "The last spans",
            "The last log lines",
        ]
        assert handler not in logging.getLogger().handlers
        handler.flush()  # as the exit of the process does: it waits no longer
        handler.close()
    finally:
        spans.may_end.set()
        lines.may_end.set()
