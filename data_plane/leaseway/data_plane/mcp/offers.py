"""Listing what a server offers besides tools: prompts, resources and templates of resources.

Below the official package's models, like tools, so that a definition reaches the registry with
every field that the server gave it. A list that fails costs that list and nothing else.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import msgspec
from mcp.shared.exceptions import MCPError
from mcp_types import METHOD_NOT_FOUND, ServerCapabilities

from leaseway.data_plane.core.listed import NO_OFFERS, Offers
from leaseway.data_plane.mcp.peer import Peer
from leaseway.data_plane.mcp.pending import ConnectionLost, Unanswered
from leaseway.data_plane.mcp.session import MAX_LISTING, ListingFailed
from leaseway.wire.bounds import MAX_LISTED

__all__ = ["list_offers"]

_MAX_WHY: Final = 300
"""Characters of a server's error that a warning quotes."""


class _Page(msgspec.Struct):
    prompts: list[msgspec.Raw] | None = None
    resources: list[msgspec.Raw] | None = None
    resourceTemplates: list[msgspec.Raw] | None = None  # noqa: N815 - MCP's name
    nextCursor: str | None = None  # noqa: N815 - MCP's name


class _Named(msgspec.Struct):
    name: str = ""
    uri: str = ""
    uriTemplate: str = ""  # noqa: N815 - MCP's name


@dataclass(frozen=True)
class _List:
    """One of the lists.

    Attributes:
        method: Asks for a page of it.
        key: Where a page has its items.
        name: What tells two items apart.
        into: Where `Offers` has it.
    """

    method: str
    key: str
    name: str
    into: str


_PROMPTS: Final = _List("prompts/list", "prompts", "name", "prompts")
_RESOURCES: Final = _List("resources/list", "resources", "uri", "resources")
_TEMPLATES: Final = _List(
    "resources/templates/list", "resourceTemplates", "uriTemplate", "templates"
)
_decode_page: Final = msgspec.json.Decoder(_Page).decode
_decode_named: Final = msgspec.json.Decoder(_Named).decode


async def list_offers(
    peer: Peer, capabilities: ServerCapabilities | None, timeout: float, before: Offers = NO_OFFERS
) -> Offers:
    """List all that a server says it has; never fails.

    Args:
        peer: The connection, negotiated.
        capabilities: What the server says of itself.
        timeout: Seconds for all lists together.
        before: What was listed before: a list that fails stays as it was.
    """
    wanted: list[_List] = []
    if capabilities is not None and capabilities.prompts is not None:
        wanted.append(_PROMPTS)
    if capabilities is not None and capabilities.resources is not None:
        wanted += (_RESOURCES, _TEMPLATES)
    lists: dict[str, tuple[bytes, ...]] = {}
    gaps: list[str] = []
    until = asyncio.get_running_loop().time() + timeout
    for each in wanted:
        try:
            async with asyncio.timeout_at(until):
                lists[each.into] = await _list(peer, each)
        except (ListingFailed, MCPError, TimeoutError) as error:
            gaps.append(f"{each.method} failed: {_why(error, timeout)}.")
            lists[each.into] = getattr(before, each.into)
    return Offers(**lists, gaps=tuple(gaps))


async def _list(peer: Peer, wanted: _List) -> tuple[bytes, ...]:
    found: dict[str, bytes] = {}
    cursors: set[str] = set()
    cursor: str | None = None
    size = 0
    while True:
        page = await _page(peer, wanted, cursor)
        for raw in getattr(page, wanted.key) or ():
            definition = bytes(raw)
            size += len(definition)
            found.setdefault(_name(definition, wanted), definition)
        _check_bounds(len(found), size)
        cursor = page.nextCursor
        if not cursor:
            return tuple(found.values())
        if cursor in cursors:
            raise ListingFailed("its pages go round in a circle: a cursor came twice")
        cursors.add(cursor)


async def _page(peer: Peer, wanted: _List, cursor: str | None) -> _Page:
    params: Mapping[str, Any] | None = {"cursor": cursor} if cursor else None
    try:
        page = _decode_page(await peer.request(wanted.method, params))
    except MCPError as error:
        if error.error.code == METHOD_NOT_FOUND:
            return _Page()  # said to have some, it has none of this kind
        raise
    except msgspec.DecodeError as error:
        raise ListingFailed(f"its list is malformed ({error})") from None
    if getattr(page, wanted.key) is None:
        raise ListingFailed(f"its list is malformed (it has no {wanted.key})")
    return page


def _name(definition: bytes, wanted: _List) -> str:
    try:
        name: str = getattr(_decode_named(definition), wanted.name)
    except msgspec.DecodeError as error:
        raise ListingFailed(f"it lists something that is malformed ({error})") from None
    if not name:
        raise ListingFailed(f"it lists something without {wanted.name}")
    return name


def _check_bounds(count: int, size: int) -> None:
    if count > MAX_LISTED:
        raise ListingFailed(f"it has more than {MAX_LISTED} entries")
    if size > MAX_LISTING:
        raise ListingFailed(f"it has more than {MAX_LISTING} bytes")


def _why(error: Exception, timeout: float) -> str:
    if isinstance(error, TimeoutError):
        return f"there was no answer within {timeout:g} s"
    if isinstance(error, ConnectionLost | Unanswered):
        return error.fault.message[:_MAX_WHY].rstrip(". ")
    if isinstance(error, MCPError):
        said = f"the server answered with error {error.error.code}: {error.error.message}"
        return said[:_MAX_WHY].rstrip(". ")
    return str(error)
