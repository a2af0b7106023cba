"""Answers that come as streams of events, and their continuation after a break."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Final

import aiohttp

from leaseway.data_plane.mcp import http_answers as answers
from leaseway.data_plane.mcp.codec import Envelope, decode
from leaseway.data_plane.mcp.http_endpoint import HttpEndpoint
from leaseway.data_plane.mcp.sse import SseEvent, SseParser, SseTooLarge

__all__ = ["EventReader"]

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
        """Take one event's message.

        Raises:
            Fault: It is no JSON-RPC.
        """
        if event.event != "message" or not event.data.strip():
            return
        try:
            self._take(key, decode(event.data))
        except ValueError:
            raise answers.unreadable(self._server, "an event that is no JSON-RPC") from None
