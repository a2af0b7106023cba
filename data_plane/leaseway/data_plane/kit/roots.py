"""Resolves paths in the allowed folders so that nothing outside of them can be reached.

System calls only get paths of one component. Each folder of a path is opened relative to the
descriptor of its parent, without following links; links are resolved here. So `..`, absolute paths
and links never leave an allowed folder, even if a folder is replaced by a link meanwhile.
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

from leaseway.data_plane.kit.schemas import MAX_PATH
from leaseway.server import ToolError

_MAX_DEPTH: Final = 128
_MAX_LINKS: Final = 40
_FOLDER: Final = os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_TRAVERSE: Final = _FOLDER | getattr(os, "O_PATH", os.O_RDONLY)
_MISSING: Final = (errno.ENOENT, errno.ENOTDIR, errno.ENAMETOOLONG)


@dataclass(frozen=True)
class ResolvedPath:
    """A resolved path: a name in an open folder; `.` is the folder itself.

    Attributes:
        folder: The descriptor of the folder.
        name: The name in it.
        shown: The path for messages.
    """

    folder: int
    name: str
    shown: str

    def status(self) -> os.stat_result:
        """Return the status of the file or link; raises `ToolError` if it does not exist."""
        try:
            return os.stat(self.name, dir_fd=self.folder, follow_symlinks=False)
        except OSError as error:
            raise path_error(self.shown, error) from None

    def open(self, flags: int, mode: int = 0o666) -> int:
        """Open the file; raises `ToolError` if that fails, or if it is a link."""
        try:
            return os.open(
                self.name, flags | os.O_NOFOLLOW | os.O_CLOEXEC, mode, dir_fd=self.folder
            )
        except OSError as error:
            raise path_error(self.shown, error) from None

    def open_folder(self) -> int:
        """Open the folder for listing; raises `ToolError` if it is no folder."""
        try:
            return os.open(self.name, _FOLDER | os.O_RDONLY, dir_fd=self.folder)
        except OSError as error:
            if error.errno == errno.ENOTDIR:
                raise ToolError(f"{self.shown!r} is no folder.") from None
            raise path_error(self.shown, error) from None


class AllowedFolders:
    """The allowed folders.

    Args:
        folders: At least one folder; relative paths start in the first.

    Raises:
        ValueError: A folder does not exist.
    """

    def __init__(self, folders: Sequence[Path | str]) -> None:
        self._roots: list[PurePosixPath] = []
        for folder in folders:
            root = os.path.realpath(folder)
            if not os.path.isdir(root):  # noqa: PTH112
                raise ValueError(f"The folder {folder} does not exist.")
            self._roots.append(PurePosixPath(root))

    def __str__(self) -> str:
        return ", ".join(str(root) for root in self._roots)

    def contains(self, path: str) -> bool:
        """Return whether a path without links is in one of the folders."""
        return any(PurePosixPath(path).is_relative_to(root) for root in self._roots)

    @contextlib.contextmanager
    def resolve(
        self, path: str, *, follow: bool = True, create: bool = False
    ) -> Iterator[ResolvedPath]:
        """Resolve a path; its last component need not exist.

        Args:
            path: A path relative to the first folder, or an absolute path in one of them.
            follow: Whether to follow a link in the last component.
            create: Whether to create missing folders.

        Raises:
            ToolError: It leads outside, or a folder is missing.
        """
        walk = _PathWalk(self, path)
        try:
            yield walk.resolve(follow, create)
        except (ValueError, UnicodeError):
            raise ToolError(f"{path!r:.200} is no valid path.") from None
        finally:
            walk.close()

    def split(self, path: str) -> tuple[PurePosixPath, tuple[str, ...]] | None:
        """Return a path's allowed folder and its parts from there, or None if it is outside."""
        pure = PurePosixPath(path)
        if not pure.is_absolute():
            return self._roots[0], _parts(path)
        for root in sorted(self._roots, key=lambda root: -len(root.parts)):
            if pure.is_relative_to(root):  # `..` is resolved by the walk
                return root, pure.relative_to(root).parts
        return None

    def outside_error(self, path: str) -> ToolError:
        return ToolError(f"{path!r:.300} is outside the allowed folders: {self}.")


class _PathWalk:
    """Resolves one path; keeps the descriptors of all its folders open."""

    def __init__(self, roots: AllowedFolders, path: str) -> None:
        self._roots = roots
        self._path = path
        self._open: list[int] = []
        self._links = 0

    def resolve(self, follow: bool, create: bool) -> ResolvedPath:
        parts_left = self._start(self._path)
        while parts_left:
            part = parts_left.popleft()
            if part == "..":
                if len(self._open) == 1:
                    raise self._roots.outside_error(self._path)
                os.close(self._open.pop())
                continue
            target = self._read_link(part) if parts_left or follow else None
            if target is not None:
                parts_left = self._follow(target, parts_left)
            elif parts_left:
                self._enter(part, create)
            else:
                return ResolvedPath(self._open[-1], part, self._path)
        return ResolvedPath(self._open[-1], ".", self._path)

    def close(self) -> None:
        while self._open:
            os.close(self._open.pop())

    def _start(self, path: str) -> deque[str]:
        if len(path) > MAX_PATH:
            raise ToolError("That path is too long.")
        split = self._roots.split(path)
        if split is None:
            raise self._roots.outside_error(self._path)
        root, parts = split
        self.close()
        try:
            self._open.append(os.open(root, _TRAVERSE))
        except OSError as error:
            raise path_error(str(root), error) from None
        return deque(parts)

    def _read_link(self, name: str) -> str | None:
        try:
            return os.readlink(name, dir_fd=self._open[-1])
        except OSError as error:
            if error.errno in (errno.EINVAL, errno.ENOENT):
                return None  # no link, or missing
            raise path_error(self._path, error) from None

    def _follow(self, target: str, parts_left: deque[str]) -> deque[str]:
        self._links += 1
        if self._links > _MAX_LINKS:
            raise ToolError(f"{self._path!r:.300} leads through more than {_MAX_LINKS} links.")
        parts = self._start(target) if target.startswith("/") else deque(_parts(target))
        return parts + parts_left

    def _enter(self, name: str, create: bool) -> None:
        if len(self._open) > _MAX_DEPTH:
            raise ToolError(f"{self._path!r:.300} is more than {_MAX_DEPTH} folders deep.")
        try:
            if create:
                with contextlib.suppress(FileExistsError):
                    os.mkdir(name, dir_fd=self._open[-1])
            self._open.append(os.open(name, _TRAVERSE, dir_fd=self._open[-1]))
        except OSError as error:
            raise path_error(self._path, error) from None


def path_error(path: str, error: OSError) -> ToolError:
    """Return the tool error for a failed system call on a path."""
    if error.errno in _MISSING:
        return ToolError(f"{path!r:.300} does not exist; list_files lists the files.")
    if error.errno == errno.ELOOP:
        return ToolError(f"{path!r:.300} became a link while it was opened; try again.")
    return ToolError(f"{path!r:.300} can't be opened: {error.strerror}.")


def check_regular(status: os.stat_result, path: str) -> None:
    """Raise `ToolError` unless it is a regular file."""
    if not stat.S_ISREG(status.st_mode):
        raise ToolError(f"{path!r:.300} is no regular file; list_files lists a folder.")


def _parts(path: str) -> tuple[str, ...]:
    return tuple(part for part in path.split("/") if part not in ("", "."))
