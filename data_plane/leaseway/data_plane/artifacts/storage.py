"""Where artifacts' bytes are: a private folder of one run of a worker, or memory.

Everything here may block and is called from threads. References are the worker's own, so that a
path is never made of what a caller sent.
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
    """Keeps bytes by reference; any thread may call any method."""

    def write(self, ref: str, parts: Iterable[bytes]) -> int:
        """Keep the bytes of a new artifact, all or none of them; return how many there are.

        Raises:
            OSError: There is no room, or the storage is closed.
        """

    def open(self, ref: str) -> BinaryIO:
        """Open an artifact; what is open can be read to its end even if it is removed.

        Raises:
            FileNotFoundError: There is none.
        """

    def remove(self, refs: Iterable[str]) -> None:
        """Remove artifacts; those that are gone already are passed over."""

    def close(self) -> None:
        """Remove everything, once what is being written has been given up."""


class MemoryStorage:
    """Artifacts in memory; the twin of `DirectoryStorage`, for tests."""

    def __init__(self) -> None:
        self.held: dict[str, bytes] = {}

    def write(self, ref: str, parts: Iterable[bytes]) -> int:
        """Keep the bytes of a new artifact."""
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
    """Artifacts as files in a new folder of their own, which only its user may enter.

    The folder is locked for as long as its worker runs. Folders that a killed worker left beside
    it are removed when the next one starts.

    Args:
        base: The folder that it is made in, which is made too where there is none; None means
            the system's folder for temporary files.

    Attributes:
        folder: Where the files are.

    Raises:
        OSError: The folder cannot be made; the text is a sentence.
    """

    def __init__(self, base: Path | None = None) -> None:
        place = base if base is not None else Path(tempfile.gettempdir())
        try:
            place.mkdir(mode=0o700, parents=True, exist_ok=True)
            _sweep(place)
            self.folder, self._lock = _make_locked(place)
        except OSError as error:
            raise OSError(
                f"Artifacts cannot be kept in {place}: {error.strerror or error}. Name a folder "
                "that this user may write, with --artifacts."
            ) from None
        self._known: set[Path] = {self.folder}
        self._state = threading.Condition()
        self._writing = 0
        self._closed = False

    def write(self, ref: str, parts: Iterable[bytes]) -> int:
        """Keep the bytes of a new artifact, in a file that only this user may read."""
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

    def close(self) -> None:
        """Remove the folder, once what is being written has been given up."""
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
            raise OSError("The worker ends and keeps no more artifacts.")

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
        if folder not in self._known:
            self._make_folder(folder.parent)
            folder.mkdir(mode=0o700, exist_ok=True)
            self._known.add(folder)


def _make_locked(place: Path) -> tuple[Path, int]:
    while True:
        folder = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=place))
        # Until it is locked, another worker that starts may sweep it: then there is a next one.
        with contextlib.suppress(FileNotFoundError):
            descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            if folder.exists():
                return folder, descriptor
            os.close(descriptor)


def _sweep(place: Path) -> None:
    """Remove what workers of this user left that were killed: folders that nobody has locked."""
    for folder in place.glob(f"{_PREFIX}*"):
        with contextlib.suppress(OSError):  # another user's, or another worker is at it
            descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if os.fstat(descriptor).st_uid == os.geteuid():
                    shutil.rmtree(folder, ignore_errors=True)
            finally:
                os.close(descriptor)
