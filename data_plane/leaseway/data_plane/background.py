"""Background work of a worker: tasks, a timer, an event, and threads for slow disks."""

from __future__ import annotations

import asyncio
import contextvars
import logging
import math
import threading
from collections import OrderedDict, deque
from collections.abc import Callable, Coroutine, Hashable, Iterable
from functools import partial
from typing import Any, Final, Generic, NamedTuple, TypeVar

from leaseway.wire.daemon_threads import DaemonThreads
from leaseway.wire.timing.running_tasks import keep_running

_logger = logging.getLogger(__name__)

DISK_TIMEOUT: Final = 1.0
"""Seconds to wait for one file; then the remaining files are read."""
MAX_HUNG_THREADS: Final = 64
"""Threads that may hang at once; beyond that, work waits until one of them ends."""

_T = TypeVar("_T")
_K = TypeVar("_K", bound=Hashable)
_V = TypeVar("_V")


class Alarm:
    """A timer that calls a function at the time that was set last.

    Args:
        ring: Called at that time; it may set the alarm again.
    """

    def __init__(self, ring: Callable[[], None]) -> None:
        self._loop = asyncio.get_running_loop()
        self._ring = ring
        self._handle: asyncio.TimerHandle | None = None
        self._context = contextvars.Context()  # of nobody who sets it

    def set(self, at: float) -> None:
        """Ring at a time of the loop's clock, and not at an earlier set time; infinite is never."""
        self.clear()
        if at < math.inf:
            self._handle = self._loop.call_at(at, self._ring_once, context=self._context)

    def hasten(self, at: float) -> None:
        """Ring at a time of the loop's clock, unless an earlier time is set."""
        if self._handle is None or at < self._handle.when():
            self.set(at)

    def _ring_once(self) -> None:
        self._handle = None
        self._ring()

    def clear(self) -> None:
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None


class LightEvent:
    """An `asyncio.Event` of 100 bytes while nobody waits, for what each instance has.

    The event of asyncio keeps a queue for its waiters from the start, of 760 bytes in CPython 3.11.

    Attributes:
        is_set: Whether nobody needs to wait. An attribute, because each call asks.
    """

    __slots__ = ("_waiters", "is_set")

    def __init__(self) -> None:
        self.is_set = False
        self._waiters: list[asyncio.Future[None]] | None = None

    def set(self) -> None:
        """Wake all who wait; who waits from now on does not wait."""
        self.is_set = True
        for waiter in self._waiters or ():
            if not waiter.done():
                waiter.set_result(None)

    def clear(self) -> None:
        """Let those wait who come from now on."""
        self.is_set = False

    async def wait(self) -> None:
        """Wait until it is set; at once if it is."""
        if self.is_set:
            return
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        if self._waiters is None:
            self._waiters = []
        self._waiters.append(waiter)
        try:
            await waiter
        finally:
            self._waiters.remove(waiter)
            self._waiters = self._waiters or None


class Background:
    """Runs tasks in a task group; a failure is logged and ends only its own task.

    Args:
        group: Owns the tasks.
    """

    def __init__(self, group: asyncio.TaskGroup) -> None:
        self._group = group
        self._tasks: set[asyncio.Task[None]] = set()

    def spawn(self, work: Coroutine[Any, Any, None], name: str) -> asyncio.Task[None]:
        """Run a coroutine; the log of a failure contains its name."""
        # In a context of its own, as `start_lasting_task` says: it has no trace of who needs it.
        task = self._group.create_task(
            self._guarded(work, name), name=name, context=contextvars.Context()
        )
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        # A task that is cancelled before its first step never awaits the coroutine.
        task.add_done_callback(lambda _task: work.close())
        return task

    def supervise(
        self, work: Callable[[], Coroutine[Any, Any, None]], name: str
    ) -> asyncio.Task[None]:
        """Run work until it returns; log each failure and restart it with backoff, up to 30 s."""
        return self.spawn(keep_running(work, name), name)

    def cancel_all(self) -> None:
        for task in tuple(self._tasks):
            task.cancel()

    async def _guarded(self, work: Coroutine[Any, Any, None], name: str) -> None:
        try:
            await work
        except Exception:
            _logger.exception(
                "The background work '%s' failed; the rest of the worker continues.", name
            )


async def shielded(task: asyncio.Task[None]) -> None:
    """Wait for a bounded task even if the waiter is cancelled; then raise the cancellation."""
    cancelled = False
    while not task.done():
        try:
            await asyncio.wait([task])
        except asyncio.CancelledError:
            cancelled = True
    if cancelled:
        raise asyncio.CancelledError
    if not task.cancelled():
        task.result()


class FairThreads:
    """Runs work of several parties in a few threads, in which they take turns.

    Whoever brings the most work waits for it; the others do not. Callers must bound the work that
    waits.

    Args:
        max_threads: The limit of threads, which start on demand and end when idle.
    """

    def __init__(self, max_threads: int) -> None:
        self._threads = DaemonThreads(max_threads)
        self._free = max_threads
        self._waiting: OrderedDict[str, deque[_Job]] = OrderedDict()

    async def run(self, party: str, work: Callable[[], _T]) -> _T:
        """Run work in the party's turn; a cancelled wait does not stop work that has started.

        Raises:
            RuntimeError: No thread could be started for it.
        """
        future: asyncio.Future[_T] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(party, deque()).append(_Job(work, future))
        self._start()
        return await future

    def _start(self) -> None:
        while self._free and self._waiting:
            party, jobs = self._waiting.popitem(last=False)
            while jobs and jobs[0].future.done():  # its waiter was cancelled
                jobs.popleft()
            if not jobs:
                continue
            job = jobs.popleft()
            if jobs:
                self._waiting[party] = jobs  # behind all others
            try:
                running = self._threads.submit(job.work)
            except RuntimeError as error:  # there is no thread for it, nor for those of others
                job.future.set_exception(error)
                continue
            self._free -= 1
            running.add_done_callback(partial(self._end, job.future))

    def _end(self, waiter: asyncio.Future[Any], done: asyncio.Future[Any]) -> None:
        self._free += 1
        error = done.exception()
        if not waiter.done():
            if error is not None:
                waiter.set_exception(error)
            else:
                waiter.set_result(done.result())
        self._start()


class _Job(NamedTuple):
    work: Callable[[], Any]
    future: asyncio.Future[Any]


class DiskScanner:
    """Applies a function to many keys, one after the other, in a thread.

    If a key hangs, the others continue in another thread. A hung key is skipped until its thread
    has returned.

    Args:
        timeout: Seconds for one key.
    """

    def __init__(self, timeout: float = DISK_TIMEOUT) -> None:
        self._timeout = timeout
        self._disk = DaemonThreads(MAX_HUNG_THREADS)
        self._hung: set[Hashable] = set()

    async def map(self, work: Callable[[_K], _V], keys: Iterable[_K]) -> dict[_K, _V]:
        """Return the result of each key; keys that hang are missing."""
        results: dict[_K, _V] = {}
        rest = [key for key in keys if key not in self._hung]
        while rest:
            batch = _Batch(work, rest, results)
            await self._wait(batch, self._disk.submit(batch.run))
            rest = rest[batch.position :]
        return results

    async def _wait(self, batch: _Batch[_K, _V], done: asyncio.Future[None]) -> None:
        while not done.done():
            position = batch.position
            try:
                await asyncio.wait([done], timeout=self._timeout)
            except asyncio.CancelledError:
                batch.abandon(batch.position)
                raise
            if not done.done() and batch.abandon(position):
                self._skip_until(done, batch.keys[position])
                return
        done.result()

    def _skip_until(self, done: asyncio.Future[None], key: Hashable) -> None:
        self._hung.add(key)
        done.add_done_callback(lambda _: self._hung.discard(key))


class _Batch(Generic[_K, _V]):
    """The keys that one thread works on; `position` counts those done or abandoned."""

    def __init__(self, work: Callable[[_K], _V], keys: list[_K], results: dict[_K, _V]) -> None:
        self.keys = keys
        self.position = 0
        self._work = work
        self._results = results
        self._abandoned = False
        self._lock = threading.Lock()

    def run(self) -> None:
        """Work, in a thread, on all keys or until the batch is abandoned."""
        for key in self.keys:
            value = self._work(key)
            with self._lock:
                if self._abandoned:
                    return
                self._results[key] = value
                self.position += 1

    def abandon(self, position: int) -> bool:
        """Abandon the batch at a key, unless the thread has finished that key."""
        with self._lock:
            if self.position != position:
                return False
            self._abandoned = True
            self.position += 1
            return True
