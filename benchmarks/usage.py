"""CPU time and memory of processes, from `/proc`."""

from __future__ import annotations

import os
import resource
from collections.abc import Iterable
from pathlib import Path

__all__ = ["children", "cpu_of", "descendants", "own_cpu", "rss_of"]

_TICKS = os.sysconf("SC_CLK_TCK")
_PAGE = os.sysconf("SC_PAGE_SIZE")


def own_cpu() -> float:
    """Return the CPU seconds of this process with its threads."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def cpu_of(pids: Iterable[int]) -> float:
    """Return the CPU seconds of processes; exited ones count as zero."""
    return sum(_stat(pid, 11) + _stat(pid, 12) for pid in pids) / _TICKS


def rss_of(pids: Iterable[int]) -> float:
    """Return the resident memory of processes in MiB."""
    return sum(_stat(pid, 21) for pid in pids) * _PAGE / 2**20


def children(pid: int) -> dict[int, str]:
    """Return the command lines of a process's children by process id."""
    found = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and _stat(int(entry.name), 1) == pid:
            try:
                line = (entry / "cmdline").read_bytes()
            except OSError:
                continue
            found[int(entry.name)] = line.replace(b"\0", b" ").decode(errors="replace").strip()
    return found


def descendants(pid: int, without: str) -> list[int]:
    """Return a process and its descendants, except those whose command line contains `without`."""
    found = [pid]
    for child, line in children(pid).items():
        if without not in line:
            found += descendants(child, without)
    return found


def _stat(pid: int, field: int) -> int:
    """Return a field of `/proc/PID/stat` by its index after the name."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return 0
    return int(text.rpartition(")")[2].split()[field])
