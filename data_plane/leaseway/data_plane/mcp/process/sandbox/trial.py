"""Running a short command to its end, to see whether it can be run at all.

Started by `subprocess`, whose child does nothing before it becomes the command. uvloop's child
would first run what libraries registered for a fork, and gRPC's part of that crashes there now
and then.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import subprocess
from collections.abc import Sequence
from typing import Final, NamedTuple

from leaseway.data_plane.background import DiskThreads, shielded

TRIAL_TIMEOUT: Final = 10.0
"""Seconds that a check may take."""

disk: Final = DiskThreads(64)
"""Looks at files for starts, and runs trials."""


class CheckResult(NamedTuple):
    """How a check went.

    Attributes:
        status: Its exit status, minus the signal that ended it; None if it did not end in time.
        words: What it wrote to its standard error, stripped.
    """

    status: int | None
    words: str


async def try_command(command: Sequence[str]) -> CheckResult:
    """Run a command without input, environment or the worker's terminal; say how it went.

    It has ended when this returns or raises, also if the caller is cancelled.

    Raises:
        OSError: It can't be started.
    """
    check = _Check(command)
    end = disk.start(check.run)
    try:
        return await asyncio.shield(end)
    except asyncio.CancelledError:
        check.give_up()
        await shielded(asyncio.ensure_future(_over(end)))
        raise


class _Check:
    """One run of a command, in a thread; executing it may hang, too."""

    def __init__(self, command: Sequence[str]) -> None:
        self._command = command
        self._process: subprocess.Popen[bytes] | None = None
        self._given_up = False

    def run(self) -> CheckResult:
        self._process = _start(self._command)
        if self._given_up:
            self._process.kill()
        return _end(self._process)

    def give_up(self) -> None:
        self._given_up = True
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


async def _over(end: asyncio.Future[CheckResult]) -> None:
    await asyncio.wait([end], timeout=TRIAL_TIMEOUT)


def _end(process: subprocess.Popen[bytes]) -> CheckResult:
    assert process.stderr is not None
    try:
        words = process.communicate(timeout=TRIAL_TIMEOUT)[1]
    except subprocess.TimeoutExpired:
        process.kill()
        with contextlib.suppress(subprocess.TimeoutExpired):  # it hangs in the kernel
            process.wait(TRIAL_TIMEOUT)
        return CheckResult(None, "")
    finally:
        process.stderr.close()
    return CheckResult(process.returncode, words.decode(errors="replace").strip())
