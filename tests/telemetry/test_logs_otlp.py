"""Log lines and audit records received by an OTLP collector."""

from __future__ import annotations

import logging
import socket
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from queue import Queue
from typing import Any

import grpc
import pytest
from opentelemetry.proto.collector.logs.v1 import logs_service_pb2, logs_service_pb2_grpc
from tests.conftest import BOUND

from leaseway.telemetry import logs_otlp
from leaseway.telemetry.logs import configure_logging
from leaseway.telemetry.logs_otlp import otlp_audit, otlp_handler
from leaseway.wire.secrets.redaction import hide


class Collector(logs_service_pb2_grpc.LogsServiceServicer):
    """Keeps the received requests."""

    def __init__(self) -> None:
        self.received: Queue[Any] = Queue()

    def Export(self, request: Any, context: Any) -> Any:
        self.received.put(request)
        return logs_service_pb2.ExportLogsServiceResponse()


@pytest.fixture
def collector(monkeypatch: pytest.MonkeyPatch) -> Iterator[Collector]:
    collecting = Collector()
    server = grpc.server(ThreadPoolExecutor(1))
    add: Any = logs_service_pb2_grpc.add_LogsServiceServicer_to_server
    add(collecting, server)
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    monkeypatch.setenv("OTEL_LOGS_EXPORTER", "otlp")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", f"http://127.0.0.1:{port}")
    root = logging.getLogger()
    before, level = root.handlers[:], root.level
    yield collecting
    for handler in [each_handler for each_handler in root.handlers if each_handler not in before]:
        root.removeHandler(handler)
        handler.close()
    root.handlers[:] = before
    root.setLevel(level)
    server.stop(None)


def test_half_of_a_surrogate_pair_costs_no_line(collector: Collector) -> None:
    configure_logging("info", "text", None, "worker w1")
    logging.getLogger("leaseway.test").warning("bad \udcff", extra={"path": "\udcff"})
    for handler in logging.getLogger().handlers:
        handler.flush()
    request = collector.received.get(timeout=30)
    [line] = request.resource_logs[0].scope_logs[0].log_records
    assert line.body.string_value == "bad \\udcff"


def test_a_line_that_cannot_be_made_raises_nothing_where_it_is_logged(
    collector: Collector, capsys: pytest.CaptureFixture[str]
) -> None:
    configure_logging("info", "text", None, "worker w1")
    logging.getLogger("leaseway.test").warning("%d of 3", "two")
    logging.getLogger("leaseway.test").warning("after")
    for handler in logging.getLogger().handlers:
        handler.flush()
    request = collector.received.get(timeout=30)
    [line] = request.resource_logs[0].scope_logs[0].log_records
    assert line.body.string_value == "after"
    assert "A log line of leaseway.test" in capsys.readouterr().err


def test_a_line_is_sent_with_level_and_fields_without_secrets(collector: Collector) -> None:
    hidden = hide(["s3cr3t-value"])
    configure_logging("info", "text", None, "worker w1")
    log = logging.getLogger("leaseway.test")
    log.debug("not wanted")
    try:
        raise ValueError("s3cr3t-value is wrong")
    except ValueError:
        log.warning("It said %s.", "s3cr3t-value", extra={"server": "a"}, exc_info=True)
    for handler in logging.getLogger().handlers:
        handler.flush()
    request = collector.received.get(timeout=30)
    assert hidden.values
    assert b"s3cr3t-value" not in request.SerializeToString()
    [resource] = request.resource_logs
    process = {
        attribute.key: attribute.value.string_value for attribute in resource.resource.attributes
    }
    assert process["service.name"] == "leaseway-worker"
    assert process["service.instance.id"] == "w1"
    [record] = resource.scope_logs[0].log_records
    assert record.body.string_value == "It said [redacted]."
    assert record.severity_text == "WARNING"
    assert record.severity_number == 13
    fields = {attribute.key: attribute.value.string_value for attribute in record.attributes}
    assert fields["server"] == "a"
    assert "ValueError" in fields["exception.stacktrace"]


def test_log_lines_are_not_sent_unless_the_exporter_variable_is_set(
    collector: Collector, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("OTEL_LOGS_EXPORTER")
    assert otlp_handler("worker w1", logging.INFO) is None


def test_audit_records_are_sent_if_an_endpoint_is_set(
    collector: Collector, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("OTEL_LOGS_EXPORTER")
    audit = otlp_audit("w1")
    assert audit is not None
    body = b'{"time":"2027-01-15T08:00:00.125Z","event":"call","tool":"echo","arguments":{"a":1}}'
    audit.send([body])
    audit.close()
    request = collector.received.get(timeout=30)
    [record] = request.resource_logs[0].scope_logs[0].log_records
    assert record.body.string_value.encode() == body
    assert record.time_unix_nano == 1_800_000_000_125_000_000
    fields = {attribute.key: attribute.value.string_value for attribute in record.attributes}
    assert fields["event.name"] == "leaseway.audit"
    assert fields["leaseway.audit.tool"] == "echo"
    monkeypatch.setenv("OTEL_LOGS_EXPORTER", "none")
    assert otlp_audit("w1") is None


def test_a_collector_that_hangs_does_not_delay_the_end_of_the_audit(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(logs_otlp, "_LAST_TIMEOUT", 0.1)
    monkeypatch.setattr(logs_otlp, "_TIMEOUT", 0.5)
    with socket.create_server(("127.0.0.1", 0)) as hanging:
        monkeypatch.setenv(
            "OTEL_EXPORTER_OTLP_ENDPOINT", f"http://127.0.0.1:{hanging.getsockname()[1]}"
        )
        audit = otlp_audit("w1")
        assert audit is not None
        audit.send([b'{"time":"2026-01-01T00:00:00.000Z","event":"begin"}'])
        audit.close()
    assert "The last audit records were not exported" in caplog.text
    for thread in threading.enumerate():  # it tries again, at random times that others would see
        if thread.name == "last audit records":
            thread.join(BOUND)
