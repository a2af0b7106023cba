"""What answers one POST: JSON, a stream of events, or a refusal.

Answers that come as streams of events, and their continuation after a break.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Final, NamedTuple

import aiohttp

from leaseway.data_plane.mcp.http import errors as answers
from leaseway.data_plane.mcp.http.endpoint import SESSION_ID, HttpEndpoint
from leaseway.data_plane.mcp.http.session_renewal import SessionForgotten
from leaseway.data_plane.mcp.http.sse_parser import SseEvent, SseParser, SseTooLarge
from leaseway.data_plane.mcp.protocol.messages.codec import Envelope, decode
from leaseway.data_plane.mcp.protocol.messages.era import Era

_TRIES: Final = 2
"""Times that a stream is continued in a row without anything new from it."""

_LEAST_PAUSE: Final = 0.1
"""Seconds before it is continued, however little the server asks for."""


class EventReader:
    """Reads response streams of one connection.

    Args:
        server: The server's id, for messages.
        endpoint: Where streams are continued.
        take: Takes a message that came in the answer to a request.
        waits: Says whether anybody still waits for a request.
    """

    def __init__(
        self,
        server: str,
        endpoint: HttpEndpoint,
        take: Callable[[object, Envelope], None],
        waits: Callable[[object], bool],
    ) -> None:
        self._server = server
        self._endpoint = endpoint
        self._take = take
        self._waits = waits

    async def read(
        self,
        key: object,
        response: aiohttp.ClientResponse,
        headers: Mapping[str, str],
        *,
        resumable: bool,
    ) -> None:
        """Read until the request is answered, or nothing more comes.

        Args:
            key: The request.
            response: The stream that answers it.
            headers: What the request carried.
            resumable: Whether a server may hang up and have the rest fetched later. It may do so
                as often as it likes while each time brings something new.

        Raises:
            Fault: An event is too large, or no JSON-RPC.
            aiohttp.ClientError: The stream broke and can't be continued.
        """
        parser = SseParser(answers.MAX_ANSWER)
        await self._read_stream(key, response, parser, resumable)
        tries = 0
        while resumable and tries < _TRIES and self._waits(key) and parser.last_id is not None:
            seen = parser.last_id
            pause = 1.0 if parser.retry is None else min(parser.retry, 60.0)
            await asyncio.sleep(max(pause, _LEAST_PAUSE))
            resumed = {**headers, "last-event-id": seen}
            async with await self._endpoint.request("GET", resumed) as again:
                if again.content_type == "text/event-stream":
                    await self._read_stream(key, again, parser, resumable)
            tries = tries + 1 if parser.last_id == seen else 0

    async def _read_stream(
        self, key: object, response: aiohttp.ClientResponse, parser: SseParser, resumable: bool
    ) -> None:
        parser.restart()
        try:
            async for data in response.content.iter_any():
                for event in parser.feed(data):
                    self.take(key, event)
                if not self._waits(key):
                    return
        except SseTooLarge:
            raise answers.body_too_large(self._server) from None
        except aiohttp.ClientPayloadError:
            if parser.last_id is None or not resumable:
                raise

    def take(self, key: object, event: SseEvent) -> None:
        """Receive one event's message.

        Raises:
            Fault: It is no JSON-RPC.
        """
        if event.event != "message" or not event.data.strip():
            return
        try:
            self._take(key, decode(event.data))
        except ValueError:
            raise answers.unreadable(self._server, "an event that is no JSON-RPC") from None


class PostedRequest(NamedTuple):
    """A request that was posted.

    Attributes:
        key: Names it.
        headers: What it carried.
        session: The session that it was sent in, or empty: the connection may be in another one
            by the time of its answer.
        opens: Whether its answer may open a session.
    """

    key: object
    headers: Mapping[str, str]
    session: str
    opens: bool = False


class AnswerReader:
    """Reads the answers of one connection.

    Args:
        server: The server's id, for messages.
        endpoint: Told of sessions that answers open.
        events: Reads those that are streams.
        take: Takes a message that came in the answer to a request.
        waits: Says whether anybody still waits for a request.
    """

    def __init__(
        self,
        server: str,
        endpoint: HttpEndpoint,
        events: EventReader,
        take: Callable[[object, Envelope], None],
        waits: Callable[[object], bool],
    ) -> None:
        self._server = server
        self._endpoint = endpoint
        self._events = events
        self._take = take
        self._waits = waits

    async def read(self, asked: PostedRequest, response: aiohttp.ClientResponse, era: Era) -> None:
        """Read an answer to its end, or until nobody waits for more of it.

        Raises:
            Fault: It is a refusal, nothing that can be read, or ends too early.
            SessionForgotten: The server does not know the session.
            aiohttp.ClientError: It broke.
        """
        if response.status >= 400:
            await self._read_refusal(asked, response, era)
            return
        if asked.opens and SESSION_ID in response.headers:
            self._endpoint.open_session(response.headers[SESSION_ID])
        if response.content_type == "application/json" and response.status != 202:
            self._take_json(asked.key, await answers.read_body(self._server, response))
        elif response.content_type == "text/event-stream":
            resumable = not era.modern
            await self._events.read(asked.key, response, asked.headers, resumable=resumable)
        else:
            what = f"HTTP status {response.status} and content type {response.content_type}"
            raise answers.unreadable(self._server, what)
        if self._waits(asked.key):
            raise answers.ended_early(self._server)

    async def _read_refusal(
        self, asked: PostedRequest, response: aiohttp.ClientResponse, era: Era
    ) -> None:
        body = await answers.read_body(self._server, response)
        in_session = asked.session and era.version and not era.modern
        if in_session and _names_session(response.status, body):
            raise SessionForgotten
        message = answers.rpc_error(body)
        # Before the handshake is over, a refusal by its status says more than what words it has.
        unauthorized = response.status in (401, 403) and not era.version
        if message is not None and not unauthorized:
            self._take(asked.key, message)
            return
        raise answers.status_fault(
            self._server, response.status, response.headers, response.url, body
        )

    def _take_json(self, key: object, body: bytes) -> None:
        try:
            messages = answers.decode_body(body)
        except ValueError:
            raise answers.unreadable(self._server, "a body that is no JSON-RPC") from None
        for message in messages:
            self._take(key, message)


def _names_session(status: int, body: bytes) -> bool:
    """Return whether a refusal means an unknown session: 404, or 400 with words as some put it."""
    return status == 404 or (status == 400 and b"session id" in body[:1024].lower())
