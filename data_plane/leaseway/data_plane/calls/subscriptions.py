"""Subscriptions to resources: calls that last until they are cancelled (design.md#calls).

They end with their instance or lease, but do not keep it in use: otherwise a subscriber could block
the replacement of a server and the drain of a worker.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from leaseway.data_plane.calls.call import ActiveCall
from leaseway.data_plane.core.calls.call import Outcome, PendingCall
from leaseway.data_plane.core.leases.table import WorkerLease
from leaseway.data_plane.core.tools.prompts_resources import AdmittedRequest
from leaseway.data_plane.instances.live_instance import LiveInstance
from leaseway.data_plane.leases.manager import WorkerLeaseManager
from leaseway.data_plane.metrics.instruments import ALREADY_RECORDED
from leaseway.wire.errors import Fault


class WorkerSubscriptions:
    """The subscriptions of a worker.

    Args:
        leases: Holds the leases that some subscriptions run on.
        is_visible: Returns whether a call's caller may see a URI at present.
    """

    def __init__(
        self, leases: WorkerLeaseManager, is_visible: Callable[[ActiveCall, str], bool]
    ) -> None:
        self.is_visible = is_visible
        self._leases = leases
        self._active: set[ActiveCall] = set()
        self._rejection: Fault | None = None

    def subscribe(self, active: ActiveCall, live: LiveInstance, request: AdmittedRequest) -> None:
        """Subscribe to a resource.

        Raises:
            Fault: OVERLOADED: the caller's stream has too many subscriptions; or as `reject_new`
                was told.
        """
        if self._rejection is not None:
            raise self._rejection
        active.add_subscription()
        subscription = _Subscription(self, active, live)
        self._active.add(active)
        live.followers += 1
        if subscription.lease is not None:
            active.lease = None
            self._leases.end_call(subscription.lease)
        subscription.pending = live.instance.follow(
            request.name, subscription.on_update, subscription.on_outcome
        )
        active.pending = subscription

    def reject_new(self, rejection: Fault) -> None:
        """Reject new subscriptions from now on: they would outlive the drain of the worker."""
        self._rejection = rejection

    def end_all(self, fault: Fault) -> None:
        for active in tuple(self._active):
            active.cancel_request(fault.message)
            active.fail(fault)

    def release(self, subscription: _Subscription) -> None:
        """Release the instance, and return the lease to the call so that it ends like any other."""
        active = subscription.active
        if active not in self._active:
            return
        self._active.remove(active)
        subscription.live.remove_follower()
        if subscription.lease is not None:
            active.lease = subscription.lease
            self._leases.start_call(subscription.lease)


class _Subscription:
    """One subscription, as the `PendingCall` of its call."""

    written = True  # the server may know of it, which does no harm

    def __init__(
        self, subscriptions: WorkerSubscriptions, active: ActiveCall, live: LiveInstance
    ) -> None:
        self.active = active
        self.live = live
        self.lease: WorkerLease | None = active.lease
        self.pending: PendingCall | None = None
        self._subscriptions = subscriptions

    def cancel(self, reason: str) -> None:
        if self.pending is not None:
            self.pending.cancel(reason)
        self._subscriptions.release(self)

    def on_update(self, uri: str) -> None:
        """Pass on a change that the caller may see; an empty URI confirms the subscription."""
        active = self.active
        if not uri and active.timer is not None and active.timer is not ALREADY_RECORDED:
            active.timer.record(time.perf_counter() - active.sent_at, None, False)
            active.timer = ALREADY_RECORDED  # how long it lasts is the caller's choice
        if not uri or self._subscriptions.is_visible(active, uri):
            active.resource_updated(uri)

    def on_outcome(self, outcome: Outcome) -> None:
        self._subscriptions.release(self)
        self.active.handle_outcome(outcome)
