"""`cwd: private`: an empty folder for each instance, removed with it.

The folders of one run of a worker are below one folder of mode 0700. The reaper removes that if the
worker is killed, and the next worker of the user does if both are.

See design.md#one-mcp-connection.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import secrets
import stat
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Final

from leaseway.data_plane.kinds.process.reaper_main import remove_tree
from leaseway.data_plane.kinds.process.sandbox.checks import disk

_REMOVAL: Final = 10.0
"""Seconds that the end of an instance waits for its folder's removal, which then goes on."""

_logger = logging.getLogger(__name__)


def folder_of_run(token: str) -> Path:
    """Return the folder for all instances of one run of a worker."""
    return Path(tempfile.gettempdir()) / f"leaseway-private-{os.getuid()}" / token


class PrivateFolders:
    """Creates and removes folders of instances. One per worker.

    Args:
        token: Names this run of the worker.
        register: Called with the folder of all instances before the first is created.
    """

    def __init__(self, token: str, register: Callable[[Path], None]) -> None:
        self._base = folder_of_run(token)
        self._register = register
        self._is_registered = False

    async def create(self) -> Path:
        """Create an empty folder, which only this user can access; return its path.

        Raises:
            OSError: It cannot be created.
        """
        if not self._is_registered:
            self._register(self._base)
            self._is_registered = True
        return await disk.run(self._create)

    def _create(self) -> Path:
        for folder in (self._base.parent, self._base):
            folder.mkdir(mode=0o700, exist_ok=True)
            found = folder.lstat()
            if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid():
                raise PermissionError(errno.EPERM, f"{folder} is not this user's folder")
            if found.st_mode & 0o077:
                raise PermissionError(errno.EPERM, f"other users may read or write {folder}")
        path = self._base / secrets.token_hex(16)
        path.mkdir(mode=0o700)
        return path

    async def remove(self, path: Path) -> None:
        """Remove an instance's folder, after its processes have exited."""
        removal = disk.submit(partial(remove_tree, path))
        await asyncio.wait([removal], timeout=_REMOVAL)
        if not removal.done() or not removal.result():
            _logger.warning(
                "The folder %s of an ended instance can't be removed yet; it is removed when the"
                " worker exits.",
                path,
            )

    def remove_later(self, path: Path) -> None:
        """Remove the folder of an instance that did not start, without waiting."""
        disk.submit(partial(remove_tree, path))


def make_folder(path: str, depth: int) -> None:
    """Create a folder, each missing part with mode 0700. Writes to disk.

    Args:
        path: The folder, with the names of a lease filled in.
        depth: How many of its last parts may be created; the others must exist.

    Raises:
        OSError: It cannot be created.
    """
    parts = (Path(path), *Path(path).parents)
    for folder in reversed(parts[:depth]):
        folder.mkdir(mode=0o700, exist_ok=True)
