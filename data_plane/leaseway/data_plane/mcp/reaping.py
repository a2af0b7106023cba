"""Waiting for a process that was killed, and for no longer than the loop can stand still."""

from __future__ import annotations

import subprocess
from typing import Final

__all__ = ["reap_killed"]

_AT_ONCE: Final = 0.5
"""Seconds; what was killed is gone in milliseconds, unless it hangs in the kernel."""


def reap_killed(process: subprocess.Popen[bytes]) -> bool:
    """Wait for a process after SIGKILL, for at most 0.5 s; say whether it has ended.

    What has not is reaped by `subprocess` whenever it ends after all.
    """
    try:
        process.wait(_AT_ONCE)
    except subprocess.TimeoutExpired:
        return False
    return True
