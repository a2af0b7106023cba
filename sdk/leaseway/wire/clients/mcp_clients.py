"""The MCP clients for which gateways call, each decoded once. Pure."""

from __future__ import annotations

from typing import Final

from leaseway.wire.clients.mcp_client import McpClient, parse_client
from leaseway.wire.errors import Fault, Reason
from leaseway.wire.sharing.newest import Newest

_MAX_CLIENTS: Final = 1024


class McpClients:
    """The clients of recent calls, by their encoding."""

    def __init__(self) -> None:
        self._clients: Newest[bytes, McpClient] = Newest(_MAX_CLIENTS)

    def find(self, encoded: bytes) -> McpClient | None:
        """Return the client that a call or a request for a lease names; None if it names none.

        Raises:
            Fault: INVALID_REQUEST: it is no client.
        """
        if not encoded:
            return None
        client = self._clients.get(encoded)
        return client if client is not None else self._parse(encoded)

    def _parse(self, encoded: bytes) -> McpClient:
        try:
            client = parse_client(encoded)
        except ValueError as error:
            text = f"`mcp_client` must describe an MCP client as one JSON object: {error}."
            raise Fault(Reason.INVALID_REQUEST, text) from None
        self._clients[encoded] = client
        return client
