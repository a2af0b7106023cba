"""Asking an idle server for a sign of life (DESIGN §10).

A server that works on a call is left alone: how long that may take is the caller's deadline's
business. It is asked when it has been idle and silent for a while, and sooner when a call was
given up and nothing has come since that call was made. A server with the state of a session is
then given the time that a call may take: it may still work on that one, and cannot be replaced.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from dataclasses import dataclass, replace
from typing import Final

from mcp.shared.exceptions import MCPError

from leaseway.data_plane.mcp.protocol.connection import Peer
from leaseway.data_plane.mcp.protocol.messages.pending import ConnectionLost
from leaseway.spec.model import ServerSpec
from leaseway.wire import bounds
from leaseway.wire.errors import Fault, Reason

_TRIES: Final = 10
"""Times that an endpoint which can't be reached is asked."""


@dataclass(frozen=True)
class Patience:
    """How long a server may be silent.

    Attributes:
        idle: Seconds of silence after which an idle server is asked.
        answer: Seconds in which something must come then.
        doubt: The same as `idle` where a call was given up and nothing has come since it was made.
    """

    idle: float = bounds.HEALTH_INTERVAL
    answer: float = bounds.HEALTH_PATIENCE
    doubt: float = 0.0


PATIENCE: Final = Patience()
"""What DESIGN §10 gives a server."""


def patience_of(spec: ServerSpec) -> Patience:
    """Return how long a server may be silent."""
    return PATIENCE if spec.truely_stateless else replace(PATIENCE, doubt=spec.call_timeout)


async def until_mute(peer: Peer, patience: Patience) -> Fault:
    """Ask for signs of life until none comes; return the fault to end the connection with."""
    while True:
        await _until_due(peer, patience)
        fault = await _ask(peer, patience)
        if fault is not None and not peer.is_excused:
            return fault


async def _until_due(peer: Peer, patience: Patience) -> None:
    signs = peer.signs
    while True:
        excused = peer.is_excused
        silence = patience.doubt if signs.in_doubt else patience.idle
        left = signs.heard_at + silence - time.monotonic()
        if not excused and left <= 0:
            return
        signs.wake.clear()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(patience.idle if excused else left):
                await signs.wake.wait()


async def _ask(peer: Peer, patience: Patience) -> Fault | None:
    """Ping; an endpoint that can't be reached may come back in the time that there is."""
    asked = time.monotonic()
    lost: Fault | None = None
    try:
        async with asyncio.timeout(patience.answer):
            for _ in range(_TRIES):
                lost = await _ping(peer)
                if lost is None:
                    return None
                await asyncio.sleep(patience.answer / _TRIES)
    except TimeoutError:
        pass
    # Whatever came meanwhile is a sign of life, from a server that knows no ping, say.
    return None if peer.signs.heard_at > asked else _mute(peer.server, patience, lost)


async def _ping(peer: Peer) -> Fault | None:
    """Return why the server could not be asked, or None once it has answered, be it an error."""
    try:
        await peer.ping()
    except ConnectionLost as error:
        return error.fault
    except MCPError:
        pass
    return None


def _mute(server: str, patience: Patience, lost: Fault | None) -> Fault:
    text = f"The server {server} has not answered a ping for {patience.answer:g} s"
    text += f": {lost.message}" if lost is not None else "; its connection was closed."
    return Fault(Reason.SERVER_LOST, text, metadata={"server": server})
