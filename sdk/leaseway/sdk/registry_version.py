"""Which registry version a client was last told of, for those who wait for the next one."""

from __future__ import annotations

import asyncio

__all__ = ["RegistryVersion"]


class RegistryVersion:
    """The newest registry version that is known; lives in one event loop.

    Attributes:
        version: The newest version, 0 before the first.
        ended: Whether no more will come, since the client is closed.
    """

    def __init__(self) -> None:
        self.version = 0
        self.ended = False
        self._news = asyncio.Event()

    def told(self, version: int) -> None:
        """Take note of a version; versions only grow, also over restarts."""
        if version > self.version:
            self.version = version
            self._wake()

    def end(self) -> None:
        """Let nobody wait any more."""
        self.ended = True
        self._wake()

    async def beyond(self, version: int) -> None:
        """Wait until a newer version is known, or no more will come."""
        while self.version <= version and not self.ended:
            await self._news.wait()

    def _wake(self) -> None:
        # All who wait have this event; who comes later gets the next one.
        news, self._news = self._news, asyncio.Event()
        news.set()
