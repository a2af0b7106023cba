"""Tells the servers that a client has leased that its roots have changed."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable
from typing import Final

from leaseway.front.sessions.listener import Asker, Listener, drop
from leaseway.sdk import AsyncSession, LeasewayError
from leaseway.sdk.relay import announce_roots
from leaseway.wire.clients.mcp_client import McpClient
from leaseway.wire.messages.mcp import ROOTS

_TIMEOUT: Final = 30.0
"""Seconds that a server may take to ask for the roots, and the client to answer."""

_log = logging.getLogger("leaseway.front")


class ChangedRoots:
    """The changes of one client's roots.

    While servers are told, further changes are one: they are told once more afterwards.

    Args:
        client: What the client has declared: without `roots.listChanged`, nothing is told.
        leasing: Returns the sessions whose leases the client uses.
        asker: Asks the client outside of its requests.
    """

    def __init__(
        self, client: McpClient, leasing: Callable[[], Iterable[AsyncSession]], asker: Asker
    ) -> None:
        self._client = client
        self._leasing = leasing
        self._asker = asker
        self._is_told = True
        self._telling: asyncio.Task[None] | None = None

    def announce(self) -> None:
        """Tell the leased servers in the background."""
        if not self._client.capabilities.get("roots", {}).get("listChanged"):
            _log.debug("A client told of changed roots, which it has not declared.")
            return
        self._is_told = False
        if self._telling is None or self._telling.done():
            self._telling = asyncio.create_task(self._tell(), name="front tells of roots")

    async def stop(self) -> None:
        if self._telling is not None:
            self._telling.cancel()
            await asyncio.wait([self._telling])

    async def _tell(self) -> None:
        while not self._is_told:
            self._is_told = True
            await asyncio.gather(
                *(
                    self._tell_server(session, lease.server_id)
                    for session in self._leasing()
                    for lease in session.leases()
                )
            )

    async def _tell_server(self, session: AsyncSession, server: str) -> None:
        listener = Listener(drop, self._asker)
        listener.answers = (ROOTS,)
        listener.mcp_client = self._client.encoded
        try:
            await announce_roots(session, server, listener, _TIMEOUT)
        except LeasewayError as error:
            _log.info("Server %s was not told of changed roots: %s", server, error)
