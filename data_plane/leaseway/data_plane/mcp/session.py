"""Agreeing on a protocol version and listing tools.

The official `ClientSession` speaks the handshake; tools are listed below its models, so that a
definition reaches the registry with every field the server gave it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any, Final

import msgspec
from mcp.client.session import DISCOVER_TIMEOUT_SECONDS, ClientSession
from mcp.shared.exceptions import MCPError
from mcp_types import (
    CLIENT_CAPABILITIES_META_KEY,
    CLIENT_INFO_META_KEY,
    METHOD_NOT_FOUND,
    PROTOCOL_VERSION_META_KEY,
    UNSUPPORTED_PROTOCOL_VERSION,
    Implementation,
)
from mcp_types.version import HANDSHAKE_PROTOCOL_VERSIONS, MODERN_PROTOCOL_VERSIONS

from leaseway.data_plane.core.calls import NO_ANSWERS
from leaseway.data_plane.mcp.asks import MODERN_CAPABILITIES
from leaseway.data_plane.mcp.peer import Peer
from leaseway.data_plane.mcp.pending import ConnectionLost
from leaseway.data_plane.mcp.wire import Era
from leaseway.wire import bounds
from leaseway.wire.version import PACKAGE_VERSION

__all__ = ["CLIENT_INFO", "ListingFailed", "era_of", "list_tools", "negotiate"]

CLIENT_INFO: Final = Implementation(name="leaseway", version=PACKAGE_VERSION)
MAX_TOOLS: Final = 10_000
MAX_LISTING: Final = 16 * bounds.MIB


async def negotiate(
    session: ClientSession, protocol: str, startup_timeout: float, known_version: str = ""
) -> None:
    """Agree on a protocol version.

    Args:
        session: An entered session on the connection.
        protocol: `auto`, `legacy`, or a version.
        startup_timeout: Seconds that the whole start may take. Under `auto` a server that
            does not answer `server/discover` at all costs 10 s of it, half of it at most.
        known_version: What another instance of the same server agreed on, or empty; spares
            `auto` the question that a legacy server does not understand.

    Raises:
        MCPError: The server refused, or speaks no version that we do.
        RuntimeError: Its answer names a version that nobody knows.
    """
    if protocol in MODERN_PROTOCOL_VERSIONS:
        await session.discover()
    elif protocol != "auto" or known_version in HANDSHAKE_PROTOCOL_VERSIONS:
        await session.initialize()
    elif not await _discovers(session, min(DISCOVER_TIMEOUT_SECONDS, startup_timeout / 2)):
        await _initialize_or_discover(session)


async def _discovers(session: ClientSession, timeout: float) -> bool:
    """Say whether the server is of the modern era; anything but a proof means that it is not."""
    try:
        async with asyncio.timeout(timeout):
            await session.discover()
    except ConnectionLost:
        raise
    except MCPError as error:
        if error.error.code == UNSUPPORTED_PROTOCOL_VERSION and _modern_only(error.error.data):
            raise
        return False
    except (TimeoutError, ValueError, RuntimeError):
        # Silence, a result that is none, or only versions of the other era.
        return False
    return True


async def _initialize_or_discover(session: ClientSession) -> None:
    try:
        await session.initialize()
    except MCPError as error:
        if error.error.code != UNSUPPORTED_PROTOCOL_VERSION:
            raise
        # A modern server that was slow to start: it answered the first question too late.
        await session.discover()


def _modern_only(data: Any) -> bool:
    supported = data.get("supported") if isinstance(data, dict) else None
    return isinstance(supported, list) and not any(
        version in HANDSHAKE_PROTOCOL_VERSIONS for version in supported
    )


def era_of(version: str) -> Era:
    """Return what every request must carry at a protocol version, made once."""
    headers = {"mcp-protocol-version": version}
    if version not in MODERN_PROTOCOL_VERSIONS:
        return Era(version, headers=headers)
    answering = {
        answers: _modern_meta(version, capabilities)
        for answers, capabilities in MODERN_CAPABILITIES.items()
    }
    return Era(version, True, answering[NO_ANSWERS], headers, answering)


def _modern_meta(version: str, capabilities: Mapping[str, Any]) -> bytes:
    meta = {
        PROTOCOL_VERSION_META_KEY: version,
        CLIENT_INFO_META_KEY: CLIENT_INFO.model_dump(by_alias=True, exclude_none=True),
        CLIENT_CAPABILITIES_META_KEY: capabilities,
    }
    return msgspec.json.encode(meta)[1:-1]


class ListingFailed(Exception):
    """A tool list that can't be used; the text says why, as the end of a sentence."""


class _Page(msgspec.Struct):
    tools: list[msgspec.Raw]
    nextCursor: str | None = None  # noqa: N815 - MCP's name


class _Named(msgspec.Struct):
    name: str


_decode_page: Final = msgspec.json.Decoder(_Page).decode
_decode_named: Final = msgspec.json.Decoder(_Named).decode


async def list_tools(peer: Peer, *, has_tools: bool) -> dict[str, bytes]:
    """Return every tool's definition as the server sent it, by original name, in its order.

    Args:
        peer: The connection, negotiated.
        has_tools: Whether the server says that it has tools at all.

    Raises:
        ListingFailed: A page is malformed, or there are more than 10,000 tools or 16 MiB.
        MCPError: The server answered with an error, or the connection ended.
    """
    tools: dict[str, bytes] = {}
    cursors: set[str] = set()
    cursor: str | None = None
    size = 0
    while True:
        page = await _page(peer, cursor, has_tools=has_tools)
        for raw in page.tools:
            definition = bytes(raw)
            size += len(definition)
            tools.setdefault(_name(definition), definition)
        _check_bounds(len(tools), size)
        cursor = page.nextCursor
        if not cursor:
            return tools
        if cursor in cursors:
            raise ListingFailed("its pages go round in a circle: a cursor came twice")
        cursors.add(cursor)


async def _page(peer: Peer, cursor: str | None, *, has_tools: bool) -> _Page:
    params: Mapping[str, Any] | None = {"cursor": cursor} if cursor else None
    try:
        return _decode_page(await peer.request("tools/list", params))
    except MCPError as error:
        if error.error.code == METHOD_NOT_FOUND and not has_tools:
            return _Page([])
        raise
    except msgspec.DecodeError as error:
        raise ListingFailed(f"its list is malformed ({error})") from None


def _name(definition: bytes) -> str:
    try:
        return _decode_named(definition).name
    except msgspec.DecodeError as error:
        raise ListingFailed(f"it lists a tool without a name ({error})") from None


def _check_bounds(count: int, size: int) -> None:
    if count > MAX_TOOLS:
        raise ListingFailed(f"it lists more than {MAX_TOOLS} tools")
    if size > MAX_LISTING:
        raise ListingFailed(f"its list has more than {MAX_LISTING} bytes")
