"""Holds initialised, never used instances of a leased server for its next leases (DESIGN §5)."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Final

from leaseway.data_plane.background import Alarm
from leaseway.data_plane.core.instances.instance_policy import old_at, plan_spares, spares_wanted
from leaseway.data_plane.instances.context import WorkerContext
from leaseway.data_plane.instances.live_instance import LiveInstance
from leaseway.data_plane.instances.members import LiveInstances
from leaseway.wire.errors import Fault

_AFTER_LEASE: Final = 0.05
"""Seconds from giving a spare away to starting its replacement: starting a process holds up the
loop, and whoever took the lease is to be answered first."""
_AFTER_FAILURE: Final = 1.0
"""Seconds after the backoff at which a server that keeps no spares is tried without a lease."""


@dataclass(eq=False)
class _Start:
    """A spare on its way up.

    Attributes:
        live: The instance.
        task: Starts it.
        claim: Done when it is up, for the lease that gets it; None while no lease does.
    """

    live: LiveInstance
    task: asyncio.Task[None] | None = None
    claim: asyncio.Future[LiveInstance] | None = None


class Spares:
    """Keeps the spares of one generation: as many as are wanted and have room, one start at a time.

    `reconcile` does what is due; it is called whenever something has changed, and by an alarm.

    Args:
        lives: The instances of the generation.
        context: What every generation needs.
    """

    def __init__(self, lives: LiveInstances, context: WorkerContext) -> None:
        self._lives = lives
        self._context = context
        self._loop = asyncio.get_running_loop()
        self._alarm = Alarm(self.reconcile)
        self._ready: list[LiveInstance] = []
        self._start: _Start | None = None
        self._running = False

    def begin(self) -> None:
        """Keep spares from now on."""
        if not self._running:
            self._running = True
            self._context.quota.join(self._lives.key.server_id, self)
            self.reconcile()

    def add(self, live: LiveInstance) -> None:
        """Hold an instance that a probe started."""
        self._ready.append(live)

    async def take(self, lease_id: str) -> LiveInstance | None:
        """Return a spare for a lease, waiting for one that is on its way up; None for none.

        Raises:
            Fault: The one that was waited for did not come up, and why.
        """
        live = self._pick()
        if live is not None:
            self._ready.remove(live)
            live.taken(lease_id)
            self._context.reports.mark_instances_changed()
            self._loop.call_later(_AFTER_LEASE, self.reconcile)
            return live
        if self._start is not None and self._start.claim is None:
            return await self._claim(self._start, lease_id)
        return None

    def _pick(self) -> LiveInstance | None:
        now, policy = self._loop.time(), self._lives.policy
        for live in tuple(self._ready):
            if not live.is_ready or live.suspect:
                continue  # it ends, or is listed again
            if self._lives.outdates(live) or now >= old_at(policy, live.times):
                self._close(live)
            else:
                return live
        return None

    async def _claim(self, start: _Start, lease_id: str) -> LiveInstance:
        start.claim = self._loop.create_future()
        start.live.lease_id = lease_id
        self._context.reports.mark_instances_changed()
        try:
            return await asyncio.shield(start.claim)
        except asyncio.CancelledError:
            if start.claim.done():
                self._lives.discard(start.live)
            start.claim, start.live.lease_id = None, ""
            raise

    def reconcile(self) -> None:
        """Do what is due, and look again when the next thing is."""
        self._alarm.clear()
        if not self._running:
            return
        now, ready = self._loop.time(), [live for live in self._ready if live.is_ready]
        change = plan_spares(
            self._lives.policy,
            [live.times for live in ready],
            starting=1 if self._start is not None and self._start.claim is None else 0,
            room=self._lives.room,
            now=now,
            failing=self._lives.restart.failures > 0,
        )
        for at in change.close:
            self._close(ready[at])
        look_at = change.look_at
        if change.start and self._start is None:  # its end settles
            due = self._due()
            if now >= due and self._lives.restart.admits(now):
                self._begin_start()
            elif due > now:
                look_at = min(look_at, due)
        self._alarm.set(look_at)

    def _due(self) -> float:
        """Return when the background may start one; whoever needs a lease comes first."""
        wanted = spares_wanted(self._lives.policy)
        return self._lives.restart.retry_at + (0.0 if wanted else _AFTER_FAILURE)

    def shrink(self, count: int) -> None:
        """Close spares, the oldest first, until at most so many are left."""
        for live in self._ready[: max(0, len(self._ready) - count)]:
            self._close(live)

    def evict(self) -> bool:
        """Give up one spare, or the start of one; False where there is none."""
        if self._ready:
            self._close(self._ready[0])
            return True
        start = self._start
        if start is None or start.claim is not None or start.task is None:
            return False
        self._lives.discard(start.live)
        start.task.cancel()
        self._start = None
        return True

    def replace(self, live: LiveInstance) -> None:
        """Close a spare that is not what it should be; another one takes its place."""
        if live in self._ready:
            self._close(live)
            self.reconcile()

    def _close(self, live: LiveInstance) -> None:
        self._ready.remove(live)
        self._lives.discard(live)

    def _begin_start(self) -> None:
        self._start = start = _Start(self._lives.open())
        start.task = self._context.background.spawn(
            self._bring_up(start), f"start a spare of server {self._lives.key}"
        )

    async def _bring_up(self, start: _Start) -> None:
        try:
            await self._lives.bring_up(start.live)
        except BaseException as error:
            self._start_ended(start)
            if start.claim is not None and not start.claim.done():
                _refuse(start.claim, error)
            if not isinstance(error, Fault):
                raise
        else:
            self._start_ended(start)
            if start.claim is not None:
                start.live.taken(start.live.lease_id)
                start.claim.set_result(start.live)
            elif self._running and self._is_wanted(start.live):
                self._ready.append(start.live)
            else:
                self._lives.discard(start.live)
        if self._start is None:
            self.reconcile()

    def _is_wanted(self, live: LiveInstance) -> bool:
        """Return whether to keep an instance that may only have shown that the server starts."""
        return live.spec.outlives_probe or spares_wanted(self._lives.policy) > len(self._ready)

    def _start_ended(self, start: _Start) -> None:
        if self._start is start:
            self._start = None

    def ended(self, live: LiveInstance, fault: Fault) -> None:
        """Note that an instance ended by itself."""
        if live in self._ready:
            self._ready.remove(live)
            self._lives.ended(live, fault)
            self.reconcile()

    def stop(self) -> None:
        """Close the spares, and begin nothing new; what a lease has claimed still comes up."""
        self._alarm.clear()
        self._context.quota.leave(self._lives.key.server_id, self)
        self._running = False
        self.shrink(0)
        if self._start is not None and self._start.claim is None:
            self.evict()


def _refuse(claim: asyncio.Future[LiveInstance], error: BaseException) -> None:
    if isinstance(error, asyncio.CancelledError):
        claim.cancel()
    else:
        claim.set_exception(error)
        claim.exception()  # whoever has gone away does not ask
