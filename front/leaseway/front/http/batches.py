"""Batches: clients of 2025-03-26, and of no other version, send several messages in one POST.

Messages before the responses turn the reply to the POST into a stream, as for a single request.
Each response is then a message of its own; otherwise all are one JSON array.
"""

from __future__ import annotations

from leaseway.front.http.streams import HttpReply, OpenStream
from leaseway.front.protocol.envelope import BATCH_VERSION
from leaseway.front.protocol.messages import batch_message
from leaseway.front.sessions.live_session import LiveSession
from leaseway.wire.messages.mcp import HANDSHAKE_VERSIONS


def spoken_version(version: str | None, live: LiveSession | None) -> str:
    """Return the version of a client, by its header or else by its session."""
    # Without header and session a client speaks the version with batches (2025-06-18, transports).
    negotiated = live.sealed.version if live is not None else BATCH_VERSION
    return version or (negotiated if negotiated in HANDSHAKE_VERSIONS else BATCH_VERSION)


class BatchReply:
    """The reply to one POST with several requests.

    Args:
        reply: Sends it.
    """

    def __init__(self, reply: HttpReply) -> None:
        self._reply = reply
        self._responses: list[bytes] = []

    def add(self, response: bytes) -> None:
        """Add the response to one request."""
        self._responses.append(response)
        self._send_to_stream()

    def part(self) -> BatchPart:
        """Return the reply to one request."""
        return BatchPart(self._reply, self)

    def finish(self) -> None:
        """End the reply: all requests are answered, or were cancelled by the client."""
        self._send_to_stream()
        if self._responses:
            self._reply.finish(batch_message(self._responses))
        else:
            self._reply.abandon()

    def _send_to_stream(self) -> None:
        if self._reply.is_stream:
            responses, self._responses = self._responses, []
            for response in responses:
                self._reply.ask(response)


class BatchPart:
    """The reply to one request of a batch.

    Args:
        reply: The reply to the POST.
        batch: Collects the responses.
    """

    def __init__(self, reply: HttpReply, batch: BatchReply) -> None:
        self._reply = reply
        self._batch = batch
        self.accepts_stream = reply.accepts_stream
        self.send = reply.send
        self.ask = reply.ask

    def open_by(self, open_stream: OpenStream) -> None:
        self._reply.open_by(open_stream)

    def set_cookie(self, cookie: str) -> None:
        self._reply.set_cookie(cookie)

    def step_up(self, scope: str) -> None:
        """Ask for nothing: the other requests of the batch have their own responses."""

    def finish(self, message: bytes, status: int = 200) -> None:
        """Add the response; the batch as a whole has its own status."""
        self._batch.add(message)

    def abandon(self) -> None:
        """End without a response, because the client cancelled the request."""
