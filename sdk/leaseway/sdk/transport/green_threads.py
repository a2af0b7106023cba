"""Clients in processes whose threads or sockets gevent or eventlet has replaced: they refuse.

The calls are carried by gRPC in an event loop of its own thread. Replaced locks, threads and
sockets run on the caller's thread, which waits for that loop: the first call would hang for ever,
and no timeout would end it.
"""

from __future__ import annotations

import sys
from typing import Final

_MODULES: Final = ("threading", "_thread", "socket", "select")
_EVENTLET_NAMES: Final = ("thread", "socket", "select")


def green_library() -> str:
    """Return the library that has replaced threads or sockets of this process, or "" for none."""
    gevent = sys.modules.get("gevent.monkey")
    if gevent is not None and any(map(gevent.is_module_patched, _MODULES)):
        return "gevent"
    eventlet = sys.modules.get("eventlet.patcher")
    if eventlet is not None and any(map(eventlet.is_monkey_patched, _EVENTLET_NAMES)):
        return "eventlet"
    return ""


def check_threads() -> None:
    """Raise a RuntimeError if gevent or eventlet has replaced threads or sockets."""
    library = green_library()
    if library:
        raise RuntimeError(
            f"{library} has replaced the threads and sockets of this process (monkey patching), and"
            " leaseway clients, whose calls gRPC carries in a thread of its own, would hang here."
            " Use clients in processes without it: with gunicorn the worker class gthread or sync"
            " instead of gevent or eventlet, with Celery the pool prefork or threads (-P threads)."
            " Where that is not possible, call the tools over HTTP through `leaseway mcp-front`."
        )
