"""Where a redirect of an API leads, if it is one; `Guard` decides how far inside it may lead."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

from yarl import URL

from leaseway.wire.channels.fetching import REDIRECTS

_METHODS: Final = ("GET", "HEAD")
_RAW_BYTE: Final = re.compile("[\udc80-\udcff]")
"""A byte of a header that is no UTF-8, as aiohttp reads it."""


def redirect_target(
    method: str, url: URL, status: int, location: str | None, without: Sequence[str] = ()
) -> URL | None:
    """Return the web address that a response redirects to, or None if it is no such response.

    Args:
        method: Of the request.
        url: Of the request.
        status: Of the response.
        location: Of the response; None if it has none.
        without: Query parameters that are left out.
    """
    if status not in REDIRECTS or method not in _METHODS or not location:
        return None
    try:
        target = url.join(URL(_RAW_BYTE.sub(_percent, location))).without_query_params(*without)
    except ValueError:
        return None
    return target if target.scheme in ("http", "https") and target.host else None


def _percent(byte: re.Match[str]) -> str:
    return f"%{ord(byte[0]) - 0xDC00:02X}"
