"""Keeps the instance of a shared server up: started, rested, renewed (DESIGN §§3, 10)."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable
from dataclasses import replace

from leaseway.data_plane.background import Alarm
from leaseway.data_plane.core.instances.instance_policy import idle_at, old_at
from leaseway.data_plane.instances.context import WorkerContext
from leaseway.data_plane.instances.live_instance import LiveInstance
from leaseway.data_plane.instances.members import LiveInstances
from leaseway.wire.errors import Fault, Reason


class SharedSupervisor:
    """Keeps one instance up from when it is wanted until nobody has called for long.

    `reconcile` does what is due; it is called whenever something has changed, and by an alarm.

    Args:
        lives: The instances of the generation.
        context: What every generation needs.
        on_up: Called when an instance comes up or is taken over.
        on_failed: Called when one did not come up, with why.

    Attributes:
        live: What shared calls use, or None while there is none.
        rests: Whether it was ended because nobody called; the next call starts it again.
    """

    def __init__(
        self,
        lives: LiveInstances,
        context: WorkerContext,
        on_up: Callable[[], None],
        on_failed: Callable[[Fault], None],
    ) -> None:
        self.live: LiveInstance | None = None
        self.rests = False
        self._lives = lives
        self._context = context
        self._on_up = on_up
        self._on_failed = on_failed
        self._loop = asyncio.get_running_loop()
        self._alarm = Alarm(self.reconcile)
        self._wanted = False
        self._was_up = False
        self._waiting = 0
        self._starting: asyncio.Task[None] | None = None
        self._attempt: asyncio.Future[None] | None = None

    def want(self) -> None:
        """Keep an instance up from now on."""
        if not self._wanted:
            self._wanted, self.rests = True, False
            self.reconcile()

    def adopt(self, live: LiveInstance) -> None:
        self._wanted, self.rests = True, False
        self._use(live)
        self.reconcile()

    async def wait(self) -> LiveInstance:
        """Return the instance, waiting for a start that is under way.

        Raises:
            Fault: SERVER_NOT_READY or SERVER_LOST: it is down, and when it is tried again.
        """
        self.want()
        if self.live is None and self._attempt is not None and not self._lives.restart.is_open:
            await self._wait_for(self._attempt)
        if self.live is None:
            raise self._refusal()
        return self.live

    async def _wait_for(self, attempt: asyncio.Future[None]) -> None:
        self._waiting += 1  # what comes up does not rest before whoever waits for it has called
        try:
            async with asyncio.timeout(self._lives.variant.spec.startup_timeout):
                await asyncio.shield(attempt)
        except TimeoutError:
            pass  # the caller hears what is known of the server
        finally:
            self._waiting -= 1

    def _refusal(self) -> Fault:
        key, worker_id = self._lives.key, self._context.worker_id
        if self._lives.draining:
            return Fault(
                Reason.SERVER_NOT_READY,
                f"Server {key} was replaced on worker {worker_id}; try again.",
                retry_delay=0.1,
            )
        if self._lives.last_fault is None:
            return Fault(
                Reason.SERVER_NOT_READY,
                f"Server {key} is still starting on worker {worker_id}; try again later.",
                retry_delay=1.0,
            )
        if self._was_up:
            return self._lives.refusal(Reason.SERVER_LOST, "is down")
        return self._lives.refusal(Reason.SERVER_NOT_READY, "has not come up")

    def reconcile(self) -> None:
        """Do what is due, and look again when the next thing is."""
        self._alarm.clear()
        if self._lives.draining or not self._wanted or self._starting is not None:
            return  # the end of a start settles
        now, policy = self._loop.time(), self._lives.policy
        if self.live is None:
            self._start_when_due(now)
            return
        times = replace(self.live.times, calls=self.live.times.calls + self._waiting)
        rests_at, old_from = idle_at(policy, times, now), old_at(policy, times)
        if now >= rests_at:
            self._rest(self.live)
        elif now >= old_from:
            self._start_when_due(now, rests_at)
        else:
            self._alarm.set(min(rests_at, old_from))

    def _start_when_due(self, now: float, look_at: float = math.inf) -> None:
        if self._lives.restart.is_due(now):
            self._start()
        else:
            self._alarm.set(min(self._lives.restart.retry_at, look_at))

    def _start(self) -> None:
        self._attempt = self._loop.create_future()
        self._starting = self._context.background.spawn(
            self._bring_up(), f"start server {self._lives.key}"
        )

    async def _bring_up(self) -> None:
        try:
            live = self._lives.open()
            await self._lives.bring_up(live)
            self._use(live)
        except Fault as fault:  # kept with the other instances, for callers and operators
            self._on_failed(fault)
        except asyncio.CancelledError:
            self._wanted = False
            raise
        finally:
            self._starting = None
            self._end_attempt()
            self.reconcile()

    def _use(self, live: LiveInstance) -> None:
        old, self.live = self.live, live
        self._was_up = True
        if old is not None:
            if not old.calls:  # a renewal is no use
                live.idle_since = old.idle_since
            self._lives.retire(old)
        self._on_up()

    def _rest(self, live: LiveInstance) -> None:
        self._wanted, self.rests = False, True
        self.live = None
        self._lives.discard(live)

    def ended(self, live: LiveInstance, fault: Fault) -> None:
        """Note that an instance ended by itself."""
        if live is self.live:
            self.live = None
            self._lives.ended(live, fault)
            self.reconcile()

    def stop(self) -> None:
        """Begin nothing new, and keep nothing up."""
        self._alarm.clear()
        if self._starting is not None:
            self._starting.cancel()
        self.live = None
        self._end_attempt()

    def _end_attempt(self) -> None:
        if self._attempt is not None:
            if not self._attempt.done():
                self._attempt.set_result(None)
            self._attempt = None
