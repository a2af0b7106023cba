"""The instances made from one launch hash of one variant (DESIGN §§3, 9).

A generation of a shared server keeps one instance up (`shared`). One of a leased server
makes an instance for each lease (`upkeep` says when those end) and holds `spares`. A generation
that was replaced drains: what runs on it finishes, nothing new begins.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from typing import Final, Literal

from leaseway.data_plane.core.desired_state import HeldVariant
from leaseway.data_plane.core.instances.circuit_breaker import CircuitBreaker
from leaseway.data_plane.core.instances.instance_policy import spares_wanted
from leaseway.data_plane.core.problems import NO_BACK_CHANNEL
from leaseway.data_plane.core.resolved_values import ResolvedValues
from leaseway.data_plane.instances.context import WorkerContext
from leaseway.data_plane.instances.expiry import Expiry
from leaseway.data_plane.instances.live_instance import LiveInstance, ended_by_itself
from leaseway.data_plane.instances.members import LiveInstances
from leaseway.data_plane.instances.problems import ServerProblems
from leaseway.data_plane.instances.shared import SharedSupervisor
from leaseway.data_plane.instances.spares import Spares
from leaseway.spec.model import VariantKey
from leaseway.wire.errors import Fault, Reason

_NOT_TAKEN_OVER: Final = "CHANGED_LAUNCH_FAILED"


class Generation:
    """All instances of one launch hash of one variant.

    Attributes:
        launch_hash: What the instances are started from.
    """

    def __init__(self, variant: HeldVariant, context: WorkerContext) -> None:
        self.launch_hash = variant.launch_hash
        self._context = context
        self._problems = ServerProblems(variant.key, context.worker_id, context.reports)
        self._lives = LiveInstances(variant, context, self, self._problems, self._came_up)
        self._supervisor = SharedSupervisor(
            self._lives, context, self._take_over, self._not_taken_over
        )
        self._spares = Spares(self._lives, context)
        self._expiry = Expiry(self._lives, context.hooks)
        self._predecessor: Generation | None = None

    @property
    def variant(self) -> HeldVariant:
        """What is exposed now; its launch hash never changes."""
        return self._lives.variant

    @property
    def key(self) -> VariantKey:
        return self._lives.variant.key

    @property
    def is_shared(self) -> bool:
        """Whether calls of different sessions share one instance."""
        return self._lives.variant.spec.truely_stateless

    @property
    def shared(self) -> LiveInstance | None:
        """The instance that shared calls use, or None while there is none."""
        return self._supervisor.live

    @property
    def was_up(self) -> bool:
        """Whether an instance of this generation has come up, or was taken over from a probe."""
        return self._lives.was_up

    @property
    def predecessor(self) -> Generation | None:
        """The older generation that serves on until an instance of this one has been up."""
        return self._predecessor

    def can_follow(self, older: Generation) -> bool:
        """Return whether an older generation can serve until an instance of this one is up."""
        if self.variant.spec.hidden or self.is_shared != older.is_shared:
            return False
        if self.is_shared:
            return self.shared is None and older.shared is not None
        return not self.was_up and older.was_up

    def follow_on(self, older: Generation) -> None:
        """Leave shared calls to an older generation until an instance of this one is up.

        New leases try this one first; where it does not start, the older one has them.
        """
        self._predecessor = older
        if self.is_shared:
            self._supervisor.want()
        elif not spares_wanted(self.variant.spec.instances):
            older.stop_spares()

    def stop_spares(self) -> None:
        """Close what no lease uses, and keep none; leases can still be had."""
        self._spares.stop()

    def part_with_predecessor(self) -> Generation | None:
        """Return the older generation that serves on, for whoever takes over instead."""
        older, self._predecessor = self._predecessor, None
        return older

    def shared_for(self, tool: str) -> LiveInstance | None:
        """Return the instance for a shared call, or None where there is something to wait for.

        Args:
            tool: What is called; one that the older generation lacks or defines differently waits
                for this one. Empty for prompts and resources.
        """
        live = self._supervisor.live
        if live is None and self._predecessor is not None:
            older = self._predecessor.shared
            if older is not None and older.is_ready and older.has(self.variant.toolset, tool):
                return older
        return live

    @property
    def draining(self) -> bool:
        """Whether a newer generation has taken over."""
        return self._lives.draining

    @property
    def live_instances(self) -> Iterable[LiveInstance]:
        return self._lives.all

    @property
    def starts(self) -> int:
        return self._lives.starts

    @property
    def last_id(self) -> str:
        """The id of the newest instance; empty before the first."""
        return self._lives.last_id

    @property
    def circuit_breaker(self) -> CircuitBreaker:
        """How starts have gone, and when the next one may be."""
        return self._lives.restart

    @property
    def is_backing_off(self) -> bool:
        """Whether starts failed and none is under way."""
        return (
            self._lives.restart.failures > 0
            and not self.draining
            and all(live.up_since is not None for live in self._lives.all)
        )

    @property
    def is_resting(self) -> bool:
        """Whether the shared instance was ended because nobody called, until the next call."""
        return self._supervisor.rests and not self.draining

    @property
    def is_empty(self) -> bool:
        return not len(self._lives)

    @property
    def resolved_values(self) -> ResolvedValues | None:
        """What the references stand for here; None before the first start."""
        return self._lives.resolved_values

    def adopt(self, live: LiveInstance) -> None:
        """Take an instance that a probe started: as the shared one or as a spare.

        One that has ended, or is about to, is closed; another one starts when it is wanted.
        """
        if not live.is_ready:
            self._context.background.spawn(live.close(), f"close a dead instance of {self.key}")
            return
        self._lives.adopt(live)
        if self.is_shared:
            self._supervisor.adopt(live)
        else:
            self._spares.add(live)
            self._spares.begin()

    def adopt_spare(self, live: LiveInstance) -> None:
        """Take an instance of this launch hash where there is none yet, else close it."""
        if self.is_empty:
            self.adopt(live)
        else:
            self._context.background.spawn(live.close(), f"close a second instance of {self.key}")

    def outdates(self, live: LiveInstance) -> bool:
        """Return whether an instance was started with other values than the newest ones are."""
        return self._lives.outdates(live)

    @property
    def known_version(self) -> str:
        """The protocol version that the next instance is to be spoken to in; empty: unknown."""
        return self._lives.known_version

    def is_behind(self, resolved_values: ResolvedValues) -> bool:
        """Return whether anything here has other values than these."""
        held = [
            self.resolved_values,
            *(live.instance.resolved_values for live in self.live_instances),
        ]
        return any(resolved_values.differs(each) for each in held)

    def read_anew(self) -> None:
        """Read the references again at the next start."""
        self._lives.resolved_values = None

    def begin(self) -> None:
        """Start what is to be up before it is needed."""
        if not self.is_shared:
            self._spares.begin()
        elif self.variant.spec.starts_eagerly:
            self._supervisor.want()

    def expose(self, variant: HeldVariant) -> None:
        """Take over new tools and settings for the instances that there are."""
        before, self._lives.variant = self.variant.spec, variant
        for live in self.live_instances:
            if live.is_ready:
                self._compare_again(live)
        wanted = spares_wanted(variant.spec.instances)
        if wanted < spares_wanted(before.instances):
            self._spares.shrink(wanted)
        if variant.spec.starts_eagerly and not before.starts_eagerly:
            self.begin()
        self._reconcile()

    def _reconcile(self) -> None:
        self._supervisor.reconcile()
        self._spares.reconcile()
        self._expiry.reconcile()

    def _compare_again(self, live: LiveInstance) -> None:
        live.compare(self.variant.toolset)
        if live.differing:  # another worker's instance may have changed its list first
            live.suspect = True
            self._context.background.spawn(
                self._relist_suspect(live), f"list the tools of {live.instance.id} again"
            )
        else:
            self._problems.compared(live, self.live_instances, self.variant.toolset)

    async def _relist_suspect(self, live: LiveInstance) -> None:
        try:
            await self.relist(live)
        except Fault as fault:
            self._problems.fault(fault)
        finally:
            live.suspect = False
        if live.differing:  # it is of before the change; one that starts now may be of after it
            self._spares.replace(live)

    async def relist(self, live: LiveInstance) -> Mapping[str, bytes]:
        """List the tools of an instance again.

        Raises:
            Fault: It could not.
        """
        tools = await live.relist()
        self._problems.compared(live, self.live_instances, self.variant.toolset)
        return tools

    def listed_leased(self, live: LiveInstance, failure: Fault | None = None) -> None:
        """Note what a leased instance lists that said that its lists changed.

        Args:
            live: The instance.
            failure: Why it could not be listed, if so.
        """
        if self.draining or live.closed.is_set():
            return  # nobody would take the warning back
        if failure is not None:
            self._problems.changed(f"could not be listed: {failure.message}")
        elif live.lists_other(self.variant.toolset):
            self._problems.changed("is not what was recorded.")
        else:
            self._problems.compared(live, self.live_instances, self.variant.toolset)

    async def wait_for_shared(self, tool: str) -> LiveInstance:
        """Return the instance for a shared call, waiting for a start that is under way.

        Args:
            tool: As for `shared_for`.

        Raises:
            Fault: SERVER_NOT_READY or SERVER_LOST: it is down, and when it is tried again.
        """
        return self.shared_for(tool) or await self._supervisor.wait()

    def _came_up(self) -> None:
        if not self.is_shared:
            self._take_over()

    def _take_over(self) -> None:
        older = self.part_with_predecessor()
        if older is not None:
            self.mend(_NOT_TAKEN_OVER)
            older.drain()
            self._context.hooks.on_takeover()

    def _not_taken_over(self, fault: Fault) -> None:
        if self._predecessor is not None:
            self.report(
                _NOT_TAKEN_OVER,
                f"On worker {self._context.worker_id}, server {self.key} did not start as it is "
                "configured now; there it goes on as it was configured before, and is tried "
                f"again: {fault.message}",
            )

    async def take_for_lease(self, lease_id: str) -> tuple[LiveInstance, Generation]:
        """Return an instance of its own for a lease, and whose it is: a spare, else a new one.

        It is the older generation's where this one has never been up and does not start.

        Raises:
            Fault: It did not come up, and why; SERVER_NOT_READY also where starts have failed so
                often that none is tried now.
        """
        failure = self._lives.last_fault
        try:
            if failure is None or self._predecessor is None:
                live = await self._spares.take(lease_id) or await self._start_for_lease(lease_id)
                return live, self
        except Fault as fault:
            if self._predecessor is None or fault.reason is Reason.CAPACITY:
                raise
            failure = fault
        finally:
            self._spares.reconcile()
            self._expiry.reconcile()
        self._not_taken_over(failure)
        return await self._predecessor.take_for_lease(lease_id)

    async def _start_for_lease(self, lease_id: str) -> LiveInstance:
        if not self._lives.restart.admits(asyncio.get_running_loop().time()):
            raise self._lives.refusal(Reason.SERVER_NOT_READY, "does not start")
        limit = self.variant.spec.instances.max_instances
        self._context.quota.make_room(self.key.server_id, limit)
        live = self._lives.open(lease_id)
        await self._lives.bring_up(live)
        return live

    def drain(self) -> None:
        """Begin nothing new: spares end now, the shared instance with its last call."""
        self._lives.draining = True
        self._supervisor.stop()
        self._spares.stop()
        for live in self.live_instances:
            if not live.lease_id:
                self._lives.retire(live)
        self._problems.mend_all()
        older = self.part_with_predecessor()
        if older is not None:
            older.drain()

    def discard(self, live: LiveInstance, grace: float = 0) -> asyncio.Task[None]:
        """Close an instance in the background and forget it."""
        return self._lives.discard(live, grace)

    async def close(self) -> None:
        """End every instance."""
        self._lives.draining = True
        self._supervisor.stop()
        self._spares.stop()
        self._expiry.stop()
        closing = [self.discard(live) for live in self.live_instances]
        if closing:
            await asyncio.wait(closing)

    def on_instance_ended(self, live: LiveInstance, fault: Fault | None) -> None:
        """Forget an instance that ended by itself, and say whose lease is lost."""
        self._lives.forget(live, "ended" if fault is None else fault.message)
        if live.up_since is None:
            return  # whoever starts it hears of it
        if live.lease_id:
            if fault is not None and not self.draining:
                self._problems.fault(fault)
            self._context.hooks.on_leased_instance_ended(live, fault)
            return
        fault = fault or ended_by_itself(live.spec)
        self._supervisor.ended(live, fault)
        self._spares.ended(live, fault)

    def on_instance_idle(self, live: LiveInstance) -> None:
        """End an instance, or the lease of one, whose last call it waited for."""
        if live.draining:
            self.discard(live)
        else:
            self._expiry.reconcile()

    def on_instance_tools_changed(self, live: LiveInstance) -> None:
        self._context.hooks.on_tools_changed(self.key, live)

    def on_instance_disconnected(self, live: LiveInstance) -> None:
        """Report the state of an instance that is about to end."""
        self._context.reports.mark_instances_changed()

    def on_instance_warning(self, live: LiveInstance, reason: str, text: str) -> None:
        """Report what the server can't do as it is configured."""
        if reason == NO_BACK_CHANNEL and self._lives.asks_by_requests():
            text += (
                " Leases that begin from now on are spoken to by an older protocol without that,"
                " too: release one that began before, and call again."
            )
        if not self.draining:
            self.report(
                reason, f"On worker {self._context.worker_id}, server {self.key}: {text}", "warning"
            )

    def on_instance_warning_cleared(self, live: LiveInstance, reason: str) -> None:
        """Clear such a report."""
        self._problems.mend(reason)

    def report(
        self, reason: str, message: str, severity: Literal["error", "warning"] = "error"
    ) -> None:
        """Report a problem of this server, until it is mended or replaced."""
        self._problems.report(reason, message, severity)

    def mend(self, *reasons: str) -> None:
        """Clear problems; those that were not reported are not touched."""
        self._problems.mend(*reasons)
