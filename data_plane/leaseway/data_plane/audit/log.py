"""The audit of one run of a worker, on its disk: appended, rotated, never rewritten.

Records of calls that change something are handed to the system before the call runs, so that they
outlive the process's SIGKILL; all others follow within 50 ms. Where the disk takes nothing, the
first kind raises, and its call does not run; the second kind waits within a bound, is then counted,
and the count is recorded once the disk takes records again.
"""

from __future__ import annotations

import asyncio
import errno
import functools
import logging
import os
import re
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

import msgspec

from leaseway.data_plane.audit.chain import Chain
from leaseway.wire.bounds import MIB

_logger = logging.getLogger(__name__)

FILE_SIZE: Final = 64 * MIB
"""Bytes after which the next file begins."""
_FLUSH_AFTER: Final = 0.05
_FLUSH_SIZE: Final = 64 * 1024
_MOST_WAITING: Final = 4 * MIB
_RETRY: Final = 1.0
_PLAIN: Final = re.compile(r"[^A-Za-z0-9_.-]")


class AuditUnavailable(Exception):
    """The audit takes no records; the text is a sentence that says why."""


class AuditLog:
    """Appends records to the files of one run.

    Args:
        folder: Where the files are; made where there is none.
        worker_id: Whose they are.
        incarnation: Which run of it.
        now: Seconds since 1970.
        file_size: Bytes after which the next file begins.
        on_written: Given the records that the disk has taken, each without its place in the chain.
        on_problem: Told a sentence when the disk takes nothing, and an empty one once it does.

    Attributes:
        about: What each record says of where it was made.
        lost: Records that were given up since the last one that was written.

    Raises:
        AuditUnavailable: The folder or the first file cannot be made.
    """

    def __init__(
        self,
        folder: Path,
        worker_id: str,
        incarnation: str,
        now: Callable[[], float],
        *,
        file_size: int = FILE_SIZE,
        on_problem: Callable[[str], None] = lambda _sentence: None,
        on_written: Callable[[list[bytes]], None] | None = None,
    ) -> None:
        self.lost = 0
        self.on_problem = on_problem
        self._on_written = on_written
        self._folder = folder
        self._run = f"{_PLAIN.sub('_', worker_id)[:128]}.{incarnation}"
        self.about = {"worker": worker_id, "run": incarnation}
        self._now = now
        self._file_size = file_size
        self._chain = Chain()
        self._number = 0
        self._descriptor = -1
        self._size = 0
        self._waiting: list[bytes] = []
        self._waiting_bytes = 0
        self._timer: asyncio.TimerHandle | None = None
        self._problem = ""
        self._closed = False
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._next_file()
        except OSError as error:
            raise AuditUnavailable(
                f"No audit can be written to {folder}: {error.strerror}."
            ) from None

    def begin(self, bodies: Sequence[bytes]) -> None:
        """Write records before their calls run, all of them or none.

        Args:
            bodies: Each a JSON object on one line.

        Raises:
            AuditUnavailable: They cannot be written.
        """
        self._waiting += bodies
        if not self._flush():
            del self._waiting[-len(bodies) :]
            raise AuditUnavailable(self._problem)

    def add(self, body: bytes) -> None:
        """Write a record soon; it is as for `begin`."""
        if self._waiting_bytes + len(body) > _MOST_WAITING:
            self.lost += 1
            return
        self._waiting.append(body)
        self._waiting_bytes += len(body)
        if self._waiting_bytes >= _FLUSH_SIZE and not self._problem:
            self._flush()
        elif self._timer is None:
            delay = _RETRY if self._problem else _FLUSH_AFTER
            self._timer = asyncio.get_running_loop().call_later(delay, self._on_timer)

    def close(self) -> None:
        """Write what waits, and that this run ends in order."""
        if self._closed:
            return
        self._closed = True
        if self._timer is not None:
            self._timer.cancel()
        self._waiting.append(self._marker("closed"))
        self._flush()
        os.close(self._descriptor)

    def _on_timer(self) -> None:
        self._timer = None
        if not self._flush() and self._waiting and not self._closed:
            self._timer = asyncio.get_running_loop().call_later(_RETRY, self._on_timer)

    def _flush(self) -> bool:
        """Write what waits; False where the disk does not take it, which then waits on."""
        chain = self._chain
        before = chain.seq, chain.last
        bodies = self._waiting
        if not bodies and not self.lost:
            return True
        if self.lost:
            bodies = [self._marker("lost", records=self.lost), *bodies]
        content = chain.seal(bodies)
        try:
            self._write(content)
        except OSError as error:
            chain.seq, chain.last = before
            self._failed(error)
            return False
        self.lost = 0
        self._waiting, self._waiting_bytes = [], 0
        if self._on_written is not None:
            self._on_written(bodies)
        if self._problem:
            self._problem = ""
            _logger.warning("The audit takes records again.")
            self.on_problem("")
        if self._size >= self._file_size and not self._closed:
            try:
                self._next_file()
            except OSError as error:  # the present file goes on
                _logger.warning("No next file of the audit can be made: %s.", error.strerror)
        return True

    def _write(self, content: bytes) -> None:
        """Append, wholly or not at all."""
        try:
            rest = content[os.write(self._descriptor, content) :]
            while rest:
                written = os.write(self._descriptor, rest)
                if not written:
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
                rest = rest[written:]
        except OSError:
            os.ftruncate(self._descriptor, self._size)  # so that no half line stays
            raise
        self._size += len(content)

    def _next_file(self) -> None:
        number = self._number + 1
        path = self._folder / f"{self._run}.{number:06}.jsonl"
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_NOFOLLOW
        descriptor = os.open(path, flags, 0o600)
        chain = Chain(self._chain.seq, self._chain.last)
        first = chain.seal((self._marker("opened", prev=self._chain.last, file=number),))
        before = self._descriptor, self._size
        self._descriptor, self._size = descriptor, 0
        try:
            self._write(first)
        except OSError:
            os.close(descriptor)
            path.unlink(missing_ok=True)
            self._descriptor, self._size = before
            raise
        if before[0] >= 0:
            os.close(before[0])
        self._chain, self._number = chain, number

    def _marker(self, event: str, **more: object) -> bytes:
        return msgspec.json.encode(
            {"time": timestamp(self._now()), "event": event, **self.about, **more}
        )

    def _failed(self, error: OSError) -> None:
        sentence = (
            f"The audit in {self._folder} cannot be written ({error.strerror}), so that calls that "
            "change something are refused. Make room there, or mend the disk."
        )
        if sentence != self._problem:
            self._problem = sentence
            _logger.error("%s", sentence)
            self.on_problem(sentence)


def timestamp(seconds: float) -> str:
    """Return a time as records have it: RFC 3339, UTC, milliseconds."""
    return timestamp_of(int(seconds * 1000))


def timestamp_of(milliseconds: int) -> str:
    return f"{_second(milliseconds // 1000)}.{milliseconds % 1000:03}Z"


@functools.lru_cache(4)
def _second(seconds: int) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%S")


def runs_in(folder: Path) -> dict[str, list[Path]]:
    """Return the files of each run in a folder, in their order.

    Raises:
        OSError: The folder cannot be read.
    """
    runs: dict[str, list[Path]] = {}
    for path in sorted(folder.iterdir()):
        run, dot, number = path.name.removesuffix(".jsonl").rpartition(".")
        if path.suffix == ".jsonl" and dot and number.isdecimal() and run:
            runs.setdefault(run, []).append(path)
    return runs
