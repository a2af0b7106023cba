"""Follows people's logins to servers (design.md#tokens-for-remote-servers).

`leaseway login` leaves a sealed login in a folder of the worker's machine, `logout` removes it.
When that folder changes, connections whose login has ended are closed, calls of whoever has logged
in again use new ones, and starts that failed for want of a login are repeated, all at once. Other
processes change it, so it is looked at again and again, and before a call is refused for want of a
login: its person may have logged in since the last look. A login that this worker has finished is
followed before its person hears of it.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Final

from leaseway.data_plane.background import DISK_TIMEOUT, DiskScanner
from leaseway.data_plane.core.problems import WorkerProblem
from leaseway.data_plane.instances.pool import Pool
from leaseway.data_plane.oauth.tokens import Tokens
from leaseway.spec.model import ServerSpec, VariantKey
from leaseway.wire.errors import Reason
from leaseway.wire.file_stamp import FileStamp, file_stamp

_POLL: Final = 1.0
"""Seconds between two looks: a folder on a network sends no events."""
_MAX_WAITING: Final = 1_024


class LoginWatcher:
    """Closes connections whose login has ended, and repeats the starts that need one.

    Args:
        pool: The served generations.
        folder: The sealed logins, or None if the worker has no vault.
        logins: The logins of this machine, or None if there are none.

    Attributes:
        changes: How many changes have been followed.
    """

    def __init__(
        self,
        pool: Pool,
        folder: Path | None,
        logins: Tokens | None,
    ) -> None:
        self._pool = pool
        self._folder = folder
        self._logins = logins
        self._scanner = DiskScanner(DISK_TIMEOUT)
        self._following = asyncio.Lock()
        self._stamp: FileStamp | None = None
        self._looks = 0
        self._changed: asyncio.Future[None] | None = None
        self.changes = 0
        self._waiting: dict[VariantKey, None] = {}
        pool.context.events.login_required.connect(self._add_waiting)

    def _add_waiting(self, spec: ServerSpec) -> None:
        """Note a server whose probe needs a login."""
        if len(self._waiting) < _MAX_WAITING:
            self._waiting[spec.key] = None

    async def run(self) -> None:
        """Look again and again."""
        if self._folder is None:
            return
        self._stamp = await self._stamp_of(self._folder)
        while True:
            await asyncio.sleep(_POLL)
            await self.look()

    async def look(self) -> None:
        """Follow the changes that were made before this was called.

        Many may call it at once: they share the look that begins next.
        """
        if self._folder is None:
            return
        looks = self._looks
        async with self._following:
            if self._looks > looks:
                return
            self._looks += 1
            stamp = await self._stamp_of(self._folder)
            if stamp != self._stamp:
                self._stamp = stamp
                await self._follow()

    def next_change(self) -> asyncio.Future[None]:
        """Return a future that is done when a change is followed."""
        if self._changed is None or self._changed.done():
            self._changed = asyncio.get_running_loop().create_future()
        return self._changed

    async def follow_now(self) -> None:
        """Follow a login that this worker has just finished: calls use it from now on."""
        async with self._following:
            await self._follow()

    async def _follow(self) -> None:
        if self._logins is not None:
            changed = await self._logins.follow_logins()
            self._pool.end_logins(changed.ended)
            self._pool.replace_logins(changed.replaced)
        self._start_again()
        self.changes += 1
        if self._changed is not None and not self._changed.done():
            self._changed.set_result(None)

    async def _stamp_of(self, folder: Path) -> FileStamp | None:
        found = await self._scanner.map(file_stamp, [folder])
        return found.get(folder, self._stamp)

    def _start_again(self) -> None:
        self._pool.retry_logins()
        waiting, self._waiting = self._waiting, {}
        for key in waiting:
            text = f"The logins of server {key} have changed; it is started at once."
            problem = WorkerProblem("server", Reason.LOGIN_REQUIRED.value, text, key)
            self._pool.context.reports.report_cleared(problem)
