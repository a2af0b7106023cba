"""The second instance of a shared server that speaks both eras, for clients of the older one.

It starts with the first call of such a client, if `max_instances` allows it, and ends when it has
been idle. If the server has no older era, or the instance does not start, those clients are served
by the first instance, as all others: only requests of the server to them may be impossible then.

See design.md#one-mcp-connection, eras.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Final

from leaseway.data_plane.background import Alarm
from leaseway.data_plane.core.instances.lifetimes import age_deadline, idle_deadline
from leaseway.data_plane.instances.context import WorkerContext
from leaseway.data_plane.instances.instance_set import InstanceSet
from leaseway.data_plane.instances.live_instance import LiveInstance
from leaseway.wire.clients.greeting import LEGACY
from leaseway.wire.errors import Fault

_IDLE: Final = 600.0
"""Seconds without a call after which it ends, unless `idle_timeout` is shorter."""
_PATIENCE: Final = 10.0
"""Seconds that a call waits for its start."""
_RETRY_DELAY: Final = 60.0
"""Seconds from a failed start to the next one."""


class LegacyCompanion:
    """Keeps one more instance of a shared server, of the older era, while clients use it.

    Args:
        instances: The instances of the generation.
        context: What all generations share.

    Attributes:
        live: The instance, or None if none has started.
    """

    def __init__(self, instances: InstanceSet, context: WorkerContext) -> None:
        self.live: LiveInstance | None = None
        self._instances = instances
        self._context = context
        self._loop = asyncio.get_running_loop()
        self._alarm = Alarm(self.reconcile)
        self._start_task: asyncio.Task[None] | None = None
        self._retry_at = 0.0
        self._has_no_older_era = False

    @property
    def is_possible(self) -> bool:
        """Whether there is an instance of the older era, or may be one soon."""
        if self.live is not None or self._start_task is not None:
            return True
        return (
            not self._has_no_older_era
            and self._instances.variant.spec.part.protocol == "auto"
            and not self._instances.draining
            and self._loop.time() >= self._retry_at
            and self._instances.room > 0
        )

    async def wait(self) -> None:
        """Start the instance, and wait for it for a while."""
        if self.live is None and self._start_task is None and self.is_possible:
            self._start_task = self._context.background.spawn(
                self._start(), f"start server {self._instances.key} for clients of the older era"
            )
        if self._start_task is not None:
            await asyncio.wait([self._start_task], timeout=_PATIENCE)

    async def _start(self) -> None:
        live = self._instances.open(greeting=LEGACY, awaited=True)
        try:
            await self._instances.start_companion(live)
        except Fault:
            self._retry_at = self._loop.time() + _RETRY_DELAY
        else:
            if live.is_modern:
                self._has_no_older_era = True
                self._instances.discard(live)
            elif self._instances.draining:
                self._instances.retire(live)
            else:
                self.live = live
        finally:
            self._start_task = None
            self.reconcile()

    def reconcile(self) -> None:
        """End the instance if it is idle or old; else set the alarm."""
        self._alarm.clear()
        live = self.live
        if live is None:
            return
        policy, now = self._instances.policy, self._loop.time()
        resting = replace(policy, idle_timeout=min(policy.idle_timeout or _IDLE, _IDLE))
        due = min(idle_deadline(resting, live.times, now), age_deadline(policy, live.times))
        if now >= due:
            self.live = None
            self._instances.retire(live)
        else:
            self._alarm.set(due)

    def handle_end(self, live: LiveInstance) -> None:
        """Forget the instance if it is the one that ended by itself; the next call starts it."""
        if live is self.live:
            self.live = None
            self._retry_at = self._loop.time() + 1.0

    def stop(self) -> None:
        """Cancel a start and release the instance; the generation closes it."""
        self._alarm.clear()
        if self._start_task is not None:
            self._start_task.cancel()
        self.live = None
