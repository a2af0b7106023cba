"""Notices a server that is connected but refuses everything, by whatever wording.

After calls that failed in a row, a cheap request decides: if it fails too, and again after a pause,
the server gets a new session or, without sessions, a new connection.

See design.md#one-mcp-connection.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from dataclasses import dataclass

from leaseway.data_plane.core.problems import REFUSING
from leaseway.data_plane.mcp.protocol.connection import Peer
from leaseway.data_plane.mcp.protocol.features.health import Patience
from leaseway.spec.model import ServerSpec
from leaseway.wire.errors import Fault, Reason
from leaseway.wire.timing.backoff import RETRY


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
