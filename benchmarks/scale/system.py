"""Starts the control plane and the processes with simulated workers, and measures the former."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import sys
import tempfile
from collections import Counter
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any, Final

from benchmarks.processes import run_process
from benchmarks.scale.content import SEAL_KEY, configuration
from benchmarks.usage import cpu_of

__all__ = ["ControlPlane", "Fleet", "control_plane", "fleet"]

_PROCESSES: Final = 2
"""Processes over which a fleet is spread."""
_WITHIN: Final = 600.0


class ControlPlane:
    """A running control plane.

    Attributes:
        address: Where it listens.
        config: Its configuration file.
    """

    def __init__(self, address: str, pid: int, config: Path) -> None:
        self.address = address
        self.config = config
        self._pid = pid

    @property
    def cpu(self) -> float:
        """CPU seconds since its start."""
        return cpu_of([self._pid])

    @property
    def peak_mib(self) -> float:
        """The most memory that it has used."""
        for line in Path(f"/proc/{self._pid}/status").read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) / 1024
        return 0.0


@contextlib.asynccontextmanager
async def control_plane(servers: int) -> AsyncIterator[ControlPlane]:
    """Run a control plane with this number of servers until the block ends."""
    with tempfile.TemporaryDirectory(prefix="leaseway-scale-") as folder:
        config = Path(folder) / "mcp.yaml"
        config.write_text(configuration(servers))
        command = ["env", f"LEASEWAY_SEAL_KEY={SEAL_KEY}", sys.executable, "-m"]
        command += ["leaseway.cli.main", "control-plane", "--config", str(config)]
        command += ["--listen", "127.0.0.1:0", "--log-level", "error"]
        async with run_process(command, ready_text="ready ", cwd=Path(folder)) as (process, line):
            yield ControlPlane(line.split()[-1], process.pid, config)


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
            raise RuntimeError("A process of simulated workers has failed; its error is above.")
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


@contextlib.asynccontextmanager
async def fleet(address: str, workers: int, servers: int, size: int) -> AsyncIterator[Fleet]:
    """Start simulated workers that hold all servers; they join when they are told."""
    share = -(-workers // _PROCESSES)
    processes: list[_Process] = []
    try:
        for first in range(0, workers, share):
            numbers = (first, min(share, workers - first), servers, size)
            process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", "benchmarks.scale.simulated", address),
                *map(str, numbers),
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                env={**os.environ, "GRPC_VERBOSITY": "NONE"},
            )
            processes.append(_Process(process))
        await asyncio.gather(*(process.answer() for process in processes))
        yield Fleet(processes)
    finally:
        await asyncio.gather(*(process.stop() for process in processes))
