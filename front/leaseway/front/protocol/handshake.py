"""The handshake: protocol versions, and what the front says about itself. Pure.

Imports nothing that takes long: `stdio_handshake` answers before the rest is loaded.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final, assert_never

import msgspec

from leaseway.wire.channels.ancestors import META_KEY
from leaseway.wire.messages.mcp import (
    HANDSHAKE_VERSIONS,
    MODERN_VERSIONS,
    SERVER_CAPABILITIES,
    ServerCapability,
)
from leaseway.wire.version import PACKAGE_VERSION

CAPABILITIES_KEY: Final = "io.modelcontextprotocol/clientCapabilities"
INFO_KEY: Final = "io.modelcontextprotocol/clientInfo"
LOG_LEVEL_KEY: Final = "io.modelcontextprotocol/logLevel"
SUBSCRIPTION_KEY: Final = "io.modelcontextprotocol/subscriptionId"
SERVER_INFO_KEY: Final = "io.modelcontextprotocol/serverInfo"
CACHE_HINTS: Final = {"ttlMs": 0, "cacheScope": "private"}
"""Cache hints of modern lists and resource contents: do not cache."""
SERVER_INFO: Final = {"name": "leaseway", "title": "Leaseway", "version": PACKAGE_VERSION}
SERVER_META: Final = {SERVER_INFO_KEY: SERVER_INFO}
"""The `_meta` of every modern result: who answers."""
DEFAULT_LOG_LEVEL: Final = "info"
"""The lowest level of log messages for clients with `initialize` until they set one."""
_TOOLS: Final = {"tools": {"listChanged": True}}


@dataclass(frozen=True)
class Declared:
    """What the front declares beside tools, because servers that the client sees have it.

    Attributes:
        capabilities: What servers have, such as `prompts`; `subscribe` for their resources.
        extensions: The identifiers of MCP extensions, sorted.
    """

    capabilities: frozenset[ServerCapability] = frozenset()
    extensions: tuple[str, ...] = ()

    def as_mcp(self) -> dict[str, Any]:
        """Return the `capabilities` of a result."""
        has = self.capabilities
        declared: dict[str, Any] = dict(_TOOLS)
        for name in SERVER_CAPABILITIES:
            if name in has:
                _declare(declared, name)
        if self.extensions:
            declared["extensions"] = {name: {} for name in self.extensions}
        return declared


def _declare(declared: dict[str, Any], name: ServerCapability) -> None:
    """Add to MCP's `capabilities` what servers have; the front tells of changes itself."""
    match name:
        case "prompts" | "resources":
            declared[name] = {"listChanged": True}
        case "completions" | "logging":
            declared[name] = {}
        case "subscribe":  # of resources, which come before it
            if "resources" in declared:
                declared["resources"]["subscribe"] = True
        case _:
            assert_never(name)


EVERYTHING: Final = Declared(frozenset(SERVER_CAPABILITIES))
"""What is declared while servers are not known: a client never asks for what it did not see."""


def negotiate_version(requested: object) -> str:
    """Return the requested protocol version if it is supported, else the newest one."""
    if isinstance(requested, str) and requested in HANDSHAKE_VERSIONS:
        return requested
    return HANDSHAKE_VERSIONS[-1]


def initialize_result(
    version: str,
    instructions: str = "",
    control_plane: str = "",
    declared: Declared = EVERYTHING,
) -> bytes:
    """Return the result of `initialize`; what is empty is left out."""
    result: dict[str, Any] = {
        "protocolVersion": version,
        "capabilities": declared.as_mcp(),
        "serverInfo": SERVER_INFO,
    }
    if control_plane:
        result["_meta"] = {META_KEY: control_plane}
    return msgspec.json.encode(_instructed(result, instructions))


def discover_result(
    instructions: str = "", control_plane: str = "", declared: Declared = EVERYTHING
) -> bytes:
    """Return the result of `server/discover`; what is empty is left out."""
    own = {META_KEY: control_plane} if control_plane else {}
    result = {
        "supportedVersions": MODERN_VERSIONS,
        "capabilities": declared.as_mcp(),
        "resultType": "complete",
        **CACHE_HINTS,
        "_meta": {**SERVER_META, **own},
    }
    return msgspec.json.encode(_instructed(result, instructions))


def _instructed(result: dict[str, Any], instructions: str) -> dict[str, Any]:
    return result | {"instructions": instructions} if instructions else result
