"""Starts what rows measure: processes that say when they are ready, and end with the row."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
import tempfile
from collections.abc import AsyncIterator, Mapping, Sequence
from pathlib import Path

import yaml

from benchmarks.usage import children

__all__ = ["SERVERS", "System", "echo_server", "leaseway", "started"]

SERVERS = Path(__file__).with_name("servers")
_START = 60.0
_END = 20.0


@contextlib.asynccontextmanager
async def started(
    command: Sequence[str], *, says: str = "", listens: int = 0, cwd: Path | None = None
) -> AsyncIterator[tuple[asyncio.subprocess.Process, str]]:
    """Run a process in a group of its own until the block ends.

    Args:
        command: The process.
        says: What the line of its standard output contains that says that it is ready.
        listens: Where it says nothing: the port of this machine that it listens on then.
        cwd: Its working directory, or None for ours.

    Yields:
        The process and that line.

    Raises:
        RuntimeError: It ended before it was ready.
        TimeoutError: It was not ready within a minute.
    """
    process = await asyncio.create_subprocess_exec(
        *command,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        start_new_session=True,
        cwd=cwd,
    )
    drain: asyncio.Task[None] | None = None
    try:
        async with asyncio.timeout(_START):
            line = "" if listens else await _line_with(process, says)
            drain = asyncio.create_task(_drain(process))
            if listens:
                await _port_open(process, listens)
        yield process, line
    finally:
        await _end(process)
        if drain is not None:
            drain.cancel()


async def _line_with(process: asyncio.subprocess.Process, says: str) -> str:
    assert process.stdout is not None
    while line := await process.stdout.readline():
        text = line.decode(errors="replace").strip()
        if says in text:
            return text
    raise RuntimeError(f"A process ended with status {await process.wait()} before it was ready.")


async def _port_open(process: asyncio.subprocess.Process, port: int) -> None:
    while process.returncode is None:
        try:
            _, writer = await asyncio.open_connection("127.0.0.1", port)
        except OSError:
            await asyncio.sleep(0.1)
        else:
            writer.close()
            return
    raise RuntimeError(f"A process ended with status {process.returncode} before it listened.")


async def _drain(process: asyncio.subprocess.Process) -> None:
    assert process.stdout is not None
    while await process.stdout.read(65536):
        pass


async def _end(process: asyncio.subprocess.Process) -> None:
    for number in (signal.SIGTERM, signal.SIGKILL):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, number)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_END):
                await process.wait()
                return


def echo_server(**settings: object) -> dict[str, object]:
    """Return the configuration entry of the light stdio server."""
    command = {"command": sys.executable, "args": [str(SERVERS / "echo.py")]}
    return {"transport": "stdio", **command, **settings}


class System:
    """A running Leaseway.

    Attributes:
        address: Of its control plane.
        config: Its configuration file.
        control_plane: The control plane's process id.
        workers: The workers' process ids.
    """

    def __init__(self, address: str, config: Path, up: int) -> None:
        self.address = address
        self.config = config
        parts = children(up)
        self.control_plane = next(pid for pid, line in parts.items() if "control-plane" in line)
        self.workers = [pid for pid, line in parts.items() if " worker " in line]

    def write(self, servers: Mapping[str, object]) -> None:
        """Replace the configuration as an editor does."""
        fresh = self.config.with_suffix(".new")
        fresh.write_text(yaml.safe_dump({"version": 1, "servers": dict(servers)}))
        fresh.replace(self.config)


@contextlib.asynccontextmanager
async def leaseway(
    servers: Mapping[str, object], *, workers: int = 1, options: Sequence[str] = ()
) -> AsyncIterator[System]:
    """Run `leaseway up` on free ports with these servers until the block ends."""
    with tempfile.TemporaryDirectory(prefix="leaseway-bench-") as folder:
        config = Path(folder) / "mcp.yaml"
        config.write_text(yaml.safe_dump({"version": 1, "servers": dict(servers)}))
        command = [sys.executable, "-m", "leaseway.cli.main", "up", "--config", str(config)]
        command += ["--listen", "127.0.0.1:0", "--workers", str(workers), *options]
        async with started(command, says="ready ", cwd=Path(folder)) as (process, line):
            yield System(line.split()[-1], config, process.pid)
