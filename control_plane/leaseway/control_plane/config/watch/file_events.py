"""Events of a directory with configuration files, if the system supports them.

The directory is watched, not the file: editors replace the file, and a mounted ConfigMap swaps
the symlink `..data` beside it. Polling finds the changes that are missed here.
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
"""Interval in which the watching thread delivers events; the debounce is elsewhere."""

_IMPORTED_LATE: Final = "anyio._backends._asyncio"
"""The module that `watchfiles` imports when it first watches, which takes 40 ms."""

FileIdentity = tuple[int, int] | None


class FileEvents:
    """Sets an event when a file of a directory may have changed.

    Args:
        names: The files' names; None for all files.
    """

    def __init__(
        self, directory: Path, names: Collection[str] | None, changed: asyncio.Event
    ) -> None:
        self._directory = directory
        self._names = names
        self._changed = changed
        self._task: asyncio.Task[None] | None = None
        self._watched: FileIdentity = None
        self._warned_of = ""

    async def ensure(self) -> None:
        """Watch the directory; again if it was replaced or the watch has failed."""
        identity = await asyncio.to_thread(_identity, self._directory)
        if identity is None:
            self._warn("the directory does not exist")
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
            # wait(), because await would turn a cancellation of the caller into the task's.
            await asyncio.wait({self._task})
            self._task = None

    async def _watch(self) -> None:
        with contextlib.suppress(ImportError):  # in a thread, so that the loop does not block
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
        except Exception as error:  # noqa: BLE001 - polling continues without events
            self._warn(str(error) or type(error).__name__)

    def _concerns(self, paths: Iterable[str]) -> bool:
        if self._names is None:
            return True
        names = {Path(path).name for path in paths}
        return any(name in self._names or name.startswith("..") for name in names)

    def _warn(self, reason: str) -> None:
        if reason != self._warned_of:
            self._warned_of = reason
            _log.warning("No file events for %s (%s); polling continues.", self._directory, reason)


def _identity(directory: Path) -> FileIdentity:
    try:
        found = directory.stat()
    except OSError:
        return None
    return (found.st_dev, found.st_ino)
