"""Placements under way: the first calls of one key wait for the same one."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, Final, NamedTuple

from leaseway.sdk.leases.book import LeaseKey
from leaseway.sdk.transport.workers import WorkerAddress
from leaseway.wire.errors import Fault, Reason

_OUT_OF_TIME: Final = frozenset({Reason.DEADLINE_EXCEEDED, Reason.CONTROL_PLANE_UNAVAILABLE})
"""How a placement fails whose time was too short."""


class _Placing(NamedTuple):
    """A placement, and when whoever asked for it gives up."""

    task: asyncio.Task[WorkerAddress]
    deadline: float


class Placements:
    """The placements that one client waits for."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._under_way: dict[LeaseKey, _Placing] = {}

    async def share(
        self,
        key: LeaseKey,
        deadline: float,
        place: Callable[[], Coroutine[Any, Any, WorkerAddress]],
    ) -> WorkerAddress:
        """Return the worker of a key, by the placement that is under way or by a new one.

        Args:
            key: The session and the server.
            deadline: When the caller gives up, in the event loop's time.
            place: Asks the control plane, for as long.

        Raises:
            Fault: There is no room, the deadline passed, or the control plane cannot be reached.
        """
        while True:
            placing = self._under_way.get(key) or self._begin(key, deadline, place)
            try:
                async with asyncio.timeout_at(deadline):
                    return await asyncio.shield(placing.task)
            except TimeoutError:
                raise _late(key) from None
            except Fault as fault:
                # Somebody with less time asked; this caller has some left.
                if fault.reason not in _OUT_OF_TIME or placing.deadline >= deadline:
                    raise

    def abort(self) -> None:
        """Begin to end all, without waiting."""
        for placing in self._under_way.values():
            placing.task.cancel()

    async def close(self) -> None:
        """End all."""
        tasks = [placing.task for placing in self._under_way.values()]
        self.abort()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _begin(
        self,
        key: LeaseKey,
        deadline: float,
        place: Callable[[], Coroutine[Any, Any, WorkerAddress]],
    ) -> _Placing:
        placing = self._under_way[key] = _Placing(self._loop.create_task(place()), deadline)
        placing.task.add_done_callback(lambda done: self._ended(key, done))
        return placing

    def _ended(self, key: LeaseKey, done: asyncio.Task[WorkerAddress]) -> None:
        self._under_way.pop(key, None)
        if not done.cancelled():
            done.exception()  # seen here, where every caller may have left


def _late(key: LeaseKey) -> Fault:
    return Fault(
        Reason.DEADLINE_EXCEEDED,
        f"The timeout passed while a worker was sought for a lease of '{key.server_id}'.",
    )
