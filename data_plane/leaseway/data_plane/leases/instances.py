"""The instances behind leases: one for each, started with it and closed with it (DESIGN §5)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import NamedTuple

from leaseway.data_plane.background import Background
from leaseway.data_plane.core.leases.table import WorkerLease
from leaseway.data_plane.instances.generation import Generation
from leaseway.data_plane.instances.live_instance import LiveInstance
from leaseway.wire.errors import Fault, Reason


class _Start(NamedTuple):
    """The instance of a lease on its way up; `done` is for those who wait for it."""

    done: asyncio.Future[None]
    task: asyncio.Task[None]


class LeaseInstances:
    """Which instance stands behind which lease.

    Args:
        background: Runs the starts.
        on_up: Called once the instance of a lease is up, before those who wait for it go on.
        on_failed: Called when it did not come up, with why.

    Attributes:
        up: The instances that are up, with their generations, by lease id; to be read only.
    """

    def __init__(
        self,
        background: Background,
        on_up: Callable[[WorkerLease, Generation], None],
        on_failed: Callable[[WorkerLease, Fault], None],
    ) -> None:
        self._background = background
        self._on_up = on_up
        self._on_failed = on_failed
        self.up: dict[str, tuple[LiveInstance, Generation]] = {}
        self._starting: dict[str, _Start] = {}

    def start(self, lease: WorkerLease, generation: Generation) -> None:
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        done.add_done_callback(_mark_retrieved)
        task = self._background.spawn(
            self._start(lease, generation), f"start the instance of lease {lease.id}"
        )
        self._starting[lease.id] = _Start(done, task)

    def starting(self, lease_id: str) -> asyncio.Future[None] | None:
        """Return what is done when the instance of a lease is up, or None where it is.

        It fails with why the instance did not come up, or why its lease has ended meanwhile.
        """
        start = self._starting.get(lease_id)
        return start.done if start is not None else None

    def forget(self, lease_id: str) -> None:
        """Note that the instance of a lease has ended by itself."""
        self.up.pop(lease_id, None)

    def end(self, lease_id: str, why: Fault) -> None:
        """Close the instance of a lease that has ended, or end its start.

        Args:
            lease_id: The lease.
            why: For those who wait for the start.
        """
        entry = self.up.pop(lease_id, None)
        if entry is not None:
            live, generation = entry
            generation.discard(live)
        start = self._starting.pop(lease_id, None)
        if start is not None:  # nobody would use what comes up; whoever waits need not
            start.done.set_exception(why)
            start.task.cancel()

    async def _start(self, lease: WorkerLease, generation: Generation) -> None:
        try:
            live, owner = await generation.take_for_lease(lease.id)
        except BaseException as error:
            start = self._starting.pop(lease.id, None)
            if start is not None:
                fault = error if isinstance(error, Fault) else _interrupted(lease)
                self._on_failed(lease, fault)
                start.done.set_exception(fault)
            if not isinstance(error, Fault):
                raise
        else:
            self._started(lease, owner, live)

    def _started(self, lease: WorkerLease, generation: Generation, live: LiveInstance) -> None:
        start = self._starting.pop(lease.id, None)
        if start is None:  # the lease has ended at this very moment
            generation.discard(live)
            return
        self.up[lease.id] = (live, generation)
        self._on_up(lease, generation)
        start.done.set_result(None)


def _interrupted(lease: WorkerLease) -> Fault:
    return Fault(
        Reason.DRAINING,
        f"The worker went away while the instance of lease {lease.id} was starting.",
    )


def _mark_retrieved(done: asyncio.Future[None]) -> None:
    # A start that everybody stopped waiting for is no unretrieved exception.
    if not done.cancelled():
        done.exception()
