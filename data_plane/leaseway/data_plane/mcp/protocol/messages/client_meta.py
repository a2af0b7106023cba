"""What a server is told about the client of a connection, a greeting, or a call.

A server that callers share learns a caller's capabilities with each call, but not its name.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import msgspec
from mcp_types import (
    CLIENT_CAPABILITIES_META_KEY,
    CLIENT_INFO_META_KEY,
    PROTOCOL_VERSION_META_KEY,
    Implementation,
)

from leaseway.wire.clients.mcp_client import McpClient
from leaseway.wire.version import PACKAGE_VERSION

CLIENT_INFO: Final = Implementation(name="leaseway", version=PACKAGE_VERSION)
GREETINGS: Final = frozenset({"initialize", "server/discover"})
"""The first requests of a connection."""

_MAX_CLIENTS: Final = 256
_PLAIN: Final = frozenset({"roots", "sampling", "elicitation"})
"""The capabilities of clients until 2025-06-18, which have no modes."""
_OF_ROOTS: Final = "listChanged"


class Offer:
    """What `initialize` offers a server, which is less after it has refused that.

    Attributes:
        version: The protocol version; empty for the newest, or a client's.
    """

    def __init__(self) -> None:
        self.version = ""
        self._times_less = 0
        self._declared: Mapping[str, Any] = {}

    def applied_to(self, params: Mapping[str, Any]) -> dict[str, Any]:
        """Return the params of `initialize` with what is offered now."""
        self._declared = params["capabilities"]
        for _ in range(self._times_less):
            self._declared = _lessened(self._declared)
        offered = {"protocolVersion": self.version} if self.version else {}
        return {**params, **offered, "capabilities": self._declared}

    def lessen(self) -> bool:
        """Declare fewer capabilities the next time; return whether that is possible."""
        if not self._declared:
            return False
        self._times_less += 1
        return True


def _lessened(capabilities: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return less of what a client declares; in the end nothing.

    Many libraries refuse a whole `initialize` for a member that they do not know, such as older
    ones of Java the modes of elicitation.
    """
    plain = {
        name: {_OF_ROOTS: said[_OF_ROOTS]} if isinstance(said, dict) and _OF_ROOTS in said else {}
        for name, said in capabilities.items()
        if name in _PLAIN
    }
    return plain if plain != capabilities else {}


class ClientMeta:
    """The `_meta` of the calls of MCP clients, built once for each client."""

    def __init__(self, version: str, has_roots: bool, introduces: bool) -> None:
        self._version = version
        self._own_roots: Mapping[str, Any] = {"roots": {}} if has_roots else {}
        self._introduces = introduces
        self._built: dict[McpClient, bytes] = {}

    def of(self, client: McpClient) -> bytes:
        """Return the members of `_meta` for a client's call, as JSON without the braces."""
        meta = self._built.get(client)
        if meta is None:
            if len(self._built) >= _MAX_CLIENTS:
                self._built.clear()
            info = client.info if self._introduces else {}
            capabilities = {**client.capabilities, **self._own_roots}
            meta = self._built[client] = modern_meta(self._version, capabilities, info)
        return meta


def introduce(
    client: McpClient, method: str, params: Mapping[str, Any], capabilities: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the params of a greeting as an MCP client would send them.

    Args:
        client: The client that leases the connection.
        method: `initialize` or `server/discover`.
        params: Those of the official session.
        capabilities: What the worker answers itself, whatever the client declares.
    """
    declared = {**client.capabilities, **capabilities}
    if method == "initialize":
        said: dict[str, Any] = {**params, "capabilities": declared}
        if client.is_legacy:
            said["protocolVersion"] = client.version
        return said | {"clientInfo": client.info} if client.info else said
    meta = {**(params.get("_meta") or {}), CLIENT_CAPABILITIES_META_KEY: declared}
    if client.info:
        meta[CLIENT_INFO_META_KEY] = client.info
    return {**params, "_meta": meta}


def modern_meta(
    version: str, capabilities: Mapping[str, Any], info: Mapping[str, str] | None = None
) -> bytes:
    """Return the members of a modern request's `_meta`, as JSON without the braces.

    Args:
        version: The protocol version.
        capabilities: Those of the client.
        info: The client's name and version; empty or None for our own.
    """
    meta = {
        PROTOCOL_VERSION_META_KEY: version,
        CLIENT_INFO_META_KEY: info or CLIENT_INFO.model_dump(by_alias=True, exclude_none=True),
        CLIENT_CAPABILITIES_META_KEY: capabilities,
    }
    return msgspec.json.encode(meta)[1:-1]
