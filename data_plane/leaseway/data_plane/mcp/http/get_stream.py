"""What a legacy server says of its own accord: a GET stream that is kept open."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Mapping
from typing import Final

import aiohttp

from leaseway.data_plane.mcp.http import errors as answers
from leaseway.data_plane.mcp.http.endpoint import HttpEndpoint
from leaseway.data_plane.mcp.http.sse_parser import SseEvent, SseParser, SseTooLarge
from leaseway.wire.errors import Fault
from leaseway.wire.timing.backoff import Backoff

_logger = logging.getLogger(__name__)
_RECONNECT: Final = Backoff(initial=1.0, maximum=60.0)
_STEADY: Final = 30.0
"""A stream that lived so long, in seconds, was not a failure."""

BROKEN: Final = (aiohttp.ClientError, OSError, TimeoutError)
"""What a failed request raises."""


class Follower:
    """Keeps the GET stream of one session open, where the server offers one.

    Args:
        server: The server's id, for messages.
        endpoint: Where to ask.
        headers: What the session's requests carry.
        take: Takes what comes.
        on_expired: Called when the server does not know the session any more.
    """

    def __init__(
        self,
        server: str,
        endpoint: HttpEndpoint,
        headers: Mapping[str, str],
        take: Callable[[SseEvent], None],
        on_expired: Callable[[], None],
    ) -> None:
        self._server = server
        self._endpoint = endpoint
        self._headers = headers
        self._take = take
        self._on_expired = on_expired
        self._parser = SseParser(answers.MAX_ANSWER)
        self._followed = False

    async def run(self) -> None:
        """Follow until the server has no more to say, the session has gone, or cancelled."""
        failures = 0
        while True:
            opened = time.monotonic()
            try:
                if not await self._follow_once():
                    return
            except (*BROKEN, Fault, SseTooLarge) as error:
                _logger.debug("The GET stream of the server %s broke: %s", self._server, error)
            steady = time.monotonic() - opened > _STEADY
            failures = 0 if steady else failures + 1
            await asyncio.sleep(max(self._parser.retry or 0.0, _RECONNECT.ceiling(failures)))

    async def _follow_once(self) -> bool:
        """Read one stream to its end; say whether another try makes sense."""
        parser = self._parser
        resumed = {"last-event-id": parser.last_id} if parser.last_id is not None else {}
        async with await self._endpoint.request("GET", {**self._headers, **resumed}) as response:
            if response.status == 404 and self._followed:
                self._on_expired()
            if response.status >= 500:
                return True
            if response.status >= 400 or response.content_type != "text/event-stream":
                return False
            self._followed = True
            parser.restart()
            async for data in response.content.iter_any():
                for event in parser.feed(data):
                    self._take(event)
        return True
