"""What a server over HTTP is told and does not answer: notifications, and answers to questions.

Each is a POST of its own. A server that takes them slowly or not at all holds up nobody.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Mapping, Sized
from typing import Any, Final

from leaseway.data_plane.mcp.http.endpoint import HttpEndpoint, RequestBody
from leaseway.data_plane.mcp.http.errors import what_broke
from leaseway.data_plane.mcp.http.get_stream import BROKEN
from leaseway.wire.errors import Fault, Reason

_logger = logging.getLogger(__name__)
_POST_TIMEOUT: Final = 10.0
"""Seconds for a POST that has no answer."""

_MOST_UNDER_WAY: Final = 64
"""Tasks of a connection that nobody waits for; what a server is to be told beyond is dropped."""

OnUndelivered = Callable[[str, bool], None]
"""Learns why a server was not told, as the end of a sentence, and whether that is certain."""


class NotificationPoster:
    """The POSTs without answers of one connection.

    Args:
        server: The server's id, for messages.
        endpoint: Where they go.
        under_way: What the connection runs in the background.
        spawn: Runs more of it.
    """

    def __init__(
        self,
        server: str,
        endpoint: HttpEndpoint,
        under_way: Sized,
        spawn: Callable[[Coroutine[Any, Any, None]], object],
    ) -> None:
        self._server = server
        self._endpoint = endpoint
        self._under_way = under_way
        self._spawn = spawn
        self._dropped = 0

    def later(
        self, line: bytes, headers: Mapping[str, str], on_undelivered: OnUndelivered | None = None
    ) -> None:
        """Post something, unless too much is under way already.

        Args:
            line: The message.
            headers: What its era asks for.
            on_undelivered: Called at most once, perhaps before this returns.
        """
        if len(self._under_way) < _MOST_UNDER_WAY:
            self._spawn(self.now(line, headers, on_undelivered))
            return
        self._dropped += 1
        if self._dropped == 1:
            _logger.warning(
                "The server %s does not take what it is told: %s answers and notifications wait "
                "for it, and further ones are dropped.",
                self._server,
                _MOST_UNDER_WAY,
            )
        if on_undelivered is not None:
            on_undelivered(f"it leaves {_MOST_UNDER_WAY} messages before this one waiting", True)

    async def now(
        self, line: bytes, headers: Mapping[str, str], on_undelivered: OnUndelivered | None = None
    ) -> None:
        """Post something; never raises for what the server does."""
        body = RequestBody(line, receipt := _Receipt())
        try:
            async with (
                asyncio.timeout(_POST_TIMEOUT),
                await self._endpoint.request("POST", headers, body) as response,
            ):
                if response.status >= 400:
                    why = f"it answered with HTTP status {response.status}"
                    self._report_undelivered(why, False, on_undelivered)
        except Fault as fault:  # it redirects to where nobody follows
            self._report_undelivered(fault.message.rstrip("."), True, on_undelivered)
        except BROKEN as error:
            self._report_undelivered(what_broke(error), not receipt.written, on_undelivered)

    def _report_undelivered(
        self, why: str, is_certain: bool, on_undelivered: OnUndelivered | None
    ) -> None:
        _logger.debug("The server %s was not told something: %s.", self._server, why)
        if on_undelivered is not None:
            on_undelivered(why, is_certain)


class _Receipt:
    written = False


def unanswered(server: str, why: str) -> Fault:
    """Return the fault of a call whose server waits for an answer that it was never sent."""
    return Fault(
        Reason.SERVER_LOST,
        f"The server {server} asked something during the call and could not be sent the answer: "
        f"{why}. It has to take POST requests while a call is under way.",
        "yes",
        {"server": server},
    )
