"""How often it is logged that telemetry cannot be exported."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from typing import Any, Final

OUTAGE_INTERVAL: Final = 600.0
"""Seconds after which a failure that lasts is logged again."""


class OutageFilter(logging.Filter):
    """Lets each kind of failure of an exporter be logged once in ten minutes.

    An exporter logs every try of every batch, several in a second from a plane with three signals.
    What it tries again is no failure yet, and not logged.

    Args:
        clock: Returns seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self._clock = clock
        self._lock = threading.Lock()  # each signal is exported by a thread of its own
        self._logged: dict[tuple[Any, ...], float] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        """Return whether a line is written."""
        if record.levelno < logging.ERROR:
            return logging.getLogger().isEnabledFor(logging.DEBUG)
        signal = record.args[0] if isinstance(record.args, tuple) and record.args else ""
        kind = (record.msg, signal)
        with self._lock:
            now = self._clock()
            if now - self._logged.get(kind, -OUTAGE_INTERVAL) < OUTAGE_INTERVAL:
                return False
            self._logged[kind] = now
        return True
