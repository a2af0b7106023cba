"""The event-loop thread that all synchronous clients of a process share.

A call needs no separate thread: the caller puts a ticket into the loop's inbox, wakes the loop
unless another caller has just done so, and waits on the ticket's lock until the work is done.
"""

from __future__ import annotations

import asyncio
import atexit
import threading
from collections import deque
from collections.abc import Callable, Coroutine
from contextlib import AbstractAsyncContextManager
from contextvars import Context, ContextVar, copy_context
from functools import partial
from types import TracebackType
from typing import Any, Final, Self, TypeVar

from leaseway.sdk.transport.forks import check_fork, forked_after_use, on_fork_in_child
from leaseway.sdk.transport.green_threads import check_threads, green_library

_JOIN_TIMEOUT: Final = 2.0
_CANCEL_TIMEOUT: Final = 1.0
"""Seconds that an interrupted thread waits for the end of what it has cancelled."""
_LOOK_INTERVAL: Final = 1.0
"""Seconds after which a waiting thread looks what it may have missed."""
_TASK_NAME: Final = "leaseway work"
"""The name of every task that a calling thread waits for."""

ResultT = TypeVar("ResultT")


class _Ticket:
    """A coroutine to run in the loop, and its result or error."""

    __slots__ = ("_done", "abandoned", "context", "error", "has_ended", "make", "result", "task")

    def __init__(self, make: Callable[[], Coroutine[Any, Any, Any]]) -> None:
        self.make = make
        self.context: Context = copy_context()  # includes the caller's trace context
        self.task: asyncio.Task[Any] | None = None
        self.abandoned = False
        self.has_ended = False
        self.result: Any = None
        self.error: BaseException | None = None
        self._done = threading.Lock()
        self._done.acquire()

    def finish(self, task: asyncio.Task[Any]) -> None:
        self.task = None
        if task.cancelled() and self.abandoned:
            self.error = asyncio.CancelledError()
        elif task.cancelled():
            self.error = RuntimeError("The event loop of the synchronous clients has ended.")
        else:
            self.error = task.exception()
            if self.error is None:
                self.result = task.result()
        self._end()

    def fail(self, error: BaseException) -> None:
        self.error = error
        self._end()

    def cancel(self) -> None:
        if self.task is not None:
            self.task.cancel()
        elif not self.has_ended:
            self.fail(asyncio.CancelledError())  # it was never started

    def wait(self, seconds: float) -> bool:
        """Wait for the end; return whether it has come."""
        return self._done.acquire(True, seconds)

    def wait_for_cancellation(self) -> None:
        """Wait until the cancelled work has ended, so that the end of a block comes after it."""
        if not self.has_ended:
            self._done.acquire(timeout=_CANCEL_TIMEOUT)

    def _end(self) -> None:
        self.has_ended = True
        self._done.release()


class _Cancellation:
    """Cancels what a thread waits for, as a task's cancellation does; used in the loop only."""

    def __init__(self) -> None:
        self._waiting: set[_Ticket] = set()
        self._is_due = False

    def cancel(self) -> None:
        """Cancel the work in the loop, or if there is none, the next one."""
        self._is_due = not self._waiting
        for ticket in self._waiting:
            self._cancel(ticket)

    def add(self, ticket: _Ticket, task: asyncio.Task[Any]) -> None:
        """Cancel this work, too, if the cancellation comes before its end."""
        self._waiting.add(ticket)
        task.add_done_callback(partial(self._forget, ticket))
        if self._is_due:
            self._is_due = False
            self._cancel(ticket)

    def _forget(self, ticket: _Ticket, _task: asyncio.Task[Any]) -> None:
        self._waiting.discard(ticket)

    @staticmethod
    def _cancel(ticket: _Ticket) -> None:
        ticket.abandoned = True
        ticket.cancel()


_cancellation: ContextVar[_Cancellation | None] = ContextVar("cancellation", default=None)
"""Of the function that this thread runs for a coroutine."""


async def run_in_thread(function: Callable[..., ResultT], *arguments: object) -> ResultT:
    """Run a function that uses synchronous clients in a thread, as `asyncio.to_thread` does.

    If the caller is cancelled, so is the call for which the thread waits: it would run on, and keep
    the caller's event loop from being closed, until its timeout.
    """
    cancellation = _Cancellation()
    token = _cancellation.set(cancellation)
    try:
        return await asyncio.to_thread(function, *arguments)
    except asyncio.CancelledError:
        if not LOOP_THREAD.schedule(cancellation.cancel):
            cancellation.cancel()  # there is no loop yet, so nothing waits in it
        raise
    finally:
        _cancellation.reset(token)


class LoopThread:
    """An event loop in its own thread, which starts at the first use in each process."""

    def __init__(self) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._thread_id: int | None = None
        self._inbox: deque[_Ticket] = deque()
        self._awake = False
        self._stopped_because: str | None = None
        self._lock = threading.Lock()  # held to start a loop
        self._starting_thread_id: int | None = None
        self._parent_loops: list[asyncio.AbstractEventLoop] = []
        atexit.register(self._stop)

    def run(self, make: Callable[[], Coroutine[Any, Any, ResultT]]) -> ResultT:
        """Run a coroutine in the loop, wait for it, and return its result.

        An interrupt of the waiting thread (Ctrl-C, a time limit of a job) cancels the coroutine.

        Raises:
            RuntimeError: The process was forked from one that had used gRPC, or is exiting, or its
                threads are those of gevent or eventlet, or this is the loop's own thread, or the
                system has refused the loop's thread, or a signal handler calls while the code that
                it interrupted starts that thread.
        """
        check_fork()
        if self._loop is None:
            check_threads()
            if threading.get_ident() == self._starting_thread_id:
                raise RuntimeError(
                    "leaseway.sdk.Client was called by a signal handler (or a __del__) that "
                    "interrupted its first call in this process, and would wait for that; call it "
                    "again after the handler has returned."
                )
        if self._stopped_because is not None:
            raise RuntimeError(self._stopped_because)
        if threading.get_ident() == self._thread_id:
            raise RuntimeError(
                "leaseway.sdk.Client was called in its own event loop, which would wait for "
                "itself; use AsyncClient there."
            )
        ticket = _Ticket(make)
        try:
            self._inbox.append(ticket)
            # If the flag is set, the loop has been woken but has not emptied the inbox yet.
            if not self._awake:
                self._wake()
            self._wait_for(ticket)
        except BaseException:
            # An interrupt may occur between any two of these steps, and during the wake-up.
            ticket.abandoned = True
            if not self.schedule(self._drain):
                self._give_up(RuntimeError("The start of the client's thread was interrupted."))
            if self.schedule(ticket.cancel):
                ticket.wait_for_cancellation()
            raise
        if ticket.error is not None:
            raise ticket.error
        return ticket.result  # type: ignore[no-any-return]

    def run_exit(self, make: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Run the end of a `with` block in the loop.

        No-op in a child forked after the first use, whose connections belong to the parent, and
        where clients refuse to work: an error here would hide the error that ended the block. Also
        at the exit of the process, whose end closes them: `__del__` of objects may close clients.

        The garbage collection ends the blocks of generators that were left, in whichever thread it
        runs. In the loop's own one this does not wait.
        """
        if forked_after_use() or self._stopped_because is not None:
            return
        if threading.get_ident() == self._thread_id:
            self._inbox.append(_Ticket(make))
            self._wake()
        elif self._loop is not None or not green_library():
            self.run(make)

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        """The running loop."""
        assert self._loop is not None
        return self._loop

    def after_in_child(self) -> None:
        """Forget the parent's thread, and the tickets of its other threads."""
        self._lock = threading.Lock()
        self._inbox.clear()
        self._awake = False
        self._thread = self._thread_id = self._starting_thread_id = None
        if self._loop is not None:
            # Not dropped: closing it would remove the parent's file descriptors from the poll set
            # that both processes share.
            self._parent_loops.append(self._loop)
            self._loop = None

    def _wait_for(self, ticket: _Ticket) -> None:
        """Wait for the end of a ticket's work.

        Two things need a look from time to time. What another thread raises in this one, as
        dramatiq does at its time limits, arrives only between two instructions of Python. And the
        thread that wakes the loop may be in a signal handler, just before it does: that handler
        may wait for this ticket.
        """
        while not ticket.wait(_LOOK_INTERVAL):
            if ticket.task is None:
                self.schedule(self._drain)

    def _wake(self) -> None:
        self._awake = True
        if not self.schedule(self._drain):
            self._start()

    def schedule(self, callback: Callable[[], object]) -> bool:
        """Call back in the loop; return whether a loop is open."""
        loop = self._loop
        if loop is None:
            return False
        try:
            loop.call_soon_threadsafe(callback)
        except RuntimeError:
            return False  # it is closed
        return True

    def _start(self) -> None:
        """Start a loop, unless another thread just did, and make it empty the inbox."""
        with self._lock:
            try:
                self._starting_thread_id = threading.get_ident()
                loop = self._open_loop()
            finally:
                self._starting_thread_id = None
            loop.call_soon_threadsafe(self._drain)

    def _open_loop(self) -> asyncio.AbstractEventLoop:
        """Return the running loop, or start one."""
        if self._loop is None or self._loop.is_closed():
            loop = asyncio.new_event_loop()
            thread = threading.Thread(target=self._run, args=(loop,), name="leaseway", daemon=True)
            try:
                thread.start()
            except RuntimeError as error:  # there is no thread now; the next call tries again
                if thread.ident is None:
                    loop.close()
                self._give_up(error)
                raise
            # The loop comes last: an interrupt before leaves none that might not run.
            self._thread, self._thread_id, self._loop = thread, thread.ident, loop
        return self._loop

    def _give_up(self, error: Exception) -> None:
        """Fail the tickets for which no loop was started, so that the next call starts one."""
        self._awake = False
        while self._inbox:
            self._inbox.popleft().fail(error)

    def _stop(self) -> None:
        """Stop the loop and its thread when the process exits; running work is cancelled."""
        self._stopped_because = "The process is exiting; leaseway.sdk.Client cannot be used."
        if self._loop is not None and self._thread is not None and self.schedule(self._loop.stop):
            self._thread.join(_JOIN_TIMEOUT)

    def _drain(self) -> None:
        self._awake = False
        inbox = self._inbox
        while inbox:
            ticket = inbox.popleft()
            if ticket.abandoned:
                continue
            try:
                task = self.loop.create_task(ticket.make(), name=_TASK_NAME, context=ticket.context)
            except Exception as error:  # noqa: BLE001 - the waiting thread gets it
                ticket.fail(error)
                continue
            ticket.task = task
            task.add_done_callback(ticket.finish)
            cancellation = ticket.context.get(_cancellation)
            if cancellation is not None:
                cancellation.add(ticket, task)

    @staticmethod
    def _run(loop: asyncio.AbstractEventLoop) -> None:
        asyncio.set_event_loop(loop)
        try:
            loop.run_forever()
        finally:
            tasks = asyncio.all_tasks(loop)
            for task in tasks:
                task.cancel()
            loop.run_until_complete(asyncio.gather(*tasks, return_exceptions=True))
            loop.close()


LOOP_THREAD: Final = LoopThread()
"""The loop thread of this process."""

on_fork_in_child(LOOP_THREAD.after_in_child)


class BlockingContext:
    """A `with` block that enters and exits its asynchronous twin in the loop thread."""

    _inner: AbstractAsyncContextManager[object, None]

    def __enter__(self) -> Self:
        LOOP_THREAD.run(self._inner.__aenter__)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        LOOP_THREAD.run_exit(partial(self._inner.__aexit__, kind, error, trace))
