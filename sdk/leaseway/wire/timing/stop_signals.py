"""The signals at which a process ends when its work is done."""

from __future__ import annotations

import signal


def stop_signals() -> tuple[signal.Signals, ...]:
    """Return the signals that ask this process to end in order.

    SIGHUP says that its terminal was closed, unless `nohup` has it ignored. Its default would end
    a plane amid its calls.
    """
    stops = [signal.SIGINT, signal.SIGTERM]
    if hasattr(signal, "SIGHUP") and signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:
        stops.append(signal.SIGHUP)
    return tuple(stops)
