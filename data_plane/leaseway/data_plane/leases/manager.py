"""Grants, renews and ends the leases of a worker and their instances (design.md#leases)."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Final

from leaseway.data_plane.background import Alarm
from leaseway.data_plane.core.calls.call import Callbacks
from leaseway.data_plane.core.leases.errors import (
    capacity_error,
    not_leasable,
    told_once,
    wrong_holder,
)
from leaseway.data_plane.core.leases.table import LeaseLimitReached, LeaseTable, WorkerLease
from leaseway.data_plane.core.subjects import is_of_token
from leaseway.data_plane.instances.events import InstanceEnd
from leaseway.data_plane.instances.generation import Generation
from leaseway.data_plane.instances.live_instance import LiveInstance
from leaseway.data_plane.instances.pool import Pool
from leaseway.data_plane.instances.reports import LeaseEnd
from leaseway.data_plane.leases.acquirer import UNNAMED, Acquirer
from leaseway.data_plane.leases.confirmation import LeaseConfirmation
from leaseway.data_plane.leases.holders import LeaseHolders
from leaseway.data_plane.leases.own_tools import LeaseTools
from leaseway.data_plane.metrics.instruments import measure_lease_wait
from leaseway.spec.lease_names import LeaseNames
from leaseway.spec.policy import OTHER_TENANTS
from leaseway.wire.bounds import LEASE_TTL, MAX_TENANT_LEASES
from leaseway.wire.clients.greeting import Greeting
from leaseway.wire.clients.mcp_client import McpClient
from leaseway.wire.errors import Fault, Reason
from leaseway.wire.messages.events import EventSeverity
from leaseway.wire.messages.states import LeaseOutcome
from leaseway.wire.names import MAX_KEY_LENGTH, LeaseKey, check_caller_names
from leaseway.wire.timing.durations import check_kept, check_lease_ttl


@dataclass
class LeaseStart:
    """The start of a lease's instance.

    Attributes:
        done: Fails with the fault that callers get.
        task: Starts it.
        waiting: How many callers wait for it.
    """

    done: asyncio.Future[None]
    task: asyncio.Task[None]
    waiting: int = 0

    async def wait(self) -> None:
        """Wait until it has ended; giving up does not end it.

        Raises:
            Fault: The instance did not start.
        """
        self.waiting += 1
        try:
            await asyncio.shield(self.done)
        finally:
            self.waiting -= 1


def start_interrupted(lease: WorkerLease) -> Fault:
    """Return the fault of a start that ended with its worker."""
    return Fault(
        Reason.DRAINING,
        f"The worker shut down while the instance of lease {lease.id} was starting.",
    )


def mark_retrieved(future: asyncio.Future[None]) -> None:
    """Keep asyncio from logging the exception of a future whose callers were cancelled."""
    if not future.cancelled():
        future.exception()


_MAX_COUNTED_TENANTS: Final = 10_000
_GIVEN_UP: Final = "its callers gave up while its instance waited for its turn to start"

_Granted = tuple[WorkerLease, bool]
"""A lease, and whether it is new."""


class WorkerLeaseManager:
    """Grants, renews and ends leases. Each lease has its own instance.

    Args:
        pool: Provides instances.
        table: The held leases; only this manager writes it.
        clock: Seconds, monotonic.

    Attributes:
        holders: Who may use a lease, and why one is not held.
        refusals: How often each tenant was refused a lease because of its own limit.
        own_tools: The tools in which leases differ from what is recorded.
        confirmation: Until when leases may be served.
    """

    def __init__(self, pool: Pool, table: LeaseTable, clock: Callable[[], float]) -> None:
        self._pool = pool
        self._table = table
        self._clock = clock
        self._loop = asyncio.get_running_loop()
        self._context = pool.context
        self._instances: dict[str, tuple[LiveInstance, Generation]] = {}
        self._starting: dict[str, LeaseStart] = {}
        self._rejection: Fault | None = None
        self._alarm = Alarm(self._tick)
        self.holders = LeaseHolders(table, clock)
        self.refusals: Counter[str] = Counter()
        self.own_tools = LeaseTools(pool)
        self.confirmation = LeaseConfirmation(self._loop.time)
        events = self._context.events
        events.ended.connect(self._on_instance_ended)
        events.lease_due.connect(self._on_lease_due)
        events.lists_read.connect(self._on_lists_read)
        # Not at once: the generation that reports a takeover is still changing.
        events.takeover.connect(partial(self._loop.call_soon, self.reconcile))

    @property
    def leases(self) -> Iterable[WorkerLease]:
        """The held leases, the oldest first."""
        return self._table.leases

    @property
    def held_by_tenants(self) -> Mapping[str, int]:
        """The number of leases of each tenant that holds any."""
        return self._table.held_by_tenants

    def get(self, lease_id: str) -> WorkerLease | None:
        return self._table.get(lease_id)

    def find(self, key: LeaseKey) -> WorkerLease | None:
        return self._table.find(key)

    def live_instance(self, lease: WorkerLease) -> LiveInstance | None:
        """Return the instance of a lease, or None while it is starting."""
        entry = self._instances.get(lease.id)
        return entry[0] if entry is not None else None

    def instance_of(self, key: LeaseKey, user: str) -> LiveInstance | None:
        """Return the instance of a user's lease, or None if there is none yet."""
        lease = self._table.find(key)
        return self.live_instance(lease) if lease is not None and lease.user == user else None

    def report_end(self, key: LeaseKey, known: Collection[str]) -> None:
        """Raise, once, how the last lease of a key ended, if its session cannot know.

        The control plane tells a session's next caller, but learns of the end a moment later.

        Args:
            key: The session and server.
            known: The ended leases that the session knows.

        Raises:
            Fault: LEASE_EXPIRED, LEASE_REVOKED, LEASE_RELEASED or LEASE_LOST.
        """
        if self._table.find(key) is not None:
            return
        end = self._context.reports.settle_end(key, known)
        if end is not None and self._table.find_ended(end.lease.id, self._clock()) is not None:
            raise told_once(self.holders.ended_fault(end.lease.id, key.tenant), key)

    async def acquire(
        self,
        key: LeaseKey,
        by: Acquirer = UNNAMED,
        *,
        ttl: float = LEASE_TTL,
        client: McpClient | None = None,
        callbacks: Callbacks | None = None,
    ) -> tuple[WorkerLease, bool]:
        """Return the lease of a key, its instance started, and whether the lease is new.

        Args:
            key: The session and server.
            by: Who acquires it.
            ttl: The requested time to live in seconds.
            client: The MCP client for which a new instance greets its server, or None.
            callbacks: What answers the server's questions meanwhile, or None.

        Raises:
            Fault: INVALID_REQUEST: a name or the time to live is out of bounds; NOT_LEASABLE,
                TOOL_NOT_FOUND, USER_REQUIRED, CAPACITY, or why the instance did not start;
                PERMISSION_DENIED: another user of the session holds it.
        """
        check_caller_names(session=key.session, tenant=key.tenant, agent=by.agent, user=by.user)
        check_lease_ttl(ttl)
        with measure_lease_wait(self._context.meters, key.server_id) as record_grant:
            try:
                lease, created = self._grant(key, by, ttl, Greeting.of(client))
            except Fault:
                self.give_up_placement(key)
                raise
            start = self._starting.get(lease.id)
            if start is not None:
                with self._context.waiting.wait(lease.id, callbacks):
                    await self._wait_for(start, lease)
            if self._table.get(lease.id) is None:  # it ended before this task ran again
                raise self.holders.ended_fault(lease.id)
            record_grant(lease, created, self.live_instance(lease))
        return lease, created

    async def _wait_for(self, start: LeaseStart, lease: WorkerLease) -> None:
        """Wait for a start; if the last caller gives up while it is queued, it is given up, too."""
        try:
            await start.wait()
        finally:
            instances = self._context.instances
            is_given_up = not start.waiting and not start.done.done()
            if is_given_up and instances.is_queued(lease.key.server_id, lease.id):
                self.end(lease.id, "released", _GIVEN_UP)

    def _grant(self, key: LeaseKey, by: Acquirer, ttl: float, greeting: Greeting) -> _Granted:
        if self._rejection is not None:
            raise self._rejection
        generation = self._pool.resolve(
            key.server_id, key.tenant, by.agent, by.user, by.subject_token
        )
        held = self._table.find(key)
        if generation.is_shared and held is None:
            raise not_leasable(key.server_id)
        self.holders.check_user(held, generation.key.user)
        try:
            lease, created = self._table.acquire(
                key,
                self._clock(),
                variant=generation.key,
                launch_hash=generation.launch_hash,
                ttl=ttl,
                agent=by.agent,
                user=generation.key.user,
                holder=by.credential if is_of_token(generation.key.user) else "",
                acquirer=by.client,
                server_limit=_server_limit(generation),
                tenant_limit=_tenant_limit(generation, key.tenant),
            )
        except LeaseLimitReached as limit:
            if limit.tenant_full:
                counted = len(self.refusals) < _MAX_COUNTED_TENANTS
                self.refusals[key.tenant if counted else OTHER_TENANTS] += 1
            policy = generation.variant.spec.policy
            raise capacity_error(key.server_id, limit, policy.tenant_entry(key.tenant)) from None
        if created:
            self._start_instance(lease, generation, greeting)
        # Also a renewal, which may have changed the time to live, and also before the instance has
        # started: that may take longer than the control plane reserves room for the lease.
        self._context.reports.add_lease(lease)
        return lease, created

    def _start_instance(
        self, lease: WorkerLease, generation: Generation, greeting: Greeting
    ) -> None:
        # The start counts as a call, so that a short time to live does not end the lease first.
        self._table.start_call(lease, self._clock())
        done: asyncio.Future[None] = self._loop.create_future()
        done.add_done_callback(mark_retrieved)
        task = self._context.background.spawn(
            self._acquire_instance(lease, generation, greeting),
            f"start the instance of lease {lease.id}",
        )
        self._starting[lease.id] = LeaseStart(done, task)
        self._schedule_tick()

    async def _acquire_instance(
        self, lease: WorkerLease, generation: Generation, greeting: Greeting
    ) -> None:
        acquired = None
        try:
            names = LeaseNames.of(lease.key.tenant, lease.key.session)
            acquired = live, owner = await generation.acquire_for_lease(lease.id, names, greeting)
            await owner.list_for_client(live)
            await self._read_own_tools(lease, live)
        except BaseException as error:
            if acquired is not None:
                owner.instances.discard(live)
            start = self._starting.pop(lease.id, None)
            if start is not None:
                fault = error if isinstance(error, Fault) else start_interrupted(lease)
                self.end(lease.id, "lost", fault.message)
                start.done.set_exception(fault)
            if not isinstance(error, Fault):
                raise
        else:
            self._add_instance(lease, live, owner)

    async def _read_own_tools(self, lease: WorkerLease, live: LiveInstance) -> None:
        key = lease.key
        with suppress(Fault):  # the server was removed
            current = self._pool.resolve(key.server_id, key.tenant, user=lease.user)
            compiled = await self.own_tools.compile(live, current)
            if self._table.get(lease.id) is not None:
                current = self._pool.resolve(key.server_id, key.tenant, user=lease.user)
                self.own_tools.update(lease, live, current, compiled)

    async def read_changes(self, live: LiveInstance) -> None:
        """Let the lease of an instance use what the instance lists now."""
        lease = self._table.get(live.lease_id)
        if lease is not None:
            await self._read_own_tools(lease, live)

    def _on_lists_read(self, live: LiveInstance) -> None:
        """Let the lease of an instance use its prompts and resources, which it has listed first."""
        lease = self._table.get(live.lease_id)
        if lease is not None:
            with suppress(Fault):  # the server was removed
                current = self._pool.resolve(lease.key.server_id, lease.key.tenant, user=lease.user)
                self.own_tools.update(lease, live, current)

    def _add_instance(self, lease: WorkerLease, live: LiveInstance, generation: Generation) -> None:
        start = self._starting.pop(lease.id, None)
        if start is None:  # the lease ended while the task was about to run
            generation.instances.discard(live)
            return
        self._instances[lease.id] = (live, generation)
        self._table.set_started(lease)
        self._table.set_launch_hash(lease, generation.launch_hash)
        self.end_call(lease)
        self._context.reports.add_lease(lease)
        self._context.reports.record_lease_event(
            lease,
            "granted",
            f"Session {lease.key.session} leases server {lease.key.server_id} on this worker.",
        )
        if generation.draining:  # it was replaced while the instance started
            self.reconcile()
        start.done.set_result(None)

    def start_call(self, lease: WorkerLease) -> None:
        self._table.start_call(lease, self._clock())

    def end_call(self, lease: WorkerLease) -> None:
        if self._table.end_call(lease, self._clock()):
            self._tick()

    def renew(self, lease_id: str, session: str | None = None) -> float:
        """Renew a lease; return its remaining time to live, in seconds.

        Args:
            lease_id: The lease.
            session: The session that holds it. None from older clients, which do not send it: that
                does not renew a lease that has been renewed by its session before.

        Raises:
            Fault: LEASE_EXPIRED, LEASE_REVOKED, LEASE_RELEASED or LEASE_LOST.
        """
        now = self._clock()
        lease = self._table.get(lease_id)
        if lease is None:
            raise self.holders.ended_fault(lease_id)
        if session is None and lease.renewed_by_session:
            return max(0.0, lease.expires_at - now)
        if session not in (None, lease.key.session):
            raise wrong_holder(lease_id)
        self._table.renew(lease_id, now, by_session=session is not None)
        return lease.ttl

    def give_up_placement(self, key: LeaseKey) -> None:
        """Report that a request for a lease has failed, unless it has one all the same."""
        if len(key.server_id) <= MAX_KEY_LENGTH and self._table.find(key) is None:
            self._context.reports.add_unused_placement(key)

    def idle_for(self, lease_id: str) -> float | None:
        """Return the seconds since the last call of a lease; None if the lease is not held.

        It is 0 while the instance starts or a call is in flight.
        """
        lease = self._table.get(lease_id)
        if lease is None:
            return None
        live = self.live_instance(lease)
        return 0.0 if lease.calls or live is None else max(0.0, live.idle_for)

    def release(self, lease_id: str, cause: str = "") -> bool:
        """End a lease for its holder; return False if it had been released before.

        Args:
            lease_id: The lease.
            cause: Why, for later callers with this lease id, if its holder did not release it.

        Raises:
            Fault: LEASE_EXPIRED, LEASE_REVOKED or LEASE_LOST.
        """
        if self.end(lease_id, "released", cause):
            return True
        fault = self.holders.ended_fault(lease_id)
        if fault.reason is not Reason.LEASE_RELEASED:
            raise fault
        return False

    def leave(self, lease_id: str, client: str, keep: float) -> bool:
        """End a lease if the client that leaves it was the last; return whether it did.

        A lease that was kept for an earlier client of its session lives on until it is idle. So
        does one whose users are not all known.

        Args:
            lease_id: The lease.
            client: The name of the client.
            keep: Seconds without a call for which to keep the lease, also without renewals.

        Raises:
            Fault: INVALID_REQUEST, LEASE_EXPIRED, LEASE_REVOKED or LEASE_LOST.
        """
        check_kept(keep)
        lease = self._table.get(lease_id)
        if lease is None:
            return self.release(lease_id)
        idle = self.idle_for(lease_id) or 0.0
        if self._table.leave(lease, client, self._clock(), keep=keep, idle=idle):
            return self.release(lease_id)
        self._schedule_tick()
        return False

    def add_client(self, lease: WorkerLease, client: str) -> None:
        """Record that a client has joined a lease with a call."""
        self._table.add_client(lease, client)

    def revoke(self, lease_id: str, cause: str) -> None:
        """End a lease against its holder's will; does nothing if it is not held."""
        self.end(lease_id, "revoked", cause)

    def revoke_all(self, cause: str) -> None:
        for lease in self._table.leases:
            self.end(lease.id, "revoked", cause)

    def reject_new(self, rejection: Fault) -> None:
        """Reject new leases from now on."""
        self._rejection = rejection

    def reconcile(self) -> None:
        """Apply the served configuration to held leases, after each change."""
        now = self._clock()
        for lease in self._table.leases:
            self._reconcile_lease(lease, now)
        self._tick()

    def _reconcile_lease(self, lease: WorkerLease, now: float) -> None:
        server_id = lease.key.server_id
        try:
            current = self._pool.resolve(server_id, lease.key.tenant, user=lease.user)
        except Fault:
            self._table.schedule_end(lease, now, f"server {server_id} was removed")
            return
        live = self.live_instance(lease)
        if live is not None and self.own_tools.is_behind(lease, current):
            self.own_tools.update(lease, live, current)
        changed = self._find_change(lease, current)
        if not changed:
            self._table.cancel_scheduled_end(lease)
            return
        self._table.schedule_end(
            lease,
            now + current.variant.spec.lease_drain_timeout,
            f"{changed} of server {server_id} changed, and its lease_drain_timeout has passed",
        )

    def _find_change(self, lease: WorkerLease, current: Generation) -> str:
        """Return what changed since the lease's instance started, or an empty text."""
        predecessor = current.predecessor
        if predecessor is not None and predecessor.launch_hash == lease.launch_hash:
            return ""  # the changed server has not started here yet
        if (current.key, current.launch_hash) != (lease.variant, lease.launch_hash):
            return "the configuration"
        live = self.live_instance(lease)
        outdated = live is not None and current.instances.is_outdated(live)
        return "a secret or file" if outdated else ""

    def _on_instance_ended(self, end: InstanceEnd) -> None:
        if not end.crashed or end.role != "leased":
            return
        lease_id, fault = end.live.lease_id, end.live.fault
        self._instances.pop(lease_id, None)
        cause = fault.message if fault is not None else "its instance ended"
        if self.end(lease_id, "lost", cause):
            end.live.tell_lease_end(self.holders.ended_fault(lease_id))

    def _on_lease_due(self, live: LiveInstance, cause: str) -> None:
        self.revoke(live.lease_id, cause)

    def end(self, lease_id: str, outcome: LeaseOutcome, cause: str = "") -> bool:
        """End a lease; return False if it is not held."""
        lease = self._table.end(lease_id, outcome, self._clock(), cause)
        if lease is None:
            return False
        self._clean_up(lease, outcome)
        return True

    def _clean_up(self, lease: WorkerLease, outcome: LeaseOutcome) -> None:
        if self._context.meters is not None:
            self._context.meters.record_lease_end(lease, outcome)
        ended = self.holders.ended_fault(lease.id)
        self.own_tools.forget(lease)
        entry = self._instances.pop(lease.id, None)
        if entry is not None:
            live, generation = entry
            if outcome != "released":  # whoever released it knows
                live.tell_lease_end(ended)
            generation.instances.discard(live)
        start = self._starting.pop(lease.id, None)
        if start is not None:
            start.done.set_exception(ended)
            start.task.cancel()
        severity: EventSeverity = "warning" if outcome == "lost" else "info"
        record = self._table.find_ended(lease.id, self._clock())
        unasked = record is not None and record.unasked
        self._context.reports.add_lease_end(LeaseEnd(lease, outcome, ended.message, unasked))
        self._context.reports.record_lease_event(lease, outcome, ended.message, severity)

    def _tick(self) -> None:
        for lease, ended in self._table.tick(self._clock()):
            self._clean_up(lease, ended.outcome)
        self._schedule_tick()

    def _schedule_tick(self) -> None:
        now = self._clock()
        at = self._table.next_tick(now)
        if at is None:
            self._alarm.clear()
        else:
            self._alarm.set(self._loop.time() + max(0.0, at - now))

    def stop(self) -> None:
        """Stop the expiry of leases."""
        self._alarm.clear()


def _tenant_limit(generation: Generation, tenant: str) -> int:
    limit = generation.variant.spec.policy.leases_of(tenant)
    return MAX_TENANT_LEASES if limit is None else limit


def _server_limit(generation: Generation) -> int:
    spec = generation.variant.spec
    of_all = spec.policy.quota.leases
    most = spec.instances.max_instances
    return most if of_all is None else min(most, of_all)
