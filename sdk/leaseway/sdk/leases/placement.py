"""Placement requests in flight: first calls of one key wait for the same request."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, NamedTuple

from leaseway.sdk.leases.book import SessionLeaseKey
from leaseway.sdk.transport.workers import WorkerRun
from leaseway.wire.errors import UNANSWERED, Fault, Reason


class _PlacementRequest(NamedTuple):
    task: asyncio.Task[WorkerRun]
    deadline: float


class SharedPlacements:
    """The placement requests of one client that are in flight."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._requests: dict[SessionLeaseKey, _PlacementRequest] = {}

    async def share(
        self,
        key: SessionLeaseKey,
        deadline: float,
        place: Callable[[], Coroutine[Any, Any, WorkerRun]],
    ) -> WorkerRun:
        """Return the worker of a key from the request in flight, or from a new one.

        Args:
            key: The session and the server.
            deadline: The caller's deadline, in the event loop's time.
            place: Sends the request to the control plane, with the same deadline.

        Raises:
            Fault: No worker has capacity, the deadline passed, or the control plane cannot be
                reached.
        """
        while True:
            request = self._requests.get(key)
            if request is None:
                request = _PlacementRequest(self._loop.create_task(place()), deadline)
                self._requests[key] = request
                request.task.add_done_callback(lambda task: self._remove(key, task))
            try:
                async with asyncio.timeout_at(deadline):
                    return await asyncio.shield(request.task)
            except TimeoutError:
                raise Fault(
                    Reason.DEADLINE_EXCEEDED,
                    f"The timeout passed before a lease of '{key.server_id}' was placed on a "
                    "worker.",
                ) from None
            except Fault as fault:
                # A caller with an earlier deadline made the request; this one has time left.
                if fault.reason not in UNANSWERED or request.deadline >= deadline:
                    raise

    def cancel(self) -> list[asyncio.Task[WorkerRun]]:
        """Cancel all requests; return their tasks, which the caller may await."""
        tasks = [request.task for request in self._requests.values()]
        for task in tasks:
            task.cancel()
        return tasks

    def _remove(self, key: SessionLeaseKey, task: asyncio.Task[WorkerRun]) -> None:
        self._requests.pop(key, None)
        if not task.cancelled():
            task.exception()  # retrieved here, because every caller may have timed out
