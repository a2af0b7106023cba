"""Runs a short command to its end, to check that it can be run.

The command is started by `subprocess`, whose child executes it at once. uvloop's child would first
run fork handlers, and gRPC's sometimes crashes there.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import subprocess
from collections.abc import Sequence
from typing import Final, NamedTuple

from leaseway.data_plane.background import shielded
from leaseway.wire.daemon_threads import DaemonThreads

CHECK_TIMEOUT: Final = 10.0
"""Seconds that a check may take."""

disk: Final = DaemonThreads(64)
"""Threads that read files for starts and run checks."""


class CheckResult(NamedTuple):
    """A check's exit status (minus the signal; None after a timeout) and its standard error."""

    status: int | None
    stderr: str


async def run_check(command: Sequence[str]) -> CheckResult:
    """Run a command without input, environment and terminal.

    It has exited when this returns or raises, also if the caller is cancelled.

    Raises:
        OSError: It can't be started.
    """
    check = _CheckRun(command)
    end = disk.submit(check.run)
    try:
        return await asyncio.shield(end)
    except asyncio.CancelledError:
        check.cancel()
        await shielded(asyncio.ensure_future(_wait_for(end)))
        raise


class _CheckRun:
    """One run of a command, in a thread, since executing a file may hang."""

    def __init__(self, command: Sequence[str]) -> None:
        self._command = command
        self._process: subprocess.Popen[bytes] | None = None
        self._cancelled = False

    def run(self) -> CheckResult:
        self._process = _start(self._command)
        if self._cancelled:
            self._process.kill()
        return _wait(self._process)

    def cancel(self) -> None:
        self._cancelled = True
        if self._process is not None:
            self._process.kill()


def _start(command: Sequence[str]) -> subprocess.Popen[bytes]:
    return subprocess.Popen(  # noqa: S603 - made by the caller, from the configuration
        list(command),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        env={"PATH": os.defpath},
        start_new_session=True,
    )


async def _wait_for(end: asyncio.Future[CheckResult]) -> None:
    await asyncio.wait([end], timeout=CHECK_TIMEOUT)


def _wait(process: subprocess.Popen[bytes]) -> CheckResult:
    assert process.stderr is not None
    try:
        stderr = process.communicate(timeout=CHECK_TIMEOUT)[1]
    except subprocess.TimeoutExpired:
        process.kill()
        with contextlib.suppress(subprocess.TimeoutExpired):  # it hangs in the kernel
            process.wait(CHECK_TIMEOUT)
        return CheckResult(None, "")
    finally:
        process.stderr.close()
    return CheckResult(process.returncode, stderr.decode(errors="replace").strip())
