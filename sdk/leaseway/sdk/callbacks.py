"""Whom a caller wants told or asked during a call."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from leaseway.sdk.asks import Handlers
from leaseway.sdk.checks import check_callback, check_level
from leaseway.sdk.events import LogMessage, Progress

__all__ = ["Callbacks", "OnLog", "OnProgress"]

OnProgress = Callable[[float, float | None, str | None], object]
"""Told progress, total and message, like the official package's `ProgressFnT`; may be async."""

OnLog = Callable[[str, str | None, Any], object]
"""Told level, logger and data of a server's log message; may be async."""


@dataclass(frozen=True)
class Callbacks:
    """Whom to tell what a server says during a call, and who answers what it asks.

    Attributes:
        on_progress: Told of progress, or None.
        on_log: Told of log messages, or None.
        log_level: The least level for `on_log`.
        handlers: Answer what the server asks.
    """

    on_progress: OnProgress | None = None
    on_log: OnLog | None = None
    log_level: str = "info"
    handlers: Handlers = field(default_factory=Handlers)

    def __bool__(self) -> bool:
        return self.on_progress is not None or self.on_log is not None or bool(self.handlers)

    def check(self, *, may_be_async: bool) -> None:
        """Raise a TypeError or ValueError where they cannot be what was meant."""
        check_callback("on_progress", self.on_progress, may_be_async=may_be_async)
        check_callback("on_log", self.on_log, may_be_async=may_be_async)
        check_level(self.log_level)
        self.handlers.check(may_be_async=may_be_async)

    def tell(self, event: Progress | LogMessage) -> object:
        """Tell of one event; return what the callback returned, something to await perhaps."""
        if isinstance(event, LogMessage):
            return self.on_log(event.level, event.logger, event.data) if self.on_log else None
        if self.on_progress is None:
            return None
        return self.on_progress(event.progress, event.total, event.message)
