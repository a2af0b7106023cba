"""Negotiates the protocol version, using the official `ClientSession`."""

from __future__ import annotations

import logging
import re
from collections.abc import Collection
from typing import Any, Final, assert_never

from mcp.client.session import DISCOVER_TIMEOUT_SECONDS, ClientSession
from mcp.shared.exceptions import MCPError
from mcp_types import (
    INVALID_REQUEST,
    PARSE_ERROR,
    REQUEST_TIMEOUT,
    UNSUPPORTED_PROTOCOL_VERSION,
    ServerCapabilities,
)
from mcp_types.version import HANDSHAKE_PROTOCOL_VERSIONS, MODERN_PROTOCOL_VERSIONS

from leaseway.data_plane.core.calls.call import NO_ANSWERS, SERVER_METHODS
from leaseway.data_plane.mcp.protocol.connection import Peer
from leaseway.data_plane.mcp.protocol.messages.client_meta import ClientMeta, modern_meta
from leaseway.data_plane.mcp.protocol.messages.era import Era
from leaseway.data_plane.mcp.protocol.messages.pending import (
    ConnectionLost,
    InvalidResponse,
    http_status,
)
from leaseway.data_plane.mcp.protocol.messages.server_requests import MODERN_CAPABILITIES
from leaseway.wire.clients.mcp_headers import VERSION_HEADER
from leaseway.wire.messages.mcp import ROOTS, SERVER_CAPABILITIES, ServerCapability

_logger = logging.getLogger(__name__)
_ABOUT_PARAMS: Final = frozenset({400, 422, 500})
"""HTTP statuses of servers that cannot read the params of a request."""
_is_about_version: Final = re.compile(r"protocol.{0,3}version", re.IGNORECASE).search
_find_versions: Final = re.compile(r"\b20\d\d-\d\d-\d\d\b").findall


class GreetingFailed(Exception):
    """The server may have failed because it was greeted with `server/discover`.

    Some legacy servers exit, close the connection or refuse everything after any message before
    `initialize`. On a new connection, they must be greeted with `initialize`.

    Attributes:
        cause: The error of this connection.
    """

    def __init__(self, cause: Exception) -> None:
        super().__init__(str(cause))
        self.cause = cause


def is_legacy(version: str) -> bool:
    """Return whether connections at a protocol version begin with `initialize`."""
    return version in HANDSHAKE_PROTOCOL_VERSIONS


def capabilities_of(declared: ServerCapabilities | None) -> list[str]:
    """Return what a server declared of `SERVER_CAPABILITIES`."""
    if declared is None:
        return []
    return [name for name in SERVER_CAPABILITIES if _has(declared, name)]


def _has(declared: ServerCapabilities, name: ServerCapability) -> bool:
    match name:
        case "completions" | "logging" | "prompts" | "resources":
            return getattr(declared, name) is not None
        case "subscribe":
            return declared.resources is not None and declared.resources.subscribe is True
    assert_never(name)


async def negotiate(
    session: ClientSession,
    peer: Peer,
    protocol: str,
    startup_timeout: float,
    known_version: str = "",
) -> None:
    """Negotiate a protocol version.

    Args:
        session: An entered session on the connection.
        peer: The connection.
        protocol: `auto`, `legacy`, or a version.
        startup_timeout: Seconds for the whole start. Under `auto`, a server that does not answer
            `server/discover` at all uses up 10 s of it, or half of it; one that wants it later may
            use up all of it.
        known_version: The version of another instance of the server, or empty. A legacy version
            spares `auto` the `server/discover`.

    Raises:
        GreetingFailed: Under `auto`, the server was greeted with `server/discover`, and failed.
        MCPError: The server refused, or has no version in common with us.
        RuntimeError: It answered with an unknown version.
    """
    timeout = min(DISCOVER_TIMEOUT_SECONDS, startup_timeout / 2)
    if protocol in MODERN_PROTOCOL_VERSIONS:
        await _discover(session, peer, startup_timeout)
    elif protocol != "auto":
        await _initialize(session, peer)
    elif is_legacy(known_version):
        await _initialize_or_discover(session, peer, timeout)
    else:
        await _discover_or_initialize(session, peer, timeout)


async def _discover_or_initialize(session: ClientSession, peer: Peer, timeout: float) -> None:
    try:
        if not await _supports_discover(session, peer, timeout):
            await _initialize_after_discover(session, peer, timeout)
    except ConnectionLost as error:
        if error.fault.started == "no":  # it has not received the greeting
            raise
        raise GreetingFailed(error) from error


async def _supports_discover(session: ClientSession, peer: Peer, timeout: float) -> bool:
    """Return whether the server is of the modern era; any doubt means that it is not."""
    try:
        await _discover(session, peer, timeout)
    except ConnectionLost:
        raise
    except MCPError as error:
        if error.error.code == UNSUPPORTED_PROTOCOL_VERSION and _modern_only(error.error.data):
            raise
        if error.error.code == REQUEST_TIMEOUT:
            _logger.info(
                "The server %s has not answered server/discover for %g s, and is greeted with "
                "initialize. If it never does, `protocol: legacy` in its entry saves that time.",
                peer.server,
                timeout,
            )
        return False
    except (ValueError, RuntimeError):  # an invalid answer, or only versions of the legacy era
        return False
    return True


async def _discover(session: ClientSession, peer: Peer, timeout: float) -> None:
    """Send `server/discover`; a server that wants it later has time until the start ends.

    Raises:
        MCPError: The server refused, or neither answered in time nor wanted it later.
        ValueError, RuntimeError: Its answer is invalid, or has only versions of the legacy era.
    """
    peer.answers_within = timeout
    try:
        await session.discover()
    finally:
        peer.answers_within = None


async def _initialize(session: ClientSession, peer: Peer) -> None:
    """Initialize a server; offer one that refuses that older versions, or fewer capabilities.

    It should answer with a version of its own instead, and ignore what it does not know.
    """
    refused = {HANDSHAKE_PROTOCOL_VERSIONS[-1]}
    first: MCPError | None = None
    while True:
        try:
            await session.initialize()
            return
        except ConnectionLost:
            raise
        except MCPError as error:
            version = version_instead(error, refused)
            if version:
                peer.offer.version = version
                refused.add(version)
            elif _may_be_about_params(error) and peer.offer.lessen():
                first = first or error
            else:
                raise first or error from None


def version_instead(error: MCPError, refused: Collection[str]) -> str:
    """Return the version that a server may accept which refused others; empty if there is none.

    That is the newest that its error names; else the oldest, which most servers know, and then
    those between, which some accept alone. Empty also if the error is about something else.
    """
    said = f"{error.error.message} {error.error.data}"
    if error.error.code == UNSUPPORTED_PROTOCOL_VERSION or not _is_about_version(said):
        return ""
    others = [version for version in HANDSHAKE_PROTOCOL_VERSIONS if version not in refused]
    named = [version for version in _find_versions(said) if version in others]
    return max(named) if named else next(iter(others), "")


def _may_be_about_params(error: MCPError) -> bool:
    """Return whether a server may have refused `initialize` for what it says."""
    if isinstance(error, InvalidResponse):
        return http_status(error.fault) in _ABOUT_PARAMS
    return PARSE_ERROR <= error.error.code <= INVALID_REQUEST


async def _initialize_after_discover(session: ClientSession, peer: Peer, timeout: float) -> None:
    try:
        await _initialize(session, peer)
    except (ConnectionLost, InvalidResponse):
        raise
    except MCPError as error:
        if error.error.code != UNSUPPORTED_PROTOCOL_VERSION:
            raise GreetingFailed(error) from error
        # A modern server that started slowly: it answered `server/discover` too late.
        await _discover(session, peer, timeout)


async def _initialize_or_discover(session: ClientSession, peer: Peer, timeout: float) -> None:
    """Initialize a server of the legacy era; it may have been replaced by a modern one."""
    try:
        await _initialize(session, peer)
    except ConnectionLost:
        raise
    except MCPError:
        try:
            await _discover(session, peer, timeout)
            return
        except (MCPError, ValueError, RuntimeError):
            pass
        raise


def _modern_only(data: Any) -> bool:
    supported = data.get("supported") if isinstance(data, dict) else None
    return isinstance(supported, list) and not any(
        version in HANDSHAKE_PROTOCOL_VERSIONS for version in supported
    )


def build_era(version: str, *, has_roots: bool = False, introduces_clients: bool = False) -> Era:
    """Return what every request must carry at a protocol version.

    Args:
        version: The version.
        has_roots: Whether we answer roots requests ourselves, whatever callers answer.
        introduces_clients: Whether the server learns the names of the MCP clients that call it.
    """
    headers = {VERSION_HEADER: version}
    if version not in MODERN_PROTOCOL_VERSIONS:
        return Era(version, headers=headers)
    always = frozenset({ROOTS}) if has_roots else NO_ANSWERS
    answering = {
        answers: modern_meta(version, MODERN_CAPABILITIES[answers | always])
        for answers in MODERN_CAPABILITIES
    }
    return Era(
        version=version,
        modern=True,
        meta=answering[NO_ANSWERS],
        headers=headers,
        answering=answering,
        meta_for=ClientMeta(version, has_roots, introduces_clients).of,
        own=answering[SERVER_METHODS],
    )
