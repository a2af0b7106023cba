"""The one event-loop thread behind all synchronous clients of a process.

A call costs no thread: the caller leaves a ticket, wakes the loop at most once for all tickets
left at that moment, and sleeps on a lock of its own until its ticket is done.
"""

from __future__ import annotations

import asyncio
import atexit
import os
import threading
from collections import deque
from collections.abc import Callable, Coroutine
from contextvars import Context, copy_context
from typing import Any, Final, TypeVar

__all__ = ["Background", "background"]

_STOP_BOUND: Final = 2.0

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


class Background:
    """An event loop in a thread of its own, and the way into it."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self._inbox: deque[_Ticket] = deque()
        self._awake = False
        self._ended = False
        self._thread = threading.Thread(target=self._run, name="leaseway", daemon=True)
        self._thread.start()

    def run(self, make: Callable[[], Coroutine[Any, Any, ResultT]]) -> ResultT:
        """Run a coroutine in the loop and return its result.

        An interrupt of the waiting thread (Ctrl-C) cancels the coroutine.

        Raises:
            RuntimeError: The process was forked after the loop had started, or is ending.

        """
        self._check()
        ticket = _Ticket(make)
        try:
            self._inbox.append(ticket)
            # Whoever finds the flag set knows that the loop has yet to empty the inbox.
            if not self._awake:
                self._awake = True
                self.loop.call_soon_threadsafe(self._drain)
            ticket.wait()
        except BaseException:
            # An interrupt may strike between any two of these steps, the wake-up included.
            ticket.abandoned = True
            self.loop.call_soon_threadsafe(self._drain)
            self.loop.call_soon_threadsafe(self._cancel, ticket)
            raise
        if ticket.error is not None:
            raise ticket.error
        return ticket.result  # type: ignore[no-any-return]

    def stop(self) -> None:
        """End the loop and its thread; work under way is cancelled."""
        if not self._ended and not _forked:
            self._ended = True
            self.loop.call_soon_threadsafe(self.loop.stop)
            self._thread.join(_STOP_BOUND)

    def _check(self) -> None:
        if _forked:
            raise RuntimeError(
                "This process was forked after leaseway.sdk.Client had been used, and its "
                "connections do not survive that. Make and use clients after the fork only, for "
                "example in gunicorn's post_fork hook or Celery's worker_process_init signal."
            )
        if self._ended:
            raise RuntimeError("The process is ending; leaseway.sdk.Client cannot be used.")
        if threading.get_ident() == self._thread.ident:
            raise RuntimeError(
                "leaseway.sdk.Client was called from its own event loop, which would wait for "
                "itself; use AsyncClient there."
            )

    def _drain(self) -> None:
        self._awake = False
        inbox = self._inbox
        while inbox:
            ticket = inbox.popleft()
            if ticket.abandoned:
                continue
            try:
                task = self.loop.create_task(ticket.make(), context=ticket.context)
            except Exception as error:
                ticket.fail(error)
                continue
            ticket.task = task
            task.add_done_callback(ticket.finish)

    @staticmethod
    def _cancel(ticket: _Ticket) -> None:
        if ticket.task is not None:
            ticket.task.cancel()

    def _run(self) -> None:
        asyncio.set_event_loop(self.loop)
        try:
            self.loop.run_forever()
        finally:
            tasks = asyncio.all_tasks(self.loop)
            for task in tasks:
                task.cancel()
            self.loop.run_until_complete(asyncio.gather(*tasks, return_exceptions=True))
            self.loop.close()


_lock = threading.Lock()
_instance: Background | None = None
_forked = False


def background() -> Background:
    """Return the process's loop thread, started at the first use."""
    global _instance
    instance = _instance
    if instance is None:
        with _lock:
            if _instance is None:
                _instance = Background()
                atexit.register(_instance.stop)
            instance = _instance
    return instance


def _after_fork_in_child() -> None:
    global _forked, _lock
    _lock = threading.Lock()  # a thread of the parent may have held it
    _forked = _instance is not None


os.register_at_fork(after_in_child=_after_fork_in_child)
