"""One request of an MCP client in flight: what its server sends before the result.

The SDK's relay calls the tool; this is the client's side of the call.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from leaseway.front.protocol.messages import encode, notification
from leaseway.sdk.relay import RelayEvents, ServerRequest
from leaseway.wire.bounds import LEASE_TTL, MAX_ASKS


class Asker(Protocol):
    """Asks a client what its servers want to know."""

    def ask(self, server_request: ServerRequest) -> None:
        """Send a server request to the client."""

    def withdraw(self, server_request: ServerRequest) -> None:
        """Cancel a server request at the client."""


def drop(_message: bytes) -> None:
    """Send nothing: the client waits for nothing."""


class Listener(RelayEvents):
    """The client's side of an in-flight request: relays its server's messages to the client.

    Attributes:
        token: The client's progress token as JSON, or empty if it requested no progress.
        log_level: The lowest level of log messages that it requested, or empty for none.
        answers: The methods of server requests that it answers.
        send: Sends a notification to the client; never waits, drops it if the queue is full.
        asker: Asks the client; None if it cannot be asked.
        passes_input: Whether `input_required` results are passed on to the client.
        input: The client's answers to such a result, as a JSON object, or empty.
        meta: The part of `_meta` for the server, as a JSON object, or empty.
        lease_ttl: The time to live in seconds of a lease that the request acquires.
    """

    # Class attributes, because most requests use the defaults.
    token = b""
    lease_ttl: float = LEASE_TTL
    _is_detached = False
    _forget_lease_end: Callable[[], object] | None = None

    def __init__(self, send: Callable[[bytes], object], asker: Asker | None = None) -> None:
        self.send = send
        self.asker = asker
        self._open: dict[int, ServerRequest] | None = None

    def ask_through(self, asker: Asker) -> None:
        """Ask the client in another way from now on, also what it was asked and is still open."""
        self.asker = asker
        for server_request in tuple(self._open.values()) if self._open else ():
            asker.ask(server_request)

    def detach(self) -> None:
        """Drop notifications while the client has no request that they belong to."""
        self.send = drop
        self._is_detached = True

    def attach(self, other: Listener) -> None:
        """Send further notifications to another request of the client, which gets the result."""
        self.send, self.token = other.send, other.token
        self._is_detached = False
        if self._forget_lease_end is not None:
            self._forget_lease_end()
            self._forget_lease_end = None

    def handle_lease_end(self, forget: Callable[[], object]) -> None:
        """Forget it once the client has a request whose answer tells it."""
        if self._is_detached:
            self._forget_lease_end = forget
        else:
            forget()

    def on_progress(self, progress: float, total: float | None, message: str, extra: bytes) -> None:
        """Relay progress, unless the request that resumed the call has no progress token."""
        if not self.token:
            return
        parts = [b'{"progressToken":%b,"progress":%b' % (self.token, _json_number(progress))]
        if total is not None:
            parts.append(b',"total":%b' % _json_number(total))
        if message:
            parts.append(b',"message":%b' % encode(message))
        parts.append(_rest(extra))
        self.send(notification("notifications/progress", b"".join(parts)))

    def on_log(self, level: str, logger: str, data: bytes, extra: bytes) -> None:
        named = b',"logger":%b' % encode(logger) if logger else b""
        parts = (encode(level), named, data or b"null", _rest(extra))
        self.send(notification("notifications/message", b'{"level":%b%b,"data":%b%b' % parts))

    def handle_request(self, server_request: ServerRequest) -> None:
        """Relay a server request to the client, or reject it."""
        asker = self.asker
        if self._open is None:
            self._open = {}
        if asker is None or server_request.method not in self.answers:
            server_request.reject(f"This client does not answer {server_request.method}.")
        elif len(self._open) >= MAX_ASKS:
            server_request.reject(f"{MAX_ASKS} requests to this client already wait.")
        else:
            self._open[server_request.ask_id] = server_request
            asker.ask(server_request)

    def handle_withdrawal(self, ask_id: int) -> None:
        """Cancel a server request at the client, because its server withdrew it."""
        server_request = self._open.pop(ask_id, None) if self._open else None
        if server_request is not None and self.asker is not None:
            self.asker.withdraw(server_request)

    def reset(self) -> None:
        """Cancel the open server requests of a failed attempt or of an ended call."""
        if self._open:
            for ask_id in tuple(self._open):
                self.handle_withdrawal(ask_id)


def _rest(extra: bytes) -> bytes:
    """Return the end of a JSON object with some members, to which those of another are added."""
    return b"," + extra[1:] if extra else b"}"


def _json_number(value: float) -> bytes:
    """Encode a number; integers without a fraction, as most servers write them."""
    return b"%d" % value if value.is_integer() else encode(value)
