"""Forks: a process that rests hands its clients to its children, any other tells them no.

gRPC does not survive a fork: its threads are gone in the child. Before a fork everything of it is
therefore ended where that costs nobody anything: no call in flight, no lease held. Parent and
child then connect anew at their next use. Otherwise the parent is left alone, and a child that
uses a client gets an error that says why (prefork servers, Celery, `multiprocessing`).
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import threading
import time
import weakref
from pathlib import Path
from typing import Any, Final, Protocol

from leaseway.wire.errors import Fault

_THREADS: Final = Path("/proc/self/task")
_GRPC_THREADS: Final = ("grpc", "event_engine", "lifeguard", "timer_manager", "default-execut")
"""How the names of gRPC's own threads begin (they are cut at 15 characters)."""
_PAUSE: Final = 0.001
_TURNS: Final = 500
"""Pauses that gRPC's threads are given to end: half a second, and longer on a busy machine, where
they get the processor as late as the thread that waits for them."""
_TURNS_UNTIL_COLLECTED: Final = 50
"""Pauses after which the rest of gRPC is looked for among what waits to be collected."""

_REFUSAL: Final = (
    "This process was forked while its parent used gRPC: a leaseway client had a call in flight or "
    "held a lease there, an AsyncClient was open, or other code had channels. gRPC does not "
    "survive that. Close such clients before the fork, or use clients after it only, for example "
    "in gunicorn's post_fork hook or Celery's worker_process_init signal."
)

_locks: Final[weakref.WeakSet[ThreadLock]] = weakref.WeakSet()
_users: Final[weakref.WeakSet[object]] = weakref.WeakSet()
_used = False
"""Whether there have been users since gRPC was last waited for."""
_refusal: str | None = None


class Restful(Protocol):
    """What the synchronous clients of a process share, as forks see it."""

    def rest(self) -> bool:
        """End all of it before a fork; say whether nothing of it runs any more."""

    def after_in_parent(self) -> None:
        """Go on where something waits, after the fork in the parent, or where it failed."""

    def after_in_child(self, refusal: str | None) -> None:
        """Begin anew, after the fork in the child, or refuse everything with these words."""


class ThreadLock:
    """A lock among threads, free in each child: a thread that held it at the fork is not there.

    Attributes:
        current: The lock of this process.
    """

    def __init__(self) -> None:
        self.current = threading.Lock()
        _locks.add(self)

    def after_in_child(self) -> None:
        """Be free; whoever holds it in this very thread goes on with the old one."""
        self.current = threading.Lock()


def check_fork() -> None:
    """Check that gRPC can be used in this process.

    Raises:
        RuntimeError: It was forked from one that used gRPC at that moment.

    """
    if _refusal is not None:
        raise RuntimeError(_refusal)


def refused() -> bool:
    """Say whether this process was forked from one that used gRPC at that moment."""
    return _refusal is not None


def forget_frames(task: asyncio.Task[Any]) -> None:
    """Have a task that has ended keep nothing of gRPC alive, however long somebody keeps the task.

    A fault is told with a trace of its own; what it was raised in would hold the connections.
    """
    # Asked for its result, a task gives away the trace that it keeps.
    with contextlib.suppress(Exception, asyncio.CancelledError):
        task.result()
    error = None if task.cancelled() else task.exception()
    if isinstance(error, Fault):
        error.__traceback__ = error.__context__ = None


def opened(user: object) -> None:
    """Take note of somebody who uses gRPC from now on, until it is closed or collected."""
    global _used
    _used = True
    _users.add(user)


def closed(user: object) -> None:
    """Take note that one of them does not any more."""
    _users.discard(user)


def register(shared: Restful) -> None:
    """Have what the synchronous clients share taken care of at each fork."""
    usable = True

    def before() -> None:
        nonlocal usable
        usable = False  # also where this fails
        usable = shared.rest() and not _users and _grpc_has_ended()

    def after_in_child() -> None:
        global _refusal
        if not usable:
            _refusal = _REFUSAL
        for lock in _locks:
            lock.after_in_child()
        shared.after_in_child(_refusal)

    os.register_at_fork(
        before=before, after_in_parent=shared.after_in_parent, after_in_child=after_in_child
    )


def _grpc_has_ended() -> bool:
    """Wait for gRPC's threads to end where they should by now; say whether they have."""
    global _used
    if not _THREADS.is_dir():
        return not _used  # no more can be known on this system
    turns = _TURNS if _used else 0  # other users of gRPC are waited for but once
    taken = 0
    while (runs := _grpc_runs()) and taken < turns:
        taken += 1
        if taken == _TURNS_UNTIL_COLLECTED:
            gc.collect()  # a channel in a cycle of references keeps all of gRPC
        time.sleep(_PAUSE)
    _used = False
    return not runs


def _grpc_runs() -> bool:
    return any(_name(thread).startswith(_GRPC_THREADS) for thread in _THREADS.iterdir())


def _name(thread: Path) -> str:
    try:
        return (thread / "comm").read_text()
    except OSError:
        return ""  # it has just ended
