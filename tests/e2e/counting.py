"""What a process holds, seen from outside: by SIGUSR1 and by /proc (Linux)."""

from __future__ import annotations

import re
import signal
from dataclasses import dataclass
from pathlib import Path

from tests.conftest import BOUND, descendants
from tests.e2e.system import Part, eventually

MORE_THREADS = 8
"""Threads by which a pool may grow when more is asked of it at once than before; they stay."""


@dataclass(frozen=True)
class Counts:
    """What a process holds.

    Attributes:
        facts: What it says of itself: tasks, leases, calls and so on.
        threads: Threads of the operating system.
        descriptors: Open files, sockets and pipes.
        processes: Processes below it, by their command lines.
    """

    facts: dict[str, int]
    threads: int
    descriptors: int
    processes: tuple[str, ...]

    def beyond(self, before: Counts) -> list[str]:
        """Return what is held now and was not before."""
        found = [
            f"{name} {before.facts[name]} -> {count}"
            for name, count in self.facts.items()
            if count > before.facts[name] + (MORE_THREADS if name == "threads" else 0)
        ]
        if self.threads > before.threads + 2 * MORE_THREADS:
            found.append(f"threads {before.threads} -> {self.threads}")
        if self.descriptors > before.descriptors:
            found.append(f"descriptors {before.descriptors} -> {self.descriptors}")
        if len(self.processes) > len(before.processes):
            found.append(f"processes {self.processes}")
        return found


async def counts(part: Part) -> Counts:
    """Ask a process what it holds, and look."""
    said = _last_census(part)
    part.process.send_signal(signal.SIGUSR1)
    await eventually(lambda: _last_census(part) is not said)
    line = _last_census(part) or ""
    pid = part.process.pid
    return Counts(
        {name: int(count) for name, count in re.findall(r"(\w+)=(\d+)", line.split("Now:")[1])},
        len(list(Path(f"/proc/{pid}/task").iterdir())),
        len(list(Path(f"/proc/{pid}/fd").iterdir())),
        tuple(descendants(pid).values()),
    )


async def settled(part: Part, before: Counts, *, within: float = BOUND) -> Counts:
    """Wait until a process holds nothing beyond what it held before; fail by what it holds."""
    last = before

    async def same() -> bool:
        nonlocal last
        last = await counts(part)
        return not last.beyond(before)

    try:
        await eventually(same, within=within)
    except TimeoutError:
        raise AssertionError(f"{last.beyond(before)}\n{_last_census(part)}") from None
    return last


def memory(part: Part) -> float:
    """Return the resident memory of a process in MiB."""
    status = Path(f"/proc/{part.process.pid}/status").read_text()
    [line] = [line for line in status.splitlines() if line.startswith("VmRSS")]
    return int(line.split()[1]) / 1024


def _last_census(part: Part) -> str | None:
    return next((line for line in reversed(part.log) if "Now: " in line), None)
