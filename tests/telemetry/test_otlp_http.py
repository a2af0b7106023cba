"""OTLP over HTTP: its variables, and requests received by a collector."""

from __future__ import annotations

import gzip
import logging
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from google.rpc.status_pb2 import Status
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsServiceRequest,
)
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTracePartialSuccess,
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from tests.certificates import Authority
from tests.conftest import BOUND

from leaseway.telemetry.exporters import otel_resource
from leaseway.telemetry.logs_otlp import otlp_audit
from leaseway.telemetry.metrics import Meter
from leaseway.telemetry.metrics_otlp import MetricsSender, metric_exporters
from leaseway.telemetry.otlp.http_sender import HttpSender
from leaseway.telemetry.otlp.http_settings import LONGEST_TIMEOUT, HttpSettings, http_settings
from leaseway.telemetry.spans.lean import LeanTracerProvider
from leaseway.telemetry.tracing import span_exporters

ENDPOINT = "OTEL_EXPORTER_OTLP_ENDPOINT"
PROTOCOL = "OTEL_EXPORTER_OTLP_PROTOCOL"
HEADERS = "OTEL_EXPORTER_OTLP_HEADERS"


@dataclass
class Request:
    """A received request."""

    path: str
    headers: dict[str, str]
    body: bytes
    connection: BaseHTTPRequestHandler


@dataclass
class Answer:
    """What a collector answers."""

    status: int = 200
    headers: tuple[tuple[str, str], ...] = ()
    body: bytes = b""
    closes: bool = False


class Collector:
    """An HTTP server that keeps requests and gives prepared answers, else 200."""

    def __init__(self, tls: ssl.SSLContext | None = None) -> None:
        collector = self
        self.requests: list[Request] = []
        self.answers: list[Answer] = []

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                headers = {name.lower(): value for name, value in self.headers.items()}
                collector.requests.append(Request(self.path, headers, body, self))
                answer = collector.answers.pop(0) if collector.answers else Answer()
                self.send_response(answer.status)
                for name, value in answer.headers:
                    self.send_header(name, value)
                self.send_header("Content-Length", str(len(answer.body)))
                self.end_headers()
                self.wfile.write(answer.body)
                self.close_connection = answer.closes

            def log_message(self, *_: Any) -> None: ...

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        if tls is not None:
            self._server.socket = tls.wrap_socket(self._server.socket, server_side=True)
        self.port = self._server.server_port
        self.address = f"http{'' if tls is None else 's'}://127.0.0.1:{self.port}"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,))
        self._thread.start()

    def settings(self, **variables: str) -> HttpSettings:
        return http_settings("traces", {ENDPOINT: self.address, **variables})

    def close(self) -> None:
        self._server.shutdown()
        self._thread.join(BOUND)
        self._server.server_close()


@pytest.fixture
def collector() -> Iterator[Collector]:
    collecting = Collector()
    yield collecting
    collecting.close()


@pytest.fixture
def exported(collector: Collector, monkeypatch: pytest.MonkeyPatch) -> Collector:
    """A collector to which the variables of this process point."""
    monkeypatch.setenv(ENDPOINT, collector.address)
    monkeypatch.setenv(PROTOCOL, "http/protobuf")
    return collector


def _end_a_span() -> None:
    [exporter] = span_exporters()
    provider = LeanTracerProvider(resource=otel_resource({}), shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    with provider.get_tracer("t").start_as_current_span("work"):
        pass
    provider.shutdown()


async def test_a_collector_receives_all_signals_at_their_paths(
    exported: Collector, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(HEADERS, "Authorization=Basic%20c2VjcmV0LXBhaXI=, x-team = core%2Cops")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_METRICS_COMPRESSION", "gzip")
    _end_a_span()
    meter = Meter()
    meter.counter("leaseway.calls", "{call}", "Calls.", "leaseway.server").cell("a").add(3)
    await MetricsSender(meter, metric_exporters(), otel_resource({})).close()
    audit = otlp_audit("w1")
    assert audit is not None
    audit.send([b'{"time":"2027-01-15T08:00:00.125Z","event":"call","tool":"echo"}'])
    audit.close()

    traces, metrics, logs = exported.requests
    assert [traces.path, metrics.path, logs.path] == ["/v1/traces", "/v1/metrics", "/v1/logs"]
    for request in exported.requests:
        assert request.headers["content-type"] == "application/x-protobuf"
        assert request.headers["authorization"] == "Basic c2VjcmV0LXBhaXI="
        assert request.headers["x-team"] == "core,ops"
    scope = ExportTraceServiceRequest.FromString(traces.body).resource_spans[0].scope_spans[0]
    assert scope.spans[0].name == "work"
    assert metrics.headers["content-encoding"] == "gzip"
    sent = ExportMetricsServiceRequest.FromString(gzip.decompress(metrics.body))
    assert sent.resource_metrics[0].scope_metrics[0].metrics[0].name == "leaseway.calls"
    [record] = (
        ExportLogsServiceRequest.FromString(logs.body).resource_logs[0].scope_logs[0].log_records
    )
    assert "echo" in record.body.string_value


def test_what_a_collector_rejects_of_a_request_is_logged(
    exported: Collector, caplog: pytest.LogCaptureFixture
) -> None:
    partial = ExportTracePartialSuccess(rejected_spans=1, error_message="too old")
    body = ExportTraceServiceResponse(partial_success=partial).SerializeToString()
    exported.answers = [Answer(body=body)]
    _end_a_span()
    assert "The collector rejected 1 spans of a request: too old" in caplog.text


def test_the_port_of_http_without_a_protocol_is_pointed_out(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv(ENDPOINT, "http://127.0.0.1:4318")
    monkeypatch.delenv(PROTOCOL, raising=False)
    for exporter in span_exporters():
        exporter.shutdown()
    assert "set OTEL_EXPORTER_OTLP_PROTOCOL=http/protobuf" in caplog.text


@pytest.mark.parametrize("make", [span_exporters, metric_exporters, lambda: [otlp_audit("w")]])
def test_an_address_that_cannot_be_read_stops_no_process(
    make: Callable[[], list[object]],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setenv(ENDPOINT, "http://[::1")
    monkeypatch.delenv(PROTOCOL, raising=False)
    assert not any(make())
    assert "are not exported" in caplog.text


@pytest.mark.parametrize(
    ("variables", "address"),
    [
        ({}, "http://localhost:4318/v1/traces"),
        ({ENDPOINT: ""}, "http://localhost:4318/v1/traces"),
        ({ENDPOINT: "https://otlp.example/otlp/"}, "https://otlp.example/otlp/v1/traces"),
        (
            {
                ENDPOINT: "http://other:1",
                "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "https://otlp.example/v1/mine?a=b",
            },
            "https://otlp.example/v1/mine?a=b",
        ),
        (
            {"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://otlp.example:4318"},
            "http://otlp.example:4318/",
        ),
    ],
)
def test_the_path_is_added_to_the_common_endpoint_alone(
    variables: dict[str, str], address: str
) -> None:
    assert http_settings("traces", variables).url.geturl() == address


def test_variables_of_a_signal_override_the_common_ones() -> None:
    variables = {
        HEADERS: "a=1",
        "OTEL_EXPORTER_OTLP_TRACES_HEADERS": "B=x=y,",
        "OTEL_EXPORTER_OTLP_TIMEOUT": "3",
        "OTEL_EXPORTER_OTLP_TRACES_TIMEOUT": "1.5",
        "OTEL_EXPORTER_OTLP_COMPRESSION": "gzip",
    }
    traces, logs = http_settings("traces", variables), http_settings("logs", variables)
    assert (traces.headers, traces.timeout, traces.is_compressed) == ({"b": "x=y"}, 1.5, True)
    assert (logs.headers, logs.timeout) == ({"a": "1"}, 3.0)


def test_a_timeout_in_milliseconds_is_pointed_out_and_bounded(
    caplog: pytest.LogCaptureFixture,
) -> None:
    settings = http_settings("logs", {"OTEL_EXPORTER_OTLP_TIMEOUT": "10000"})
    assert settings.timeout == LONGEST_TIMEOUT
    assert "is read in seconds" in caplog.text


@pytest.mark.parametrize(
    ("name", "value", "sentence"),
    [
        ("ENDPOINT", "collector:4318", "is no http or https address"),
        ("ENDPOINT", "https://u:s3cr3t-value@otlp.example", "contains a user"),
        ("HEADERS", "a=1,s3cr3t-value", "entry 2 is no NAME=VALUE"),
        ("HEADERS", "a=s3cr3t-value%0d%0ab: c", "entry 1 is no NAME=VALUE"),
        ("HEADERS", "content-length=5", "the exporter itself sets"),
        ("TIMEOUT", "10s", "is no positive number"),
        ("TIMEOUT", "nan", "is no positive number"),
        ("COMPRESSION", "zstd", "is neither gzip nor none"),
        ("CERTIFICATE", "/nowhere/ca.pem", "CERTIFICATE cannot be used: No such file"),
        ("CLIENT_CERTIFICATE", "/nowhere/c.pem", "CLIENT_CERTIFICATE and"),
        ("CLIENT_KEY", "/nowhere/c.key", "is set without"),
    ],
)
def test_a_variable_that_cannot_be_used_is_named_without_secrets(
    name: str, value: str, sentence: str
) -> None:
    variables = {ENDPOINT: "https://otlp.example", f"OTEL_EXPORTER_OTLP_TRACES_{name}": value}
    with pytest.raises(ValueError, match=sentence) as caught:
        http_settings("traces", variables)
    assert f"OTEL_EXPORTER_OTLP_TRACES_{name}" in str(caught.value)
    assert "s3cr3t-value" not in str(caught.value)


def test_a_request_is_sent_again_while_the_collector_is_busy(collector: Collector) -> None:
    collector.answers = [
        Answer(429, (("Retry-After", "0"),)),
        Answer(503, (("Retry-After", "Thu, 01 Jan 2026 00:00:00 GMT"),)),
        Answer(504, (("Retry-After", "0"),), closes=True),
        Answer(body=b"kept"),
    ]
    sender = HttpSender(collector.settings())
    assert sender.send(b"batch") == b"kept"
    assert [request.body for request in collector.requests] == [b"batch"] * 4
    sender.close()


def test_a_refused_request_is_lost_at_once_and_the_reason_logged_without_secrets(
    collector: Collector, caplog: pytest.LogCaptureFixture
) -> None:
    said = Status(code=3, message="no tenant for key s3cr3t-value").SerializeToString()
    refusal = Answer(400, (("Content-Type", "application/x-protobuf"),), said)
    collector.answers = [refusal, refusal]
    sender = HttpSender(collector.settings(**{HEADERS: "authorization=Bearer s3cr3t-value"}))
    assert sender.send(b"batch") is None
    assert sender.send(b"batch") is None
    assert len(collector.requests) == 2
    [line] = [record.getMessage() for record in caplog.records]  # the second says nothing new
    assert "it answers 400 (no tenant for key [redacted])" in line
    caplog.set_level(logging.INFO)
    assert sender.send(b"batch") == b""
    assert "Traces are exported again" in caplog.text
    sender.close()


def test_a_redirect_is_not_followed(collector: Collector, caplog: pytest.LogCaptureFixture) -> None:
    collector.answers = [Answer(307, (("Location", "http://elsewhere.example/"),))]
    sender = HttpSender(collector.settings())
    assert sender.send(b"batch") is None
    assert "redirects are not followed" in caplog.text
    sender.close()


@pytest.mark.parametrize("pause", ["3600", "999999999999999999"])
def test_a_batch_is_given_up_if_the_collector_wants_more_time_than_there_is(
    collector: Collector, pause: str
) -> None:
    collector.answers = [Answer(503, (("Retry-After", pause),))]
    sender = HttpSender(collector.settings())
    assert sender.send(b"batch") is None
    assert len(collector.requests) == 1
    sender.close()


def test_the_end_of_a_process_ends_the_waiting_for_a_next_try(collector: Collector) -> None:
    collector.answers = [Answer(503, (("Retry-After", "30"),))]
    sender = HttpSender(replace(collector.settings(), timeout=10 * BOUND))
    answers: list[bytes | None] = []
    sending = threading.Thread(target=lambda: answers.append(sender.send(b"batch")))
    sending.start()
    deadline = time.monotonic() + BOUND
    while not collector.requests and time.monotonic() < deadline:
        sending.join(0.01)
    sender.close()
    sending.join(BOUND)
    assert answers == [None]


def test_a_connection_is_kept_and_replaced_when_the_collector_has_closed_it(
    collector: Collector,
) -> None:
    sender = HttpSender(collector.settings())
    assert sender.send(b"1") == b""
    collector.answers = [Answer(closes=True)]
    assert sender.send(b"2") == b""
    assert sender.send(b"3") == b""
    first, second, third = (request.connection for request in collector.requests)
    assert first is second
    assert third is not second
    sender.close()


def test_certificates_of_the_variables_protect_the_connection(tmp_path: Path) -> None:
    authority = Authority("collectors")
    certificate, key = authority.issue(tmp_path, "collector")
    tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    tls.load_cert_chain(certificate, key)
    ca = authority.write(tmp_path / "ca.pem")
    tls.load_verify_locations(ca)
    tls.verify_mode = ssl.CERT_REQUIRED
    own_certificate, own_key = authority.issue(tmp_path, "worker")
    trusting = {"OTEL_EXPORTER_OTLP_CERTIFICATE": str(ca)}
    own = {
        "OTEL_EXPORTER_OTLP_CLIENT_CERTIFICATE": str(own_certificate),
        "OTEL_EXPORTER_OTLP_CLIENT_KEY": str(own_key),
    }
    collector = Collector(tls)
    try:
        sender = HttpSender(collector.settings(**trusting, **own))
        assert sender.send(b"batch") == b""
        sender.close()
        for variables in (own, trusting):
            settings = replace(collector.settings(**variables), timeout=0.5)
            assert HttpSender(settings).send(b"batch") is None
    finally:
        collector.close()
    assert len(collector.requests) == 1


def test_a_remote_collector_is_reached_through_the_proxy_and_a_local_one_without(
    collector: Collector, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("http_proxy", f"http://user:pass%21word@127.0.0.1:{collector.port}")
    monkeypatch.delenv("no_proxy", raising=False)
    remote = {ENDPOINT: "http://collector.example:4318"}
    sender = HttpSender(http_settings("traces", remote))
    assert sender.send(b"batch") == b""
    [request] = collector.requests
    assert request.path == "http://collector.example:4318/v1/traces"
    assert request.headers["host"] == "collector.example:4318"
    assert request.headers["proxy-authorization"] == "Basic dXNlcjpwYXNzIXdvcmQ="
    sender.close()
    sender = HttpSender(collector.settings())
    assert sender.send(b"batch") == b""
    assert collector.requests[1].path == "/v1/traces"
    sender.close()


def test_a_proxy_that_cannot_be_used_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("https_proxy", "socks5://proxy.example:1080")
    with pytest.raises(ValueError, match="proxy for https has no http address"):
        HttpSender(http_settings("traces", {ENDPOINT: "https://collector.example"}))
