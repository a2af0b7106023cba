"""The instances of one generation: how they start, and that each is counted until it ends."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from typing import Final

from leaseway.data_plane.core.desired_state import HeldVariant
from leaseway.data_plane.core.instances.circuit_breaker import CircuitBreaker
from leaseway.data_plane.core.resolved_values import ResolvedValues
from leaseway.data_plane.instances.context import WorkerContext
from leaseway.data_plane.instances.live_instance import InstanceOwner, LiveInstance
from leaseway.data_plane.instances.problems import ServerProblems
from leaseway.spec.model import InstancePolicy, VariantKey
from leaseway.wire.errors import Fault, Reason

_SERVERS_MAY_ASK: Final = "2025-11-25"
"""The newest protocol in which servers send requests of their own."""


class LiveInstances:
    """All instances of one generation that have not ended.

    Every instance of it goes through here when it starts, or is taken over, and when it ends:
    `Hooks` hears of both.

    Attributes:
        variant: What is exposed now; its launch hash never changes.
        restart: How starts have gone, and when the next one may be.
        draining: Whether a newer generation has taken over.
        was_up: Whether an instance has come up.
        starts: Starts so far.
        last_id: The id of the newest instance; empty before the first.
        last_fault: Why the newest start failed, or the newest instance ended by itself; None once
            another one is up.
        resolved_values: What the references resolved to at the first start; later instances
            get the same values.
    """

    def __init__(
        self,
        variant: HeldVariant,
        context: WorkerContext,
        owner: InstanceOwner,
        problems: ServerProblems,
        on_up: Callable[[], None],
    ) -> None:
        self.variant = variant
        self.restart = CircuitBreaker()
        self.draining = False
        self.starts = 0
        self.last_id = ""
        self.last_fault: Fault | None = None
        self.resolved_values: ResolvedValues | None = None
        self._context = context
        self._owner = owner
        self._problems = problems
        self._loop = asyncio.get_running_loop()
        self._all: dict[str, LiveInstance] = {}
        self._on_up = on_up
        self._asks = False
        self.was_up = False

    def __len__(self) -> int:
        return len(self._all)

    @property
    def all(self) -> Iterable[LiveInstance]:
        """The instances, the oldest first; a copy."""
        return tuple(self._all.values())

    @property
    def key(self) -> VariantKey:
        return self.variant.key

    @property
    def policy(self) -> InstancePolicy:
        """How long instances live, and how many there are."""
        return self.variant.spec.instances

    @property
    def room(self) -> int:
        """How many more instances of the server this worker may have; negative where too many."""
        return self.policy.max_instances - self._context.quota.count(self.key.server_id)

    def outdates(self, live: LiveInstance) -> bool:
        """Return whether an instance was started with other values than the next one will be."""
        if self._asks and live.instance.protocol_version > _SERVERS_MAY_ASK:
            return True
        return self.resolved_values is not None and self.resolved_values.differs(
            live.instance.resolved_values
        )

    @property
    def known_version(self) -> str:
        """The protocol version that the next instance is to be spoken to in; empty: unknown."""
        return _SERVERS_MAY_ASK if self._asks else self.variant.toolset.protocol_version

    def asks_by_requests(self) -> bool:
        """Speak to later instances so that the server's own requests reach callers.

        Returns:
            Whether they will be: not where instances are shared, or the entry sets a protocol.

        """
        spec = self.variant.spec
        self._asks = spec.protocol == "auto" and not spec.truely_stateless
        return self._asks

    def adopt(self, live: LiveInstance) -> None:
        """Take over an instance that is up."""
        live.owner = self._owner
        self.resolved_values = self.resolved_values or live.instance.resolved_values
        self._add(live)
        self._came_up(live)

    def open(self, lease_id: str = "") -> LiveInstance:
        """Make an instance, for a lease or none; `bring_up` starts it."""
        live = LiveInstance(
            self._context.open_instance,
            self.variant.spec,
            self._owner,
            self.known_version,
            self.resolved_values,
            self._context.meters,
        )
        live.lease_id = lease_id
        self._add(live)
        return live

    async def bring_up(self, live: LiveInstance) -> None:
        """Start an instance.

        Raises:
            Fault: It did not come up, and why; nothing of it is left.
        """
        trial = self.restart.is_open
        self.restart = self.restart.began()
        try:
            await live.start()
        except BaseException as error:
            self._did_not_come_up(live, error, trial)
            raise
        finally:
            self.resolved_values = self.resolved_values or live.instance.resolved_values
        self._came_up(live)

    def _add(self, live: LiveInstance) -> None:
        self._all[live.instance.id] = live
        self.last_id = live.instance.id
        self.starts += 1
        self._context.quota.add(live)
        self._context.reports.mark_instances_changed()

    def _did_not_come_up(self, live: LiveInstance, error: BaseException, trial: bool) -> None:
        if isinstance(error, asyncio.CancelledError) or self.draining:
            self.restart = self.restart.given_up(trial)
        else:
            self.restart = self.restart.failed(self._loop.time(), self.policy.restart.delay, trial)
        self.forget(live, "did not come up")
        if isinstance(error, Fault):
            self.last_fault = error
            if not self.draining:
                self._problems.fault(error)

    def _came_up(self, live: LiveInstance) -> None:
        again = self.restart.failures > 0
        self._context.hooks.on_instance_started(live, again=again)
        self._context.reports.record_instance_event(
            self.key,
            live.instance.id,
            "restarted" if again else "started",
            f"An instance of server {self.key} is up{' again' if again else ''}.",
        )
        self.restart = self.restart.came_up(self._loop.time())
        self.last_fault = None
        live.compare(self.variant.toolset)
        self._problems.compared(live, self.all, self.variant.toolset)
        self._problems.started(live)
        self._context.reports.mark_instances_changed()
        self.was_up = True
        self._on_up()

    def ended(self, live: LiveInstance, fault: Fault) -> None:
        """Note that an instance ended by itself, and that no lease's use of it was the cause."""
        now = self._loop.time()
        up_since = now if live.up_since is None else live.up_since
        self.restart = self.restart.ended(now, up_since, self.policy.restart.delay)
        self.last_fault = fault
        self._problems.fault(fault)

    def forget(self, live: LiveInstance, how: str) -> None:
        """Count an instance no more, and keep what it wrote.

        Args:
            live: The instance; one that is not counted is left alone.
            how: How it ended, in words.
        """
        if self._all.pop(live.instance.id, None) is None:
            return
        if live.up_since is not None:
            self._context.hooks.on_instance_ended(live, how)
            why = live.fault
            self._context.reports.record_instance_event(
                self.key,
                live.instance.id,
                "ended",
                why.message
                if why is not None
                else f"An instance of server {self.key} ended: {how}.",
                why.reason.value if why is not None else "",
            )
        self._context.quota.remove(live)
        self._context.logs.keep(self.key, live.instance, how)
        self._context.reports.mark_instances_changed()

    def discard(self, live: LiveInstance, grace: float = 0) -> asyncio.Task[None]:
        """Close an instance in the background and forget it."""
        live.owner = None
        self.forget(live, "closed")
        return self._context.background.spawn(
            live.close(grace), f"close instance {live.instance.id} of server {self.key}"
        )

    def retire(self, live: LiveInstance) -> None:
        """Let an instance finish its calls, and close it then."""
        live.draining = True
        if not live.calls:
            self.discard(live)
        self._context.reports.mark_instances_changed()

    def refusal(self, reason: Reason, what: str) -> Fault:
        """Return why there is no instance now: how the last one failed, and when the next comes.

        Args:
            reason: What callers compare.
            what: What is wrong with the server, as the end of "Server x ...".
        """
        last, wait = self.last_fault, max(0.0, self.restart.retry_at - self._loop.time())
        if self.restart.trial:
            when, wait = "It is being tried again right now", max(wait, 0.5)
        elif wait:
            when = f"It is tried again in {wait:.1f} s"
        else:
            when = "It is tried again with the next call"
        row = f", {self.restart.failures} failures in a row" if self.restart.is_open else ""
        return Fault(
            reason,
            f"Server {self.key} {what} on worker {self._context.worker_id}{row}. {when}. "
            f"The last failure: {last.message if last is not None else 'not known.'}",
            metadata=last.metadata if last is not None else {},
            retry_delay=wait,
        )
