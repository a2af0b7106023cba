"""What an API's redirect asks to send next, if it is followed.

`Guard` decides how far inside it may lead.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final, NamedTuple

from yarl import URL

from leaseway.data_plane.core.origin import kept_encrypted, same_origin
from leaseway.wire.channels.fetching import REDIRECTS

_SEE_OTHER: Final = 303
_SAME_REQUEST: Final = (307, 308)
_FREE: Final = ("GET", "HEAD")
"""Methods that may be sent anywhere."""
_RAW_BYTE: Final = re.compile("[\udc80-\udcff]")
"""A byte of a header that is no UTF-8, as aiohttp reads it."""


class Sending(NamedTuple):
    """What is sent to an address."""

    method: str
    url: URL
    body: bytes | None


def next_sending(
    sent: Sending, status: int, location: str | None, without: Sequence[str] = ()
) -> Sending | None:
    """Return what a response redirects to, or None if it is no redirect that is followed.

    303 leads to a GET of what a request has made (RFC 9110, 15.4.4). What changes something is sent
    again only where 307 or 308 asks for it, and only to the same origin, as is what has a body: 301
    and 302 leave open whether a POST stays one, and a GET in its place would look like its success.

    Args:
        sent: The request that was answered.
        status: Of the response.
        location: Of the response; None if it has none.
        without: Query parameters that are left out.
    """
    if status not in REDIRECTS or not location:
        return None
    try:
        url = sent.url.join(URL(_RAW_BYTE.sub(_percent, location))).without_query_params(*without)
    except ValueError:
        return None
    if url.scheme not in ("http", "https") or not url.host:
        return None
    url = kept_encrypted(sent.url, url)
    if status == _SEE_OTHER:
        return Sending("HEAD" if sent.method == "HEAD" else "GET", url, None)
    if sent.method in _FREE and sent.body is None:
        return sent._replace(url=url)
    is_same_request = sent.method in _FREE or status in _SAME_REQUEST
    return sent._replace(url=url) if is_same_request and same_origin(sent.url, url) else None


def _percent(byte: re.Match[str]) -> str:
    return f"%{ord(byte[0]) - 0xDC00:02X}"
