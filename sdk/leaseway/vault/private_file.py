"""Files that only their owner may read: written atomically, by one writer at a time."""

from __future__ import annotations

import contextlib
import fcntl
import os
import stat
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from leaseway.wire.file_stamp import file_stamp
from leaseway.wire.secrets.trusted_files import UntrustedFile, check_secret

_LOCK_TIMEOUT: Final = 10.0
_LOCK_POLL: Final = 0.02


class PrivateFileError(Exception):
    """A file is unusable; the text is a sentence with the reason and what to do."""


def read_private(path: Path, limit: int) -> bytes | None:
    """Return the content of a file, or None if it does not exist.

    Args:
        path: The file; a link is followed.
        limit: The maximum size in bytes.

    Raises:
        PrivateFileError: It cannot be read, is too large, or other users may read or write it.
    """
    try:
        with path.open("rb") as file:
            status = os.fstat(file.fileno())
            if not stat.S_ISREG(status.st_mode):
                raise PrivateFileError(f"{path} is not a file.")
            check_secret(file.fileno(), path)
            content = file.read(limit + 1)
    except FileNotFoundError:
        return None
    except UntrustedFile as error:
        raise PrivateFileError(str(error)) from None
    except OSError as error:
        raise PrivateFileError(f"{path} cannot be read: {error.strerror}.") from None
    if len(content) > limit:
        raise PrivateFileError(f"{path} is larger than {limit} bytes: not a file of Leaseway.")
    return content


def write_private(path: Path, content: bytes) -> None:
    """Replace a file, mode 0600. Readers see the old or the new content, even after a crash.

    The caller must hold the lock of the file, see `locked`.

    Raises:
        PrivateFileError: It cannot be written; the old content is unchanged.
    """
    target = Path(os.path.realpath(path))  # a link stays a link
    temporary = target.with_name(f".{target.name}.new")
    try:
        _make_private_folder(target.parent)
        temporary.unlink(missing_ok=True)  # of a crashed writer
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
        try:
            with os.fdopen(descriptor, "wb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            temporary.replace(target)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise
        _sync_folder(target.parent)
    except OSError as error:
        raise PrivateFileError(f"{path} cannot be written: {error.strerror}.") from None


def _make_private_folder(folder: Path) -> None:
    """Create missing folders, accessible to their owner only; existing ones are unchanged."""
    for missing in reversed(
        [parent for parent in (folder, *folder.parents) if not parent.exists()]
    ):
        missing.mkdir(mode=0o700, exist_ok=True)


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def locked(path: Path, timeout: float = _LOCK_TIMEOUT) -> Iterator[None]:
    """Lock a file against other writers. The lock ends with the process at the latest.

    Args:
        timeout: Seconds for which another writer may hold the lock without a write.

    Raises:
        PrivateFileError: Another writer has not finished in time, or locking failed.
    """
    target = Path(os.path.realpath(path))
    lock = target.with_name(f".{target.name}.lock")
    try:
        _make_private_folder(target.parent)
        descriptor = os.open(lock, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
    except OSError as error:
        raise PrivateFileError(f"{path} cannot be locked: {error.strerror}.") from None
    try:
        _wait_for_lock(descriptor, path, timeout)
        yield
    finally:
        os.close(descriptor)


def _wait_for_lock(descriptor: int, path: Path, timeout: float) -> None:
    """Wait for the lock as long as others finish their writes, however many there are."""
    deadline, written = time.monotonic() + timeout, file_stamp(path)
    while True:
        if (newest := file_stamp(path)) != written:
            deadline, written = time.monotonic() + timeout, newest
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() > deadline:
                raise PrivateFileError(
                    f"Another process has been writing {path} for {timeout:g} s; try again "
                    "when it is done."
                ) from None
            time.sleep(_LOCK_POLL)
        else:
            return
