"""Reads the files that references name: opens them first, then checks what was opened.

A path says little about a file: a link, a mount or a rename between a check and the opening leads
elsewhere. So every check here is about the open file.
"""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Final

from leaseway.spec.filters.names import passes

_MAX_FILE: Final = 1 << 20
_MAX_OWN: Final = 1_000
_OPEN: Final = os.O_RDONLY | os.O_CLOEXEC | os.O_NOCTTY
_own_paths: Final[set[Path]] = set()
"""Files and folders of this process that no reference may read, beside Leaseway's own folder."""


class UnreadableFile(Exception):
    """A file cannot be used; the text completes "refers to the file x, which ..."."""


def protect(paths: Iterable[Path]) -> None:
    """Make references to Leaseway's own files, or files in its own folders, fail from now on."""
    _own_paths.update(path.absolute() for path in paths)


def read_file(path: str, within: Sequence[str] = ()) -> str:
    """Return the text of a file, or of a named pipe, that a reference names.

    Args:
        path: The file's path.
        within: Patterns of paths. If there are any, the file that the path leads to must match one
            of them, or lie in the folder of one that names a file.

    Raises:
        UnreadableFile: It must not be read, cannot be read, is no text, or is larger than 1 MiB.
    """
    try:
        descriptor = os.open(path, _OPEN)
    except (OSError, ValueError) as error:
        text = error.strerror if isinstance(error, OSError) else "no valid path"
        raise UnreadableFile(f"can't be read ({text}): mount it where the worker runs") from None
    try:
        _check(descriptor, path, within)
        content = _read(descriptor)
    finally:
        os.close(descriptor)
    if len(content) > _MAX_FILE:
        raise UnreadableFile(f"is larger than {_MAX_FILE} bytes")
    try:
        return content.decode()
    except UnicodeDecodeError:
        raise UnreadableFile("is not UTF-8 text") from None


def _read(descriptor: int) -> bytes:
    try:
        with open(descriptor, "rb", closefd=False) as file:
            content = file.read(_MAX_FILE + 1)
    except OSError as error:
        raise UnreadableFile(
            f"can't be read ({error.strerror}): mount it where the worker runs"
        ) from None
    found = os.fstat(descriptor)
    if content and not found.st_size and stat.S_ISREG(found.st_mode):
        # As in /proc and /sys, wherever they are mounted: /proc/self/environ has the keys.
        raise UnreadableFile("is made by the kernel: use a file on a disk")
    return content


def _check(descriptor: int, path: str, within: Sequence[str]) -> None:
    found = os.fstat(descriptor)
    if not (stat.S_ISREG(found.st_mode) or stat.S_ISFIFO(found.st_mode)):
        raise UnreadableFile("is neither a file nor a pipe")
    real = _real_path(descriptor, path)
    own = [_own_folder(), *_own_paths]
    if any(real.is_relative_to(place.resolve()) for place in own) or (
        found.st_nlink > 1 and (found.st_dev, found.st_ino) in _identities(own)
    ):
        raise UnreadableFile("is Leaseway's own: keep the server's files elsewhere")
    if within and not any(_is_within(real, pattern) for pattern in within):
        raise UnreadableFile(
            "leads to a file that is not granted: a link must stay within the paths that 'secrets' "
            "of its tenant names"
        )


def _real_path(descriptor: int, path: str) -> Path:
    """Return the path of an open file, without links."""
    with contextlib.suppress(OSError):  # Linux; elsewhere the path is the best that there is
        return Path(f"/proc/self/fd/{descriptor}").readlink()
    return Path(path).resolve()


def _is_within(real: Path, pattern: str) -> bool:
    """Return whether a path without links matches a pattern, whose folder may be a link.

    Of a pattern that names one file, the folder counts: Kubernetes mounts secrets as links to files
    in a hidden folder beside them.
    """
    head, star, tail = pattern.partition("*")
    folder, _, start = head.rpartition("/")
    place = Path(folder or "/").resolve()
    if not star:
        return real.is_relative_to(place)
    inner = f"{str(place).rstrip('/')}/{start}{star}{tail}"
    return passes(str(real), (inner,), ())


def _own_folder() -> Path:
    """Return the default folder of the vault, its key, the seal's key and API keys."""
    return Path.home() / ".leaseway"


def _identities(places: Iterable[Path]) -> set[tuple[int, int]]:
    """Return device and number of Leaseway's own files, which may have other names elsewhere."""
    found: set[tuple[int, int]] = set()
    for place in places:
        with contextlib.suppress(OSError):
            files = place.iterdir() if place.is_dir() else (place,)
            for _, path in zip(range(_MAX_OWN), files, strict=False):
                state = path.stat()
                found.add((state.st_dev, state.st_ino))
    return found
