"""How a process ended, in words. Pure."""

from __future__ import annotations

import signal

from leaseway.data_plane.mcp.process.container_command import ENGINE_STATUS
from leaseway.wire.bounds import MIB


def describe_status(status: int) -> str:
    """Return how a process ended, as a part of a sentence.

    Args:
        status: Its exit status, or minus the signal that ended it.
    """
    if status >= 0:
        return f"exited with status {status}"
    try:
        name = signal.Signals(-status).name
    except ValueError:
        name = f"signal {-status}"
    return f"was killed by {name}"


def describe_container(status: int, image: str, most_memory: int | None) -> str:
    """Return how the client of a container engine ended, as a part of a sentence.

    Args:
        status: Its exit status, which is the server's where that ran.
        image: What it was to run.
        most_memory: The container's bound in bytes, or None.
    """
    ended = describe_status(status)
    if status == ENGINE_STATUS:
        return f"{ended}: the container engine could not run {image}"
    if status == 128 + signal.SIGKILL and most_memory is not None:
        return (
            f"{ended}, as after SIGKILL: it may have used up its memory (limits.memory is"
            f" {most_memory / MIB:g} MiB)"
        )
    return ended
