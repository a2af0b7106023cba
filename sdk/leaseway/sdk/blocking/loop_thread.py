"""The one event-loop thread behind all synchronous clients of a process.

A call costs no thread: the caller leaves a ticket, wakes the loop at most once for all tickets
left at that moment, and sleeps on a lock of its own until its ticket is done. The loop and all
connections are ended before a fork where nothing is under way; see `forks`.
"""

from __future__ import annotations

import asyncio
import atexit
import threading
import weakref
from collections import deque
from collections.abc import Callable, Coroutine
from contextlib import AbstractAsyncContextManager
from contextvars import Context, copy_context
from functools import partial
from types import TracebackType
from typing import Any, Final, Protocol, Self, TypeVar

from leaseway.sdk.forks import refused, register

_STOP_BOUND: Final = 2.0
_REST_BOUND: Final = 10.0
"""Seconds that a fork waits for the clients to disconnect, and then for their thread to end.

They take some milliseconds; a machine may give this process the processor seconds later.
"""
_WORK: Final = "leaseway work"
"""The name of every task that somebody waits for."""
_BUSY: Final = (_WORK, "call ", "follow ")
"""How the names of tasks begin that a fork would harm: streams and subscriptions too."""

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


class Connected(Protocol):
    """A client, as far as forks concern it; lives in the loop."""

    @property
    def _busy(self) -> bool:
        """Whether something is under way, or held."""

    async def _disconnect(self) -> None:
        """End all connections; the next use makes new ones."""


class Background:
    """An event loop in a thread of its own, and the way into it.

    The thread begins at the first use, and again at the next one after a fork has ended it.
    """

    def __init__(self) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._thread_id: int | None = None
        self._inbox: deque[_Ticket] = deque()
        self._awake = False
        self._forking = False
        self._resting = False
        self._refusal: str | None = None
        self._lock = threading.Lock()  # held to begin a loop, and during a fork
        self._clients: weakref.WeakSet[Connected] = weakref.WeakSet()
        atexit.register(self._stop)

    def run(self, make: Callable[[], Coroutine[Any, Any, ResultT]]) -> ResultT:
        """Run a coroutine in the loop and return its result.

        An interrupt of the waiting thread (Ctrl-C) cancels the coroutine.

        Raises:
            RuntimeError: The process was forked from one that used gRPC, or is ending.

        """
        if self._refusal is not None:
            raise RuntimeError(self._refusal)
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

    def serve(self, client: Connected) -> None:
        """Have a client disconnected before a fork; to be called before it is used."""
        with self._lock:
            self._clients.add(client)

    def rest(self) -> bool:
        """End the loop before a fork, see `forks.Restful`; no other begins until it is over."""
        self._forking = self._lock.acquire(timeout=_REST_BOUND)
        if not self._forking:
            return False
        loop, thread = self._loop, self._thread
        if loop is None or thread is None or loop.is_closed():
            return True
        if threading.get_ident() == self._thread_id:
            return False
        ended = asyncio.run_coroutine_threadsafe(self._disconnect(), loop)
        try:
            if not ended.result(_REST_BOUND):
                return False
        except TimeoutError:
            ended.cancel()
            return False
        loop.call_soon_threadsafe(loop.stop)
        thread.join(_REST_BOUND)
        self._thread_id = None  # another thread may get it
        return loop.is_closed()

    def after_in_parent(self) -> None:
        """Take care of what came while the loop rested."""
        if self._forking:
            self._forking = False
            self._lock.release()
        if self._resting:
            self._awake = False  # a wake-up of the old loop may have come too late
            if self._inbox:
                self._wake()

    def after_in_child(self, refusal: str | None) -> None:
        """Forget what threads of the parent waited for; refuse everything from now on, or not."""
        self._lock = threading.Lock()
        self._forking = False
        self._inbox.clear()
        self._awake = False
        self._thread_id = None
        self._refusal = self._refusal or refusal

    async def _disconnect(self) -> bool:
        """Disconnect all clients, unless something is under way; say whether that was done."""
        busy = any(task.get_name().startswith(_BUSY) for task in asyncio.all_tasks())
        clients = list(self._clients)
        if busy or self._inbox or any(client._busy for client in clients):
            return False
        self._resting = True  # what comes from now on waits in the inbox
        done = False
        try:
            await asyncio.gather(*(client._disconnect() for client in clients))
            done = True
        finally:
            if not done:
                self._resting = False
                self._drain()
        return done

    def _wake(self) -> None:
        self._awake = True
        if not self._tell(self._drain):
            self._begin()

    def _tell(self, callback: Callable[[], object]) -> bool:
        """Have the loop call something; say whether there is a loop."""
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
                self._resting = False
                self._thread = threading.Thread(
                    target=self._run, args=(self._loop,), name="leaseway", daemon=True
                )
                self._thread.start()
                self._thread_id = self._thread.ident
            self._loop.call_soon_threadsafe(self._drain)

    def _stop(self) -> None:
        """End the loop and its thread, since the process ends; work under way is cancelled."""
        if self._refusal is None:
            self._refusal = "The process is ending; leaseway.sdk.Client cannot be used."
            if self._loop is not None and self._thread is not None and self._tell(self._loop.stop):
                self._thread.join(_STOP_BOUND)

    def _drain(self) -> None:
        self._awake = False
        if self._resting:
            return
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


_shared: Final = Background()
register(_shared)


def background() -> Background:
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
