"""Health checks: pings an idle server (design.md#bounds-and-defaults).

A server that works on a call is not pinged: the caller's deadline limits that time. A server is
pinged when it has been idle and silent for a while, and sooner if a call was abandoned and nothing
has been received since that call started. A server with session state first gets the time of one
call: it may still work on the abandoned one, and cannot be replaced.

A ping that was not sent, because there is no token for it, says nothing about the server: it is
tried again later. The session of an idle person outlives the person's token.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from mcp.shared.exceptions import MCPError

from leaseway.data_plane.core.problems import REFUSING
from leaseway.data_plane.mcp.protocol.connection import Peer
from leaseway.data_plane.mcp.protocol.messages.pending import ConnectionLost
from leaseway.spec.model import ServerSpec
from leaseway.wire import bounds
from leaseway.wire.errors import OF_AUTHORIZATION, Fault, Reason
from leaseway.wire.timing.backoff import RETRY

_MAX_PINGS: Final = 10
"""Pings of an unreachable endpoint."""
_UNSENT: Final = OF_AUTHORIZATION | {Reason.USER_REQUIRED}
"""Why a ping is not sent to a server that may be well."""


@dataclass(frozen=True)
class Patience:
    """How long a server may be silent.

    Attributes:
        idle: Seconds of silence after which an idle server is pinged.
        answer: Seconds to answer a ping.
        doubt: Like `idle`, if a call was abandoned and nothing received since its start.
    """

    idle: float = bounds.HEALTH_INTERVAL
    answer: float = bounds.HEALTH_PATIENCE
    doubt: float = 0.0


def default_patience(spec: ServerSpec) -> Patience:
    """Return how long a server may be silent."""
    return Patience() if spec.truely_stateless else Patience(doubt=spec.call_timeout)


async def until_unresponsive(peer: Peer, patience: Patience) -> Fault:
    """Ping the server until it no longer answers; return the fault."""
    not_before = 0.0
    while True:
        await _until_due(peer, patience, not_before)
        try:
            fault = await _check(peer, patience)
        except _UnsentError:
            not_before = time.monotonic() + patience.idle
        else:
            if fault is not None and not peer.may_be_silent:
                return fault


class _UnsentError(Exception):
    """There is no token for a ping."""


async def _until_due(peer: Peer, patience: Patience, not_before: float) -> None:
    liveness = peer.liveness
    while True:
        may_be_silent = peer.may_be_silent
        silence = patience.doubt if liveness.in_doubt else patience.idle
        remaining = max(not_before, liveness.received_at + silence) - time.monotonic()
        if not may_be_silent and remaining <= 0:
            return
        liveness.wake.clear()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(patience.idle if may_be_silent else remaining):
                await liveness.wake.wait()


async def _check(peer: Peer, patience: Patience) -> Fault | None:
    """Ping; retry an unreachable endpoint until the time is up.

    Some servers ignore what they do not know, and know no ping: they still list their tools.

    Raises:
        _UnsentError: No ping could be sent.
    """
    started = time.monotonic()
    lost: Fault | None = None
    probing = asyncio.ensure_future(_probe_later(peer, patience.answer / 2))
    try:
        async with asyncio.timeout(patience.answer):
            for _ in range(_MAX_PINGS):
                lost = await _ping(peer)
                if lost is None:
                    return None
                if lost.reason in _UNSENT:
                    raise _UnsentError
                await asyncio.sleep(patience.answer / _MAX_PINGS)
    except TimeoutError:
        if peer.lacks_token:
            raise _UnsentError from None
    finally:
        probing.cancel()
    # Any message is a sign of life, for example from a server without ping.
    return (
        None if peer.liveness.received_at > started else _unresponsive(peer.server, patience, lost)
    )


async def _probe_later(peer: Peer, pause: float) -> None:
    await asyncio.sleep(pause)
    await peer.probe()


async def _ping(peer: Peer) -> Fault | None:
    """Return why the server could not be pinged, or None if it answered, even with an error."""
    try:
        await peer.ping()
    except ConnectionLost as error:
        return error.fault
    except MCPError:
        pass
    return None


def _unresponsive(server: str, patience: Patience, lost: Fault | None) -> Fault:
    text = f"The server {server} has not answered a ping for {patience.answer:g} s"
    text += f": {lost.message}" if lost is not None else "; its connection was closed."
    return Fault(Reason.SERVER_LOST, text, metadata={"server": server})


@dataclass(frozen=True)
class RefusalPolicy:
    """What happens to a server that refuses everything.

    Attributes:
        patience: Seconds before its connection is ended; None to only report it. A state that may
            still exist is not given up for a short fault.
    """

    patience: float | None = 0.0

    @classmethod
    def of(cls, spec: ServerSpec, patience: Patience) -> RefusalPolicy:
        """Return the policy of a server.

        A shared one is replaced at once. A leased process is kept: its state is in it. The state of
        another leased server is lost if it refuses everything for as long as one may be silent.
        """
        if spec.truely_stateless:
            return cls()
        return cls(None if spec.part.uses_pipes else patience.answer)


async def until_refusing(peer: Peer, policy: RefusalPolicy) -> Fault:
    """Wait until the connection must end because the server refuses everything; return the fault.

    A server that gets a new session keeps its connection.
    """
    while True:
        await peer.refusals.wake.wait()
        fault = await _investigate(peer, policy)
        peer.refusals.wake.clear()
        if fault is not None:
            return fault


async def _investigate(peer: Peer, policy: RefusalPolicy) -> Fault | None:
    """Send cheap requests until one succeeds (None), or the connection must end (the fault)."""
    started = time.monotonic()
    pauses = _pauses()
    refusal = await peer.probe()
    while refusal is not None:
        await asyncio.sleep(next(pauses))
        # A call that succeeded meanwhile is as good as a cheap request.
        refusal = await peer.probe() if peer.refusals.in_row else None
        if refusal is None:
            break
        can_renew = await peer.renew_session()
        waited = time.monotonic() - started
        if not can_renew and policy.patience is not None and waited >= policy.patience:
            return _refusing(peer.server, refusal)
        if can_renew:
            refusal = await peer.probe()
        if refusal is not None:
            peer.warned.emit(REFUSING, f"{_text(refusal)} Its calls fail until it recovers.")
    peer.refusals.in_row = 0
    peer.warning_cleared.emit(REFUSING)
    return None


def _pauses() -> Iterator[float]:
    failures = 0
    while True:
        yield RETRY.ceiling(failures)
        failures += 1


def _text(refusal: Fault) -> str:
    return f"it is connected but refuses every request: {refusal.message}"


def _refusing(server: str, refusal: Fault) -> Fault:
    return Fault(
        Reason.SERVER_LOST,
        f"The server {server} was given up: {_text(refusal)}",
        metadata={"server": server},
    )
