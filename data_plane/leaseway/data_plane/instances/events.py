"""What happens to the instances of a worker, for the parts that are built on them."""

from __future__ import annotations

from typing import NamedTuple

from leaseway.data_plane.core.resolved_values import ResolvedValues
from leaseway.data_plane.instances.live_instance import InstanceOwner, LiveInstance, ended_by_itself
from leaseway.spec.model import ServerSpec, VariantKey
from leaseway.wire.errors import Fault
from leaseway.wire.messages.states import InstanceRole
from leaseway.wire.signals import Signal


class InstanceEnd(NamedTuple):
    """The end of an instance that was ready.

    Attributes:
        live: The instance; `live.fault` says why it crashed, if known.
        role: What it was for.
        how: How it ended, in words.
        crashed: Whether it ended by itself.
    """

    live: LiveInstance
    role: InstanceRole
    how: str
    crashed: bool

    @property
    def cause(self) -> Fault:
        """Why it crashed."""
        return self.live.fault or ended_by_itself(self.live.spec)


class InstanceEvents:
    """Signals of all instances of a worker.

    Attributes:
        started: An instance is ready; true after a failed start or a crash.
        ended: An instance that was ready was closed, or crashed.
        tools_changed: A server reported that its tools changed.
        lists_read: A leased instance has listed its prompts and resources for the first time.
        lease_due: A lease must end because its instance is too old or was idle for too long; the
            text says why. No call is in flight.
        probe_failed: A probe failed with these values, or as a reference does not resolve (None).
        login_required: A probe failed because nobody has logged in.
        listing_needed: Calls wait until a server is listed for whom a generation serves.
        logins_changed: A login has come or ended: what waited for one may start.
        login_ended: The login of a subject has ended; the variant that its calls used follows.
        takeover: A generation whose first start had failed replaced its predecessor.
    """

    def __init__(self) -> None:
        self.started: Signal[LiveInstance, bool] = Signal()
        self.ended: Signal[InstanceEnd] = Signal()
        self.tools_changed: Signal[VariantKey, LiveInstance] = Signal()
        self.lists_read: Signal[LiveInstance] = Signal()
        self.lease_due: Signal[LiveInstance, str] = Signal()
        self.probe_failed: Signal[ServerSpec, ResolvedValues | None] = Signal()
        self.login_required: Signal[ServerSpec] = Signal()
        self.listing_needed: Signal[InstanceOwner] = Signal()
        self.logins_changed: Signal[()] = Signal()
        self.login_ended: Signal[VariantKey, VariantKey] = Signal()
        self.takeover: Signal[()] = Signal()
