"""Start planes, commands and other programs as forks of a process that has already imported them.

The imports take one to two seconds of processor time, and the tests start hundreds of planes. A
forked process has its own environment, folder and pipes; it differs from an executed one only in
its command line in `/proc`. Tests of the executable itself execute it (`test_up`, `test_readme`).
"""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import runpy
import signal
import sys
import threading
from collections.abc import Callable, Mapping
from multiprocessing import forkserver
from multiprocessing.context import ForkServerProcess
from multiprocessing.reduction import DupFd
from pathlib import Path
from typing import Any, BinaryIO, Final, NamedTuple

from tests.conftest import BOUND
from tests.stall_finder import watch_plane
from tests.vaults import use_quick_vaults

SETTLING: Final = "TEST_SETTLING"
"""The variable with the seconds that a forked worker gives servers to use roots; a busy machine
may take longer than `notices.SETTLING`."""

_context = multiprocessing.get_context("forkserver")
_context.set_forkserver_preload(["tests.e2e.preload"])


class _Descriptor:
    """A file descriptor that is duplicated into the forked process."""

    def __init__(self, number: int) -> None:
        self._number = number

    def __reduce__(self) -> tuple[Any, ...]:
        return _detach, (DupFd(self._number),)


def _detach(duplicate: Any) -> int:
    return int(duplicate.detach())


def start_fork_server() -> None:
    """Start the process that planes are forked from.

    Call this while tests are collected: if a test starts it, it looks like a leaked process.
    """
    forkserver.ensure_running()


class ForkedProcess:
    """A forked process with the part of `asyncio.subprocess.Process` that the tests use."""

    def __init__(
        self,
        process: ForkServerProcess,
        stdin: BinaryIO,
        stdout: asyncio.StreamReader,
        stderr: asyncio.StreamReader,
    ) -> None:
        assert process.pid is not None
        self._process = process
        self._exited = asyncio.Event()
        self.pid = process.pid
        self.stdin = stdin
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
        self.stdin.close()
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
    """Start `leaseway ARGUMENTS...` as a fork with pipes for its standard streams."""
    return await _fork(_run, arguments, environment, folder)


async def fork_python(*command: str, environment: Mapping[str, str] | None = None) -> ForkedProcess:
    """Start `python SCRIPT ARGUMENTS...` or `python -c CODE ARGUMENTS...` as a fork.

    Its errors go to those of the tests.
    """
    return await _fork(
        _run_python, command, os.environ if environment is None else environment, None, errors=2
    )


async def _fork(
    run: Callable[..., None],
    arguments: tuple[str, ...],
    environment: Mapping[str, str],
    folder: Path | None,
    errors: int | None = None,
) -> ForkedProcess:
    """Fork with pipes for the standard streams, or with an open file for the errors."""
    stdin, out, err = os.pipe(), os.pipe(), os.pipe()
    streams = (stdin[0], out[1], err[1])
    try:
        process = _context.Process(
            target=run,
            args=(
                arguments,
                dict(environment),
                folder or Path.cwd(),
                [_Descriptor(number) for number in (*streams[:2], errors or err[1])],
            ),
        )
        await asyncio.to_thread(process.start)
    finally:
        for number in streams:
            os.close(number)
    writer = os.fdopen(stdin[1], "wb", buffering=0)
    return ForkedProcess(process, writer, await _reader(out[0]), await _reader(err[0]))


class Completed(NamedTuple):
    """The exit status and the output of a command; `os.fsencode` restores binary output."""

    status: int
    stdout: str
    stderr: str


async def run_leaseway(
    *arguments: str,
    environment: Mapping[str, str] | None = None,
    folder: Path | None = None,
    stdin: str = "",
) -> Completed:
    """Run `leaseway ARGUMENTS...` as a fork, by default in the test's environment."""
    process = await fork_leaseway(
        arguments, os.environ if environment is None else environment, folder
    )
    process.stdin.write(stdin.encode())
    process.stdin.close()
    try:
        async with asyncio.timeout(BOUND):
            output = await asyncio.gather(process.stdout.read(), process.stderr.read())
            return Completed(await process.wait(), *map(os.fsdecode, output))
    finally:
        if process.returncode is None:
            process.kill()


async def _reader(descriptor: int) -> asyncio.StreamReader:
    reader = asyncio.StreamReader(limit=1 << 24)
    pipe = os.fdopen(descriptor, "rb", buffering=0)
    await asyncio.get_running_loop().connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(reader), pipe
    )
    return reader


def _end_with_tests() -> None:
    """End as after SIGTERM when the process of the tests has ended, which may have been killed."""
    tests = multiprocessing.parent_process()
    assert tests is not None
    tests.join()
    os.kill(os.getpid(), signal.SIGTERM)


def _run(
    arguments: tuple[str, ...], environment: dict[str, str], folder: Path, streams: list[int]
) -> None:
    _become(environment, folder, streams)
    sys.argv = ["leaseway", *arguments]

    from leaseway.cli.main import main
    from leaseway.data_plane.mcp.protocol.messages import notices

    notices.SETTLING = float(environment.get(SETTLING, notices.SETTLING))  # type: ignore[misc]
    watch_plane(arguments[0] if arguments else "")
    use_quick_vaults(environment)
    main()


def _run_python(
    command: tuple[str, ...], environment: dict[str, str], folder: Path, streams: list[int]
) -> None:
    _become(environment, folder, streams)
    if command[0] == "-c":
        sys.argv = ["-c", *command[2:]]
        exec(command[1], {"__name__": "__main__"})
    else:
        sys.argv = list(command)
        sys.path.insert(0, str(Path(command[0]).parent))
        runpy.run_path(command[0], run_name="__main__")


def _become(environment: dict[str, str], folder: Path, streams: list[int]) -> None:
    """Take the streams, the environment and the folder of the process that was asked for."""
    for number, received in enumerate(streams):
        os.dup2(received, number)
        os.close(received)
    os.setsid()
    threading.Thread(target=_end_with_tests, daemon=True).start()
    if hasattr(signal, "SIGHUP"):  # not on Windows
        signal.signal(signal.SIGHUP, signal.SIG_DFL)  # a run below `nohup` has it ignored
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(folder)
    sys.stdin = open(0, closefd=False)  # noqa: SIM115 - like that of an executed process
    sys.stdout = open(1, "w", closefd=False)  # noqa: SIM115 - buffered like that of an executed process
    sys.stderr = open(2, "w", buffering=1, closefd=False)  # noqa: SIM115
