"""Keeps the cores from sleeping while something is measured.

A core with nothing to do is halted, and in a virtual machine handed back to the host: waking it
for the next message then takes longer than handling the message, by an amount that changes with
what the host's other guests do. Rows that hand a call from process to process pay that several
times a call, rows of one process hardly at all. So each core is given something to do that gives
way to everything else at once (Linux's idle scheduling class), for every row alike, as measuring
machines are usually set up by `idle=poll`.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator

__all__ = ["can_keep_awake", "cores_awake"]

_SPIN = "import os\nos.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))\nwhile True: pass"


def can_keep_awake() -> bool:
    """Say whether this system has a scheduling class for what gives way to everything else."""
    return hasattr(os, "SCHED_IDLE")


@contextlib.contextmanager
def cores_awake(wanted: bool) -> Iterator[None]:
    """Keep every core busy in between, where that is wanted and this system can."""
    count = os.cpu_count() or 1 if wanted and can_keep_awake() else 0
    spinners = [subprocess.Popen((sys.executable, "-S", "-c", _SPIN)) for _ in range(count)]
    try:
        yield
    finally:
        for spinner in spinners:
            spinner.kill()
        for spinner in spinners:
            spinner.wait()
