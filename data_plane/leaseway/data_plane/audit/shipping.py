"""Ships the audit's files to a sink: in order, each byte once, from disk, so memory stays flat.

The sink's objects say how far a run was shipped. A worker also ships what killed workers left in
its folder; the kernel's lock on their newest file, which `AuditLog` holds, says which still runs.
Files that the sink has acknowledged as a whole are deleted.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import logging
import os
from pathlib import Path
from typing import Final

from leaseway.data_plane.audit.backlog import Backlog, Policy
from leaseway.data_plane.audit.chain import last_mark
from leaseway.data_plane.audit.log import AuditLog, AuditUnavailable, runs_in
from leaseway.data_plane.audit.segments import Position, object_name, runs_of, sealed_part
from leaseway.data_plane.audit.sinks.port import ObjectExists, ObjectTooLarge, Sink, SinkError
from leaseway.wire.audit_heads import NOTHING, Mark
from leaseway.wire.bounds import KIB, MIB
from leaseway.wire.signals import Signal
from leaseway.wire.timing.backoff import RECONNECT

_logger = logging.getLogger(__name__)

_MAX_WRITE: Final = 64 * MIB
_MIN_PART: Final = 4 * KIB
"""Bytes of an object that each sink must take."""
_TAIL: Final = MIB
"""Bytes at the end of a file in which its last hash is looked for first."""
_DELAY: Final = 1.0
"""Seconds for which records are collected, unless calls wait for them."""
_HOLD_TIMEOUT: Final = 10.0
_DELETED_RETRY: Final = 0.2
_RECOVERY_INTERVAL: Final = 30.0


class _OtherContent(SinkError):
    """The sink has an object of this name that the worker has not written."""


class Shipper:
    """Ships the files of a run, and those that killed runs left in its folder.

    Args:
        log: The run.
        sink: Gets the objects.
        backlog: Counts what is not acknowledged.
        delay: Seconds for which records are collected, unless calls wait for them.
        hold_timeout: Seconds that calls wait for the sink.

    Attributes:
        problem: Announces a sentence when the sink fails, and "" when it works again.
        shipped: Bytes that the sink has acknowledged.
        shipped_mark: The last record of the run that the sink has acknowledged.
        recovered: Announces the run of a killed worker that was shipped to its end, and its last
            record.
    """

    def __init__(
        self,
        log: AuditLog,
        sink: Sink,
        backlog: Backlog,
        *,
        delay: float = _DELAY,
        hold_timeout: float = _HOLD_TIMEOUT,
    ) -> None:
        self.problem: Signal[str] = Signal()
        self.shipped = 0
        self.shipped_mark = NOTHING
        self.recovered: Signal[str, Mark] = Signal()
        self._log = log
        self._sink = sink
        self._backlog = backlog
        self._delay = 0.0 if backlog.policy is Policy.BLOCK else delay
        self._hold_timeout = hold_timeout
        self._largest: int | None = None  # bytes of an object, if the sink takes no larger one
        self._at = Position(1, 0)
        self._grown = asyncio.Event()
        self._grown.set()
        self._hurried = asyncio.Event()
        self._moved = asyncio.Condition()
        self._losses = 0
        self._problem = ""
        log.written.connect(self._grown.set)

    @property
    def backlog(self) -> Backlog:
        return self._backlog

    @property
    def holds_calls(self) -> bool:
        """Whether calls wait until the sink has acknowledged that they begin."""
        return self._backlog.policy is Policy.BLOCK

    async def acknowledged(self) -> None:
        """Wait until the sink has acknowledged all records that are written now.

        Raises:
            AuditUnavailable: It did not within the time that calls wait for it.
        """
        position, losses = self._log.position, self._losses
        try:
            async with asyncio.timeout(self._hold_timeout), self._moved:
                while self._at < position:
                    await self._moved.wait()
        except TimeoutError:
            raise AuditUnavailable(
                self._problem
                or f"The audit's sink has not acknowledged a record for {self._hold_timeout:g} s."
            ) from None
        if losses != self._losses:
            raise AuditUnavailable("An audit file was deleted before it was shipped.")

    async def aclose(self) -> None:
        """Close the connections to the sink, after `finish`."""
        await self._sink.aclose()

    async def finish(self) -> None:
        """Wait until `run` has shipped all that is written, without a delay, after the last record.

        The file that was written last is deleted then, as those before it have been.

        Raises:
            AuditUnavailable: The sink has not acknowledged it; the next worker ships the rest.
        """
        self._hurried.set()
        await self.acknowledged()
        await asyncio.to_thread(_remove_last, self._log.path_of(self._at.file))

    async def run(self) -> None:
        """Ship this run, as it grows."""
        while True:
            await self._grown.wait()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._delay):
                    await self._hurried.wait()
            self._grown.clear()
            try:
                await self.ship_all()
            except OSError:  # what was not read is shipped when this runs again
                self._grown.set()
                raise

    async def ship_all(self) -> None:
        """Ship all that is written; retry until the sink has acknowledged it."""
        while self._at < (end := self._log.position):
            path = self._log.path_of(self._at.file)
            size = end.offset if end.file == self._at.file else None
            start = self._at
            try:
                reached = await self._ship_part(path, start, size)
            except FileNotFoundError:
                self._report(f"The audit file {path.name} was deleted before it was shipped.")
                if end.file == start.file:  # the log notices it, and continues in another file
                    await asyncio.sleep(_DELETED_RETRY)
                    continue
                self._losses += 1
                self._backlog.size = self._size_after(start.file, end.file)
                reached = None
            if reached is not None:
                self._backlog.remove(reached - start.offset)
                self._at = Position(start.file, reached)
            else:
                await asyncio.to_thread(path.unlink, missing_ok=True)
                self._at = Position(start.file + 1, 0)
            async with self._moved:
                self._moved.notify_all()

    def _size_after(self, lost: int, newest: int) -> int:
        """Return the bytes of the files that follow a deleted one."""
        paths = [self._log.path_of(number) for number in range(lost + 1, newest + 1)]
        return sum(path.stat().st_size for path in paths if path.exists())

    async def recover(self) -> None:
        """Ship what killed runs left in the folder, now and then again.

        A run that cannot be shipped is reported and tried again with the next round; it does not
        hold up the others.
        """
        while True:
            try:
                runs = await asyncio.to_thread(self._other_runs)
            except OSError as error:
                _logger.warning("The audit's folder cannot be read: %s", error.strerror)
                runs = []
            for run in runs:
                try:
                    await self._recover_run(run)
                except (_OtherContent, OSError) as error:
                    _logger.error("The audit of the run %s cannot be shipped: %s", run, error)
            await asyncio.sleep(_RECOVERY_INTERVAL)

    def _other_runs(self) -> list[str]:
        return [run for run in runs_in(self._log.folder) if run != self._log.run]

    async def _recover_run(self, run: str) -> None:
        paths = (await asyncio.to_thread(runs_in, self._log.folder)).get(run)
        if not paths:
            return
        lock = await asyncio.to_thread(_lock, paths[-1])
        if lock is None:
            return
        try:
            if (await asyncio.to_thread(runs_in, self._log.folder)).get(run) != paths:
                return
            last = await asyncio.to_thread(_last_mark, paths)
            for path in paths:
                await self._recover_file(run, path)
                await asyncio.to_thread(path.unlink, missing_ok=True)
            self.recovered.emit(run, last)
        finally:
            os.close(lock)

    async def _recover_file(self, run: str, path: Path) -> None:
        number = int(path.stem.rpartition(".")[2])
        offset = await self._shipped_of(run, number)
        size = (await asyncio.to_thread(path.stat)).st_size
        if offset > size:  # the file is all that is left of the records: it stays
            raise _OtherContent(
                f"The audit's sink has {offset} bytes of {path.name}, which has {size}: somebody "
                "else wrote them. Find out who did, and move the objects away."
            )
        while offset < size:
            reached = await self._ship_part(path, Position(number, offset), size, run)
            if reached is None:
                return
            offset = reached

    async def _shipped_of(self, run: str, number: int) -> int:
        """Return how many bytes of a file the sink has."""
        attempt = 0
        while True:
            try:
                objects = [stored async for stored in self._sink.objects(f"{run}/")]
                break
            except SinkError as error:
                self._report(str(error))
                await asyncio.sleep(RECONNECT.delay(attempt))
                attempt += 1
        segments = [part for part in runs_of(objects).get(run, []) if part.start.file == number]
        return segments[-1].end if segments else 0

    async def _ship_part(
        self, path: Path, start: Position, size: int | None, run: str = ""
    ) -> int | None:
        """Ship the next part of a file; return where it ends, or None at the file's end.

        Raises:
            FileNotFoundError: Somebody deleted the file.
            _OtherContent: The sink has something else of another run.
        """
        part, is_limited = self._largest or self._sink.part_size, self._largest is not None
        content = await asyncio.to_thread(_read, path, start.offset, size, part, is_limited)
        if not content:
            return None
        name = object_name(run or self._log.run, start)
        attempt = 0
        while True:
            try:
                length = await self._put_part(name, content)
                break
            except SinkError as error:
                if run and isinstance(error, _OtherContent):
                    raise  # only a person can mend it, and other runs wait
                self._report(str(error))
                await asyncio.sleep(RECONNECT.delay(attempt))
                attempt += 1
        self._report("")
        self.shipped += length
        if not run:
            self.shipped_mark = max(self.shipped_mark, last_mark(content[:length]))
        return start.offset + length

    async def _put_part(self, name: str, content: bytes) -> int:
        """Store as much of a part as the sink takes in an object; return how many bytes it has.

        If it takes no whole write, an object has a piece of one, and the next object continues it:
        so no record is too large to be shipped, and none holds up those after it.
        """
        part = content
        while True:
            try:
                await self._sink.put(name, part)
                return len(part)
            except ObjectExists:
                return await self._stored_length(name, content)
            except ObjectTooLarge:
                if len(part) <= _MIN_PART:
                    raise
                limit = self._largest = max(_MIN_PART, len(part) // 2)
                part = sealed_part(part[:limit], limit)

    async def _stored_length(self, name: str, content: bytes) -> int:
        """Return how many bytes of a part an earlier try stored, whose reply was lost.

        It may have stored more than the last one tried to, if the sink's limit is lower since.
        """
        stored = await self._sink.get(name)
        if not stored or not content.startswith(stored):
            raise _OtherContent(
                f"The audit's sink has an object {name} with other content. Nothing is "
                "overwritten: find out who wrote it, and move it away."
            )
        return len(stored)

    def _report(self, sentence: str) -> None:
        if sentence == self._problem:
            return
        self._problem = sentence
        if sentence:
            _logger.error("%s", sentence)
        else:
            _logger.warning("The audit's sink acknowledges records again.")
        self.problem.emit(sentence)


def _read(path: Path, offset: int, size: int | None, part: int, is_limited: bool) -> bytes:
    """Return whole writes of a file, or no more than a limited part; empty at its end."""
    with path.open("rb") as file:
        file.seek(offset)
        limit = _MAX_WRITE if size is None else min(_MAX_WRITE, size - offset)
        content = file.read(min(limit, part))
        if (
            not is_limited
            and len(content) == part < limit
            and sealed_part(content, part) is content
        ):
            content += file.read(limit - part)
        return sealed_part(content, part)  # here, in a thread: it looks at each line


def _last_mark(paths: list[Path]) -> Mark:
    """Return the last record of a run that ends a write."""
    for path in reversed(paths):
        size, length = path.stat().st_size, _TAIL
        while True:
            tail = _tail(path, size, length)
            if (mark := last_mark(tail)).seq:
                return mark
            if length >= size:
                break
            length *= 4
    return NOTHING


def _tail(path: Path, size: int, length: int) -> bytes:
    """Return the whole lines among the last bytes of a file."""
    with path.open("rb") as file:
        if length >= size:
            return file.read(size)
        file.seek(size - length)
        return file.read(length).partition(b"\n")[2]


def _remove_last(path: Path) -> None:
    """Delete the last file of a run that has ended, unless another worker just ships it again."""
    lock = _lock(path)
    if lock is not None:
        path.unlink(missing_ok=True)
        os.close(lock)


def _lock(path: Path) -> int | None:
    """Return a descriptor with the lock of a run's newest file, or None if its worker runs."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(descriptor)
        return None
    return descriptor
