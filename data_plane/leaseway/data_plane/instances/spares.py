"""Starts instances for the leases of a server, and holds unused ones (design.md#leases)."""

from __future__ import annotations

import asyncio
from contextlib import suppress
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
from leaseway.spec.lease_names import LeaseNames
from leaseway.wire.clients.greeting import COMMON, Greeting
from leaseway.wire.errors import Fault

_TRIAL_DELAY: Final = 1.0
"""Seconds after the backoff before a failing server without spares is tried without a lease: a
lease that needs an instance comes first."""
_MAX_LEFT: Final = 4
"""Starts in progress that released leases have left to the next ones."""


@dataclass(eq=False)
class _Start:
    """The start of an instance.

    Attributes:
        live: The instance.
        is_planned: Whether it began as a spare's, and not for a lease.
        task: Starts it.
        claim: The future of the lease that waits for it, if any.
    """

    live: LiveInstance
    is_planned: bool
    task: asyncio.Task[None] | None = None
    claim: asyncio.Future[LiveInstance] | None = None

    @property
    def is_left(self) -> bool:
        """Whether it began for a lease that was released."""
        return not self.is_planned and self.claim is None


class Spares:
    """Keeps the spares of one generation at their target, if there is room; one start at a time.

    It also starts the instances of leases that find no spare. A lease that is released meanwhile
    leaves the start to the next one: a client that waits shorter than its server starts, and names
    another session with each call, would never get an answer.

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
        self._starts: list[_Start] = []
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
        for start in self._starts:
            if start.claim is None and start.live.greeting == greeting:
                start.live.wait_for(tenant)
                return await self._claim(start, lease_id)
        if self._ready:  # greeted for other clients: the newest is more likely to come again
            self._close(self._ready[0])
        return None

    async def start_for(
        self, lease_id: str, names: LeaseNames | None, greeting: Greeting
    ) -> LiveInstance:
        """Start an instance for a lease.

        Args:
            lease_id: The lease.
            names: The names of that lease.
            greeting: How its instance has to greet the server.

        Raises:
            Fault: It did not start.
        """
        live = self._instances.open(lease_id, names, greeting, awaited=True)
        return await self._claim(self._begin(live, is_planned=False), lease_id)

    @property
    def _is_refilling(self) -> bool:
        """Whether the start of a spare is in progress, also one that a lease has taken over."""
        return any(start.is_planned for start in self._starts)

    def _take(self, live: LiveInstance, lease_id: str) -> None:
        spares = len(self._ready) + self._is_refilling
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

    async def _claim(self, start: _Start, lease_id: str) -> LiveInstance:
        start.claim = self._loop.create_future()
        start.live.lease_id = lease_id
        self._context.reports.mark_instances_changed()
        try:
            return await asyncio.shield(start.claim)
        except asyncio.CancelledError:
            is_up, start.claim, start.live.lease_id = start.claim.done(), None, ""
            if is_up:
                self._instances.discard(start.live)
            elif not self._may_leave(start):
                self._cancel(start)
            self._context.reports.mark_instances_changed()
            raise

    def _may_leave(self, start: _Start) -> bool:
        """Return whether a start goes on for the next lease."""
        live = start.live
        is_bound = live.is_queued or live.knows_caller or live.spec.needs_holder
        if is_bound or not self._running:
            return False
        return start.is_planned or sum(other.is_left for other in self._starts) <= _MAX_LEFT

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
            starting=sum(start.claim is None for start in self._starts),
            room=self._instances.room,
            now=now,
            failing=breaker.failures > 0,
        )
        for index in plan.close:
            self._close(ready[index])
        check_at = plan.check_at
        if plan.start and not self._is_refilling:  # a start reconciles when it ends
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
        for start in self._starts:
            if start.claim is None:
                self._cancel(start)
                return True
        return False

    def _cancel(self, start: _Start) -> None:
        self._starts.remove(start)
        self._instances.discard(start.live)
        if start.task is not None:
            start.task.cancel()

    def replace(self, live: LiveInstance) -> None:
        """Close an instance, if it is a spare, and start another one."""
        if live in self._ready:
            self._close(live)
            self.reconcile()

    def _close(self, live: LiveInstance) -> None:
        self._ready.remove(live)
        self._instances.discard(live)

    def _start_spare(self) -> None:
        self._begin(self._instances.open(greeting=self._greeting, awaited=False), is_planned=True)

    def _begin(self, live: LiveInstance, *, is_planned: bool) -> _Start:
        start = _Start(live, is_planned)
        self._starts.append(start)
        start.task = self._context.background.spawn(
            self._run_start(start), f"start an instance of server {self._instances.key}"
        )
        return start

    async def _run_start(self, start: _Start) -> None:
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
            elif self._running and self._should_keep(start):
                self._ready.append(start.live)
            else:
                self._instances.discard(start.live)
        self.reconcile()

    def _should_keep(self, start: _Start) -> bool:
        """Return whether to keep a new spare, not only one that shows that the server starts."""
        return (
            start.is_left
            or start.live.spec.outlives_probe
            or target_spares(self._instances.policy) > len(self._ready)
        )

    def _remove_start(self, start: _Start) -> None:
        with suppress(ValueError):  # it was cancelled
            self._starts.remove(start)

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
        while self.evict():
            pass


def _fail(claim: asyncio.Future[LiveInstance], error: BaseException) -> None:
    if isinstance(error, asyncio.CancelledError):
        claim.cancel()
    else:
        claim.set_exception(error)
        claim.exception()  # its caller may have been cancelled
