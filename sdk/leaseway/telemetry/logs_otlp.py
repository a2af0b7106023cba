"""Log lines and audit records sent by OTLP, redacted like all log lines.

Log lines are sent only if `OTEL_LOGS_EXPORTER` is set, even if there is an endpoint for traces:
operators usually read them on stderr.
"""

from __future__ import annotations

import json
import logging
import os
import sys
import threading
import time
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final

from leaseway.telemetry.exporters import (
    GrpcOptions,
    describe_process,
    logged_if_unusable,
    make_exporters,
    otel_resource,
)
from leaseway.wire.secrets.redaction import redact
from leaseway.wire.text.visible_text import encodable

if TYPE_CHECKING:
    from opentelemetry.sdk._logs import LoggerProvider
    from opentelemetry.sdk._logs.export import LogRecordExporter

    from leaseway.telemetry.otlp.http_settings import HttpSettings

_logger = logging.getLogger(__name__)
_EXPORTER_LOGGERS: Final = ("opentelemetry", "leaseway.telemetry.otlp")
"""The exporters' own lines are not exported: an unreachable collector would cause more of them."""
_TIMEOUT: Final = 2.0
"""Seconds for one message, so that an unreachable collector does not delay the shutdown."""
_LAST_TIMEOUT: Final = 5.0
"""Seconds for all audit records that wait at the end of a process."""
_STANDARD_FIELDS: Final = frozenset(vars(logging.makeLogRecord({}))) | {"message", "taskName"}


class OtlpHandler(logging.Handler):
    """Sends log lines, with every hidden value replaced in messages, fields and tracebacks.

    Args:
        provider: Queues and sends them without blocking.
        level: The lowest level that is sent.
    """

    def __init__(self, provider: LoggerProvider, level: int) -> None:
        super().__init__(level)
        self._provider = provider
        self._logger = provider.get_logger("leaseway")
        self._ended = False

    def emit(self, record: logging.LogRecord) -> None:
        """Queue a line. One that cannot be made costs only itself: the other handlers report it."""
        if not record.name.startswith(_EXPORTER_LOGGERS):
            with suppress(Exception):
                self._send(record)

    def _send(self, record: logging.LogRecord) -> None:
        from opentelemetry._logs import LogRecord, SeverityNumber
        from opentelemetry.context import get_current

        attributes: dict[str, Any] = {"logger": record.name}
        for name, value in vars(record).items():
            if name not in _STANDARD_FIELDS:
                attributes[name] = value if isinstance(value, int | float) else _shown(str(value))
        if record.exc_info:
            text = logging.Formatter().formatException(record.exc_info)
            attributes["exception.stacktrace"] = _shown(text)
        number = min(24, max(1, record.levelno * 4 // 10 + 1))  # DEBUG 5, INFO 9 ... CRITICAL 21
        self._logger.emit(
            LogRecord(
                timestamp=int(record.created * 1e9),
                observed_timestamp=time.time_ns(),
                context=get_current(),
                severity_text=record.levelname,
                severity_number=SeverityNumber(number),
                body=_shown(record.getMessage()),
                attributes=attributes,
            )
        )

    def flush(self) -> None:
        if not self._ended:
            self._provider.force_flush(int(_TIMEOUT * 1_000))

    def close(self) -> None:
        """Send the queue and stop. At the exit of a process that has not waited for it, no-op."""
        if not self._ended:
            self._ended = True
            self._provider.shutdown()
        super().close()


def _shown(text: str) -> str:
    """Return a text as it may be sent: one that UTF-8 cannot hold would lose its whole batch."""
    return encodable(redact(text))


def otlp_handler(service: str, level: int) -> logging.Handler | None:
    """Return a handler that sends log lines by OTLP, or None if it is off.

    Args:
        service: The process's name, such as `worker w1`.
        level: The lowest level that is sent.
    """
    if not os.environ.get("OTEL_LOGS_EXPORTER"):
        return None
    provider = _make_provider(service)
    return OtlpHandler(provider, level) if provider is not None else None


class OtlpAudit:
    """Sends audit records that have been written to disk. It may lose some; the disk has all.

    Args:
        provider: Queues and sends them without blocking.
    """

    def __init__(self, provider: LoggerProvider) -> None:
        self._provider = provider
        self._logger = provider.get_logger("leaseway.audit")

    def send(self, bodies: Iterable[bytes]) -> None:
        """Queue records.

        Args:
            bodies: JSON objects whose secrets have been removed.
        """
        from opentelemetry._logs import LogRecord, SeverityNumber

        now = time.time_ns()
        for body in bodies:
            members = json.loads(body)
            attributes = {
                f"leaseway.audit.{name}": value
                for name, value in members.items()
                if isinstance(value, str | int | float) and value != ""
            }
            self._logger.emit(
                LogRecord(
                    timestamp=round(datetime.fromisoformat(members["time"]).timestamp() * 1e3)
                    * 10**6,
                    observed_timestamp=now,
                    severity_text="INFO",
                    severity_number=SeverityNumber.INFO,
                    body=body.decode(),
                    attributes={"event.name": "leaseway.audit", **attributes},
                )
            )

    def close(self) -> None:
        """Send the queue, for at most 5 s, and stop. Blocks."""
        last = threading.Thread(
            target=self._provider.shutdown, name="last audit records", daemon=True
        )
        last.start()
        last.join(_LAST_TIMEOUT)
        if last.is_alive():
            _logger.warning(
                "The last audit records were not exported within 5 s; the files of the audit have "
                "them. Check the collector."
            )


def otlp_audit(worker_id: str) -> OtlpAudit | None:
    """Return a sender of a worker's audit, or None if no endpoint or exporter is set for logs."""
    provider = _make_provider(f"worker {worker_id}")
    return OtlpAudit(provider) if provider is not None else None


def _make_provider(service: str) -> LoggerProvider | None:
    exporters = make_exporters("LOGS", console=_to_stderr, otlp=_by_otlp, otlp_http=_by_http)
    if exporters:
        with logged_if_unusable("LOGS"):
            return _provider_of(exporters, service)
    return None


def _provider_of(exporters: Sequence[LogRecordExporter], service: str) -> LoggerProvider:
    from opentelemetry.sdk._logs import LoggerProvider
    from opentelemetry.sdk._logs.export import BatchLogRecordProcessor

    kind, _, instance = service.partition(" ")
    resource = otel_resource(describe_process(f"leaseway-{kind}", instance))
    provider = LoggerProvider(resource=resource, shutdown_on_exit=False)
    for exporter in exporters:
        provider.add_log_record_processor(BatchLogRecordProcessor(exporter))
    return provider


def _by_otlp(options: GrpcOptions) -> LogRecordExporter:
    from opentelemetry.exporter.otlp.proto.grpc._log_exporter import OTLPLogExporter

    return OTLPLogExporter(timeout=_TIMEOUT, **options)


def _by_http(settings: HttpSettings) -> LogRecordExporter:
    from leaseway.telemetry.otlp.http_exporters import HttpLogExporter
    from leaseway.telemetry.otlp.http_sender import HttpSender

    return HttpLogExporter(HttpSender(replace(settings, timeout=min(settings.timeout, _TIMEOUT))))


def _to_stderr() -> LogRecordExporter:
    from opentelemetry.sdk._logs.export import ConsoleLogRecordExporter

    return ConsoleLogRecordExporter(out=sys.stderr)
