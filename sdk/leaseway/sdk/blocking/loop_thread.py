"""The one event-loop thread behind all synchronous clients of a process.

A call costs no thread: the caller leaves a ticket, wakes the loop at most once for all tickets
left at that moment, and sleeps on a lock of its own until its ticket is done.
"""

from __future__ import annotations

import asyncio
import atexit
import threading
from collections import deque
from collections.abc import Callable, Coroutine
from contextlib import AbstractAsyncContextManager
from contextvars import Context, copy_context
from functools import partial
from types import TracebackType
from typing import Any, Final, Self, TypeVar

from leaseway.sdk.forks import check_fork, refused, register

_STOP_BOUND: Final = 2.0
_WORK: Final = "leaseway work"
"""The name of every task that somebody waits for."""

ResultT = TypeVar("ResultT")


class _Ticket:
    """One piece of work for the loop, and what came of it."""

    __slots__ = ("_done", "abandoned", "context", "error", "make", "result", "task")

    def __init__(self, make: Callable[[], Coroutine[Any, Any, Any]]) -> None:
        self.make = make
        self.context: Context = copy_context()  # the caller's trace context goes along
        self.task: asyncio.Task[Any] | None = None
        self.abandoned = False
        self.result: Any = None
        self.error: BaseException | None = None
        self._done = threading.Lock()
        self._done.acquire()

    def finish(self, task: asyncio.Task[Any]) -> None:
        self.task = None
        if task.cancelled():
            self.error = RuntimeError("The event loop behind the synchronous clients has ended.")
        else:
            self.error = task.exception()
            if self.error is None:
                self.result = task.result()
        self._done.release()

    def fail(self, error: BaseException) -> None:
        self.error = error
        self._done.release()

    def wait(self) -> None:
        self._done.acquire()


class LoopThread:
    """An event loop in a thread of its own, and the way into it.

    The thread begins at the first use, in a forked child at the first use there.
    """

    def __init__(self) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._thread_id: int | None = None
        self._inbox: deque[_Ticket] = deque()
        self._awake = False
        self._ending: str | None = None
        self._lock = threading.Lock()  # held to begin a loop
        self._parents: list[asyncio.AbstractEventLoop] = []
        atexit.register(self._stop)

    def run(self, make: Callable[[], Coroutine[Any, Any, ResultT]]) -> ResultT:
        """Run a coroutine in the loop and return its result.

        An interrupt of the waiting thread (Ctrl-C) cancels the coroutine.

        Raises:
            RuntimeError: The process was forked from one that had used gRPC, or is ending.
        """
        check_fork()
        if self._ending is not None:
            raise RuntimeError(self._ending)
        if threading.get_ident() == self._thread_id:
            raise RuntimeError(
                "leaseway.sdk.Client was called from its own event loop, which would wait for "
                "itself; use AsyncClient there."
            )
        ticket = _Ticket(make)
        try:
            self._inbox.append(ticket)
            # Whoever finds the flag set knows that the loop has yet to empty the inbox.
            if not self._awake:
                self._wake()
            ticket.wait()
        except BaseException:
            # An interrupt may strike between any two of these steps, the wake-up included.
            ticket.abandoned = True
            self._tell(self._drain)
            self._tell(partial(self._cancel, ticket))
            raise
        if ticket.error is not None:
            raise ticket.error
        return ticket.result  # type: ignore[no-any-return]

    def leave(self, make: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Run the end of a `with` block in the loop.

        In a child that is refused there is nothing to end, what was open is its parent's; and an
        error that leaves the block there is not to be hidden by another one.
        """
        if not refused():
            self.run(make)

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        """The loop that work under way runs in."""
        assert self._loop is not None
        return self._loop

    def after_in_child(self) -> None:
        """Forget the parent's thread and what its other threads waited for."""
        self._lock = threading.Lock()
        self._inbox.clear()
        self._awake = False
        self._thread = self._thread_id = None
        if self._loop is not None:
            # Kept, as its end would take the parent's wake-ups out of what both processes poll.
            self._parents.append(self._loop)
            self._loop = None

    def _wake(self) -> None:
        self._awake = True
        if not self._tell(self._drain):
            self._begin()

    def _tell(self, callback: Callable[[], object]) -> bool:
        """Call something in the loop; return whether there is a loop."""
        loop = self._loop
        if loop is None:
            return False
        try:
            loop.call_soon_threadsafe(callback)
        except RuntimeError:
            return False  # it is closed
        return True

    def _begin(self) -> None:
        """Start a loop, unless another thread was faster, and have it empty the inbox."""
        with self._lock:
            if self._loop is None or self._loop.is_closed():
                self._loop = asyncio.new_event_loop()
                self._thread = threading.Thread(
                    target=self._run, args=(self._loop,), name="leaseway", daemon=True
                )
                self._thread.start()
                self._thread_id = self._thread.ident
            self._loop.call_soon_threadsafe(self._drain)

    def _stop(self) -> None:
        """End the loop and its thread, since the process ends; work under way is cancelled."""
        self._ending = "The process is ending; leaseway.sdk.Client cannot be used."
        if self._loop is not None and self._thread is not None and self._tell(self._loop.stop):
            self._thread.join(_STOP_BOUND)

    def _drain(self) -> None:
        self._awake = False
        inbox = self._inbox
        while inbox:
            ticket = inbox.popleft()
            if ticket.abandoned:
                continue
            try:
                task = self.loop.create_task(ticket.make(), name=_WORK, context=ticket.context)
            except Exception as error:
                ticket.fail(error)
                continue
            ticket.task = task
            task.add_done_callback(ticket.finish)

    @staticmethod
    def _cancel(ticket: _Ticket) -> None:
        if ticket.task is not None:
            ticket.task.cancel()

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


_shared: Final = LoopThread()
register(_shared.after_in_child)


def background() -> LoopThread:
    """Return the process's loop thread, which starts at the first use."""
    return _shared


class Blocking:
    """A `with` block whose asynchronous twin is entered and left on the one loop."""

    _inner: AbstractAsyncContextManager[object, None]

    def __enter__(self) -> Self:
        background().run(self._inner.__aenter__)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        background().leave(lambda: self._inner.__aexit__(kind, error, trace))
