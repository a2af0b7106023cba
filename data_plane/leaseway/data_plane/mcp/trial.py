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

from leaseway.data_plane.mcp.uninterrupted import uninterrupted

__all__ = ["TRIAL_TIMEOUT", "Tried", "try_command"]

TRIAL_TIMEOUT: Final = 10.0
"""Seconds that a trial may take."""


class Tried(NamedTuple):
    """How a trial went.

    Attributes:
        status: Its exit status, minus the signal that ended it; None if it did not end in time.
        words: What it wrote to its standard error, stripped.
    """

    status: int | None
    words: str


async def try_command(command: Sequence[str]) -> Tried:
    """Run a command without input, environment or the worker's terminal; say how it went.

    It has ended when this returns or raises, also if the caller is cancelled.

    Raises:
        OSError: It can't be started.
    """
    process = _start(command)
    end = asyncio.ensure_future(asyncio.to_thread(_end, process))
    try:
        return await asyncio.shield(end)
    except asyncio.CancelledError:
        process.kill()
        await uninterrupted(asyncio.ensure_future(_over(end)))
        raise


def _start(command: Sequence[str]) -> subprocess.Popen[bytes]:
    return subprocess.Popen(  # noqa: S603 - made by the caller, from the configuration
        list(command),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        env={"PATH": os.defpath},
        start_new_session=True,
    )


async def _over(end: asyncio.Future[Tried]) -> None:
    await asyncio.wait([end])


def _end(process: subprocess.Popen[bytes]) -> Tried:
    assert process.stderr is not None
    try:
        words = process.communicate(timeout=TRIAL_TIMEOUT)[1]
    except subprocess.TimeoutExpired:
        process.kill()
        with contextlib.suppress(subprocess.TimeoutExpired):  # it hangs in the kernel
            process.wait(TRIAL_TIMEOUT)
        return Tried(None, "")
    finally:
        process.stderr.close()
    return Tried(process.returncode, words.decode(errors="replace").strip())
