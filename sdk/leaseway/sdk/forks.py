"""Forks: a client that was not used before the fork works in the child; any other is refused there.

gRPC does not survive a fork: its threads are gone in the child, where new channels hang or crash
even after all old ones were closed. So the first use of gRPC marks the process. Children that it
forks afterwards get an error from every client that says what to do, and leave what their parent
holds alone (prefork servers, Celery, `multiprocessing`). The parent notices nothing.
"""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Callable
from typing import Final

_REFUSAL: Final = (
    "This process was forked from one that had used a leaseway client before. gRPC, which carries "
    "the calls, does not survive that, so no client works here. Use clients after the fork only, "
    "for example in gunicorn's post_fork hook or Celery's worker_process_init signal, or start "
    "processes with multiprocessing's 'spawn'. To make a client before the fork is fine."
)

_locks: Final[weakref.WeakSet[ThreadLock]] = weakref.WeakSet()
_used = False
_refusal: str | None = None


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


def begin_use() -> None:
    """Note that this process uses gRPC from now on; to be called before it does.

    Raises:
        RuntimeError: It was forked from one that had used it.
    """
    global _used
    check_fork()
    _used = True


def check_fork() -> None:
    """Check that gRPC can be used in this process.

    Raises:
        RuntimeError: It was forked from one that had used it.
    """
    if _refusal is not None:
        raise RuntimeError(_refusal)


def refused() -> bool:
    """Return whether this process was forked from one that had used gRPC."""
    return _refusal is not None


def register(after_in_child: Callable[[], None]) -> None:
    """Call a function in each forked child, once it is known whether clients are refused."""

    def in_child() -> None:
        global _refusal
        if _used:
            _refusal = _REFUSAL
        for lock in _locks:
            lock.after_in_child()
        after_in_child()

    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=in_child)
