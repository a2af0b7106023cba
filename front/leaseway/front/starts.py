"""Tells the client and stderr which servers of its own Leaseway do not run (`leaseway mcp`)."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Sequence
from typing import Final

from leaseway.front.protocol.messages import JsonRpcError
from leaseway.sdk import AsyncClient, LeasewayError, ProblemInfo
from leaseway.wire.messages.mcp import INTERNAL_ERROR

_POLL: Final = 0.1
"""Seconds between two looks at servers that start."""
_IDLE_POLL: Final = 2.0
_FIRST_STARTS: Final = 2.0
"""Seconds, from the first look on, that the client's handshake waits for servers that start."""
_MAX_NAMED: Final = 10
_MAX_PROBLEMS: Final = 3
"""Configuration errors that are shown to a client without tools."""
_MAX_MESSAGE: Final = 300
"""Characters of a message in the instructions, which models read with every conversation."""

_log = logging.getLogger("leaseway.front")


async def report_starts(
    client: AsyncClient, instruct: Callable[[str, bool], Awaitable[None]]
) -> None:
    """Log each error once, and pass on the instructions when the first starts have ended.

    It runs until it is cancelled: later errors are logged, and new instructions are for clients
    that ask again.
    """
    logged: set[tuple[str, str, str]] = set()
    loop = asyncio.get_running_loop()
    settled_at = loop.time() + _FIRST_STARTS
    while True:
        try:
            pending = getattr(await client.list_tools(), "pending", ())
            errors = [problem for problem in await client.problems() if problem.severity == "error"]
        except LeasewayError as error:
            _log.debug("The state of the servers is not known: %s", error)
            await asyncio.sleep(_IDLE_POLL)
            continue
        for problem in errors:
            identity = (problem.server_id, problem.reason, problem.subject)
            if identity not in logged:
                logged.add(identity)
                _log.error("%s", _sentence(problem))
        await instruct(instructions_of(errors, pending), not pending or loop.time() >= settled_at)
        await asyncio.sleep(_POLL if pending else _IDLE_POLL)


async def check_problems(client: AsyncClient) -> None:
    """Raise `JsonRpcError` with the errors of the configuration and its servers, if any."""
    errors = [item for item in await client.problems() if item.severity == "error"]
    if errors:
        shown = " ".join(error.message for error in errors[:_MAX_PROBLEMS])
        hidden = len(errors) - _MAX_PROBLEMS
        rest = f" There are {hidden} more errors." if hidden > 0 else ""
        raise JsonRpcError(
            INTERNAL_ERROR,
            f"There is no tool: {shown}{rest} The file is read again when it changes.",
            {"reason": errors[0].reason, "started": "no"},
        )


def instructions_of(errors: Sequence[ProblemInfo], pending: Collection[str] = ()) -> str:
    """Return what a client should know about servers that lack; empty if there are none."""
    first = {error.server_id: error for error in reversed(errors)}
    lines = [_sentence(problem)[:_MAX_MESSAGE] for problem in first.values()][:_MAX_NAMED]
    if len(first) > _MAX_NAMED:
        lines.append(f"{len(first) - _MAX_NAMED} more servers have errors.")
    if pending:
        names = ", ".join(sorted(pending)[:_MAX_NAMED])
        lines.append(
            f"Still starting: {names}. Their tools are announced when they are up"
            " (tools/list_changed)."
        )
    return "\n".join(lines)


def _sentence(problem: ProblemInfo) -> str:
    name = f"Server {problem.server_id}: " if problem.server_id else ""
    return f"{name}{problem.message}"
