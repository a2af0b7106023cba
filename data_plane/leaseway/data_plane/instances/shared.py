"""Runs the instance of a shared server: starts, restarts, rests and renews it (design.md)."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable
from dataclasses import replace

from leaseway.data_plane.background import Alarm
from leaseway.data_plane.core.instances.lifetimes import age_deadline, idle_deadline
from leaseway.data_plane.instances.context import WorkerContext
from leaseway.data_plane.instances.instance_set import InstanceSet
from leaseway.data_plane.instances.live_instance import LiveInstance
from leaseway.wire.errors import Fault, Reason


class SharedSupervisor:
    """Keeps one instance running from the first call, or `run`, until it is idle for too long.

    `reconcile` runs after every change and on an alarm.

    Args:
        instances: The instances of the generation.
        context: What all generations share.
        on_up: Called when an instance has started or was adopted.
        on_failed: Called when a start failed.

    Attributes:
        live: The instance for shared calls, or None if none has started.
        is_resting: Whether it ended because it was idle; the next call starts it again.
    """

    def __init__(
        self,
        instances: InstanceSet,
        context: WorkerContext,
        on_up: Callable[[], None],
        on_failed: Callable[[Fault], None],
    ) -> None:
        self.live: LiveInstance | None = None
        self.is_resting = False
        self._instances = instances
        self._context = context
        self._on_up = on_up
        self._on_failed = on_failed
        self._loop = asyncio.get_running_loop()
        self._alarm = Alarm(self.reconcile)
        self._should_run = False
        self._was_up = False
        self._waiting = 0
        self._starting: LiveInstance | None = None
        self._start_task: asyncio.Task[None] | None = None
        self._started: asyncio.Future[None] | None = None

    def run(self) -> None:
        """Keep an instance running from now on."""
        if not self._should_run:
            self._should_run, self.is_resting = True, False
            self.reconcile()

    def adopt(self, live: LiveInstance) -> None:
        self._should_run, self.is_resting = True, False
        self._use(live)
        self.reconcile()

    async def wait(self) -> LiveInstance:
        """Return the instance, waiting for a start in progress.

        Raises:
            Fault: SERVER_NOT_READY or SERVER_LOST: it is down, with the time of the next start.
        """
        self.run()
        breaker = self._instances.circuit_breaker
        if self.live is None and self._started is not None and not breaker.is_open:
            await self._wait_for(self._started)
        if self.live is None:
            raise self._unavailable()
        return self.live

    async def _wait_for(self, started: asyncio.Future[None]) -> None:
        self._waiting += 1  # the instance does not rest before its waiters have called it
        if self._starting is not None:
            self._starting.wait_for(self._instances.key.tenant)
        try:
            await asyncio.shield(started)  # the start has its own limit
        finally:
            self._waiting -= 1

    def _unavailable(self) -> Fault:
        key, worker_id = self._instances.key, self._context.worker_id
        if self._instances.draining:
            return Fault(
                Reason.SERVER_NOT_READY,
                f"Server {key} was replaced on worker {worker_id}; try again.",
                retry_delay=0.1,
            )
        if self._instances.last_fault is None:
            return Fault(
                Reason.SERVER_NOT_READY,
                f"Server {key} is still starting on worker {worker_id}; try again later.",
                retry_delay=1.0,
            )
        if self._was_up:
            return self._instances.unavailable_fault(Reason.SERVER_LOST, "is down")
        return self._instances.unavailable_fault(Reason.SERVER_NOT_READY, "has not started")

    def reconcile(self) -> None:
        """Start, rest or renew the instance if it is time; else set the alarm."""
        self._alarm.clear()
        if self._instances.draining or not self._should_run or self._start_task is not None:
            return  # a start reconciles when it ends
        now, policy = self._loop.time(), self._instances.policy
        if self.live is None:
            self._start_after_backoff(now)
            return
        times = replace(self.live.times, calls=self.live.times.calls + self._waiting)
        idle_at, old_at = idle_deadline(policy, times, now), age_deadline(policy, times)
        if now >= idle_at:
            self._rest(self.live)
        elif now >= old_at:
            self._start_after_backoff(now, idle_at)
        else:
            self._alarm.set(min(idle_at, old_at))

    def _start_after_backoff(self, now: float, idle_at: float = math.inf) -> None:
        breaker = self._instances.circuit_breaker
        if breaker.allows_background_start(now):
            self._started = self._loop.create_future()
            self._start_task = self._context.background.spawn(
                self._start(), f"start server {self._instances.key}"
            )
        else:
            self._alarm.set(min(breaker.retry_at, idle_at))

    async def _start(self) -> None:
        try:
            live = self._starting = self._instances.open(awaited=self._waiting > 0)
            await self._instances.start(live)
            self._use(live)
        except Fault as fault:  # the instance set keeps it for callers and operators
            if fault.reason is Reason.LOGIN_REQUIRED or fault.metadata.get("whose") == "caller":
                self._should_run = False  # only a login or a new token helps: the next call tries
            self._on_failed(fault)
        except asyncio.CancelledError:
            self._should_run = False
            raise
        finally:
            self._start_task = self._starting = None
            self._wake_waiters()
            self.reconcile()

    def _use(self, live: LiveInstance) -> None:
        old, self.live = self.live, live
        self._was_up = True
        if old is not None:
            if not old.calls:  # a renewal does not restart the idle time
                live.idle_since = old.idle_since
            self._instances.retire(old)
        self._on_up()

    def _rest(self, live: LiveInstance) -> None:
        self._should_run, self.is_resting = False, True
        self.live = None
        self._instances.discard(live)

    def handle_crash(self, live: LiveInstance, fault: Fault) -> None:
        """Restart the instance if it is the one that ended by itself."""
        if live is self.live:
            self.live = None
            self._instances.record_crash(live, fault)
            self.reconcile()

    def stop(self) -> None:
        """Cancel a start and release the instance; the generation closes it."""
        self._alarm.clear()
        if self._start_task is not None:
            self._start_task.cancel()
        self.live = None
        self._wake_waiters()

    def _wake_waiters(self) -> None:
        if self._started is not None:
            if not self._started.done():
                self._started.set_result(None)
            self._started = None
