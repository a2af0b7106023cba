"""The instances of one launch hash of one variant (design.md).

A generation of a shared server keeps one instance running (`shared`). A generation of a leased
server starts an instance for each lease, ends leases by age and idleness, and holds `spares`. A
replaced generation drains: its calls finish, and it accepts no new ones.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from typing import Final, assert_never

from leaseway.data_plane.background import Alarm
from leaseway.data_plane.core.calls.call import Callbacks
from leaseway.data_plane.core.desired_state import HeldVariant
from leaseway.data_plane.core.instances.lifetimes import (
    age_deadline,
    idle_deadline,
    target_spares,
)
from leaseway.data_plane.core.ports import ListedPromptsResources
from leaseway.data_plane.core.problems import NO_BACK_CHANNEL, sentence
from leaseway.data_plane.core.tools.toolset import CompiledToolset
from leaseway.data_plane.instances.companion import LegacyCompanion
from leaseway.data_plane.instances.context import WorkerContext
from leaseway.data_plane.instances.events import InstanceEnd
from leaseway.data_plane.instances.instance_set import InstanceSet
from leaseway.data_plane.instances.live_instance import InstanceOwner, LiveInstance
from leaseway.data_plane.instances.problems import ServerProblems
from leaseway.data_plane.instances.shared import SharedSupervisor
from leaseway.data_plane.instances.spares import Spares
from leaseway.spec.lease_names import LeaseNames
from leaseway.spec.model import VariantKey
from leaseway.wire.bounds import RELIST_WAIT
from leaseway.wire.clients.greeting import COMMON, Greeting
from leaseway.wire.errors import Fault, Reason

_CHANGED_LAUNCH_FAILED: Final = "CHANGED_LAUNCH_FAILED"


class Generation(InstanceOwner):
    """All instances of one launch hash of one variant.

    Attributes:
        variant: The exposed variant; its launch hash never changes.
        key: Its key.
        is_shared: Whether calls of different sessions share one instance.
        supervisor: Keeps the shared instance (`live`) running.
        launch_hash: The hash of everything that needs a new instance when it changes.
        problems: Its open problems.
        instances: Its instances that have not ended.
        predecessor: The older generation that serves until an instance of this one has started.
        listed_for: The variant that it was derived from for one tenant or user, for whom the server
            is listed; None for all other generations.
        needs_listing: Whether calls wait until that has been tried.

    Args:
        variant: The exposed variant.
        context: What all generations share.
        listed_for: As above.
    """

    def __init__(
        self,
        variant: HeldVariant,
        context: WorkerContext,
        listed_for: VariantKey | None = None,
    ) -> None:
        self.listed_for = listed_for
        self.needs_listing = False
        self._listed = asyncio.Event()
        self._has_own_toolset = False
        self._one_at_a_time = asyncio.Lock()
        self.variant = variant
        self.key = variant.key
        self.is_shared = variant.spec.truely_stateless
        self.launch_hash = variant.launch_hash
        self.problems = ServerProblems(variant.key, context.worker_id, context.reports)
        self.predecessor: Generation | None = None
        self._context = context
        self._loop = asyncio.get_running_loop()
        self.instances = InstanceSet(
            variant, context, self, self.problems, self._on_up, self._on_ended
        )
        self.supervisor = SharedSupervisor(
            self.instances, context, self._replace_predecessor, self._report_failed_change
        )
        self._companion = LegacyCompanion(self.instances, context)
        self._spares = Spares(self.instances, context)
        self._expiry_alarm = Alarm(self._expire_leases)

    @property
    def shared(self) -> LiveInstance | None:
        """The instance for shared calls, or None if none has started."""
        return self.supervisor.live

    @property
    def recorded_lists(self) -> ListedPromptsResources:
        """The prompts and resources that the registry has recorded."""
        recorded = self.variant.toolset.prompts_resources
        return ListedPromptsResources(
            recorded.recorded_prompts, recorded.recorded_resources, recorded.recorded_templates
        )

    @property
    def draining(self) -> bool:
        """Whether a newer generation has replaced this one."""
        return self.instances.draining

    @property
    def is_backing_off(self) -> bool:
        """Whether starts failed and none is in progress."""
        return (
            self.instances.circuit_breaker.failures > 0
            and not self.draining
            and all(live.up_since is not None for live in self.instances)
        )

    @property
    def needs_login(self) -> bool:
        """Whether the newest start failed because nobody has logged in."""
        fault = self.instances.last_fault
        return fault is not None and fault.reason is Reason.LOGIN_REQUIRED and not self.draining

    @property
    def is_resting(self) -> bool:
        """Whether the shared instance ended because it was idle; the next call starts it."""
        return self.supervisor.is_resting and not self.draining

    def can_defer_to(self, older: Generation) -> bool:
        """Return whether an older generation can serve until an instance of this one starts."""
        if self.variant.spec.hidden or self._awaits_login or self.is_shared != older.is_shared:
            return False
        if self.is_shared:
            return self.shared is None and older.shared is not None
        return not self.instances.was_up and older.instances.was_up

    def defer_to(self, older: Generation) -> None:
        """Let an older generation serve shared calls until an instance of this one starts.

        New leases try this generation first, then the older one.
        """
        self.predecessor = older
        if self.is_shared:
            self.supervisor.run()
        elif not target_spares(self.variant.spec.instances):
            older._spares.stop()

    def pop_predecessor(self) -> Generation | None:
        predecessor, self.predecessor = self.predecessor, None
        return predecessor

    def shared_for(self, tool: str) -> LiveInstance | None:
        """Return the started instance for a shared call, or None to wait for one.

        Args:
            tool: The tool's name. A call waits for this generation if the older one lacks the tool
                or defines it differently. Empty for prompts and resources.
        """
        live = self.supervisor.live
        if live is None and self.predecessor is not None:
            older = self.predecessor.shared
            if older is not None and older.is_ready and older.has(self.variant.toolset, tool):
                return older
        return live

    async def wait_for_shared(self, tool: str) -> LiveInstance:
        """Return the instance for a shared call of a tool, waiting for a start in progress.

        Raises:
            Fault: SERVER_NOT_READY or SERVER_LOST: it is down, with the time of the next start.
        """
        return self.shared_for(tool) or await self.supervisor.wait()

    def legacy_for(self, live: LiveInstance, tool: str) -> LiveInstance | None:
        """Return the started instance for a shared call of a client of the older era.

        Args:
            live: The instance for all other calls, which is of the modern era.
            tool: The tool's name; empty for prompts and resources.

        Returns:
            None to wait for one of its era. `live`, if there can be none, or if it lacks the tool.
        """
        if live.owner is not self:  # it is the older generation's
            return live
        companion = self._companion.live
        if companion is not None:
            return companion if companion.has(self.variant.toolset, tool) else live
        return None if self._companion.is_possible else live

    async def wait_for_legacy(self, live: LiveInstance, tool: str) -> LiveInstance:
        """Like `legacy_for`, but wait for a start in progress, for a while.

        Raises:
            Fault: `live` was closed meanwhile, and there is no other (`wait_for_shared`).
        """
        if self.legacy_for(live, tool) is None:
            await self._companion.wait()
            if live.owner is None:
                live = await self.wait_for_shared(tool)
        return self.legacy_for(live, tool) or live

    def adopt(self, live: LiveInstance) -> None:
        """Use an instance that a probe started, as the shared one or as a spare.

        An instance that has ended, or is about to, is closed.
        """
        if not live.is_ready:
            self._context.background.spawn(live.close(), f"close a dead instance of {self.key}")
            return
        self.instances.adopt(live)
        if self.is_shared:
            self.supervisor.adopt(live)
        elif self.variant.spec.needs_holder:  # it was started for no session
            self.instances.discard(live)
            self._spares.start()
        else:
            self._spares.add(live)
            self._spares.start()

    def adopt_if_empty(self, live: LiveInstance) -> None:
        """Use a probe's instance if there is no other instance, else close it."""
        if not self.instances:
            self.adopt(live)
        else:
            self._context.background.spawn(live.close(), f"close a second instance of {self.key}")

    @property
    def _awaits_login(self) -> bool:
        """Whether nobody has logged in yet: only a person's call can start an instance then."""
        variant = self.variant
        return variant.toolset.listed is None and variant.spec.part.auth.logs_in

    def start(self) -> None:
        """Start the instances that must run before they are needed."""
        if self._awaits_login:
            return
        if not self.is_shared:
            self._spares.start()
        elif self.variant.spec.starts_eagerly:
            self.supervisor.run()

    def update_exposure(self, variant: HeldVariant) -> None:
        """Apply new tools and settings to the instances that run."""
        before = self.variant.spec
        starts_now = self._awaits_login and self.listed_for is None  # calls start a subject's
        self.variant = self.instances.variant = variant
        for live in self.instances:
            if live.is_ready:
                self._compare_again(live)
        target = target_spares(variant.spec.instances)
        if target < target_spares(before.instances):
            self._spares.shrink(target)
        if starts_now or (variant.spec.starts_eagerly and not before.starts_eagerly):
            self.start()
        self.supervisor.reconcile()
        self._companion.reconcile()
        self._spares.reconcile()
        self._expire_leases()

    @asynccontextmanager
    async def connection(self) -> AsyncIterator[LiveInstance]:
        """Use a connection that calls have, or open one that is closed again.

        Raises:
            Fault: The server was not reached; LOGIN_REQUIRED: nobody has logged in.
        """
        if self.is_shared:
            yield await self.wait_for_shared("")
            return
        ready = next((live for live in self.instances if live.is_ready), None)
        if ready is not None:
            yield ready
            return
        async with self._one_at_a_time:  # callers decide how often this is needed
            live = self._context.open(self.variant.spec, awaited=True)
            await live.start()
            try:
                yield live
            finally:
                await asyncio.shield(live.close())

    async def wait_for_listing(self) -> None:
        """Wait until the server is listed for whom this generation serves, or that has failed."""
        if self.needs_listing and self._context.events.listing_needed:
            self._context.events.listing_needed.emit(self)
            await self._listed.wait()
        self.needs_listing = False

    @property
    def lacks_listing(self) -> bool:
        """Whether it is for a tenant or user for whom the server has not been listed."""
        return self.listed_for is not None and not self._has_own_toolset

    def require_listing(self) -> None:
        """Let calls wait until the server has been listed, or listed again."""
        self.needs_listing = True
        self._listed.clear()

    def end_listing(self) -> None:
        """Let calls go on that wait for the listing."""
        self.needs_listing = False
        self._listed.set()

    def use_toolset(self, toolset: CompiledToolset) -> None:
        """Check calls by another toolset: what the server lists for whom this generation serves."""
        self._has_own_toolset = True
        self.update_exposure(replace(self.variant, toolset=toolset))

    def _compare_again(self, live: LiveInstance) -> None:
        live.compare(self.variant.toolset)
        if live.differing:  # its list may have changed, as that of another worker's instance
            live.suspect = True
            self._context.background.spawn(
                self._relist_suspect(live), f"list the tools of {live.instance.id} again"
            )
        else:
            self.problems.update_tools(live, self.instances, self.variant.toolset)

    async def _relist_suspect(self, live: LiveInstance) -> None:
        try:
            await self.relist(live)
        except Fault as fault:
            self.problems.report_fault(fault)
        finally:
            live.suspect = False
        if live.differing:  # an instance that starts now may have the new list
            self._spares.replace(live)

    async def relist(self, live: LiveInstance) -> None:
        """List the tools of an instance again.

        Raises:
            Fault: The listing failed.
        """
        await live.relist()
        self.problems.update_tools(live, self.instances, self.variant.toolset)

    def check_leased_lists(self, live: LiveInstance, failure: Fault | None = None) -> None:
        """Report or clear a difference between a leased instance's lists and the recorded ones.

        Args:
            live: The instance, which reported that its lists changed.
            failure: Why it could not be listed again, if it could not.
        """
        if live.closed.is_set:
            return
        live.tell_lists(self.variant.toolset)
        if self.draining or not live.is_typical:
            return  # nothing would clear the warning, or it lists what its client may see
        if failure is not None:
            self.problems.report_changed_lists(f"could not be read: {failure.message}")
        elif live.serves_other(self.variant.toolset):
            self.problems.report_changed_lists("is not the recorded one.")
        else:
            self.problems.update_tools(live, self.instances, self.variant.toolset)

    async def list_for_client(self, live: LiveInstance) -> None:
        """List prompts and resources before the first call of a client that leases an instance.

        What they lack then is what the client does not get; what they lack later is the state of
        its session. A server that takes longer than 2 s is listed beside its first call.
        """
        offered = self.variant.toolset.prompts_resources
        if live.is_typical or not offered.has_any or live.instance.prompts_resources is not None:
            return
        with suppress(Fault, TimeoutError):
            async with asyncio.timeout(RELIST_WAIT):
                await live.instance.list_prompts_resources(
                    live.spec.startup_timeout, self.recorded_lists
                )

    async def _list_for_client(self, live: LiveInstance) -> None:
        """List prompts and resources as the client of a leased instance sees them."""
        try:
            await live.instance.list_prompts_resources(
                live.spec.startup_timeout, self.recorded_lists
            )
        except Fault:
            return  # it has ended
        self._context.events.lists_read.emit(live)
        live.tell_lists(self.variant.toolset)

    def _on_up(self) -> None:
        if not self.is_shared:
            self._replace_predecessor()

    def _replace_predecessor(self) -> None:
        predecessor = self.pop_predecessor()
        if predecessor is not None:
            self.problems.clear(_CHANGED_LAUNCH_FAILED)
            predecessor.drain()
            self._context.events.takeover.emit()

    def _report_failed_change(self, fault: Fault) -> None:
        if self.predecessor is not None:
            self.problems.report(
                _CHANGED_LAUNCH_FAILED,
                f"{sentence(fault.message)} So the changed configuration is not in use "
                f"there: the previous one keeps serving, and the start is retried. "
                f"{self.problems.place}",
                advice=fault.advice,
            )

    async def acquire_for_lease(
        self, lease_id: str, names: LeaseNames | None = None, greeting: Greeting = COMMON
    ) -> tuple[LiveInstance, Generation]:
        """Return an instance for a lease, a spare or a new one, and the generation that owns it.

        A server that uses the names of its lease gets a new one: a spare has no lease yet. The
        older generation provides it if this one has never started an instance and fails to.

        Raises:
            Fault: It did not start; SERVER_NOT_READY also if the circuit is open.
        """
        failure = self.instances.last_fault
        try:
            if failure is None or self.predecessor is None:
                live = await self._spare_for(lease_id, names, greeting)
                if live is None:
                    live = await self._start_for_lease(lease_id, names, greeting)
                self._expiry_alarm.hasten(self._expire_lease(live, self._loop.time()))
                return live, self
        except Fault as fault:
            if self.predecessor is None or fault.reason is Reason.CAPACITY:
                raise
            failure = fault
        self._report_failed_change(failure)
        return await self.predecessor.acquire_for_lease(lease_id, names, greeting)

    async def _spare_for(
        self, lease_id: str, names: LeaseNames | None, greeting: Greeting
    ) -> LiveInstance | None:
        if self.variant.spec.needs_holder:
            return None
        tenant = names.tenant if names is not None else ""
        return await self._spares.acquire(lease_id, greeting, tenant)

    async def _start_for_lease(
        self, lease_id: str, names: LeaseNames | None, greeting: Greeting
    ) -> LiveInstance:
        if not self.instances.circuit_breaker.allows_start(self._loop.time()):
            raise self.instances.unavailable_fault(Reason.SERVER_NOT_READY, "does not start")
        limit = self.variant.spec.instances.max_instances
        self._context.instances.make_room(self.key.server_id, limit)
        return await self._spares.start_for(lease_id, names, greeting)

    def _expire_leases(self) -> None:
        """End the leases whose instance is too old or idle, also while draining (design.md#leases).

        A call in flight is never cut off: the lease of an old instance ends after its last call.
        """
        now = self._loop.time()
        deadlines = [
            self._expire_lease(live, now)
            for live in self.instances
            if live.lease_id and live.up_since is not None
        ]
        self._expiry_alarm.set(min(deadlines, default=math.inf))

    def _expire_lease(self, live: LiveInstance, now: float) -> float:
        """End the lease of an instance if it is due; return when to check it again."""
        policy = self.variant.spec.instances
        idle_at = idle_deadline(policy, live.times, now)
        old_at = age_deadline(policy, live.times)
        live.overdue = ""
        if now >= old_at:
            live.overdue = f"its instance is older than the {policy.max_age:g} s of max_age"
        elif now >= idle_at:
            live.overdue = f"it had no call for the {policy.idle_timeout:g} s of idle_timeout"
        else:
            return min(idle_at, old_at)
        if not live.calls:
            self._context.events.lease_due.emit(live, live.overdue)
        return math.inf

    def drain(self) -> None:
        """Close spares now and the shared instance after its last call; start nothing new."""
        self.instances.draining = True
        self.supervisor.stop()
        self._companion.stop()
        self._spares.stop()
        for live in self.instances:
            if not live.lease_id:
                self.instances.retire(live)
        self.problems.end()
        self.drain_predecessor()

    def drain_predecessor(self) -> None:
        """Let no older generation serve any more."""
        predecessor = self.pop_predecessor()
        if predecessor is not None:
            predecessor.drain()

    def end_all(self, cause: str) -> None:
        """Close every instance now, with its calls; end the leases of leased ones with a cause."""
        for live in self.instances:
            if live.lease_id:
                self._context.events.lease_due.emit(live, cause)
            else:
                self.instances.discard(live)

    async def close(self) -> None:
        """Close every instance."""
        self.instances.draining = True
        self.supervisor.stop()
        self._companion.stop()
        self._spares.stop()
        self._expiry_alarm.clear()
        closing = [self.instances.discard(live) for live in self.instances]
        if closing:
            await asyncio.wait(closing)

    def on_instance_ended(self, live: LiveInstance, fault: Fault | None) -> None:
        # One that was not ready: the task that starts it handles the failure.
        self.instances.remove(live, "ended" if fault is None else fault.message, crashed=True)

    def _on_ended(self, end: InstanceEnd) -> None:
        if not end.crashed:
            return
        match end.role:
            case "shared":
                self._companion.handle_end(end.live)
                self.supervisor.handle_crash(end.live, end.cause)
            case "spare":
                self._spares.handle_crash(end.live, end.cause)
            case "leased":  # its lease ends, too (`WorkerLeaseManager`)
                if end.live.fault is not None and not self.draining:
                    self.problems.report_crash(end.live.fault)
            case _:
                assert_never(end.role)

    def on_instance_idle(self, live: LiveInstance) -> None:
        if live.draining:
            self.instances.discard(live)
        else:
            self._expire_leases()

    def on_instance_tools_changed(self, live: LiveInstance) -> None:
        self._context.events.tools_changed.emit(self.key, live)

    def on_instance_lists_needed(self, live: LiveInstance) -> None:
        self._context.background.spawn(
            self._list_for_client(live), f"list prompts and resources of {live.instance.id}"
        )

    def on_instance_disconnected(self, live: LiveInstance) -> None:
        self._context.reports.mark_instances_changed()

    def on_instance_warning(self, live: LiveInstance, reason: str, text: str) -> None:
        if reason == NO_BACK_CHANNEL and self.instances.downgrade_protocol():
            text += (
                " New leases use an older protocol that does not have this limitation: release an"
                " older lease, and call again."
            )
        if not self.draining:
            self.problems.report(reason, f"{sentence(text)} {self.problems.place}", "warning")

    def on_instance_warning_cleared(self, live: LiveInstance, reason: str) -> None:
        self.problems.clear(reason)

    def find_caller(self, live: LiveInstance, method: str) -> Callbacks | None:
        return self._context.waiting.find(live.lease_id, method)
