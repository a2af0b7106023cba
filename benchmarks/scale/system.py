"""Starts the control plane, simulated workers and clients, and measures them."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import sys
import tempfile
from collections import Counter
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from benchmarks.figures import percentile
from benchmarks.processes import run_process
from benchmarks.scale.content import SEAL_KEY, HeldContent, configuration
from benchmarks.usage import cpu_of, rss_of

__all__ = ["Callers", "Calls", "ControlPlane", "Fleet", "callers", "control_plane", "fleet"]

_PROCESSES: Final = 2
"""Processes over which a fleet is spread."""
_WITHIN: Final = 600.0


class ControlPlane:
    """A control plane in a process, as an async context.

    Attributes:
        address: Where it listens.
        config: Its configuration file.

    Args:
        configuration: The text of its configuration file.
        folder: Where that file is written.
        options: Further options of its command line.
    """

    def __init__(self, configuration: str, folder: Path, options: Sequence[str] = ()) -> None:
        self.address = "127.0.0.1:0"
        self.config = folder / "mcp.yaml"
        self.config.write_text(configuration)
        self._options = options
        self._pid = 0
        self._running = contextlib.AsyncExitStack()

    async def start(self) -> None:
        """Start it, at the address that it had before."""
        command = ["env", f"LEASEWAY_SEAL_KEY={SEAL_KEY}", sys.executable, "-m"]
        command += ["leaseway.cli.main", "control-plane", "--config", str(self.config)]
        command += ["--listen", self.address, "--log-level", "error", *self._options]
        process, line = await self._running.enter_async_context(
            run_process(command, ready_text="ready ", cwd=self.config.parent)
        )
        self.address, self._pid = line.split()[-1], process.pid

    async def stop(self) -> None:
        await self._running.aclose()

    def write(self, configuration: str) -> None:
        """Replace its configuration atomically, as an editor does."""
        temporary = self.config.with_suffix(".new")
        temporary.write_text(configuration)
        temporary.replace(self.config)

    @property
    def cpu(self) -> float:
        """CPU seconds since its start."""
        return cpu_of([self._pid])

    @property
    def rss_mib(self) -> float:
        """Its resident memory."""
        return rss_of([self._pid])

    @property
    def peak_mib(self) -> float:
        """The most memory that it has used."""
        for line in Path(f"/proc/{self._pid}/status").read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) / 1024
        return 0.0


@contextlib.asynccontextmanager
async def control_plane(
    servers: int, *, shared: bool = False, options: Sequence[str] = ()
) -> AsyncIterator[ControlPlane]:
    """Run a control plane with this number of servers, leased or shared, until the block ends."""
    with tempfile.TemporaryDirectory(prefix="leaseway-scale-") as folder:
        plane = ControlPlane(configuration(servers, shared=shared), Path(folder), options)
        try:
            await plane.start()
            yield plane
        finally:
            await plane.stop()


class _Process:
    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process

    async def ask(self, command: Mapping[str, Any]) -> dict[str, Any]:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(command).encode() + b"\n")
        return await self.answer()

    async def answer(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        async with asyncio.timeout(_WITHIN):
            line = await self._process.stdout.readline()
        if not line:
            raise RuntimeError("A process of workers or clients has failed; its error is above.")
        answer: dict[str, Any] = json.loads(line)
        return answer

    async def stop(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            self._process.kill()
        await self._process.wait()


class Fleet:
    """Simulated workers in some processes."""

    def __init__(self, processes: list[_Process]) -> None:
        self._processes = processes

    async def do(self, name: str, **arguments: object) -> Counter[str]:
        """Make all processes do something; return the sums of their answers, the longest time."""
        command = {"do": name, "within": _WITHIN, **arguments}
        answers = await asyncio.gather(*(process.ask(command) for process in self._processes))
        total: Counter[str] = Counter()
        for answer in answers:
            total.update(answer)
        total["seconds"] = max(answer["seconds"] for answer in answers)
        total["acked"] = min(answer["acked"] for answer in answers)
        return total


class Callers:
    """Clients in some processes, which call tools all the time."""

    def __init__(self, processes: list[_Process]) -> None:
        self._processes = processes

    async def call(self, seconds: float) -> Calls:
        """Let all clients call for some seconds."""
        command = {"do": "call", "seconds": seconds}
        answers = await asyncio.gather(*(process.ask(command) for process in self._processes))
        durations = [duration for answer in answers for duration in answer["durations"]]
        return Calls(
            sorted(durations),
            sum(answer["failed"] for answer in answers),
            sum(answer["cpu"] for answer in answers),
        )


@dataclass(frozen=True)
class Calls:
    """What callers have seen.

    Attributes:
        durations: The seconds of each successful call, sorted.
        failed: The number of other calls.
        cpu: The CPU seconds of the callers' processes.
    """

    durations: list[float]
    failed: int
    cpu: float

    def figures(self) -> dict[str, float]:
        """Return their number, p50, p99, the longest and the failures."""
        return {
            "calls": len(self.durations),
            "call_p50_ms": percentile(self.durations, 0.5) * 1e3,
            "call_p99_ms": percentile(self.durations, 0.99) * 1e3,
            "call_max_ms": percentile(self.durations, 1.0) * 1e3,
            "failed": self.failed,
        }


@contextlib.asynccontextmanager
async def fleet(
    address: str, workers: int, servers: int, size: int, *, leases: int = 0, shared: bool = False
) -> AsyncIterator[Fleet]:
    """Start simulated workers that hold all servers; they join when they are told.

    Args:
        address: The control plane's.
        workers: How many there are.
        servers: How many servers they hold.
        size: The bytes of the schema of a tool.
        leases: How many leases each holds when it joins.
        shared: Whether the servers are shared; then the workers answer calls.
    """
    with tempfile.TemporaryDirectory(prefix="leaseway-scale-") as folder:
        content = Path(folder) / "content"
        HeldContent.build(servers, size, shared=shared).save(content)
        more = [str(leases), "calls" if shared else "silent"]
        arguments = [
            ["benchmarks.scale.simulated", address, str(content), str(first), str(count), *more]
            for first, count in _shares(workers)
        ]
        async with _processes(arguments) as processes:
            yield Fleet(processes)


@contextlib.asynccontextmanager
async def callers(address: str, clients: int, servers: int) -> AsyncIterator[Callers]:
    """Start clients that have called tools of this number of servers before."""
    arguments = [
        ["benchmarks.scale.callers", address, str(first), str(count), str(servers)]
        for first, count in _shares(clients)
    ]
    async with _processes(arguments) as processes:
        yield Callers(processes)


def _shares(count: int) -> list[tuple[int, int]]:
    """Return the first number and the count of each process."""
    share = -(-count // _PROCESSES)
    return [(first, min(share, count - first)) for first in range(0, count, share)]


@contextlib.asynccontextmanager
async def _processes(arguments: Sequence[Sequence[str]]) -> AsyncIterator[list[_Process]]:
    """Start these modules, and wait until each is ready."""
    processes: list[_Process] = []
    try:
        for words in arguments:
            process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", *words),
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                env={**os.environ, "GRPC_VERBOSITY": "NONE"},
                limit=2**24,
            )
            processes.append(_Process(process))
        await asyncio.gather(*(process.answer() for process in processes))
        yield processes
    finally:
        await asyncio.gather(*(process.stop() for process in processes))
