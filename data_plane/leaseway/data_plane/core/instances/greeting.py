"""How an instance introduces itself to its server (design.md#one-mcp-connection, eras). Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from leaseway.wire.mcp_client import LEGACY_VERSIONS, McpClient


@dataclass(frozen=True)
class Greeting:
    """How an instance introduces itself.

    Attributes:
        client: The MCP client that leases it; None stands for all callers.
        is_legacy: Whether to begin with `initialize`, if the server understands that.
    """

    client: McpClient | None = None
    is_legacy: bool = False

    @classmethod
    def of(cls, client: McpClient | None) -> Greeting:
        """Return the greeting of an instance that a client leases."""
        return COMMON if client is None else cls(client, client.is_legacy)


COMMON: Final = Greeting()
"""The greeting whose listing the registry records."""

LEGACY: Final = Greeting(is_legacy=True)
"""The greeting of a shared instance for clients of the older versions."""


def is_modern(version: str) -> bool:
    """Return whether a protocol version has no handshake: each request says for whom it is."""
    return bool(version) and version not in LEGACY_VERSIONS


def suits(greeted: Greeting, version: str, wanted: Greeting) -> bool:
    """Return whether an unused instance serves as one that was greeted as wanted.

    Args:
        greeted: How the instance introduced itself.
        version: The protocol version that it negotiated; empty for a server without MCP.
        wanted: How another instance would introduce itself.
    """
    if greeted == wanted or not version:
        return True
    return is_modern(version) and not wanted.is_legacy
