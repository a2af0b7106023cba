"""What the connection of an instance is made of, and what a kind of server makes of it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from leaseway.data_plane.core.resolved_values import ResolvedValues
from leaseway.data_plane.mcp.protocol.connection import Peer
from leaseway.data_plane.mcp.protocol.stream_connection import StreamPeer
from leaseway.data_plane.mcp.protocol.transport import Transport
from leaseway.data_plane.mcp.stderr import StderrTail
from leaseway.data_plane.outgoing import Outgoing
from leaseway.spec.model import ServerSpec


@dataclass(frozen=True)
class ServerContext:
    """What a connection needs to know of its instance.

    Attributes:
        stderr: Receives the standard error of a process.
        outgoing: The proxy and the cookies of the instance; all its connections share them.
    """

    spec: ServerSpec
    resolved: ResolvedValues
    stderr: StderrTail
    on_tools_changed: Callable[[], None]
    outgoing: Outgoing

    @property
    def server(self) -> str:
        return self.spec.key.server_id

    def hide_in_definitions(self, text: str) -> str:
        """Return a definition without the secrets of the server and its token."""
        text = self.resolved.without_secrets_in_definitions(text)
        authorization = self.outgoing.authorization
        return text if authorization is None else authorization.without_token(text)

    def stream(self, transport: Transport) -> UnopenedConnection:
        """Return the connection of a transport."""
        return UnopenedConnection(StreamPeer(self.server, transport, self.on_tools_changed))


@dataclass(frozen=True)
class UnopenedConnection:
    """A connection to open with `Peer.open`; the caller closes it, also if opening fails.

    Attributes:
        warnings: (reason, sentence) about configuration that is not enforced on this worker.
        other: What connects over the transport that the server may speak instead if it refuses
            this one.
    """

    peer: Peer
    pid: int | None = None
    warnings: tuple[tuple[str, str], ...] = ()
    other: Connect | None = None


Connect = Callable[[ServerContext], Awaitable[UnopenedConnection]]
"""Returns a server's connection, or raises SERVER_NOT_READY with its `problem`."""
