"""Why a server's process did not start, and how it ended, in words. Pure."""

from __future__ import annotations

import re
import signal
from typing import Final

from leaseway.spec.kinds.shared import advice_on_missing
from leaseway.wire.bounds import MIB
from leaseway.wire.errors import Fault, Reason

ENGINE_STATUS: Final = 125
"""Exit status of a container engine's client if the engine itself could not run the container."""

_NEEDS_OLDER_MCP: Final = re.compile(
    r"AttributeError: 'Server' object has no attribute '(list_|call_tool|get_prompt|read_resource)"
    r"|ImportError: cannot import name .* from 'mcp[.']"
    r"|ModuleNotFoundError: No module named 'mcp\."
)
"""How a Python server ends that was written for version 1 of the official package, on version 2."""


_NAME_IN_USE: Final = re.compile(r"(?i)container name \S+ is already in use")
"""How Docker and Podman refuse a second container of a command that names its container."""


def not_started(server: str, problem: str, text: str) -> Fault:
    """Return the fault SERVER_NOT_READY for a server that could not be started.

    `text` has the reason and advice: the rest of the sentence, with its full stop.
    """
    return Fault(
        Reason.SERVER_NOT_READY,
        f"The server {server} could not be started: {text}",
        metadata={"server": server, "problem": problem},
    )


def server_lost(
    server: str, ended: str, last_words: str, cause: str, exit_status: int | None = None
) -> Fault:
    """Return the fault SERVER_LOST for a server that has ended.

    Args:
        server: The server's id.
        ended: How, as the rest of a sentence.
        last_words: The last lines of its standard error.
        cause: The one of them that says most likely why.
        exit_status: If it is known; minus the signal that ended it.
    """
    metadata = {"server": server}
    if exit_status is not None:
        metadata["exit_status"] = str(exit_status)
    text = f"The server {server} {ended}"
    if not last_words:
        return Fault(Reason.SERVER_LOST, f"{text}.", metadata=metadata)
    metadata["stderr"] = last_words
    text = f"{text}; it wrote last: {cause}"
    if _NEEDS_OLDER_MCP.match(cause):
        text += " (It seems to need version 1 of the package mcp: uvx --with 'mcp<2' PACKAGE)"
    elif _NAME_IN_USE.search(cause):
        text += " (Each instance has a container of its own: leave out --name)"
    return Fault(Reason.SERVER_LOST, text, metadata=metadata)


def command_fault(server: str, program: str, error: OSError) -> Fault:
    """Return the fault for a program that is missing or not executable."""
    cause = "may not be executed" if isinstance(error, PermissionError) else "was not found"
    text = f"its command {program!r} {cause} on this worker; {advice_on_missing(program)}."
    return not_started(server, "COMMAND_NOT_FOUND", text)


def describe_status(status: int) -> str:
    """Return how a process ended, as a part of a sentence.

    `status` is its exit status, or minus the signal that ended it.
    """
    if status >= 0:
        return f"exited with status {status}"
    try:
        name = signal.Signals(-status).name
    except ValueError:
        name = f"signal {-status}"
    return f"was killed by {name}"


def describe_container(status: int, image: str, memory_limit: int | None) -> str:
    """Return how the client of a container engine ended, as a part of a sentence.

    Its exit status is the server's own if the container ran.
    """
    ended = describe_status(status)
    if status == ENGINE_STATUS:
        return f"{ended}: the container engine could not run {image}"
    if status == 128 + signal.SIGKILL and memory_limit is not None:
        return (
            f"{ended}, as after SIGKILL: it may have used up its memory (limits.memory is"
            f" {memory_limit / MIB:g} MiB)"
        )
    return ended
