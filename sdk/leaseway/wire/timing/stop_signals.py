"""The signals at which a process ends when its work is done."""

from __future__ import annotations

import asyncio
import signal
import time
from collections.abc import Callable
from typing import Final

_SAME_REQUEST: Final = 1.0
"""Seconds after the first signal in which others repeat it."""


def stop_signals() -> tuple[signal.Signals, ...]:
    """Return the signals that ask this process to end in order.

    SIGHUP says that its terminal was closed, unless `nohup` has it ignored. Its default would end
    a plane amid its calls.
    """
    stops = [signal.SIGINT, signal.SIGTERM]
    if hasattr(signal, "SIGHUP") and signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:
        stops.append(signal.SIGHUP)
    return tuple(stops)


def handle_stop_signals(
    handle: Callable[[str], object], clock: Callable[[], float] = time.monotonic
) -> Callable[[], None]:
    """Call a function at each request to end that signals make, from now on.

    One request may come as several signals: supervisors such as systemd or `timeout` send one to
    the process and to its group or to all processes of a service, and so to a parent that passes it
    on. Signals that follow the first one within a second are therefore no second request.

    Args:
        handle: Called in the running event loop, with the reason in words.
        clock: Returns seconds.

    Returns:
        A function that removes the handlers.
    """
    loop = asyncio.get_running_loop()
    first: float | None = None

    def on_signal(number: signal.Signals) -> None:
        nonlocal first
        now = clock()
        if first is None:
            first = now
        elif now - first < _SAME_REQUEST:
            return
        handle(f"it received {number.name}")

    stops = stop_signals()
    for number in stops:
        loop.add_signal_handler(number, on_signal, number)

    def remove() -> None:
        for number in stops:
            loop.remove_signal_handler(number)

    return remove
