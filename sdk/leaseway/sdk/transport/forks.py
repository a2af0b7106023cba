"""Clients in forked processes: they work unless the parent had used a client before the fork.

gRPC does not survive a fork: its threads do not exist in the child, where new channels hang or
crash even if all old ones were closed. So the first use of gRPC marks the process. In children
forked afterwards every client raises an error with advice, and leaves the parent's leases and
connections alone. The parent is not affected. Prefork servers, Celery and `multiprocessing` fork.
"""

from __future__ import annotations

import os
import threading
import warnings
import weakref
from collections.abc import Callable
from typing import Final

from leaseway.wire.grpc_environment import HAS_FORK_HANDLERS

_FORK_ERROR: Final = (
    "This process was forked from one that had used a leaseway client before. gRPC, which carries "
    "the calls, does not survive that, so no client works here. Use clients after the fork only, "
    "for example in gunicorn's post_fork hook or Celery's worker_process_init signal, or start "
    "processes with multiprocessing's 'spawn'. Creating a client before the fork is fine."
)
_CRASH_WARNING: Final = (
    "This process forks after it has used a leaseway client, while gRPC's fork handlers are on, "
    "which start threads in the child that can crash it (SIGSEGV), also if it uses no client. They "
    "are on because grpc was imported before leaseway.sdk, or GRPC_ENABLE_FORK_SUPPORT is set. Set "
    "GRPC_ENABLE_FORK_SUPPORT=0 in the environment of the process."
)

_locks: Final[weakref.WeakSet[ThreadLock]] = weakref.WeakSet()
_used = False
_forked = False
_has_warned = False


class ThreadLock:
    """A lock between threads that is unlocked in each forked child.

    The thread that held it at the fork does not exist in the child, and cannot unlock it. Its
    holder may lock it again: a signal handler runs in the thread that it interrupts.

    Attributes:
        current: The lock of this process.
    """

    def __init__(self) -> None:
        self.current = threading.RLock()
        _locks.add(self)

    def after_in_child(self) -> None:
        """Replace the lock; a `with` block of the forking thread keeps the old one."""
        self.current = threading.RLock()


def mark_grpc_used() -> None:
    """Record that this process uses gRPC; call it before the first use.

    Raises:
        RuntimeError: This process was forked from one that had used gRPC.
    """
    global _used
    check_fork()
    _used = True


def check_fork() -> None:
    """Raise a RuntimeError if this process was forked from one that had used gRPC."""
    if _forked:
        raise RuntimeError(_FORK_ERROR)


def forked_after_use() -> bool:
    """Return whether this process was forked from one that had used gRPC."""
    return _forked


def _warn_before_fork() -> None:
    global _has_warned
    if _used and not _has_warned:
        _has_warned = True
        warnings.warn(_CRASH_WARNING, RuntimeWarning, stacklevel=2)


if HAS_FORK_HANDLERS and hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_warn_before_fork)


def on_fork_in_child(after_in_child: Callable[[], None]) -> None:
    """Call a function in each forked child, after the state of this module is updated."""

    def in_child() -> None:
        global _forked
        _forked = _used
        for lock in _locks:
            lock.after_in_child()
        after_in_child()

    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=in_child)
