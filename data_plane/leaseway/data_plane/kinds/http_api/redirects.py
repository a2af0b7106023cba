"""Which redirects of an API are followed: none to where only the worker gets."""

from __future__ import annotations

import asyncio
import re
import socket
from collections.abc import Awaitable, Callable, Sequence
from typing import Final

from yarl import URL

from leaseway.wire.channels.fetching import REDIRECTS, Zone, zone_of

_METHODS: Final = ("GET", "HEAD")
_RAW_BYTE: Final = re.compile("[\udc80-\udcff]")
"""A byte of a header that is no UTF-8, as aiohttp reads it."""

LookUp = Callable[[str], Awaitable[list[str]]]
"""Returns the addresses of a host. It raises OSError."""


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


async def refusal(start: URL, current: URL, target: URL, look_up: LookUp) -> str:
    """Return why a redirect is not followed, as the end of a sentence; empty if it is.

    It may lead no further inside a network than the API itself is, and not out of encryption.

    Args:
        start: The address of the API, which an operator wrote.
        current: What was asked last.
        target: Where that redirects to.
        look_up: Looks up their hosts.
    """
    if current.scheme == "https" and target.scheme != "https":
        return "without encryption"
    if start.host == target.host:
        return ""
    there = await _zone(target, look_up)
    if there is Zone.OUTER or there <= min(await _zone(start, look_up), Zone.MACHINE):
        return ""
    return "inside this network"


async def addresses_of(host: str) -> list[str]:
    """Return the addresses of a host by the system's resolver.

    Raises:
        OSError: It has none.
    """
    loop = asyncio.get_running_loop()
    found = await loop.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    return [str(address[0]) for *_, address in found]


async def _zone(url: URL, look_up: LookUp) -> Zone:
    try:
        addresses = await look_up(url.host or "")
    except (OSError, UnicodeError):
        return Zone.OUTER  # only a proxy knows the name, or nobody
    return max(map(zone_of, addresses), default=Zone.OUTER)


def _percent(byte: re.Match[str]) -> str:
    return f"%{ord(byte[0]) - 0xDC00:02X}"
