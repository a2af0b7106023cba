"""Log lines of every Leaseway process: text for people, JSON for programs.

Lines are written to stderr or a file, never to stdout, which is for results. Times are UTC. The
`extra=` of a log call and the ids of the current span become fields. Values given to `hide` never
appear.

See design.md#traces-metrics-and-logs.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import sys
from collections.abc import Mapping
from datetime import UTC, datetime
from io import TextIOWrapper
from logging.handlers import WatchedFileHandler
from typing import Any, Final, Literal, cast

from opentelemetry import trace

from leaseway.wire.secrets.redaction import redact
from leaseway.wire.text.visible_text import visible

LogFormat = Literal["text", "json"]

LEVELS: Final = ("debug", "info", "warning", "error")
"""The values of `--log-level`."""

_STANDARD_FIELDS: Final = frozenset(logging.LogRecord("", 0, "", 0, "", (), None).__dict__) | {
    "message",
    "asctime",
    "taskName",
    "color_message",
}


def open_private(path: str, flags: int) -> int:
    """Open a file for `open`. A new file is accessible to its owner only."""
    return os.open(path, flags, 0o600)


def configure_logging(level: str, fmt: LogFormat, file: str | None, service: str) -> None:
    """Configure level, format and destination of this process's log lines.

    Args:
        level: The lowest level that is written, one of `LEVELS`.
        fmt: `text`, or `json` for one object per line.
        file: A path to append to, or None for stderr.
        service: The process's name, such as `control-plane` or `worker w1`.

    Raises:
        OSError: The file cannot be opened for appending.
        ValueError: The level is not one of `LEVELS`.
    """
    if level not in LEVELS:
        raise ValueError(f"The log level '{level}' is not one of {', '.join(LEVELS)}.")
    handler: logging.Handler = (
        _StreamHandler(sys.stderr) if file is None else _FileHandler(file, encoding="utf-8")
    )
    handler.setFormatter(_JsonFormatter(service) if fmt == "json" else _TextFormatter(service))
    root = logging.getLogger()
    for previous in root.handlers[:]:
        root.removeHandler(previous)
        previous.close()
    root.addHandler(handler)
    root.setLevel(level.upper())
    if os.environ.get("OTEL_LOGS_EXPORTER"):
        from leaseway.telemetry.logs_otlp import otlp_handler

        sender = otlp_handler(service, root.level)
        if sender is not None:
            root.addHandler(sender)
    # They log each connection attempt and each watched file at these levels.
    for noisy in ("asyncio", "watchfiles", "grpc", "httpx2", "httpcore2", "mcp", "aiohttp.access"):
        logging.getLogger(noisy).setLevel(max(root.level, logging.WARNING))


class _SafeErrorHandler(logging.Handler):
    """Reports a line that could not be written, but not its content.

    `logging` itself would print the line's arguments with their secrets.
    """

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802
        error = sys.exc_info()[1]
        reason = getattr(error, "strerror", None) or type(error).__name__
        with contextlib.suppress(Exception):  # stderr itself may be unwritable
            sys.stderr.write(
                f"A log line of {record.name} ({record.filename}:{record.lineno}) was not written: "
                f"{reason}.\n"
            )


class _StreamHandler(_SafeErrorHandler, logging.StreamHandler):  # type: ignore[type-arg]
    pass


class _FileHandler(_SafeErrorHandler, WatchedFileHandler):
    """Writes to a file, to a new one once it is renamed or deleted (rotation).

    A new file is accessible to its owner only.
    """

    def emit(self, record: logging.LogRecord) -> None:
        try:
            super().emit(record)
        except OSError:  # the file is gone, and no new one can be made
            self.handleError(record)

    def _open(self) -> TextIOWrapper:
        stream = open(  # noqa: SIM115
            self.baseFilename,
            self.mode,
            encoding=self.encoding,
            errors=self.errors,
            opener=open_private,
        )
        return cast("TextIOWrapper", stream)


def _time(record: logging.LogRecord) -> str:
    moment = datetime.fromtimestamp(record.created, UTC)
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _fields(record: logging.LogRecord) -> dict[str, Any]:
    fields = {
        name: value
        for name, value in record.__dict__.items()
        if name not in _STANDARD_FIELDS and not name.startswith("_")
    }
    context = trace.get_current_span().get_span_context()
    if context.is_valid:
        fields["trace_id"] = trace.format_trace_id(context.trace_id)
        fields["span_id"] = trace.format_span_id(context.span_id)
    return fields


class _TextFormatter(logging.Formatter):
    def __init__(self, service: str) -> None:
        super().__init__()
        self._service = service

    def format(self, record: logging.LogRecord) -> str:
        fields = "".join(f" {name}={_word(value)}" for name, value in _fields(record).items())
        message = redact(record.getMessage()).replace("\n", "\\n")
        line = f"{_time(record)} {record.levelname:<7} {self._service}: {message}{fields}"
        if record.exc_info:
            line = f"{line}\n{self.formatException(record.exc_info)}"
        return visible(redact(line))  # a server may have written part of it


class _JsonFormatter(logging.Formatter):
    def __init__(self, service: str) -> None:
        super().__init__()
        self._service = service

    def format(self, record: logging.LogRecord) -> str:
        entry: dict[str, Any] = {
            "time": _time(record),
            "level": record.levelname.lower(),
            "service": self._service,
            "logger": record.name,
            "message": record.getMessage(),
            **_fields(record),
        }
        if record.exc_info:
            entry["exception"] = self.formatException(record.exc_info)
        return json.dumps(_clean(entry), ensure_ascii=False, default=lambda v: redact(str(v)))


def _clean(value: Any) -> Any:
    # Redacted before encoding: escapes would hide a secret with a quote in it.
    match value:
        case str():
            return redact(value)
        case Mapping():
            return {str(key): _clean(item) for key, item in value.items()}
        case list() | tuple():
            return [_clean(item) for item in value]
        case _:
            return value


def _word(value: Any) -> str:
    text = str(_clean(value))
    plain = text and not any(character in text for character in ' "=\n')
    return text if plain else json.dumps(text, ensure_ascii=False)
