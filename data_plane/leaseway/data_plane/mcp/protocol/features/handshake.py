"""Agreeing on a protocol version; the official `ClientSession` speaks the handshake."""

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
    PROTOCOL_VERSION_META_KEY,
    UNSUPPORTED_PROTOCOL_VERSION,
    Implementation,
)
from mcp_types.version import HANDSHAKE_PROTOCOL_VERSIONS, MODERN_PROTOCOL_VERSIONS

from leaseway.data_plane.core.calls.call import NO_ANSWERS
from leaseway.data_plane.mcp.protocol.messages.era import Era
from leaseway.data_plane.mcp.protocol.messages.pending import ConnectionLost
from leaseway.data_plane.mcp.protocol.messages.server_requests import MODERN_CAPABILITIES
from leaseway.wire.messages.mcp import ROOTS
from leaseway.wire.version import PACKAGE_VERSION

CLIENT_INFO: Final = Implementation(name="leaseway", version=PACKAGE_VERSION)


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
    elif protocol != "auto":
        await session.initialize()
    elif known_version in HANDSHAKE_PROTOCOL_VERSIONS or not await _discovers(
        session, min(DISCOVER_TIMEOUT_SECONDS, startup_timeout / 2)
    ):
        await _initialize_or_discover(session)


async def _discovers(session: ClientSession, timeout: float) -> bool:
    """Return whether the server is of the modern era; anything but a proof means that it is not."""
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


def era_of(version: str, *, has_roots: bool = False) -> Era:
    """Return what every request must carry at a protocol version, made once.

    Args:
        version: The version.
        has_roots: Whether questions for roots are answered, whatever callers answer.
    """
    headers = {"mcp-protocol-version": version}
    if version not in MODERN_PROTOCOL_VERSIONS:
        return Era(version, headers=headers)
    always = frozenset({ROOTS}) if has_roots else NO_ANSWERS
    answering = {
        answers: _modern_meta(version, MODERN_CAPABILITIES[answers | always])
        for answers in MODERN_CAPABILITIES
    }
    return Era(version, True, answering[NO_ANSWERS], headers, answering)


def _modern_meta(version: str, capabilities: Mapping[str, Any]) -> bytes:
    meta = {
        PROTOCOL_VERSION_META_KEY: version,
        CLIENT_INFO_META_KEY: CLIENT_INFO.model_dump(by_alias=True, exclude_none=True),
        CLIENT_CAPABILITIES_META_KEY: capabilities,
    }
    return msgspec.json.encode(meta)[1:-1]
