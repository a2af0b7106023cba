"""The instances of one generation, each counted from its start until it has ended."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Final

from leaseway.data_plane.core.desired_state import HeldVariant
from leaseway.data_plane.core.instances.circuit_breaker import CircuitBreaker
from leaseway.data_plane.core.ports import InstanceRequest
from leaseway.data_plane.core.problems import sentence
from leaseway.data_plane.core.resolved_values import ResolvedValues
from leaseway.data_plane.instances.context import WorkerContext
from leaseway.data_plane.instances.events import InstanceEnd
from leaseway.data_plane.instances.live_instance import InstanceOwner, LiveInstance
from leaseway.data_plane.instances.problems import ServerProblems
from leaseway.spec.lease_names import LeaseNames
from leaseway.spec.model import InstancePolicy, VariantKey
from leaseway.wire.clients.greeting import COMMON, Greeting
from leaseway.wire.errors import OF_AUTHORIZATION, Fault, Reason
from leaseway.wire.messages.mcp import HANDSHAKE_VERSIONS
from leaseway.wire.messages.states import InstanceRole

_NEWEST_WITH_SERVER_REQUESTS: Final = HANDSHAKE_VERSIONS[-1]
"""The newest protocol in which servers can send requests."""


class InstanceSet:
    """All instances of one generation that have not ended.

    Every instance of the generation is added here when it starts, or is adopted from a probe, and
    removed when it ends.

    Attributes:
        variant: The exposed variant; its launch hash never changes.
        circuit_breaker: The result of the starts so far, and when the next one is allowed.
        draining: Whether a newer generation has replaced this one.
        was_up: Whether any instance has started.
        starts: The number of starts so far.
        last_id: The id of the newest instance; empty before the first.
        last_fault: Why the newest start failed, or the newest instance ended by itself; None after
            a start that succeeded.
        resolved_values: What the references resolved to at the first start; later instances get
            the same values.
    """

    def __init__(
        self,
        variant: HeldVariant,
        context: WorkerContext,
        owner: InstanceOwner,
        problems: ServerProblems,
        on_up: Callable[[], None],
        on_ended: Callable[[InstanceEnd], None],
    ) -> None:
        self.variant = variant
        self.circuit_breaker = CircuitBreaker()
        self.draining = False
        self.was_up = False
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
        self._on_ended = on_ended
        self._downgraded = False

    def __len__(self) -> int:
        return len(self._all)

    def __iter__(self) -> Iterator[LiveInstance]:
        """Iterate over a copy of the instances, the oldest first."""
        return iter(tuple(self._all.values()))

    @property
    def key(self) -> VariantKey:
        return self.variant.key

    @property
    def policy(self) -> InstancePolicy:
        return self.variant.spec.instances

    @property
    def room(self) -> int:
        """How many more instances of the server are allowed; negative if there are too many."""
        return self.policy.max_instances - self._context.instances.count(self.key.server_id)

    def is_outdated(self, live: LiveInstance) -> bool:
        """Return whether the next instance will get other values or an older protocol."""
        version = live.instance.protocol_version
        if self._is_downgraded(live.greeting) and version > _NEWEST_WITH_SERVER_REQUESTS:
            return True
        values = self.resolved_values
        return values is not None and values.differs(live.instance.resolved_values)

    def is_behind(self, values: ResolvedValues) -> bool:
        """Return whether any instance, or the next one, has other values than these."""
        used = [live.instance.resolved_values for live in self]
        return any(values.differs(other) for other in (self.resolved_values, *used))

    @property
    def known_version(self) -> str:
        """The protocol version for the next instance; empty if unknown."""
        if self._downgraded:
            return _NEWEST_WITH_SERVER_REQUESTS
        return self.variant.toolset.protocol_version

    @property
    def listed(self) -> Mapping[str, bytes] | None:
        """The tools that the server listed, exposed or not; None if it was not listed yet."""
        return self.variant.toolset.listed

    def _is_downgraded(self, greeting: Greeting) -> bool:
        """Return whether an instance uses an older protocol; one of an MCP client follows that."""
        return self._downgraded and greeting.client is None

    def downgrade_protocol(self) -> bool:
        """Use the newest protocol with server requests for later instances, if possible.

        Returns:
            False if instances are shared, or the configuration sets the protocol.
        """
        spec = self.variant.spec
        self._downgraded = spec.part.protocol == "auto" and not spec.truely_stateless
        return self._downgraded

    def adopt(self, live: LiveInstance) -> None:
        """Add an instance that a probe has started."""
        live.give_to(self._owner)
        self.resolved_values = self.resolved_values or live.instance.resolved_values
        self._add(live)
        self._start_succeeded(live)

    def open(
        self,
        lease_id: str = "",
        names: LeaseNames | None = None,
        greeting: Greeting = COMMON,
        *,
        awaited: bool,
    ) -> LiveInstance:
        """Add a new instance; `start` starts it.

        Args:
            lease_id: The lease that it is for; empty for none.
            names: The names of that lease.
            greeting: How it introduces itself.
            awaited: Whether somebody waits for its start.
        """
        recorded = self.variant.toolset.protocol_version
        version = _NEWEST_WITH_SERVER_REQUESTS if self._is_downgraded(greeting) else recorded
        request = InstanceRequest(
            known_version=version,
            resolved_values=self.resolved_values,
            names=names,
            greeting=greeting,
            listed=self.listed,
        )
        live = self._context.open(self.variant.spec, self._owner, request, awaited=awaited)
        live.lease_id = lease_id
        self._add(live)
        return live

    async def start(self, live: LiveInstance) -> None:
        """Start an instance when it is its turn; remove it if it does not start.

        Raises:
            Fault: It did not start; SERVER_NOT_READY also if the circuit has opened meanwhile.
        """
        try:
            async with live.place():
                if not self.circuit_breaker.allows_start(self._loop.time()):
                    raise self.unavailable_fault(Reason.SERVER_NOT_READY, "does not start")
                self._context.reports.mark_instances_changed()
                await self._start_now(live)
        finally:
            if live.up_since is None:
                self.remove(live, "did not start")

    async def _start_now(self, live: LiveInstance) -> None:
        trial = self.circuit_breaker.is_open
        self.circuit_breaker = self.circuit_breaker.start_attempted()
        try:
            await live.start_now()
        except BaseException as error:
            self._start_failed(live, error, trial)
            raise
        finally:
            self.resolved_values = self.resolved_values or live.instance.resolved_values
        self._start_succeeded(live)

    async def start_companion(self, live: LiveInstance) -> None:
        """Start an instance whose failure matters to nobody: another one can take its calls.

        Raises:
            Fault: It did not start; nothing is reported, and the circuit breaker does not count it.
        """
        try:
            await live.start()
        except BaseException:
            self.remove(live, "did not start")
            raise
        self._context.events.started.emit(live, False)
        live.compare(self.variant.toolset)
        self._context.reports.mark_instances_changed()

    def _add(self, live: LiveInstance) -> None:
        self._all[live.instance.id] = live
        self.last_id = live.instance.id
        self.starts += 1
        self._context.instances.add(live)
        self._context.reports.mark_instances_changed()

    def _start_failed(self, live: LiveInstance, error: BaseException, trial: bool) -> None:
        if isinstance(error, asyncio.CancelledError) or self.draining:
            self.circuit_breaker = self.circuit_breaker.start_cancelled(trial)
        else:
            self.circuit_breaker = self.circuit_breaker.start_failed(
                self._loop.time(), self.policy.restart.delay, trial
            )
        self.remove(live, "did not start")
        if isinstance(error, Fault):
            self.last_fault = replace(error)  # without the frames, which hold the instance
            if not self.draining:
                self._problems.report_fault(error)

    def _start_succeeded(self, live: LiveInstance) -> None:
        restarted = self.circuit_breaker.failures > 0
        self._context.events.started.emit(live, restarted)
        self._context.reports.record_instance_event(
            self.key,
            live.instance.id,
            "restarted" if restarted else "started",
            f"An instance of server {self.key} is up{' again' if restarted else ''}.",
        )
        self.circuit_breaker = self.circuit_breaker.start_succeeded(self._loop.time())
        self.last_fault = None
        live.compare(self.variant.toolset)
        self._problems.update_tools(live, self, self.variant.toolset)
        self._problems.on_started(live)
        self._context.reports.mark_instances_changed()
        self.was_up = True
        self._on_up()

    def record_crash(self, live: LiveInstance, fault: Fault) -> None:
        """Record that an instance ended by itself, and not because of the use of a lease."""
        now = self._loop.time()
        up_since = now if live.up_since is None else live.up_since
        self.circuit_breaker = self.circuit_breaker.instance_ended(
            now, up_since, self.policy.restart.delay
        )
        self.last_fault = replace(fault)
        self._problems.report_crash(fault)

    def remove(self, live: LiveInstance, state: str, *, crashed: bool = False) -> None:
        """Remove an instance and keep its stderr; announce the end of one that was ready.

        Does nothing if it was removed before.

        Args:
            live: The instance.
            state: How it ended.
            crashed: Whether it ended by itself.
        """
        if self._all.pop(live.instance.id, None) is None:
            return
        if live.up_since is not None:
            message, reason = f"An instance of server {self.key} ended: {state}.", ""
            if live.fault is not None:
                message, reason = live.fault.message, live.fault.reason.value
            self._context.reports.record_instance_event(
                self.key, live.instance.id, "ended", message, reason
            )
        self._context.instances.remove(live)
        self._context.stderr_history.add(self.key, live.instance, state)
        self._context.reports.mark_instances_changed()
        if live.up_since is not None:
            end = InstanceEnd(live, self.role(live), state, crashed)
            self._on_ended(end)
            self._context.events.ended.emit(end)

    def role(self, live: LiveInstance | None) -> InstanceRole:
        """Return what an instance is for; None stands for the next one."""
        if self.variant.spec.truely_stateless:
            return "shared"
        return "leased" if live is not None and live.lease_id else "spare"

    def discard(self, live: LiveInstance) -> asyncio.Task[None]:
        """Remove an instance and close it in the background."""
        live.give_to(None)
        self.remove(live, "closed")
        return self._context.background.spawn(
            live.close(), f"close instance {live.instance.id} of server {self.key}"
        )

    def retire(self, live: LiveInstance) -> None:
        """Close an instance once its calls have ended."""
        live.draining = True
        if not live.calls:
            self.discard(live)
        self._context.reports.mark_instances_changed()

    def unavailable_fault(self, reason: Reason, condition: str) -> Fault:
        """Return why there is no instance now, and when the next start is.

        Args:
            reason: The fault's reason.
            condition: Completes "Server x ...".
        """
        breaker, last = self.circuit_breaker, self.last_fault
        if last is not None and last.reason in OF_AUTHORIZATION:
            return replace(last)  # it says what to do, and callers find it by its reason
        wait = max(0.0, breaker.retry_at - self._loop.time())
        if breaker.trial:
            next_start, wait = "It is starting again now", max(wait, 0.5)
        elif wait:
            next_start = f"It starts again in {wait:.1f} s"
        else:
            next_start = "It starts again with the next call"
        cause = sentence(last.message) if last is not None else "the cause is unknown."
        failures = f", {breaker.failures} failures in a row" if breaker.is_open else ""
        return Fault(
            reason,
            f"Server {self.key} {condition}: {cause} "
            f"{next_start} (worker {self._context.worker_id}{failures}).",
            metadata=last.metadata if last is not None else {},
            retry_delay=wait,
        )
