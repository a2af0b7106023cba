"""The places for starts of processes: a burst of them waits here instead of failing all together.

See design.md#one-mcp-connection, starts.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import NamedTuple

from leaseway.data_plane.core.calls.turns import Turns
from leaseway.wire import bounds


@dataclass(eq=False)
class StartTurn:
    """The start of one instance, from when it is opened.

    Attributes:
        tenant: For whom it is; empty for all tenants.
        awaited: Whether anybody waits for it.
    """

    tenant: str = ""
    awaited: bool = False


class _Wait(NamedTuple):
    """The wait of a start for its place, since a time of the event loop."""

    since: float
    has_place: asyncio.Future[None]


class StartQueue:
    """Lets a number of processes start at the same time; further ones wait for their turn.

    The limit of the whole start, `startup_timeout`, begins with the turn. A start that takes long
    gives its place to the next one and goes on: it waits for something else than this machine's
    processors, and one that hangs must not hold up all others.

    Args:
        places: How many processes may start at the same time, at least 1.
        hold: Seconds after which a start gives up its place.
    """

    def __init__(self, places: int, hold: float = bounds.START_PLACE) -> None:
        self._turns = Turns(places)
        self._hold = hold
        self._waiting: dict[StartTurn, _Wait] = {}
        self._loop = asyncio.get_running_loop()

    @property
    def waiting(self) -> int:
        """How many starts wait for a place."""
        return len(self._waiting)

    @property
    def oldest_wait(self) -> float:
        """Seconds that the oldest of them has waited."""
        now = self._loop.time()
        return now - min((wait.since for wait in self._waiting.values()), default=now)

    def is_waiting(self, turn: StartTurn) -> bool:
        """Return whether a start waits for a place, and has none yet."""
        return turn in self._waiting

    def promote(self, turn: StartTurn, tenant: str) -> None:
        """Let a start that a tenant waits for from now on come before those nobody waits for."""
        if turn.awaited:
            return
        if turn in self._waiting:
            self._turns.remove(turn, turn.tenant)
            self._turns.add(turn, tenant, ahead=True)
        turn.awaited, turn.tenant = True, tenant

    @asynccontextmanager
    async def place(self, turn: StartTurn) -> AsyncIterator[None]:
        """Wait for a place, and hold it while the block runs, but not for longer than `hold`."""
        giving_up = None
        try:
            if not self._turns.add(turn, turn.tenant, ahead=turn.awaited):
                await self._wait(turn)
            giving_up = self._loop.call_later(self._hold, self._free, turn)
            yield
        finally:
            if giving_up is not None:
                giving_up.cancel()
            self._free(turn)

    async def _wait(self, turn: StartTurn) -> None:
        wait = self._waiting[turn] = _Wait(self._loop.time(), self._loop.create_future())
        try:
            await wait.has_place
        finally:
            self._waiting.pop(turn, None)

    def _free(self, turn: StartTurn) -> None:
        self._turns.remove(turn, turn.tenant)
        while (following := self._turns.start_next()) is not None:
            wait = self._waiting.pop(following)
            if not wait.has_place.done():  # else it was cancelled: its task frees the place
                wait.has_place.set_result(None)
