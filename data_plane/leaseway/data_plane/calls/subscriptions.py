"""Subscriptions to resources: calls that go on until they are cancelled (DESIGN §6).

They end with their instance or lease, but keep neither in use: else no server could be replaced
and no worker leave while somebody follows a resource.
"""

from __future__ import annotations

import time
from typing import Protocol

from leaseway.data_plane.calls.call import Run
from leaseway.data_plane.core.calls import Outcome, PendingCall
from leaseway.data_plane.core.lease_table import Lease
from leaseway.data_plane.core.prompts_resources import Asked
from leaseway.data_plane.instances.live_instance import LiveInstance
from leaseway.data_plane.leases.manager import LeaseManager
from leaseway.data_plane.metrics.instruments import SETTLED
from leaseway.wire.errors import Fault


class Allows(Protocol):
    """Says whether the callers of a call may know of a URI by now."""

    def __call__(self, run: Run, uri: str, /) -> bool: ...


class Following:
    """The subscriptions of a worker.

    Args:
        leases: Holds the leases that some run on.
        allows: Decides which changes are passed on.

    """

    def __init__(self, leases: LeaseManager, allows: Allows) -> None:
        self._leases = leases
        self._allows = allows
        self._runs: dict[Run, None] = {}

    def begin(self, run: Run, live: LiveInstance, asked: Asked) -> None:
        """Follow a resource.

        Raises:
            Fault: OVERLOADED: its stream follows too many.

        """
        run.admit_updates()
        followed = _Followed(self, run, live)
        self._runs[run] = None
        live.followers += 1
        if followed.lease is not None:
            run.lease = None
            self._leases.end_call(followed.lease)
        followed.pending = live.instance.follow(asked.name, followed.tell, followed.done)
        run.sent(followed)

    def end_all(self, fault: Fault) -> None:
        """End all of them, as the worker leaves."""
        for run in tuple(self._runs):
            run.withdraw(fault.message)
            run.fail(fault)

    def allows(self, run: Run, uri: str) -> bool:
        """Return whether a change is passed on; that a subscription holds always is."""
        return not uri or self._allows(run, uri)

    def ended(self, followed: _Followed) -> None:
        """Give back what a subscription stood on, for its call to end like any other."""
        run = followed.run
        if self._runs.pop(run, self) is self:
            return
        followed.live.follower_left()
        if followed.lease is not None:
            run.lease = followed.lease
            self._leases.begin_call(followed.lease)


class _Followed:
    """One subscription, as its run knows it: a `PendingCall`."""

    written = True  # that the server may know of it harms nobody

    def __init__(self, following: Following, run: Run, live: LiveInstance) -> None:
        self.run = run
        self.live = live
        self.lease: Lease | None = run.lease
        self.pending: PendingCall | None = None
        self._following = following

    def cancel(self, reason: str) -> None:
        """Follow no longer."""
        if self.pending is not None:
            self.pending.cancel(reason)
        self._following.ended(self)

    def tell(self, uri: str) -> None:
        """Pass a change on, or that the subscription holds."""
        run = self.run
        if not uri and run.timer is not None and run.timer is not SETTLED:
            run.timer.note(time.perf_counter() - run.sent_at, None, False)
            run.timer = SETTLED  # how long it goes on after that is up to its caller
        if self._following.allows(run, uri):
            run.updated(uri)

    def done(self, outcome: Outcome) -> None:
        """End as the instance says."""
        self._following.ended(self)
        self.run.done(outcome)
