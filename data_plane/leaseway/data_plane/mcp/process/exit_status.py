"""How a process ended, in words. Pure."""

from __future__ import annotations

import signal


def describe_status(status: int) -> str:
    """Return how a process ended, as a part of a sentence.

    Args:
        status: Its exit status, or minus the signal that ended it.
    """
    if status >= 0:
        return f"exited with status {status}"
    try:
        name = signal.Signals(-status).name
    except ValueError:
        name = f"signal {-status}"
    return f"was killed by {name}"
