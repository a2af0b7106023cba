"""Subscriptions to resources: calls that go on until they are cancelled (DESIGN §6).

They end with their instance or lease, but keep neither in use: else no server could be replaced
and no worker leave while somebody follows a resource.
"""

from __future__ import annotations

import time
from typing import Protocol

from leaseway.data_plane.calls.call import ActiveCall
from leaseway.data_plane.core.calls.call import Outcome, PendingCall
from leaseway.data_plane.core.leases.table import WorkerLease
from leaseway.data_plane.core.tools.prompts_resources import AdmittedRequest
from leaseway.data_plane.instances.live_instance import LiveInstance
from leaseway.data_plane.leases.manager import WorkerLeaseManager
from leaseway.data_plane.metrics.instruments import SETTLED
from leaseway.wire.errors import Fault


class Allows(Protocol):
    """Says whether the callers of a call may know of a URI by now."""

    def __call__(self, active: ActiveCall, uri: str, /) -> bool: ...


class Following:
    """The subscriptions of a worker.

    Args:
        leases: Holds the leases that some run on.
        allows: Decides which changes are passed on.
    """

    def __init__(self, leases: WorkerLeaseManager, allows: Allows) -> None:
        self._leases = leases
        self._allows = allows
        self._active: dict[ActiveCall, None] = {}

    def begin(self, active: ActiveCall, live: LiveInstance, asked: AdmittedRequest) -> None:
        """Follow a resource.

        Raises:
            Fault: OVERLOADED: its stream follows too many.
        """
        active.admit_updates()
        followed = _Followed(self, active, live)
        self._active[active] = None
        live.followers += 1
        if followed.lease is not None:
            active.lease = None
            self._leases.end_call(followed.lease)
        followed.pending = live.instance.follow(asked.name, followed.notify, followed.done)
        active.sent(followed)

    def end_all(self, fault: Fault) -> None:
        for active in tuple(self._active):
            active.withdraw(fault.message)
            active.fail(fault)

    def allows(self, active: ActiveCall, uri: str) -> bool:
        """Return whether a change is passed on; that a subscription holds always is."""
        return not uri or self._allows(active, uri)

    def ended(self, followed: _Followed) -> None:
        """Give back what a subscription stood on, for its call to end like any other."""
        active = followed.active
        if self._active.pop(active, self) is self:
            return
        followed.live.remove_follower()
        if followed.lease is not None:
            active.lease = followed.lease
            self._leases.start_call(followed.lease)


class _Followed:
    """One subscription, as its call knows it: a `PendingCall`."""

    written = True  # that the server may know of it harms nobody

    def __init__(self, following: Following, active: ActiveCall, live: LiveInstance) -> None:
        self.active = active
        self.live = live
        self.lease: WorkerLease | None = active.lease
        self.pending: PendingCall | None = None
        self._following = following

    def cancel(self, reason: str) -> None:
        if self.pending is not None:
            self.pending.cancel(reason)
        self._following.ended(self)

    def notify(self, uri: str) -> None:
        """Pass a change on, or that the subscription holds."""
        active = self.active
        if not uri and active.timer is not None and active.timer is not SETTLED:
            active.timer.note(time.perf_counter() - active.sent_at, None, False)
            active.timer = SETTLED  # how long it goes on after that is up to its caller
        if self._following.allows(active, uri):
            active.updated(uri)

    def done(self, outcome: Outcome) -> None:
        self._following.ended(self)
        self.active.done(outcome)
