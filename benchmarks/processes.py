"""Starts the measured processes, waits until they are ready, and stops them with the row."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import os
import signal
import socket
import sys
import tempfile
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Final

import yaml

from benchmarks.usage import children

__all__ = [
    "SERVERS",
    "System",
    "echo_server",
    "ending_with_parent",
    "free_port",
    "leaseway",
    "run_process",
]

SERVERS = Path(__file__).with_name("servers")
_START_TIMEOUT = 60.0
_STOP_TIMEOUT = 20.0
_PR_SET_PDEATHSIG: Final = 1
_LIBC: Final = ctypes.CDLL(None) if sys.platform == "linux" else None


def ending_with_parent() -> Callable[[], None]:
    """Return what a child runs before its program, to be stopped when this process ends.

    A benchmark that is killed cannot stop what it has started, which would disturb all later ones.
    Only Linux can do that.
    """
    return partial(_end_with_parent, os.getpid())


def _end_with_parent(parent: int) -> None:
    if _LIBC is None:
        return
    _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
    if os.getppid() != parent:  # it has ended since the fork, which no signal will tell
        os._exit(1)


@contextlib.asynccontextmanager
async def run_process(
    command: Sequence[str], *, ready_text: str = "", ready_port: int = 0, cwd: Path | None = None
) -> AsyncIterator[tuple[asyncio.subprocess.Process, str]]:
    """Run a process in its own process group until the block ends.

    Args:
        command: The command line.
        ready_text: A part of the line that the process prints when it is ready.
        ready_port: For a process without such a line: the local port that it listens on.
        cwd: Its working directory, or None for ours.

    Yields:
        The process and its ready line.

    Raises:
        RuntimeError: It exited before it was ready.
        TimeoutError: It was not ready within a minute.
    """
    process = await asyncio.create_subprocess_exec(
        *command,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        start_new_session=True,
        cwd=cwd,
        preexec_fn=ending_with_parent(),
    )
    drain: asyncio.Task[None] | None = None
    try:
        async with asyncio.timeout(_START_TIMEOUT):
            line = "" if ready_port else await _line_with(process, ready_text)
            drain = asyncio.create_task(_drain(process))
            if ready_port:
                await _port_open(process, ready_port)
        yield process, line
    finally:
        await _stop(process)
        if drain is not None:
            drain.cancel()


async def _line_with(process: asyncio.subprocess.Process, ready_text: str) -> str:
    assert process.stdout is not None
    while line := await process.stdout.readline():
        text = line.decode(errors="replace").strip()
        if ready_text in text:
            return text
    raise RuntimeError(f"A process exited with status {await process.wait()} before it was ready.")


async def _port_open(process: asyncio.subprocess.Process, port: int) -> None:
    while process.returncode is None:
        try:
            _, writer = await asyncio.open_connection("127.0.0.1", port)
        except OSError:
            await asyncio.sleep(0.1)
        else:
            writer.close()
            return
    raise RuntimeError(f"A process exited with status {process.returncode} before it listened.")


async def _drain(process: asyncio.subprocess.Process) -> None:
    assert process.stdout is not None
    while await process.stdout.read(65536):
        pass


async def _stop(process: asyncio.subprocess.Process) -> None:
    for number in (signal.SIGTERM, signal.SIGKILL):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, number)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_STOP_TIMEOUT):
                await process.wait()
                return


def free_port() -> int:
    """Return a port of loopback on which nothing listens now."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port: int = free.getsockname()[1]
        return port


def echo_server(*arguments: str, **settings: object) -> dict[str, object]:
    """Return the configuration entry of the light stdio server.

    Args:
        arguments: Further arguments of its command line.
        settings: Further keys of the entry.
    """
    command = {"command": sys.executable, "args": [str(SERVERS / "echo.py"), *arguments]}
    return {"transport": "stdio", **command, **settings}


class System:
    """A running Leaseway.

    Attributes:
        address: Where its control plane listens.
    """

    def __init__(self, address: str, pid: int) -> None:
        self.address = address
        self._pid = pid

    @property
    def planes(self) -> list[int]:
        """The process ids of its control plane and workers."""
        return list(children(self._pid))

    @property
    def workers(self) -> list[int]:
        """The process ids of its workers."""
        return [child for child, line in children(self._pid).items() if " worker " in line]


@contextlib.asynccontextmanager
async def leaseway(
    servers: Mapping[str, object], *, workers: int = 1, options: Sequence[str] = (), port: int = 0
) -> AsyncIterator[System]:
    """Run `leaseway up` on free ports with these servers until the block ends.

    Args:
        servers: Entries of the configuration file.
        workers: How many workers run.
        options: Further options of the command line.
        port: The port of its control plane; the block then starts as soon as that listens, and not
            only when all servers have been tried.
    """
    with tempfile.TemporaryDirectory(prefix="leaseway-bench-") as folder:
        config = Path(folder) / "mcp.yaml"
        config.write_text(yaml.safe_dump({"version": 1, "servers": dict(servers)}))
        command = [sys.executable, "-m", "leaseway.cli.main", "up", "--config", str(config)]
        command += ["--listen", f"127.0.0.1:{port}", "--workers", str(workers), *options]
        ready = "" if port else "ready "
        async with run_process(command, ready_text=ready, ready_port=port, cwd=Path(folder)) as (
            process,
            line,
        ):
            yield System(line.split()[-1] if line else f"127.0.0.1:{port}", process.pid)
