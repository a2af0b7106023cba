"""Opening a session anew where a legacy server has forgotten it.

Nothing was done in the forgotten session's name: who met the refusal is sent again in the new
session, and what still runs in the old one is left to finish.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

from leaseway.data_plane.mcp.http.endpoint import HttpEndpoint

_logger = logging.getLogger(__name__)


class SessionForgotten(Exception):
    """The server does not know the session that a request named."""


class Renewal:
    """Opens one new session for all who find the old one forgotten.

    Args:
        server: The server's id, for messages.
        endpoint: Belongs to the session.
        open_session: Opens a session; ends the connection where it can't, and never raises.
    """

    def __init__(
        self, server: str, endpoint: HttpEndpoint, open_session: Callable[[], Awaitable[None]]
    ) -> None:
        self._server = server
        self._endpoint = endpoint
        self._open_session = open_session
        self._opening: asyncio.Task[None] | None = None

    async def settled(self) -> str:
        """Return the session to send in, waiting for one that is being opened."""
        while self._opening is not None:
            await asyncio.wait([self._opening])
        return self._endpoint.session_id

    async def renew(self, forgotten: str) -> None:
        """Open another session in place of the forgotten one."""
        if self._opening is None and self._endpoint.session_id == forgotten:
            _logger.info(
                "The server %s has forgotten its session; another is opened.", self._server
            )
            self._endpoint.leave_session()
            self._opening = asyncio.get_running_loop().create_task(self._open())
        await self.settled()

    async def _open(self) -> None:
        try:
            await self._open_session()
        finally:
            self._opening = None

    async def aclose(self) -> None:
        if self._opening is not None:
            self._opening.cancel()
            await asyncio.wait([self._opening])
