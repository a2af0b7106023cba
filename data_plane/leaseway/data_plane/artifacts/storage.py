"""Storage for the bytes of artifacts: a private folder of one run of a worker, or memory.

All functions may block and are called from threads. The worker generates the references, so no path
contains text of a caller.
"""

from __future__ import annotations

import contextlib
import fcntl
import io
import os
import shutil
import tempfile
import threading
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import BinaryIO, Final, Protocol

_PREFIX: Final = "leaseway-artifacts-"


class ArtifactStorage(Protocol):
    """Stores bytes by reference; thread-safe."""

    def write(self, ref: str, parts: Iterable[bytes]) -> int:
        """Store a new artifact, completely or not at all; return its size.

        Raises:
            OSError: There is no space, or the storage is closed.
        """

    def open(self, ref: str) -> BinaryIO:
        """Open an artifact; it stays readable if it is removed meanwhile.

        Raises:
            FileNotFoundError: It does not exist.
        """

    def remove(self, refs: Iterable[str]) -> None:
        """Remove artifacts; missing ones are ignored."""

    def close(self) -> None:
        """Interrupt writes, then remove everything."""


class MemoryStorage:
    """Artifacts in memory, for tests."""

    def __init__(self) -> None:
        self.held: dict[str, bytes] = {}

    def write(self, ref: str, parts: Iterable[bytes]) -> int:
        content = b"".join(parts)
        self.held[ref] = content
        return len(content)

    def open(self, ref: str) -> BinaryIO:
        content = self.held.get(ref)
        if content is None:
            raise FileNotFoundError(ref)
        return io.BytesIO(content)

    def remove(self, refs: Iterable[str]) -> None:
        for ref in refs:
            self.held.pop(ref, None)

    def close(self) -> None:
        self.held.clear()


class DirectoryStorage:
    """Artifacts as files in a new folder that only this user may access.

    The folder is locked while its worker runs. Folders of killed workers are removed when another
    worker starts.

    Args:
        base: The parent folder, created if missing; None means the system's folder for temporary
            files.

    Attributes:
        folder: The folder of the files.

    Raises:
        OSError: The folder cannot be created; the text is a sentence.
    """

    def __init__(self, base: Path | None = None) -> None:
        parent = base if base is not None else Path(tempfile.gettempdir())
        try:
            parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            _remove_abandoned(parent)
            self.folder, self._lock = _make_locked(parent)
        except OSError as error:
            raise OSError(
                f"Artifacts cannot be kept in {parent}: {error.strerror or error}. Name a folder "
                "that this user may write, with --artifacts."
            ) from None
        self._created: set[Path] = {self.folder}
        self._state = threading.Condition()
        self._writing = 0
        self._closed = False

    def write(self, ref: str, parts: Iterable[bytes]) -> int:
        """Store a new artifact in a file that only this user may read."""
        with self._writer():
            path = self.folder / ref
            self._make_folder(path.parent)
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW
            try:
                with os.fdopen(os.open(path, flags, 0o600), "wb", buffering=0) as file:
                    return self._write_all(file, parts)
            except BaseException:
                path.unlink(missing_ok=True)
                raise

    def open(self, ref: str) -> BinaryIO:
        return (self.folder / ref).open("rb")

    def remove(self, refs: Iterable[str]) -> None:
        for ref in refs:
            (self.folder / ref).unlink(missing_ok=True)

    def all_folders(self) -> Iterator[Path]:
        """Yield the folders of all workers that keep their artifacts here, this one included."""
        yield from self.folder.parent.glob(f"{_PREFIX}*")

    def close(self) -> None:
        with self._state:
            if self._closed:
                return
            self._closed = True
            self._state.wait_for(lambda: not self._writing)
        shutil.rmtree(self.folder, ignore_errors=True)
        os.close(self._lock)

    @contextlib.contextmanager
    def _writer(self) -> Iterator[None]:
        with self._state:
            self._check_open()
            self._writing += 1
        try:
            yield
        finally:
            with self._state:
                self._writing -= 1
                self._state.notify_all()

    def _check_open(self) -> None:
        if self._closed:
            raise OSError("The worker is stopping and stores no new artifacts.")

    def _write_all(self, file: io.FileIO, parts: Iterable[bytes]) -> int:
        size = 0
        for part in parts:
            self._check_open()
            rest = memoryview(part)
            while rest:
                rest = rest[file.write(rest) or 0 :]
            size += len(part)
        return size

    def _make_folder(self, folder: Path) -> None:
        if folder not in self._created:
            self._make_folder(folder.parent)
            folder.mkdir(mode=0o700, exist_ok=True)
            self._created.add(folder)


def _make_locked(parent: Path) -> tuple[Path, int]:
    while True:
        folder = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=parent))
        # Before it is locked, another starting worker may remove it: then create another one.
        with contextlib.suppress(FileNotFoundError):
            descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            if folder.exists():
                return folder, descriptor
            os.close(descriptor)


def _remove_abandoned(parent: Path) -> None:
    """Remove the folders of this user's killed workers, which are not locked."""
    for folder in parent.glob(f"{_PREFIX}*"):
        with contextlib.suppress(OSError):  # of another user, or another worker removes it
            descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if os.fstat(descriptor).st_uid == os.geteuid():
                    shutil.rmtree(folder, ignore_errors=True)
            finally:
                os.close(descriptor)
