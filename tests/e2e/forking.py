"""Start planes as forks of a process that has already imported them.

The imports of a plane take one to two seconds of processor time, and the tests start hundreds of
planes. A forked plane is a process of its own, with its own environment, folder and pipes; it
differs from an executed one only in its command line in `/proc`. Tests of the command itself
execute it (`test_up`, `test_readme`).
"""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import signal
import sys
from collections.abc import Mapping
from multiprocessing import forkserver
from multiprocessing.context import ForkServerProcess
from multiprocessing.reduction import DupFd
from pathlib import Path
from typing import Any

_context = multiprocessing.get_context("forkserver")
_context.set_forkserver_preload(["tests.e2e.preload"])


class _Descriptor:
    """A file descriptor that reaches the forked process as one of its own."""

    def __init__(self, number: int) -> None:
        self._number = number

    def __reduce__(self) -> tuple[Any, ...]:
        return _detach, (DupFd(self._number),)


def _detach(duplicate: Any) -> int:
    return int(duplicate.detach())


def start_fork_server() -> None:
    """Start the process that planes are forked from.

    Call this while tests are collected, or the first test seems to leave a process behind.
    """
    forkserver.ensure_running()


class ForkedProcess:
    """A forked plane, with the part of `asyncio.subprocess.Process` that the tests use."""

    def __init__(
        self, process: ForkServerProcess, stdout: asyncio.StreamReader, stderr: asyncio.StreamReader
    ) -> None:
        assert process.pid is not None
        self._process = process
        self._exited = asyncio.Event()
        self.pid = process.pid
        self.stdout = stdout
        self.stderr = stderr
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(process.sentinel, self._handle_exit)

    @property
    def returncode(self) -> int | None:
        return self._process.exitcode

    def _handle_exit(self) -> None:
        self._loop.remove_reader(self._process.sentinel)
        self._process.join()
        self._exited.set()

    async def wait(self) -> int:
        await self._exited.wait()
        assert self._process.exitcode is not None
        return self._process.exitcode

    def send_signal(self, number: int) -> None:
        if self.returncode is not None:
            raise ProcessLookupError
        os.kill(self.pid, number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


async def fork_leaseway(
    arguments: tuple[str, ...], environment: Mapping[str, str], folder: Path | None
) -> ForkedProcess:
    """Start `leaseway ARGUMENTS...` as a fork, with its standard output and error in pipes."""
    out, err = os.pipe(), os.pipe()
    try:
        process = _context.Process(
            target=_run,
            args=(
                arguments,
                dict(environment),
                folder or Path.cwd(),
                _Descriptor(out[1]),
                _Descriptor(err[1]),
            ),
        )
        await asyncio.to_thread(process.start)
    finally:
        os.close(out[1])
        os.close(err[1])
    return ForkedProcess(process, await _reader(out[0]), await _reader(err[0]))


async def _reader(descriptor: int) -> asyncio.StreamReader:
    reader = asyncio.StreamReader()
    pipe = os.fdopen(descriptor, "rb", buffering=0)
    await asyncio.get_running_loop().connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(reader), pipe
    )
    return reader


def _run(
    arguments: tuple[str, ...], environment: dict[str, str], folder: Path, out: int, err: int
) -> None:
    for received, descriptor in ((out, 1), (err, 2)):
        os.dup2(received, descriptor)
        os.close(received)
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(folder)
    sys.stdout = open(1, "w", closefd=False)  # noqa: SIM115 - buffered like that of an executed process
    sys.stderr = open(2, "w", buffering=1, closefd=False)  # noqa: SIM115
    sys.argv = ["leaseway", *arguments]

    from leaseway.cli.main import main

    main()
