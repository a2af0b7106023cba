"""Ends leases whose instance is too old, or has not been called for too long (DESIGN §5)."""

from __future__ import annotations

import asyncio
import math

from leaseway.data_plane.background import Alarm
from leaseway.data_plane.core.instances.instance_policy import idle_at, old_at
from leaseway.data_plane.instances.context import Hooks
from leaseway.data_plane.instances.live_instance import LiveInstance
from leaseway.data_plane.instances.members import LiveInstances


class Expiry:
    """Watches over the leased instances of one generation, also of one that drains.

    A call in flight is never cut off: the lease of an old instance ends with the last one.

    Args:
        lives: The instances of the generation.
        hooks: Hears which leases are over.
    """

    def __init__(self, lives: LiveInstances, hooks: Hooks) -> None:
        self._lives = lives
        self._hooks = hooks
        self._loop = asyncio.get_running_loop()
        self._alarm = Alarm(self.reconcile)

    def reconcile(self) -> None:
        """End what is over, and look again when the next lease may be."""
        now, look_at = self._loop.time(), math.inf
        for live in self._lives.all:
            if live.lease_id and live.up_since is not None:
                look_at = min(look_at, self._look_at(live, now))
        self._alarm.set(look_at)

    def _look_at(self, live: LiveInstance, now: float) -> float:
        policy = self._lives.policy
        rests_at, old_from = idle_at(policy, live.times, now), old_at(policy, live.times)
        live.overdue = ""
        if now >= old_from:
            live.overdue = (
                f"its instance is older than the {policy.max_age:g} s of max_age and makes way "
                "for a fresh one"
            )
        elif now >= rests_at:
            live.overdue = f"it had no call for the {policy.idle_timeout:g} s of idle_timeout"
        else:
            return min(rests_at, old_from)
        if not live.calls:
            self._hooks.on_lease_due(live, live.overdue)
        return math.inf

    def stop(self) -> None:
        """End no further lease."""
        self._alarm.clear()
