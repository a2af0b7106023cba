"""Resources of a process, from outside: by SIGUSR1 and /proc (Linux)."""

from __future__ import annotations

import re
import signal
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from tests.conftest import BOUND, descendants
from tests.e2e.system import Part, eventually

MORE_THREADS = 8
"""Threads that a pool may add under more concurrency than before, and keep."""


@dataclass(frozen=True)
class Counts:
    """Resources of a process.

    Attributes:
        facts: The counts that it reports: tasks, leases, calls and so on.
        threads: Threads of the operating system.
        descriptors: Open files, sockets and pipes.
        processes: Command lines of the processes below it.
    """

    facts: dict[str, int]
    threads: int
    descriptors: int
    processes: tuple[str, ...]

    def beyond(self, before: Counts) -> list[str]:
        """Return what has been added since."""
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
    """Return the resources of a process."""
    previous = _last_report(part)
    part.process.send_signal(signal.SIGUSR1)
    await eventually(lambda: _last_report(part) is not previous)
    line = _last_report(part) or ""
    pid = part.process.pid
    return Counts(
        {name: int(count) for name, count in re.findall(r"(\w+)=(\d+)", line.split("Now:")[1])},
        len(list(Path(f"/proc/{pid}/task").iterdir())),
        len(list(Path(f"/proc/{pid}/fd").iterdir())),
        tuple(descendants(pid).values()),
    )


async def settled(part: Part, before: Counts, *, within: float = BOUND) -> Counts:
    """Wait until a process has no more resources than before; fail with the surplus."""
    last = before

    async def has_settled() -> bool:
        nonlocal last
        last = await counts(part)
        return not last.beyond(before)

    try:
        await eventually(has_settled, within=within)
    except TimeoutError:
        raise AssertionError(f"{last.beyond(before)}\n{_last_report(part)}") from None
    return last


def memory(part: Part) -> float:
    """Return the resident memory of a process in MiB."""
    status = Path(f"/proc/{part.process.pid}/status").read_text()
    [line] = [line for line in status.splitlines() if line.startswith("VmRSS")]
    return int(line.split()[1]) / 1024


def _last_report(part: Part) -> str | None:
    return next((line for line in reversed(part.log) if "Now: " in line), None)


async def have_exited(processes: Iterable[int]) -> None:
    """Wait until none of some processes is left; whoever inherits those of a worker reaps them."""
    await eventually(lambda: not any(Path(f"/proc/{pid}").exists() for pid in processes))
