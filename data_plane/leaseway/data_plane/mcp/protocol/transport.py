"""The interface between an MCP connection and its transport.

A `Transport` passes received messages to a `Receiver`, without an await per message. A
`PullTransport` has an awaited `receive` instead; `PullAdapter` converts it. Streamable HTTP sends
each response on its request's stream, so it is no transport: see `http.connection`.

Other packages register a factory of either kind by an entry point of the group
`leaseway.transports`, named as in `transport:`. It is a function from a `ServerView` and
`ResolvedValues` (command, args, url, env, headers) to an unconnected transport.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Protocol

from leaseway.wire.errors import Fault


class Receipt(Protocol):
    """Identifies one message; compared and hashed by identity.

    Attributes:
        written: Set by the transport once the message is handed to the pipe or socket. Until then
            its call certainly has not started.
    """

    written: bool


class Receiver(Protocol):
    """Receives a transport's messages. Called on the loop; never blocks, never raises."""

    def receive(self, messages: Sequence[bytes]) -> None:
        """Receive one or more JSON-RPC messages, in order."""

    def overlong(self, head: bytes, tail: bytes, size: int) -> None:
        """Called when a message above `bounds.MAX_LINE` was skipped; fails its request.

        Args:
            head: Its first 1024 bytes.
            tail: Its last 1024 bytes.
            size: Its length.
        """

    def failed(self, receipt: Receipt, fault: Fault) -> None:
        """Called when one message could not be sent; others are not affected."""

    def ending(self, fault: Fault) -> None:
        """Called when nothing can be sent any more; `lost` follows with the full error."""

    def lost(self, fault: Fault) -> None:
        """Called once, when the connection has ended; nothing is received after it."""


class Transport(ABC):
    """Carries the messages of one MCP connection, as bytes of UTF-8 JSON.

    Attributes:
        stray_advice: A sentence for servers that send something else than messages.
    """

    stray_advice: ClassVar[str] = "Check that its entry leads to an MCP server."

    @property
    @abstractmethod
    def transport_type(self) -> str:
        """Its name, as in `transport:`."""

    @abstractmethod
    async def connect(self, receiver: Receiver) -> None:
        """Open the connection and start receiving. Called once.

        Raises:
            Fault: SERVER_NOT_READY or SERVER_LOST. `disconnect` is called nevertheless.
        """

    @abstractmethod
    async def disconnect(self, *, hurry: bool = False) -> None:
        """Close the connection and what it started. Idempotent.

        Must complete within a few seconds, even if the caller is cancelled.

        Args:
            hurry: Give the server little time to exit.
        """

    @abstractmethod
    def send(self, message: bytes, receipt: Receipt) -> None:
        """Queue one message; never blocks and never raises.

        Args:
            message: A JSON-RPC message on one line, its newline included.
            receipt: Identifies it, also for `withdraw`.
        """

    def withdraw(self, receipt: Receipt) -> bool:
        """Remove a queued message; return whether it was still queued."""
        return False

    def waiting(self) -> int:
        """Return how many bytes are queued; above 8 MiB, calls are rejected."""
        return 0

    @property
    def stuck(self) -> bool:
        """Whether messages are queued because the server does not read."""
        return False

    @property
    def lacks_token(self) -> bool:
        """Whether messages wait for a token, or get none."""
        return False

    def keep_stray(self, line: bytes) -> None:  # noqa: B027 - most can show it nowhere
        """Keep what came instead of a message during the start: it may say why that fails."""


class OverlongMessageError(Exception):
    """A message above `bounds.MAX_LINE` was skipped; the next ones can be received.

    The arguments are those of `Receiver.overlong`.
    """

    def __init__(self, head: bytes, tail: bytes, size: int) -> None:
        super().__init__(f"a message of {size} bytes was skipped")
        self.head, self.tail, self.size = head, tail, size


class PullTransport(ABC):
    """A transport whose messages are awaited.

    After `connect`, one task calls `send` and another one `receive`. An exception from either ends
    the connection, with its text in the calls' errors.
    """

    @property
    @abstractmethod
    def transport_type(self) -> str:
        """Its name, as in `transport:`."""

    @abstractmethod
    async def connect(self) -> None:
        """Open the connection.

        Raises:
            Exception: It can't be opened. `disconnect` is called nevertheless.
        """

    @abstractmethod
    async def disconnect(self) -> None:
        """Close the connection. Called once, after `receive` and `send` were cancelled."""

    @abstractmethod
    async def send(self, message: bytes) -> None:
        """Send one message; called again once this has returned.

        Raises:
            Exception: Neither this nor another message can be sent.
        """

    @abstractmethod
    async def receive(self) -> bytes:
        """Return the next message, of at most `bounds.MAX_LINE` bytes.

        Raises:
            OverlongMessageError: It was longer. `receive` is called again.
            EOFError: The server has closed the connection.
            Exception: The connection broke.
        """


@dataclass(frozen=True)
class ServerView:
    """The server of a registered transport.

    Attributes:
        tenant: The tenant whose overrides apply; empty for the common server.
        transport: The registered name of the transport.
        shared: Whether several sessions share the connection (`truely-stateless: true`).
        startup_timeout: Seconds for connecting, negotiating and listing together.
    """

    server: str
    tenant: str
    transport: str
    shared: bool
    startup_timeout: float
