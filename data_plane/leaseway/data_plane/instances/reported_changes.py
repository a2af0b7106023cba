"""The changes of its lists that a server has reported, and which of them have been read."""

from __future__ import annotations

import asyncio
from contextlib import suppress

from leaseway.wire.bounds import RELIST_WAIT


class ReportedChanges:
    """Counts the changes that a server reports; lets callers wait until they are read.

    Tools are read first, so that calls of new ones need not wait for the other lists.

    Attributes:
        reported: How often the server has reported a change of any list.
    """

    def __init__(self) -> None:
        self.reported = 0
        self._tools_read = 0
        self._all_read = 0
        self._was_read: asyncio.Event | None = None

    def has_unread(self, *, of_all: bool = False) -> bool:
        """Return whether a change has not been read yet.

        Args:
            of_all: Whether prompts and resources count, too, and not only tools.
        """
        return self.reported > (self._all_read if of_all else self._tools_read)

    def settle_tools(self, reported: int) -> None:
        """Let those go on that wait for the tools as of so many reported changes."""
        self._tools_read = max(self._tools_read, reported)
        self._wake()

    def settle(self, reported: int | None = None) -> None:
        """Let those go on that wait for any list as of so many reported changes; None means all."""
        read = self.reported if reported is None else reported
        self._all_read = max(self._all_read, read)
        self.settle_tools(read)

    async def wait(self, *, of_all: bool = False) -> None:
        """Wait until the changes that are reported by now have been read, for at most 2 s.

        Args:
            of_all: As for `has_unread`.
        """
        reported = self.reported
        with suppress(TimeoutError):
            async with asyncio.timeout(RELIST_WAIT):
                while (self._all_read if of_all else self._tools_read) < reported:
                    if self._was_read is None:
                        self._was_read = asyncio.Event()
                    await self._was_read.wait()

    def _wake(self) -> None:
        if self._was_read is not None:
            self._was_read.set()
            self._was_read = None
