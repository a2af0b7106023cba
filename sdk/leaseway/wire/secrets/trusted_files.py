"""Checks that other users of a machine can neither change trusted files nor read secret ones."""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import Final

_WRITE: Final = stat.S_IWOTH
_READ: Final = stat.S_IROTH


class UntrustedFile(OSError):
    """Other users may change or read a file; the text says which, and what to do."""


def check_trusted(descriptor: int, path: Path) -> None:
    """Check that no other user can change an open file that decides who may do what.

    Args:
        path: Its path, whose folders are checked, too: who can write there can replace the file.

    Raises:
        UntrustedFile: Another user can.
    """
    status = os.fstat(descriptor)
    if status.st_mode & _of_others(status, _WRITE):
        raise UntrustedFile(
            f"{path} can be changed by other users of this machine (mode "
            f"{stat.S_IMODE(status.st_mode):04o}). Close it: chmod go-w {path}"
        )
    _check_folders(path)


def check_secret(descriptor: int, path: Path) -> None:
    """Check that no other user can change or read an open file.

    Raises:
        UntrustedFile: Another user can.
    """
    status = os.fstat(descriptor)
    if status.st_mode & _of_others(status, _READ | _WRITE):
        raise UntrustedFile(
            f"{path} is open to other users of this machine (mode "
            f"{stat.S_IMODE(status.st_mode):04o}). Close it: chmod 600 {path}"
        )
    _check_folders(path)


def read_trusted(path: Path, limit: int) -> bytes:
    """Return the content of a file that no other user can change, and one byte beyond a limit.

    Raises:
        UntrustedFile: Another user can change it.
        OSError: It cannot be read.
    """
    with path.open("rb") as file:
        check_trusted(file.fileno(), path)
        return file.read(limit + 1)


def named_path(variable: str, name: str) -> Path:
    """Return the absolute path that an environment variable names, from the home folder after `~`.

    Raises:
        ValueError: Nobody has that home folder.
    """
    try:
        return Path(name).expanduser().absolute()
    except RuntimeError as error:
        raise ValueError(f"{variable} names {name}, but: {error}") from None


def _of_others(status: os.stat_result, bits: int) -> int:
    """Return the mode bits of others, and of the group if the file is our own.

    A file of another user may belong to our group: Kubernetes mounts secrets so.
    """
    return bits | bits << 3 if status.st_uid == os.geteuid() else bits


def _check_folders(path: Path) -> None:
    for folder in dict.fromkeys((path.absolute().parent, Path(os.path.realpath(path)).parent)):
        mode = folder.stat().st_mode
        if mode & stat.S_IWOTH and not mode & stat.S_ISVTX:
            raise UntrustedFile(
                f"{path} can be replaced by other users of this machine: its folder {folder} has "
                f"mode {stat.S_IMODE(mode):04o}. Close it: chmod o-w {folder}"
            )
