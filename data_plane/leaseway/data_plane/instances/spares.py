"""Holds started, unused instances of a leased server for its next leases (design.md#leases)."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Final

from leaseway.data_plane.background import Alarm
from leaseway.data_plane.core.instances.lifetimes import (
    RefillPause,
    age_deadline,
    plan_spares,
    target_spares,
)
from leaseway.data_plane.instances.context import WorkerContext
from leaseway.data_plane.instances.instance_set import InstanceSet
from leaseway.data_plane.instances.live_instance import LiveInstance
from leaseway.wire.clients.greeting import COMMON, Greeting
from leaseway.wire.errors import Fault

_TRIAL_DELAY: Final = 1.0
"""Seconds after the backoff before a failing server without spares is tried without a lease: a
lease that needs an instance comes first."""


@dataclass(eq=False)
class _SpareStart:
    """The start of a spare; `claim` is the future of the lease that waits for it, if any."""

    live: LiveInstance
    task: asyncio.Task[None] | None = None
    claim: asyncio.Future[LiveInstance] | None = None


class Spares:
    """Keeps the spares of one generation at their target, if there is room; one start at a time.

    A handshake names the client, so that a spare for another client cannot be leased: spares greet
    their server for the client of the newest lease.

    `reconcile` runs after every change and on an alarm.

    Args:
        instances: The instances of the generation.
        context: What all generations share.
    """

    def __init__(self, instances: InstanceSet, context: WorkerContext) -> None:
        self._instances = instances
        self._context = context
        self._loop = asyncio.get_running_loop()
        self._alarm = Alarm(self.reconcile)
        self._ready: list[LiveInstance] = []
        self._starting: _SpareStart | None = None
        self._running = False
        self._greeting = COMMON
        self._pause = RefillPause()

    def start(self) -> None:
        """Keep spares from now on."""
        if not self._running:
            self._running = True
            self._context.instances.add_holder(self._instances.key.server_id, self)
            self.reconcile()

    def add(self, live: LiveInstance) -> None:
        """Hold an instance that a probe started."""
        self._ready.append(live)

    async def acquire(
        self, lease_id: str, greeting: Greeting = COMMON, tenant: str = ""
    ) -> LiveInstance | None:
        """Return a spare for a lease, waiting for one that is starting; None if there is none.

        Args:
            lease_id: The lease.
            greeting: How its instance has to have greeted the server.
            tenant: Whose lease it is.

        Raises:
            Fault: The awaited spare did not start.
        """
        self._greeting = greeting
        live = self._find_usable()
        if live is not None:
            self._take(live, lease_id)
            return live
        start = self._starting
        if start is not None and start.claim is None and start.live.greeting == greeting:
            start.live.wait_for(tenant)
            return await self._claim(start, lease_id)
        if self._ready:  # greeted for other clients: the newest is more likely to come again
            self._close(self._ready[0])
        return None

    def _take(self, live: LiveInstance, lease_id: str) -> None:
        spares = len(self._ready) + (self._starting is not None)
        self._pause = self._pause.after_lease(
            self._loop.time(),
            was_complete=spares >= target_spares(self._instances.policy),
        )
        self._ready.remove(live)
        live.assign_lease(lease_id)
        self._context.reports.mark_instances_changed()
        if self._running:
            self._alarm.hasten(self._pause.until)

    def _find_usable(self) -> LiveInstance | None:
        now, policy = self._loop.time(), self._instances.policy
        for live in tuple(self._ready):
            if not live.is_ready or live.suspect:
                continue  # it is about to end, or its tools are being listed again
            if self._greeting.accepted.isdisjoint(live.serves):
                continue
            if self._instances.is_outdated(live) or now >= age_deadline(policy, live.times):
                self._close(live)
            else:
                return live
        return None

    async def _claim(self, start: _SpareStart, lease_id: str) -> LiveInstance:
        start.claim = self._loop.create_future()
        start.live.lease_id = lease_id
        self._context.reports.mark_instances_changed()
        try:
            return await asyncio.shield(start.claim)
        except asyncio.CancelledError:
            if start.claim.done():
                self._instances.discard(start.live)
            start.claim, start.live.lease_id = None, ""
            raise

    def reconcile(self) -> None:
        """Close and start spares as planned, and set the alarm for the next plan."""
        self._alarm.clear()
        if not self._running:
            return
        now, ready = self._loop.time(), [live for live in self._ready if live.is_ready]
        breaker = self._instances.circuit_breaker
        plan = plan_spares(
            self._instances.policy,
            [live.times for live in ready],
            starting=1 if self._starting is not None and self._starting.claim is None else 0,
            room=self._instances.room,
            now=now,
            failing=breaker.failures > 0,
        )
        for index in plan.close:
            self._close(ready[index])
        check_at = plan.check_at
        if plan.start and self._starting is None:  # a start reconciles when it ends
            delay = 0.0 if target_spares(self._instances.policy) else _TRIAL_DELAY
            start_at = max(breaker.retry_at + delay, self._pause.until)
            if now < start_at:
                check_at = min(check_at, start_at)
            elif breaker.allows_start(now):
                self._start_spare()
        self._alarm.set(check_at)

    def shrink(self, count: int) -> None:
        """Close the oldest spares until at most this many are left."""
        for live in self._ready[: max(0, len(self._ready) - count)]:
            self._close(live)

    def evict(self) -> bool:
        """Close one spare, or cancel the start of one; return False if there is none."""
        if self._ready:
            self._close(self._ready[0])
            return True
        start = self._starting
        if start is None or start.claim is not None or start.task is None:
            return False
        self._instances.discard(start.live)
        start.task.cancel()
        self._starting = None
        return True

    def replace(self, live: LiveInstance) -> None:
        """Close an instance, if it is a spare, and start another one."""
        if live in self._ready:
            self._close(live)
            self.reconcile()

    def _close(self, live: LiveInstance) -> None:
        self._ready.remove(live)
        self._instances.discard(live)

    def _start_spare(self) -> None:
        live = self._instances.open(greeting=self._greeting, awaited=False)
        self._starting = start = _SpareStart(live)
        start.task = self._context.background.spawn(
            self._run_start(start), f"start a spare of server {self._instances.key}"
        )

    async def _run_start(self, start: _SpareStart) -> None:
        try:
            await self._instances.start(start.live)
        except BaseException as error:
            self._remove_start(start)
            if start.claim is not None and not start.claim.done():
                _fail(start.claim, error)
            if not isinstance(error, Fault):
                raise
        else:
            self._remove_start(start)
            if start.claim is not None:
                start.live.assign_lease(start.live.lease_id)
                start.claim.set_result(start.live)
            elif self._running and self._should_keep(start.live):
                self._ready.append(start.live)
            else:
                self._instances.discard(start.live)
        if self._starting is None:
            self.reconcile()

    def _should_keep(self, live: LiveInstance) -> bool:
        """Return whether to keep a new spare, not only one that shows that the server starts."""
        return live.spec.outlives_probe or target_spares(self._instances.policy) > len(self._ready)

    def _remove_start(self, start: _SpareStart) -> None:
        if self._starting is start:
            self._starting = None

    def handle_crash(self, live: LiveInstance, fault: Fault) -> None:
        """Replace an instance that ended by itself, if it is a spare."""
        if live in self._ready:
            self._ready.remove(live)
            self._instances.record_crash(live, fault)
            self.reconcile()

    def stop(self) -> None:
        """Close the spares; a start that a lease waits for continues."""
        self._alarm.clear()
        self._context.instances.remove_holder(self._instances.key.server_id, self)
        self._running = False
        self.shrink(0)
        if self._starting is not None and self._starting.claim is None:
            self.evict()


def _fail(claim: asyncio.Future[LiveInstance], error: BaseException) -> None:
    if isinstance(error, asyncio.CancelledError):
        claim.cancel()
    else:
        claim.set_exception(error)
        claim.exception()  # its caller may have been cancelled
