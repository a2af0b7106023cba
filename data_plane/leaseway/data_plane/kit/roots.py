"""Paths below allowed folders, opened so that nothing outside of them can be reached.

The kernel is never given a path of more than one component. Each folder on the way is opened by
the descriptor of the one above it and without following links; links are read and walked here.
So `..`, absolute paths and links lead at most to the top of an allowed folder, and whoever swaps
a folder for a link meanwhile changes what is found, not where it is looked for.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Final

from leaseway.server import ToolError

MAX_PATH: Final = 4_096
PATH_SCHEMA: Final = {"type": "string", "minLength": 1, "maxLength": MAX_PATH}

_MAX_DEPTH: Final = 128
_MAX_LINKS: Final = 40
_FOLDER: Final = os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_PASSING: Final = _FOLDER | getattr(os, "O_PATH", os.O_RDONLY)
_GONE: Final = (errno.ENOENT, errno.ENOTDIR, errno.ENAMETOOLONG)


@dataclass(frozen=True)
class Place:
    """Where a path leads: a name in an open folder; `.` is the folder itself."""

    folder: int
    name: str
    shown: str

    def status(self) -> os.stat_result:
        """Return what is there, not following a link.

        Raises:
            ToolError: There is nothing.
        """
        try:
            return os.stat(self.name, dir_fd=self.folder, follow_symlinks=False)
        except OSError as error:
            raise unreachable(self.shown, error) from None

    def open(self, flags: int, mode: int = 0o666) -> int:
        """Open what is there, if it is no link.

        Raises:
            ToolError: It can't be opened.
        """
        try:
            return os.open(
                self.name, flags | os.O_NOFOLLOW | os.O_CLOEXEC, mode, dir_fd=self.folder
            )
        except OSError as error:
            raise unreachable(self.shown, error) from None

    def open_folder(self) -> int:
        """Open a folder, to be listed.

        Raises:
            ToolError: It is none.
        """
        try:
            return os.open(self.name, _FOLDER | os.O_RDONLY, dir_fd=self.folder)
        except OSError as error:
            if error.errno == errno.ENOTDIR:
                raise ToolError(f"{self.shown!r} is no folder.") from None
            raise unreachable(self.shown, error) from None


class Roots:
    """The allowed folders.

    Args:
        folders: At least one. Relative paths start in the first.

    Raises:
        ValueError: One is no folder.
    """

    def __init__(self, folders: Sequence[Path | str]) -> None:
        self._roots: list[PurePosixPath] = []
        for folder in folders:
            root = os.path.realpath(folder)
            if not os.path.isdir(root):  # noqa: PTH112
                raise ValueError(f"The folder {folder} does not exist; give one that does.")
            self._roots.append(PurePosixPath(root))

    def __str__(self) -> str:
        return ", ".join(str(root) for root in self._roots)

    def contain(self, path: str) -> bool:
        """Return whether a real path lies below one of the folders."""
        return any(PurePosixPath(path).is_relative_to(root) for root in self._roots)

    @contextlib.contextmanager
    def place(self, path: str, *, follow: bool = True, create: bool = False) -> Iterator[Place]:
        """Find where a path leads; what it leads to need not exist, the folders above it must.

        Args:
            path: Relative to the first folder, or absolute and below one of them.
            follow: Whether a link at its end is followed.
            create: Whether to make the folders that are missing on the way.

        Raises:
            ToolError: It leads outside, or there is no such folder.
        """
        walk = _Walk(self, path)
        try:
            yield walk.walk(follow, create)
        except (ValueError, UnicodeError):
            raise ToolError(f"{path!r:.200} is no path.") from None
        finally:
            walk.close()

    def split(self, path: str) -> tuple[PurePosixPath, tuple[str, ...]] | None:
        """Return the folder that a path is below, and its way from there; None for outside."""
        pure = PurePosixPath(path)
        if not pure.is_absolute():
            return self._roots[0], _parts(path)
        for root in sorted(self._roots, key=lambda each: -len(each.parts)):
            if pure.is_relative_to(root):  # `..` is not resolved here, but on the way
                return root, pure.relative_to(root).parts
        return None

    def outside(self, path: str) -> ToolError:
        return ToolError(f"{path!r:.300} is outside the allowed folders; allowed is: {self}.")


class _Walk:
    def __init__(self, roots: Roots, path: str) -> None:
        self._roots = roots
        self._path = path
        self._open: list[int] = []
        self._links = 0

    def walk(self, follow: bool, create: bool) -> Place:
        todo = self._start(self._path)
        while todo:
            part = todo.popleft()
            if part == "..":
                if len(self._open) == 1:
                    raise self._roots.outside(self._path)
                os.close(self._open.pop())
                continue
            target = self._link(part) if todo or follow else None
            if target is not None:
                todo = self._through(target, todo)
            elif todo:
                self._enter(part, create)
            else:
                return Place(self._open[-1], part, self._path)
        return Place(self._open[-1], ".", self._path)

    def close(self) -> None:
        while self._open:
            os.close(self._open.pop())

    def _start(self, path: str) -> deque[str]:
        if len(path) > MAX_PATH:
            raise ToolError("That path is too long.")
        found = self._roots.split(path)
        if found is None:
            raise self._roots.outside(self._path)
        root, parts = found
        self.close()
        try:
            self._open.append(os.open(root, _PASSING))
        except OSError as error:
            raise unreachable(str(root), error) from None
        return deque(parts)

    def _link(self, name: str) -> str | None:
        try:
            return os.readlink(name, dir_fd=self._open[-1])
        except OSError as error:
            if error.errno in (errno.EINVAL, errno.ENOENT):
                return None  # no link, or nothing yet
            raise unreachable(self._path, error) from None

    def _through(self, target: str, todo: deque[str]) -> deque[str]:
        self._links += 1
        if self._links > _MAX_LINKS:
            raise ToolError(f"{self._path!r:.300} leads through more than {_MAX_LINKS} links.")
        way = self._start(target) if target.startswith("/") else deque(_parts(target))
        return way + todo

    def _enter(self, name: str, create: bool) -> None:
        if len(self._open) > _MAX_DEPTH:
            raise ToolError(f"{self._path!r:.300} is more than {_MAX_DEPTH} folders deep.")
        try:
            if create:
                with contextlib.suppress(FileExistsError):
                    os.mkdir(name, dir_fd=self._open[-1])
            self._open.append(os.open(name, _PASSING, dir_fd=self._open[-1]))
        except OSError as error:
            raise unreachable(self._path, error) from None


def unreachable(path: str, error: OSError) -> ToolError:
    """Return the refusal of a path that can't be opened."""
    if error.errno in _GONE:
        return ToolError(f"There is no {path!r:.300}; list_files shows what there is.")
    if error.errno == errno.ELOOP:
        return ToolError(f"{path!r:.300} became a link while it was opened; try again.")
    return ToolError(f"{path!r:.300} can't be opened: {error.strerror}.")


def regular(status: os.stat_result, path: str) -> None:
    """Refuse what is no regular file: a folder, a pipe, a device."""
    if not stat.S_ISREG(status.st_mode):
        raise ToolError(f"{path!r:.300} is no regular file; list_files shows what is in a folder.")


def _parts(path: str) -> tuple[str, ...]:
    return tuple(part for part in path.split("/") if part not in ("", "."))
