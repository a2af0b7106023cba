"""The audit files of one run of a worker: appended and rotated, never rewritten.

Records of calls that change something are written before the call runs, so that they survive a
SIGKILL of the process; all others are written within 50 ms. If the disk is full, the first kind
raises and its call does not run; the second kind is buffered up to a limit, then dropped and
counted, and the count is recorded later.
"""

from __future__ import annotations

import asyncio
import errno
import fcntl
import logging
import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

import msgspec

from leaseway.data_plane.audit.backlog import Backlog
from leaseway.data_plane.audit.chain import HashChain, file_name
from leaseway.data_plane.audit.segments import Position
from leaseway.wire.audit_heads import Mark
from leaseway.wire.bounds import KIB, MIB
from leaseway.wire.signals import Signal

_logger = logging.getLogger(__name__)

FILE_SIZE: Final = 64 * MIB
"""Bytes after which a file is rotated."""
_FLUSH_DELAY: Final = 0.05
_FLUSH_SIZE: Final = 64 * 1024
_MAX_BUFFERED: Final = 4 * MIB
_SEALED_SIZE: Final = 256 * KIB
"""Bytes of records after which a write gets one more hash."""
_RETRY: Final = 1.0
_CHECK_INTERVAL: Final = 1.0


class AuditUnavailable(Exception):
    """The audit cannot be written; the text is a sentence with the reason."""


class AuditLog:
    """Appends records to the files of one run.

    Args:
        folder: The folder for the files; created if missing.
        worker_id: The worker.
        incarnation: The worker's run.
        now: Returns Unix time in seconds.
        file_size: Bytes after which a file is rotated.
        check_interval: Seconds between checks that the file is still where it was created.
        on_written: Called with written records, without their members of the hash chain.
        backlog: Counts what a sink has not acknowledged; None if there is no sink.

    Attributes:
        folder: As given.
        run: The name of the run, with which the names of its files begin.
        written: Announces that the files have grown.
        worker: Members of each record that identify the worker and its run.
        problem: Announces a sentence when writing fails, and "" when it works again.
        lost: Records that were dropped since the last write.

    Raises:
        AuditUnavailable: The folder or the first file cannot be created.
    """

    def __init__(
        self,
        folder: Path,
        worker_id: str,
        incarnation: str,
        now: Callable[[], float],
        *,
        file_size: int = FILE_SIZE,
        check_interval: float = _CHECK_INTERVAL,
        on_written: Callable[[list[bytes]], None] | None = None,
        backlog: Backlog | None = None,
    ) -> None:
        self.lost = 0
        self.problem: Signal[str] = Signal()
        self.written: Signal[()] = Signal()
        self.folder = folder
        self.run = file_name(worker_id, incarnation, 1).removesuffix(".000001.jsonl")
        self._on_written = on_written
        self._backlog = backlog
        self._folder = folder
        self._path = folder
        self._check_interval = check_interval
        self._checked = 0.0
        self.worker = {"worker": worker_id, "run": incarnation}
        self._now = now
        self._file_size = file_size
        self._chain = HashChain()
        self._number = 0
        self._descriptor = -1
        self._size = 0
        self._buffer: list[bytes] = []
        self._room = 0  # bytes that may be added before there is something to decide
        self._full_at = 0  # bytes of the buffer when there is no room
        self._timer: asyncio.TimerHandle | None = None
        self._problem = ""
        self._closed = False
        try:
            self._next_file()
        except OSError as error:
            raise AuditUnavailable(
                f"No audit can be written to {folder}: {error.strerror}."
            ) from None

    @property
    def position(self) -> Position:
        """The end of what is written."""
        return Position(self._number, self._size)

    @property
    def mark(self) -> Mark:
        """The last record that is written."""
        return Mark(self._chain.seq, self._chain.last)

    @property
    def is_closed(self) -> bool:
        """Whether the record that closes this run is written."""
        return self._closed

    def path_of(self, number: int) -> Path:
        """Return the path of one of the run's files."""
        return self._folder / file_name(self.worker["worker"], self.worker["run"], number)

    def write(self, bodies: Sequence[bytes]) -> None:
        """Write records at once, all of them or none.

        Args:
            bodies: The members of JSON objects, without braces, each on one line.

        Raises:
            AuditUnavailable: They cannot be written.
        """
        if self._backlog is not None and self._backlog.is_full:
            if not self._backlog.drops:
                raise AuditUnavailable(
                    "The audit's sink acknowledges no records, and the worker's files have reached "
                    "their limit, so that calls that change something are refused."
                )
            self.lost += len(bodies)
            return
        if self._closed:
            raise AuditUnavailable("The worker has ended, and records no more calls.")
        self._buffer += bodies
        if not self._flush():
            del self._buffer[-len(bodies) :]
            raise AuditUnavailable(self._problem)

    def add(self, body: bytes) -> None:
        """Write a record within a moment.

        Args:
            body: The members of a JSON object, without braces, on one line.
        """
        room = self._room - len(body)
        if room > 0:  # what most records do
            self._buffer.append(body)
            self._room = room
        elif not self._closed:
            self._decide(body)

    def _decide(self, body: bytes) -> None:
        """Buffer or drop a record for which there is no room, and see to it that it is written."""
        size = self._buffered + len(body)
        if size > _MAX_BUFFERED or self._is_blocked():
            self.lost += 1
            return
        self._buffer.append(body)
        self._make_room(size)
        if size >= _FLUSH_SIZE and not self._problem:
            self._flush()
        elif self._timer is None:
            delay = _RETRY if self._problem else _FLUSH_DELAY
            self._timer = asyncio.get_running_loop().call_later(delay, self._on_timer)
            self._make_room(size)

    def _make_room(self, size: int) -> None:
        """Let records be added until a write is due, if one is scheduled and can be expected.

        Args:
            size: The bytes that are buffered.
        """
        is_regular = self._timer is not None and not self._problem and not self._is_blocked()
        self._full_at = max(size, _FLUSH_SIZE) if is_regular else size
        self._room = self._full_at - size

    @property
    def _buffered(self) -> int:
        """The bytes that were added and are not written."""
        return self._full_at - self._room

    def _is_blocked(self) -> bool:
        """Return whether the files have reached their limit."""
        return self._backlog is not None and self._backlog.is_full

    def flush(self) -> None:
        """Write now what was added.

        Raises:
            AuditUnavailable: It cannot be written, or some of it was dropped.
        """
        if self.lost:
            raise AuditUnavailable("Records of the audit are lost: its files have no space.")
        if not self._flush():
            raise AuditUnavailable(self._problem)

    def close(self) -> None:
        """Write buffered records and the record that closes this run."""
        if self._closed:
            return
        self._closed = True
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._make_room(self._buffered)
        self._buffer.append(self._marker("closed"))
        self._flush()
        os.close(self._descriptor)

    def _on_timer(self) -> None:
        self._timer = None
        self._make_room(self._buffered)
        if not self._flush() and self._buffer and not self._closed:
            self._timer = asyncio.get_running_loop().call_later(_RETRY, self._on_timer)

    def _flush(self) -> bool:
        """Write the buffer; return False and keep it if writing fails."""
        bodies = self._buffer
        if not bodies and not self.lost:
            return True
        if not self._is_in_place():
            return False
        chain = self._chain
        before = chain.seq, chain.last
        if self.lost:
            bodies = [self._marker("lost", records=self.lost), *bodies]
        content = b"".join(chain.seal(group) for group in _groups(bodies))
        try:
            self._append(content)
        except OSError as error:
            chain.seq, chain.last = before
            self._report(error)
            return False
        self.lost = 0
        self._buffer = []
        if self._on_written is not None:
            self._on_written([b"{%b}" % body for body in bodies])
        self.written.emit()
        was_problem, self._problem = self._problem, ""
        self._make_room(0)
        if was_problem:
            _logger.warning("The audit is written again.")
            self.problem.emit("")
        if self._size >= self._file_size and not self._closed:
            try:
                self._next_file()
            except OSError as error:  # continue with the current file
                _logger.warning("The audit file cannot be rotated: %s.", error.strerror)
        return True

    def _is_in_place(self) -> bool:
        """Continue in a new file if the current one was deleted or moved; False if that fails.

        Otherwise records would go to a file that nobody finds, while calls go on.
        """
        now = time.monotonic()
        if now - self._checked < self._check_interval:
            return True
        self._checked = now
        try:
            found, held = self._path.stat(), os.fstat(self._descriptor)
            is_in_place = (found.st_dev, found.st_ino) == (held.st_dev, held.st_ino)
        except FileNotFoundError:
            is_in_place = False
        except OSError as error:
            self._checked = 0.0
            self._report(error)
            return False
        if is_in_place:
            return True
        try:
            self._next_file()
        except OSError as error:
            self._checked = 0.0
            self._report(error)
            return False
        self._report_sentence(
            f"The newest audit file in {self._folder} was deleted or moved while it was written. "
            "Records continue in a new file there; those of the last second may be lost. Archive "
            "only files that are no longer written, or stop the worker first."
        )
        return True

    def _append(self, content: bytes) -> None:
        """Append to the file, completely or not at all."""
        try:
            rest = content[os.write(self._descriptor, content) :]
            while rest:
                written = os.write(self._descriptor, rest)
                if not written:
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
                rest = rest[written:]
        except OSError:
            os.ftruncate(self._descriptor, self._size)  # remove a partial line
            raise
        self._size += len(content)
        if self._backlog is not None:
            self._backlog.add(len(content))

    def _next_file(self) -> None:
        number = self._number + 1
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        path = self.path_of(number)
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_NOFOLLOW
        descriptor = os.open(path, flags, 0o600)
        _lock(descriptor)
        chain = HashChain(self._chain.seq, self._chain.last)
        first = chain.seal((self._marker("opened", prev=self._chain.last, file=number),))
        before = self._descriptor, self._size
        self._descriptor, self._size = descriptor, 0
        try:
            self._append(first)
        except OSError:
            os.close(descriptor)
            path.unlink(missing_ok=True)
            self._descriptor, self._size = before
            raise
        if before[0] >= 0:
            os.close(before[0])
        self._chain, self._number, self._path = chain, number, path

    def _marker(self, event: str, **more: object) -> bytes:
        members = {"time": timestamp(self._now()), "event": event, **self.worker, **more}
        return msgspec.json.encode(members)[1:-1]

    def _report(self, error: OSError) -> None:
        sentence = (
            f"The audit in {self._folder} cannot be written ({error.strerror}), so that calls that "
            "change something are refused. Free disk space there, or repair the disk."
        )
        self._report_sentence(sentence)

    def _report_sentence(self, sentence: str) -> None:
        if sentence != self._problem:
            self._problem = sentence
            self._make_room(self._buffered)
            _logger.error("%s", sentence)
            self.problem.emit(sentence)


def _groups(bodies: Sequence[bytes]) -> Iterator[Sequence[bytes]]:
    """Yield the records of one write in groups that share a hash.

    A sink stores whole groups, and the messages of some have a limit.
    """
    start = size = 0
    if sum(map(len, bodies)) < _SEALED_SIZE:  # nearly always
        yield bodies
        return
    for place, body in enumerate(bodies):
        size += len(body)
        if size >= _SEALED_SIZE:
            yield bodies[start : place + 1]
            start, size = place + 1, 0
    if start < len(bodies):
        yield bodies[start:]


def _lock(descriptor: int) -> None:
    """Show to shippers of other workers that this run goes on; the kernel ends it with us."""
    with suppress(OSError):  # a file system without locks: then nobody else ships this run
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)


def timestamp(seconds: float) -> str:
    """Return Unix time in the format of records: RFC 3339, UTC, milliseconds."""
    milliseconds = int(seconds * 1000)
    return f"{second_of(milliseconds // 1000)}.{milliseconds % 1000:03}Z"


def second_of(seconds: int) -> str:
    """Return the second of Unix time in which a record is written, in the format of records."""
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%S")


def runs_in(folder: Path) -> dict[str, list[Path]]:
    """Return the files in a folder by run, in the order in which they were written.

    Raises:
        OSError: The folder cannot be read.
    """
    runs: dict[str, list[Path]] = {}
    for path in sorted(folder.iterdir()):
        run, dot, number = path.name.removesuffix(".jsonl").rpartition(".")
        if path.suffix == ".jsonl" and dot and number.isdecimal() and run:
            runs.setdefault(run, []).append(path)
    return runs
