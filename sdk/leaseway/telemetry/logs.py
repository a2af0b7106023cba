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
import select
import stat
import sys
import threading
from collections.abc import Mapping
from datetime import UTC, datetime
from io import RawIOBase, TextIOWrapper
from logging.handlers import WatchedFileHandler
from typing import Any, Final, Literal, TextIO, cast

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

_PIECE: Final = select.PIPE_BUF
"""Bytes that fit into whatever a poll calls writable."""
_PATIENCE_MS: Final = 50
"""How long a write waits for a reader that has kept up until then."""

_logger = logging.getLogger(__name__)


class UnwaitingStream(RawIOBase):
    """Writes to a pipe, socket or terminal, and drops what would wait for its reader.

    A supervisor that stops reading a process's stderr, a desktop client that never reads it, or a
    terminal after Ctrl-S would otherwise stop the process at its next line, for good.

    Args:
        descriptor: Where it writes; it stays open.
    """

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._poll = select.poll()
        self._poll.register(descriptor, select.POLLOUT)
        self._lock = threading.RLock()
        self._is_stuck = False
        self._is_torn = False
        self._lost = 0

    def writable(self) -> bool:
        return True

    def fileno(self) -> int:
        return self._descriptor

    def isatty(self) -> bool:
        return os.isatty(self._descriptor)

    def write(self, data: Any) -> int:
        """Write lines; return the size of the data, whatever is dropped of it."""
        with self._lock:
            left = memoryview(data)
            if self._is_torn and self._has_room():
                self._is_torn = False
                os.write(self._descriptor, b"\n")
            while left and self._has_room():
                left = left[os.write(self._descriptor, left[:_PIECE]) :]
            if left:
                self._lost += max(1, bytes(left).count(b"\n"))
                self._is_torn = self._is_torn or len(left) < len(data)
            return len(data)

    def take_lost(self) -> int:
        """Return how many lines were dropped since the last time, once they can be told."""
        with self._lock:
            if not self._lost or not self._has_room():
                return 0
            lost, self._lost = self._lost, 0
            return lost

    def _has_room(self) -> bool:
        self._is_stuck = not self._poll.poll(0 if self._is_stuck else _PATIENCE_MS)
        return not self._is_stuck


def unwaiting(stream: TextIO) -> TextIO:
    """Return a stream that writes where another does, and never waits for a reader.

    A file, and a stream without a descriptor, are returned as they are.
    """
    try:
        descriptor = stream.fileno()
        mode = os.fstat(descriptor).st_mode
    except (OSError, ValueError):
        return stream
    if stat.S_ISREG(mode):
        return stream
    stream.flush()
    return TextIOWrapper(
        cast("Any", UnwaitingStream(descriptor)),  # as `python -u` does: no buffer in between
        encoding=stream.encoding,
        errors=stream.errors,
        line_buffering=True,
        write_through=True,
    )


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
        _StreamHandler(sys.stderr)
        if file is None
        else _FileHandler(file, encoding="utf-8", errors="backslashreplace")
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

    @property
    def place(self) -> str:
        """Where lines are written, as the report names it."""
        return "stderr"

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802
        error = sys.exc_info()[1]
        reason = getattr(error, "strerror", None) or type(error).__name__
        with contextlib.suppress(Exception):  # stderr itself may be unwritable
            sys.stderr.write(
                f"A log line of {record.name} ({record.filename}:{record.lineno}) was not written "
                f"to {self.place}: {reason}.\n"
            )


class _StreamHandler(_SafeErrorHandler, logging.StreamHandler):  # type: ignore[type-arg]
    """Tells how many lines a stream has lost, before the next one."""

    def emit(self, record: logging.LogRecord) -> None:
        raw = getattr(self.stream, "buffer", None)
        lost = raw.take_lost() if isinstance(raw, UnwaitingStream) else 0
        if lost:
            message = "Lost %d lines, because nobody read this process's stderr."
            details = (_logger.name, logging.WARNING, __file__, 0, message, (lost,), None)
            super().emit(_logger.makeRecord(*details))
        super().emit(record)


class _FileHandler(_SafeErrorHandler, WatchedFileHandler):
    """Writes to a file, to a new one once it is renamed or deleted (rotation).

    A new file is accessible to its owner only.
    """

    @property
    def place(self) -> str:
        return self.baseFilename

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
