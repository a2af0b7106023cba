"""How an instance introduces itself to its server (design.md#one-mcp-connection, eras). Pure.

A worker tells whom its spares serve, and placement looks for one that the client of a lease may
use: the rule is the same in both planes.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from hashlib import blake2b
from typing import Final

from leaseway.wire.clients.mcp_client import McpClient
from leaseway.wire.messages.mcp import HANDSHAKE_VERSIONS

ANYONE: Final = "anyone"
"""Every client: the server does not speak MCP, or its worker does not say whom a spare serves."""
MODERN: Final = "modern"
"""Every client of a version without a handshake, and callers that are no MCP clients."""
MAX_NAME: Final = 32
"""Characters of the name of those whom a spare serves."""
MAX_SERVED: Final = 4
"""Names that one spare has."""


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

    @cached_property
    def name(self) -> str:
        """The same for equal greetings only: a digest of what the client declared."""
        if self.client is None:
            return "legacy" if self.is_legacy else "common"
        return blake2b(self.client.encoded, digest_size=8).hexdigest()

    @cached_property
    def accepted(self) -> frozenset[str]:
        """Whom an unused instance may serve, so that it serves as one greeted like this, too."""
        return frozenset((ANYONE, self.name) if self.is_legacy else (ANYONE, MODERN, self.name))

    def serves(self, version: str) -> tuple[str, ...]:
        """Return whom an unused instance serves that was greeted like this.

        Args:
            version: The protocol version that it negotiated; empty for a server without MCP.
        """
        if not version:
            return (ANYONE,)
        if not is_modern(version):
            return (self.name,)
        return (MODERN, self.name) if self.is_legacy else (MODERN,)


COMMON: Final = Greeting()
"""The greeting whose listing the registry records."""

LEGACY: Final = Greeting(is_legacy=True)
"""The greeting of a shared instance for clients of the older versions."""


def is_modern(version: str) -> bool:
    """Return whether a protocol version has no handshake: each request says for whom it is."""
    return bool(version) and version not in HANDSHAKE_VERSIONS
