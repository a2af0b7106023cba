"""The lease client: acquires, renews and releases the leases of one client (design.md#leases).

Only placement needs the control plane. Everything else is requested from the worker that holds the
lease, so that leases survive an outage of the control plane. `LeaseBook` holds the state.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Collection
from dataclasses import replace
from functools import partial
from typing import Final
from weakref import WeakValueDictionary, proxy

from leaseway.sdk.leases.book import ClientLease, LeaseBook, PendingAcquisitions, SessionLeaseKey
from leaseway.sdk.leases.keep_alive import KeepAliveTasks
from leaseway.sdk.leases.loss_detection import LossDetector
from leaseway.sdk.leases.placement import SharedPlacements
from leaseway.sdk.leases.releases import LEASE_ENDED, LeaseReleases, should_reconnect
from leaseway.sdk.retry_policy import UNREADY, FailedTry, decide, more_informative
from leaseway.sdk.transport.control import ControlPlane
from leaseway.sdk.transport.session_users import SessionUsers
from leaseway.sdk.transport.workers import WorkerPool, WorkerRun, worker_from_proto
from leaseway.v1 import leases_pb2
from leaseway.wire.bounds import LEASE_IDLE, LEASE_TTL, MAX_LEASE_TTL, STARTUP_TIMEOUT
from leaseway.wire.errors import Fault, Reason
from leaseway.wire.timing.backoff import RECONNECT
from leaseway.wire.timing.durations import check_lease_ttl, duration, seconds

_ACQUIRE_TIMEOUT: Final = 600.0
"""Seconds for a lease's instance to start; the worker applies the server's own timeout."""
_MAX_WAIT: Final = 24 * 3600.0
"""Longest wait for capacity in seconds; the control plane's limit."""
_LOOKUP_TIMEOUT: Final = 2.0
_IDLE_RETRY: Final = 10.0
"""Seconds until the release of an idle lease is tried again after the worker failed to answer."""
_MAX_IDLE_LIMITS: Final = 16_384
"""Sessions whose idle limit is remembered; for the others new leases have the default."""

_log = logging.getLogger("leaseway.sdk")


class LeaseManager:
    """Acquires, renews and releases the leases of one client.

    Args:
        control: Places leases on workers.
        pool: Connections to the workers.
        acquirer: The client's random name, which is sent with each acquisition.
        users: The users for whom sessions call.

    Attributes:
        book: The state of all leases.
        losses: Detects that a lease was lost with its worker.
    """

    def __init__(
        self, control: ControlPlane, pool: WorkerPool, acquirer: str, users: SessionUsers
    ) -> None:
        self.book = LeaseBook()
        # A reference cycle would keep channels alive after their loop closed, and gRPC would report
        # errors in the next loop.
        me = proxy(self)
        self.losses = LossDetector(control, self.book, lambda lost: me._release_lost(lost))
        self._control = control
        self._pool = pool
        self._users = users
        self._loop = asyncio.get_running_loop()
        self._keep_alive = KeepAliveTasks(self.book, pool, lambda lease: me._release_idle(lease))
        self._idle_limits: dict[str, float] = {}
        self._pending = PendingAcquisitions(acquirer)
        self._releases = LeaseReleases(pool, control.identity.tenant, self._pending)
        self._placements = SharedPlacements()
        # Only a call in flight can acquire a lease for a closed session, and the call keeps the
        # session object alive. So the entry disappears when it is no longer needed.
        self._closed_sessions: WeakValueDictionary[str, object] = WeakValueDictionary()
        self._release_tasks: set[asyncio.Task[None]] = set()
        self._cleanup_tasks: set[asyncio.Task[None]] = set()

    async def place(
        self,
        key: SessionLeaseKey,
        deadline: float,
        exclude: Collection[WorkerRun] = (),
        *,
        report_end: bool = False,
    ) -> WorkerRun:
        """Return the worker that should hold the lease of a key.

        First calls of one key share one placement, as long as no worker is excluded.

        Args:
            key: The session and the server.
            deadline: The caller's deadline, in the event loop's time.
            exclude: Workers that rejected the lease.
            report_end: Whether to fail, once, with the end of the session's previous lease, unless
                a caller of this client knows it.

        Raises:
            Fault: No worker has capacity, the control plane cannot be reached, or how the
                session's previous lease ended.
        """
        report_end = report_end and not self.book.is_told(key)
        if exclude:
            return await self._request_placement(key, deadline, exclude, report_end=report_end)
        worker = self.book.find_placement(key, self._loop.time())
        if worker is not None:
            return worker
        place = partial(self._request_placement, key, deadline, (), report_end=report_end)
        return await self._placements.share(key, deadline, place)

    def record_grant(
        self,
        key: SessionLeaseKey,
        granted: leases_pb2.Lease,
        worker: WorkerRun,
        sent_at: float,
        *,
        owned: bool,
    ) -> ClientLease:
        """Record a lease that a worker reported in its response to a request.

        The time to live counts from when the worker handled the request, which may have taken
        longer than the time to live itself. So it is counted from a third of it ago, to allow for
        the response's travel time; the next renewal corrects this.
        """
        now = self._loop.time()
        owned = self._pending.grant(key, worker, granted) or owned
        ttl = seconds(granted.ttl) or LEASE_TTL
        since = max(sent_at, now - ttl / 3)
        lease = self.book.grant(
            key,
            granted.id,
            worker,
            ttl=ttl,
            at=since,
            wall=time.time() - (now - since),
            owned=owned,
            reminder=granted.reminder,
        )
        lease.used_at, lease.idle = now, self._idle_limits.get(key.session, LEASE_IDLE)
        self._keep_alive.wake(worker)
        if key.session in self._closed_sessions:
            task = self._loop.create_task(self._leave_session(key.session))
            self._release_tasks.add(task)
            task.add_done_callback(self._release_tasks.discard)
        return lease

    def record_failed_acquisition(
        self, key: SessionLeaseKey, worker: WorkerRun, fault: Fault | None
    ) -> None:
        """Record how a first call of a key failed; None means that it was cancelled."""
        if fault is not None:
            self.book.remove_placement(key, worker)
            self.book.mark_told(key)  # a lease that the try acquired may have ended with it
            if fault.started == "no" and fault.reason is not Reason.DEADLINE_EXCEEDED:
                self._pending.reject(key, worker)
                return
        self._pending.abandon(key, worker)

    def record_call(self, lease: ClientLease, sent_at: float) -> None:
        """Record an answered call on a lease, which renewed the lease."""
        now = self._loop.time()
        since = max(sent_at, now - lease.ttl / 3)
        lease.renew(lease.ttl, since, time.time() - (now - since))
        lease.used_at = now

    def set_idle_limit(self, session: str, limit: float) -> None:
        """Release leases of a session after this many seconds without a call."""
        if self._idle_limits.get(session) == limit:
            return
        self._idle_limits.pop(session, None)
        self._idle_limits[session] = limit
        if len(self._idle_limits) > _MAX_IDLE_LIMITS:
            del self._idle_limits[next(iter(self._idle_limits))]
        for lease in self.book.held_leases(session):
            lease.idle = limit
            self._keep_alive.wake(lease.worker)

    async def acquire(
        self, key: SessionLeaseKey, ttl: float, wait: float | None, version: int
    ) -> ClientLease:
        """Acquire the lease of a key, or renew the held one.

        A worker that rejects the placement is excluded. If no other worker is left, it is tried
        again, at most once a second, because the control plane spaces placements that far apart.

        A worker that was slow or unreachable, but did not report that it is full, is tried again
        if no other has capacity. A worker whose connection broke may have granted the lease: it is
        tried again first, because it would return the same lease and another one a duplicate.

        Args:
            key: The session and the server.
            ttl: Seconds that the lease lives without renewal.
            wait: Seconds to wait for capacity, at most a day; None fails at once.
            version: The registry version at which the server was resolved.

        Raises:
            Fault: The lease was rejected.
        """
        check_lease_ttl(ttl)
        if wait is not None and not wait >= 0:
            raise Fault(
                Reason.INVALID_REQUEST,
                f"wait={wait:g} is not a valid time to wait for capacity; give 0 s or more, or "
                "None to fail at once.",
            )
        wait_until = self._loop.time() + min(wait or 0.0, _MAX_WAIT)
        deadline = wait_until + STARTUP_TIMEOUT
        tries = 0
        avoid: set[WorkerRun] = set()
        slow: set[WorkerRun] = set()  # the avoided workers that did not report being full
        known: Fault | None = None
        reconnects = 0  # tries of this worker since its connection broke
        worker = self._find_holder(key)
        while True:
            tries += 1
            try:
                if worker is None:
                    worker = await self._place_or_wait(key, deadline, avoid, wait_until)
                return await self._request_lease(key, worker, ttl, version)
            except Fault as fault:
                if worker is not None:
                    self.record_failed_acquisition(key, worker, fault)
                now = self._loop.time()
                if fault.reason is Reason.CAPACITY and now < wait_until:
                    tries = 1  # these tries are limited by time
                failed_try = FailedTry(
                    tries,
                    deadline - now,
                    placing=True,
                    elsewhere=worker is not None,
                    slow=bool(slow),
                )
                if worker is not None and should_reconnect(fault, reconnects):
                    reconnects += 1
                    await asyncio.sleep(RECONNECT.delay(reconnects - 1))
                    continue
                retry = decide(replace(fault, started="no") if reconnects else fault, failed_try)
                known = more_informative(known, fault)
                if retry is None:
                    raise known from None
                if worker is not None and retry.avoid_worker:
                    avoid.add(worker)
                    if fault.reason in UNREADY:
                        slow.add(worker)
                if retry.return_to_slow:
                    avoid -= slow
                    slow.clear()
                worker, reconnects = None, 0
                await asyncio.sleep(retry.delay)

    async def find_worker(self, key: SessionLeaseKey) -> WorkerRun | None:
        """Ask the control plane once which worker holds the lease of a key.

        Returns None if no worker does, or if the control plane does not answer.
        """
        deadline = self._loop.time() + _LOOKUP_TIMEOUT
        try:
            answer = await self._control.find_lease(*key, deadline)
        except Fault:
            return None
        return worker_from_proto(answer.worker) if answer.HasField("worker") else None

    async def resolve_on_workers(
        self, session: str, name: str
    ) -> tuple[WorkerRun, leases_pb2.ResolveLeasedResponse] | None:
        """Resolve a tool's name at the workers of the session's leases, without a control plane.

        Returns None if no leased server has the tool, or if no worker answers.
        """
        identity = self._control.identity
        for lease in self.book.held_leases(session):
            link = self._pool.link(lease.worker)
            request = leases_pb2.ResolveLeasedRequest(
                client=identity.client_info,
                tenant=identity.tenant,
                session=session,
                lease_id=lease.lease_id,
                name=name,
            )
            try:
                answer = await link.request(link.leases.ResolveLeased, request, _LOOKUP_TIMEOUT)
            except Fault:
                continue  # the tool may be another server's, or the worker too old
            return lease.worker, answer
        return None

    async def release(self, key: SessionLeaseKey) -> bool:
        """Release the lease of a key; return whether this ended it.

        A lease that has already ended is forgotten, so that the session can acquire a new one.

        Raises:
            Fault: The worker did not answer; the lease expires after its time to live.
        """
        lease = self.book.forget(key)
        if lease is None:
            return False
        return await self._releases.release(lease.worker, lease.lease_id, key.session)

    async def close_session(self, session: str, holder: object) -> None:
        """Leave a session: its leases end unless another client uses them.

        That includes leases granted later.

        Args:
            session: The session.
            holder: An object that lives as long as calls of the session are in flight.
        """
        self._closed_sessions[session] = holder
        await self._leave_session(session)

    def reopen_session(self, session: str) -> None:
        """Allow a closed session to hold leases again."""
        self._closed_sessions.pop(session, None)

    async def leave_all(self, ended: Collection[str]) -> None:
        """Leave all sessions, because the client closes.

        Args:
            ended: The sessions that end with the client. Leases of the others are kept until no
                call has run on them for their idle limit: other processes may use them.
        """
        await self._leave(self.book.held_leases(), self._pending.pop(), frozenset(ended))

    async def leave_session(self, session: str, keep: float) -> None:
        """Leave one session; its leases are kept until no call has run for `keep` seconds."""
        for lease in self.book.held_leases(session):
            lease.idle = keep
        self._idle_limits[session] = keep
        await self._leave(self.book.held_leases(session), self._pending.pop(session), ())
        self._forget_session(session)

    async def _leave_session(self, session: str) -> None:
        held = self.book.held_leases(session)
        await self._leave(held, self._pending.pop(session), (session,))
        self._forget_session(session)

    def _forget_session(self, session: str) -> None:
        self.book.forget_session(session)
        self._idle_limits.pop(session, None)

    async def _leave(
        self,
        leases: Collection[ClientLease],
        unknown: Collection[tuple[SessionLeaseKey, WorkerRun]],
        ended: Collection[str],
    ) -> None:
        """Leave leases, and those that abandoned first calls may have acquired."""
        held = {lease.key for lease in leases}
        searches = asyncio.gather(
            *(
                # A second lease of a key is of no use to the session.
                self._releases.leave_unknown(
                    key, worker, 0.0 if key in held else self._keep_time(key.session, ended)
                )
                for key, worker in unknown
            )
        )
        for lease in leases:
            self.book.forget(lease.key)  # at once, so that the next call acquires a new lease
        requests = (
            self._releases.leave(
                lease.worker,
                lease.lease_id,
                lease.session,
                0.0 if self._has_ended(lease.session, ended) else _kept(lease.idle),
                owned=lease.owned,
            )
            for lease in leases
        )
        results = await asyncio.gather(*requests, return_exceptions=True)
        for lease, result in zip(leases, results, strict=True):
            if isinstance(result, BaseException):
                _log.warning(
                    "Lease %s of server %s could not be left: %s Without another client it "
                    "expires within %g s.",
                    lease.lease_id,
                    lease.server_id,
                    result,
                    lease.ttl,
                )
        await searches

    def _keep_time(self, session: str, ended: Collection[str]) -> float:
        if self._has_ended(session, ended):
            return 0.0
        return _kept(self._idle_limits.get(session, LEASE_IDLE))

    def _has_ended(self, session: str, ended: Collection[str]) -> bool:
        """Return whether a session ends: its block may be left already, its first call given up."""
        return session in ended or session in self._closed_sessions

    def abort(self) -> None:
        """Stop renewing, without waiting."""
        self._keep_alive.cancel()
        self._placements.cancel()
        for task in (*self._release_tasks, *self._cleanup_tasks):
            task.cancel()

    async def close(self) -> None:
        """Stop renewing."""
        for task in self._cleanup_tasks:
            task.cancel()
        await asyncio.gather(
            *self._placements.cancel(),
            *self._release_tasks,
            *self._cleanup_tasks,
            *self._keep_alive.cancel(),
            return_exceptions=True,
        )

    async def _release_idle(self, lease: ClientLease) -> None:
        """Release a lease that reached its idle limit, unless another client has called on it."""
        try:
            answer = await self._releases.request(
                lease.worker, lease.lease_id, lease.session, idle=lease.idle
            )
        except Fault as fault:
            if fault.reason in LEASE_ENDED:
                self.book.end(lease.lease_id, fault)
            lease.used_at = self._loop.time() - lease.idle + _IDLE_RETRY
            return
        if answer.HasField("idle"):
            lease.used_at = max(lease.used_at, self._loop.time() - seconds(answer.idle))
        else:
            self.book.end(lease.lease_id, _idle_limit_reached(lease))

    def _release_lost(self, lost: list[ClientLease]) -> None:
        """Release leases that were reported as lost, in case their worker becomes reachable."""
        owned = [lease for lease in lost if lease.owned]
        if owned:
            task = self._loop.create_task(self._releases.retry(owned))
            self._cleanup_tasks.add(task)
            task.add_done_callback(self._cleanup_tasks.discard)

    def _find_holder(self, key: SessionLeaseKey) -> WorkerRun | None:
        try:
            lease = self.book.find(key, self._loop.time())
        except Fault:
            self.book.forget(key)  # an explicit acquire replaces an ended lease
            return None
        return lease.worker if lease is not None else None

    async def _place_or_wait(
        self,
        key: SessionLeaseKey,
        deadline: float,
        avoid: Collection[WorkerRun],
        wait_until: float,
    ) -> WorkerRun:
        """Return the worker that should hold the lease; wait for capacity until a time."""
        now = self._loop.time()
        wait = wait_until - now
        if wait <= 0:
            try:
                return await self.place(key, deadline, avoid)
            except Fault as fault:
                if fault.reason not in LEASE_ENDED:
                    raise
                # A call that asked at the same time was told how the previous lease ended.
                return await self._request_placement(key, deadline, avoid)
        worker = self.book.find_placement(key, now)
        if worker is not None and worker not in avoid:
            return worker
        return await self._request_placement(key, deadline, avoid, wait)

    async def _request_placement(
        self,
        key: SessionLeaseKey,
        deadline: float,
        exclude: Collection[WorkerRun],
        wait: float = 0.0,
        *,
        report_end: bool = False,
    ) -> WorkerRun:
        request = leases_pb2.PlaceRequest(
            client=self._control.identity.client_info,
            tenant=self._control.identity.tenant,
            session=key.session,
            server_id=key.server_id,
            exclude_workers=[worker.id for worker in exclude],
            unreached_workers=self.losses.unreachable_workers(self._loop.time()),
            lost_lease=self.losses.lost_lease(key),
            wait=duration(wait) if wait > 0 else None,
            report_end=report_end,
        )
        place = self._control.placement.Place
        answer = await self._control.request(place, request, deadline, wait=wait)
        worker = worker_from_proto(answer.worker)
        self.losses.forget(key)
        self.book.add_placement(
            key, worker, self._loop.time(), answer.lease_id if report_end else None
        )
        self._pending.add(key, worker)
        return worker

    async def _request_lease(
        self, key: SessionLeaseKey, worker: WorkerRun, ttl: float, version: int
    ) -> ClientLease:
        link = self._pool.link(worker)
        sent_at = self._loop.time()
        request = leases_pb2.AcquireLeaseRequest(
            client=self._control.identity.client_info_for(self._users.of(key.session)),
            tenant=self._control.identity.tenant,
            session=key.session,
            server_id=key.server_id,
            ttl=duration(ttl),
            registry_version=version,
            acquirer=self._pending.acquirer,
        )
        try:
            answer = await link.request(link.leases.AcquireLease, request, _ACQUIRE_TIMEOUT)
        except asyncio.CancelledError:
            self.record_failed_acquisition(key, worker, None)
            raise
        return self.record_grant(key, answer.lease, worker, sent_at, owned=answer.created)


def _kept(idle: float) -> float:
    """Return for how many seconds without a call a lease outlives its client.

    A lease without a limit lives as long as its client, and then as long as any other.
    """
    return LEASE_IDLE if idle > MAX_LEASE_TTL else idle


def _idle_limit_reached(lease: ClientLease) -> Fault:
    return Fault(
        Reason.LEASE_RELEASED,
        f"Lease {lease.lease_id} of session '{lease.session}' for server '{lease.server_id}' was "
        f"released: no call had run on it for {lease.idle:g} s, its idle limit "
        "(client.session(key, idle=...)). Acquire it again; the server's state is lost.",
    )
