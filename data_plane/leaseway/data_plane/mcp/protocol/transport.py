"""The seam between an MCP connection and what carries its messages.

A `Transport` has `connect`, `disconnect`, `send` and `transport_type`; what comes is given to the
`receive` of the `Receiver` that it was connected to. Nothing here awaits once a message, so a
pipe costs what a pipe costs. `stdio`, `sse` and the in-memory twin (`memory.MemoryTransport`) are
written this way. One whose `receive` is awaited is a `PullTransport`; `pulling.Pulled` fits it to
the seam, as it does the websocket. Streamable HTTP answers each request where it was asked, so it
has no stream of messages to carry: `http.HttpConnection` is a `Peer` of its own.

A third party registers a factory of either style by an entry point of the group
`leaseway.transports`, under the name that `transport:` then has: a function from a `ServerView`
and `ResolvedValues` (command, args, url, env and headers, references replaced) to a transport
that is not connected yet.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Protocol

from leaseway.wire.errors import Fault


class Receipt(Protocol):
    """Stands for one message on its way; compared and hashed by identity.

    Attributes:
        written: Set by the transport once the message is handed to the pipe or socket, from
            where it can't be taken back. It tells a call that never started from one that may.
    """

    written: bool


class Receiver(Protocol):
    """What a transport gives all that comes to. Runs on the loop, never blocks, never raises."""

    def receive(self, messages: Sequence[bytes]) -> None:
        """Receive what came at once, in its order: a JSON-RPC message each."""

    def overlong(self, head: bytes, tail: bytes, size: int) -> None:
        """Called when a message above `bounds.MAX_LINE` was skipped.

        Args:
            head: Its first 1024 bytes.
            tail: Its last 1024 bytes.
            size: How many it had. It fails what it answers, if that can be read from it.
        """

    def failed(self, receipt: Receipt, fault: Fault) -> None:
        """Called when one message did not get through; the others are not concerned."""

    def ending(self, fault: Fault) -> None:
        """Called when nothing can be sent any more; `lost` follows with all that is known."""

    def lost(self, fault: Fault) -> None:
        """Called when the connection has ended. Once; nothing is received after it."""


class Transport(ABC):
    """Carries the messages of one MCP connection, as bytes of UTF-8 JSON.

    Attributes:
        stray_advice: What helps a server that sends what is no message, as a sentence.
    """

    stray_advice: ClassVar[str] = ""

    @property
    @abstractmethod
    def transport_type(self) -> str:
        """Its name, as in `transport:`."""

    @abstractmethod
    async def connect(self, receiver: Receiver) -> None:
        """Make the connection, and give what comes to the receiver. Called once.

        Raises:
            Fault: SERVER_NOT_READY or SERVER_LOST with a sentence that says why not.
                `disconnect` is called all the same.
        """

    @abstractmethod
    async def disconnect(self, *, hurry: bool = False) -> None:
        """End the connection and whatever it holds. Idempotent.

        It must reach its end, within a few seconds, though its caller be cancelled.

        Args:
            hurry: Give the server little time to end by itself.
        """

    @abstractmethod
    def send(self, message: bytes, receipt: Receipt) -> None:
        """Send one message, soon; never blocks and never raises.

        Args:
            message: A JSON-RPC message on one line, its newline included.
            receipt: Stands for it, here and in `withdraw`.
        """

    def withdraw(self, receipt: Receipt) -> bool:
        """Withdraw a message that is not written yet; say whether it was there."""
        return False

    def waiting(self) -> int:
        """Return how many bytes wait to be written; past 8 MiB no more calls are taken."""
        return 0

    @property
    def stuck(self) -> bool:
        """Whether what waits does so for reasons that lie with the server."""
        return False


class PullTransport(ABC):
    """The same, for those who would rather be asked for what came.

    Each method is only called after `connect` has returned, `send` by one task and `receive` by
    another. An exception from either ends the connection, with its text in the calls' errors.
    """

    @property
    @abstractmethod
    def transport_type(self) -> str:
        """Its name, as in `transport:`."""

    @abstractmethod
    async def connect(self) -> None:
        """Make the connection.

        Raises:
            Exception: It can't be made. `disconnect` is called all the same.
        """

    @abstractmethod
    async def disconnect(self) -> None:
        """End the connection; `receive` and `send` are cancelled before. Called once."""

    @abstractmethod
    async def send(self, message: bytes) -> None:
        """Send one message; the next comes once this has returned.

        Raises:
            Exception: It was not sent, and no other can be.
        """

    @abstractmethod
    async def receive(self) -> bytes:
        """Return the next message, of at most `bounds.MAX_LINE` bytes.

        Raises:
            EOFError: The server has ended the connection.
            Exception: The connection broke.
        """


@dataclass(frozen=True)
class ServerView:
    """What a registered transport is told of the server that it is for.

    Attributes:
        server: The server's id.
        tenant: Whose overrides it has; empty for the common one.
        transport: The name that the transport was registered by.
        shared: Whether calls of several sessions go over it (`truely-stateless: true`).
        startup_timeout: Seconds that connecting, negotiating and listing may take together.
    """

    server: str
    tenant: str
    transport: str
    shared: bool
    startup_timeout: float
