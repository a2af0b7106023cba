"""Reads `Retry-After` of HTTP responses (RFC 9110, 10.2.3)."""

from __future__ import annotations

import time
from collections.abc import Mapping
from email.utils import parsedate_to_datetime
from typing import Final

_MAX_DELAY: Final = 3_600.0


def retry_delay(headers: Mapping[str, str]) -> float | None:
    """Return for how many seconds a response asks to wait, at most an hour; None if it does not.

    Args:
        headers: The response's; names match in lower case. `Retry-After` is a number of seconds or
            a date, by the clock of whoever sent it.
    """
    text = headers.get("retry-after", "").strip()
    if text.isascii() and text.isdecimal():
        return min(float(text), _MAX_DELAY)
    end = _time_of(text)
    if end is None:
        return None
    now = _time_of(headers.get("date", "")) or time.time()
    return min(max(end - now, 0.0), _MAX_DELAY)


def _time_of(date: str) -> float | None:
    try:
        return parsedate_to_datetime(date).timestamp()
    except (ValueError, TypeError, OverflowError):
        return None
