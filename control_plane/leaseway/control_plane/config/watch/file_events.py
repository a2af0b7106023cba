"""Events of a directory that configuration files are in, where the system gives any.

The directory is watched, not the file: editors replace the file, and a mounted ConfigMap swaps
the symlink `..data` beside it. Whatever is missed here is found by the polling behind it.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import logging
from collections.abc import Collection, Iterable
from pathlib import Path
from typing import Final

import watchfiles

_log = logging.getLogger(__name__)

_STEP_MS: Final = 25
"""How often the watching thread hands over what it has; the debounce proper is elsewhere."""

_IMPORTED_LATE: Final = "anyio._backends._asyncio"
"""What `watchfiles` imports when it first watches: 40 ms of work, which is not for the loop."""

Identity = tuple[int, int] | None


class FileEvents:
    """Says when something may have changed one of the files of a directory.

    Args:
        directory: The directory.
        names: The files' names; None for all that is in it.
        changed: Set when there was an event.
    """

    def __init__(
        self, directory: Path, names: Collection[str] | None, changed: asyncio.Event
    ) -> None:
        self._directory = directory
        self._names = names
        self._changed = changed
        self._task: asyncio.Task[None] | None = None
        self._watched: Identity = None
        self._said = ""

    async def ensure(self) -> None:
        """Watch the directory, anew where it is another one by now or watching had failed."""
        identity = await asyncio.to_thread(_identity, self._directory)
        if identity is None:
            self._say("the directory does not exist")
            return
        if self._task is not None and not self._task.done() and identity == self._watched:
            return
        await self.close()
        self._watched = identity
        self._task = asyncio.create_task(self._watch(), name=f"events of {self._directory}")

    async def close(self) -> None:
        """Stop watching."""
        if self._task is not None:
            self._task.cancel()
            # Waited for, not awaited: a cancellation of the caller must stay the caller's.
            await asyncio.wait({self._task})
            self._task = None

    async def _watch(self) -> None:
        with contextlib.suppress(ImportError):  # what the watcher would import on this loop
            await asyncio.to_thread(importlib.import_module, _IMPORTED_LATE)
        try:
            async for changes in watchfiles.awatch(
                self._directory,
                watch_filter=None,
                debounce=_STEP_MS,
                step=_STEP_MS,
                recursive=False,
            ):
                if self._concerns(path for _, path in changes):
                    self._changed.set()
        except Exception as error:  # whatever ends the events, polling goes on
            self._say(str(error) or type(error).__name__)

    def _concerns(self, paths: Iterable[str]) -> bool:
        if self._names is None:
            return True
        names = {Path(path).name for path in paths}
        return any(name in self._names or name.startswith("..") for name in names)

    def _say(self, reason: str) -> None:
        if reason != self._said:
            self._said = reason
            _log.warning("No file events for %s (%s); polling goes on.", self._directory, reason)


def _identity(directory: Path) -> Identity:
    try:
        found = directory.stat()
    except OSError:
        return None
    return (found.st_dev, found.st_ino)
