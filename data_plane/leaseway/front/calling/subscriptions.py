"""Changes that clients follow: one resource, or a stream of a modern client's choice."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable

from leaseway.sdk import AsyncClient, AsyncSession, LeasewayError

_log = logging.getLogger("leaseway.front")


class FollowedResource:
    """One resource that is followed until `end`.

    Args:
        session: The session, or client, to follow it in.
        uri: Its URI.
        server: The server that is meant, or None.
        tell: Told the URI of what changed; never waits.
    """

    def __init__(
        self,
        session: AsyncSession | AsyncClient,
        uri: str,
        server: str | None,
        tell: Callable[[str], None],
    ) -> None:
        self._session = session
        self._uri = uri
        self._server = server
        self._tell = tell
        self._held: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._task = asyncio.create_task(self._follow(), name=f"front follows {uri[:80]}")

    @property
    def ended(self) -> bool:
        return self._task.done()

    async def holds(self) -> None:
        """Wait until its server has agreed.

        Raises:
            LeasewayError: It did not.
        """
        await asyncio.shield(self._held)

    async def end(self) -> None:
        self._task.cancel()
        await asyncio.wait([self._task])

    async def _follow(self) -> None:
        try:
            updates = self._session.subscribe_resource(self._uri, server=self._server)
            async with updates:
                self._held.set_result(None)
                async for changed in updates:
                    self._tell(changed)
        except LeasewayError as error:
            if self._held.done():
                _log.info("%s is not followed any more: %s", self._uri[:200], error)
                self._tell(self._uri)  # reading it says why
            else:
                self._held.set_exception(error)
                with contextlib.suppress(LeasewayError):
                    self._held.exception()  # seen, also where whoever asked has gone
        finally:
            self._held.cancel()
