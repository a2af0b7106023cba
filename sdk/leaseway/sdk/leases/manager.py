"""The lease client: acquires, renews and releases the leases of one client (design.md#leases).

Only placement needs the control plane. Everything else is requested from the worker that holds the
lease, so that leases survive an outage of the control plane. `SessionLeases` decides what each
answer changes and who waits for it; this module sends the requests.
"""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections.abc import Callable, Collection, Coroutine
from functools import partial
from typing import Any, Final, TypeVar
from weakref import WeakValueDictionary, proxy

from leaseway.sdk.leases.attempts import AcquireAttempts
from leaseway.sdk.leases.book import LeaseBook
from leaseway.sdk.leases.ends import LeaseChanges, LeaseEnds
from leaseway.sdk.leases.keep_alive import KeepAliveTasks
from leaseway.sdk.leases.lease import ClientLease
from leaseway.sdk.leases.lookup import LeaseLookup
from leaseway.sdk.leases.loss_detection import LossDetector
from leaseway.sdk.leases.releases import LeaseReleases, is_acquired_by
from leaseway.sdk.leases.state import Flight, Granted, Purpose, SessionLeases, Terms
from leaseway.sdk.transport.control import ControlPlane
from leaseway.sdk.transport.faults import client_closed
from leaseway.sdk.transport.session_users import SessionUsers
from leaseway.sdk.transport.workers import WorkerPool, WorkerRun, worker_from_proto
from leaseway.v1 import leases_pb2
from leaseway.wire.bounds import (
    LEASE_IDLE,
    LEASE_TTL,
    MAX_LEASE_TTL,
    MAX_PLACEMENT_WAIT,
    STARTUP_TIMEOUT,
)
from leaseway.wire.errors import UNANSWERED, Fault, Reason
from leaseway.wire.messages.states import LEASE_ENDED
from leaseway.wire.names import LeaseKey
from leaseway.wire.sharing.newest import Newest
from leaseway.wire.timing.durations import check_lease_ttl, duration, seconds
from leaseway.wire.timing.running_tasks import start_lasting_task

_ACQUIRE_TIMEOUT: Final = 600.0
"""Seconds for a lease's instance to start; the worker applies the server's own timeout."""
_RELEASE_TIMEOUT: Final = 5.0
"""Seconds to find a lease that is to be released; more than a new control plane takes to settle."""
_IDLE_RETRY: Final = 10.0
"""Seconds until the release of an idle lease is tried again after the worker failed to answer."""
_MAX_MCP_CLIENTS: Final = 16_384
"""Sessions whose MCP client is remembered."""

_log = logging.getLogger("leaseway.sdk")

_T = TypeVar("_T")


class LeaseManager:
    """Acquires, renews and releases the leases of one client.

    Args:
        control: Places leases on workers.
        pool: Connections to the workers.
        acquirer: The client's random name, which is sent with each acquisition. Leases carry it, so
            that a client releases only its own.
        users: The users for whom sessions call.

    Attributes:
        book: The state of all leases.
        losses: Detects that a lease was lost with its worker.
        ends: Tells who listens that a session's lease has ended.
        changes: Wakes who watches the leases of a session.
        lookup: Finds leases that other clients of a session use.
    """

    def __init__(
        self, control: ControlPlane, pool: WorkerPool, acquirer: str, users: SessionUsers
    ) -> None:
        self.book = LeaseBook(control.identity.tenant)
        # A reference cycle would keep channels alive after their loop closed, and gRPC would report
        # errors in the next loop.
        me = proxy(self)
        self.losses = LossDetector(control, self.book, lambda lost: me._release_lost(lost))
        self.lookup = LeaseLookup(control)
        self._control = control
        self._pool = pool
        self._users = users
        self._loop = asyncio.get_running_loop()
        self.ends = LeaseEnds(self.book, pool)
        self.changes = LeaseChanges(self.book.held)
        self._keep_alive = KeepAliveTasks(self.book, pool, lambda lease: me._release_idle(lease))
        self._acquirer = acquirer
        self._releases = LeaseReleases(pool, acquirer)
        self._requests: dict[Flight, asyncio.Task[Any]] = {}
        self._mcp_clients: Newest[str, bytes] = Newest(_MAX_MCP_CLIENTS)
        # Only a call in flight can acquire a lease for a closed session, and the call keeps the
        # session object alive. So the entry disappears when it is no longer needed.
        self._closed_sessions: WeakValueDictionary[str, object] = WeakValueDictionary()
        self._release_tasks: set[asyncio.Task[None]] = set()
        self._cleanup_tasks: set[asyncio.Task[None]] = set()

    def key(self, session: str, server_id: str) -> LeaseKey:
        """Return the key of a session's lease of a server."""
        return LeaseKey(self._control.identity.tenant, session, server_id)

    async def place(
        self,
        key: LeaseKey,
        deadline: float,
        exclude: Collection[WorkerRun] = (),
        *,
        report_end: bool = False,
    ) -> WorkerRun:
        """Return the worker that should hold the lease of a key.

        First calls of one key share one placement, as long as no worker is excluded.

        Args:
            deadline: The caller's deadline, in the event loop's time.
            exclude: Workers that rejected the lease.
            report_end: Whether to fail, once, with the end of the session's previous lease, unless
                a caller of this client was told it.

        Raises:
            Fault: No worker has capacity, the control plane cannot be reached, or how the
                session's previous lease ended.
        """
        session = self.book.session(key.session)
        return await self._place(session, key, deadline, exclude, report_end=report_end)

    async def _place(
        self,
        session: SessionLeases,
        key: LeaseKey,
        deadline: float,
        exclude: Collection[WorkerRun],
        *,
        report_end: bool,
    ) -> WorkerRun:
        request = partial(self._request_placement, key, deadline, exclude, report_end=report_end)
        if exclude:
            return await request(session)
        worker = session.placed_on(key.server_id, self._loop.time())
        if worker is not None:
            return worker
        try:
            async with asyncio.timeout_at(deadline):
                while True:
                    send = partial(request, session)
                    found = await self._share(session, key, Purpose.PLACE, Terms(), deadline, send)
                    if found is not None:
                        return found
                    session = self.book.session(key.session)
        except TimeoutError:
            raise Fault(
                Reason.DEADLINE_EXCEEDED,
                f"The timeout passed before a lease of '{key.server_id}' was placed on a worker.",
            ) from None

    def record_grant(
        self,
        key: LeaseKey,
        granted: leases_pb2.Lease,
        worker: WorkerRun,
        sent_at: float,
        *,
        owned: bool,
    ) -> ClientLease:
        """Record a lease that a worker reported in its response to a request.

        Args:
            sent_at: When the request was sent, in the event loop's time.
            owned: Whether this client acquired it; another client of the session may have.
        """
        lease = self.book.session(key.session).grant(
            key.server_id,
            Granted(
                lease_id=granted.id,
                worker=worker,
                ttl=seconds(granted.ttl) or LEASE_TTL,
                owned=owned or is_acquired_by(self._acquirer, granted, key),
                reminder=granted.reminder,
            ),
            sent_at=sent_at,
            now=self._loop.time(),
            wall=time.time(),
        )
        self._keep_alive.keep(lease)
        self._leave_if_closed(key.session)
        return lease

    def record_failed_acquisition(
        self, key: LeaseKey, worker: WorkerRun, fault: Fault | None
    ) -> None:
        """Record how a first call of a key failed; None means that it was cancelled."""
        session = self.book.session(key.session)
        if fault is None:
            session.abandon(key.server_id, worker)
        else:
            session.fail(key.server_id, worker, fault)
        self._leave_if_closed(key.session)

    def record_call(self, lease: ClientLease, sent_at: float) -> None:
        """Record an answered call on a lease, which renewed the lease."""
        now = self._loop.time()
        lease.renew_by_call(lease.ttl, sent_at, now, time.time())
        lease.used_at = now

    def set_idle_limit(self, session: str, limit: float) -> None:
        """Release leases of a session after this many seconds without a call."""
        known = self.book.sessions.get(session)
        if known is not None and known.idle == limit:
            return
        leases = self.book.session(session)
        leases.idle = limit
        for lease in leases.leases():
            lease.idle = limit
            self._keep_alive.keep(lease)

    def set_mcp_client(self, session: str, mcp_client: bytes) -> None:
        """Name the MCP client of a session in its requests for leases."""
        if mcp_client:
            self._mcp_clients[session] = mcp_client
        else:
            self._mcp_clients.pop(session, None)

    async def acquire(
        self, key: LeaseKey, ttl: float, wait: float | None, version: int
    ) -> ClientLease:
        """Acquire the lease of a key, or renew the held one.

        Callers of one key share a request to a worker; those that ask for another time to live
        send theirs after it.

        Args:
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
        wait_until = self._loop.time() + min(wait or 0.0, MAX_PLACEMENT_WAIT)
        attempts = AcquireAttempts(wait_until, wait_until + STARTUP_TIMEOUT)
        # The session is looked up after each wait: it may have been left meanwhile.
        session = self.book.session(key.session)
        worker = session.find_holder(key.server_id, self._loop.time())
        while True:
            try:
                if worker is None:
                    worker = await self._place_or_wait(session, key, attempts)
                    session = self.book.session(key.session)
                terms = Terms(worker, ttl, version)
                send = partial(self._request_lease, key, worker, terms)
                lease = await self._share(session, key, Purpose.ACQUIRE, terms, math.inf, send)
                if lease is not None:
                    return lease
                session = self.book.session(key.session)
                worker = session.find_holder(key.server_id, self._loop.time()) or worker
            except Fault as fault:
                now = self._loop.time()
                if worker is not None:
                    self.record_failed_acquisition(key, worker, fault)
                worker, delay = attempts.fail(worker, fault, now)
                await asyncio.sleep(delay)
                session = self.book.session(key.session)

    async def release(self, key: LeaseKey) -> bool:
        """Release the lease of a key; return whether this ended it.

        A lease that has already ended is forgotten, so that the session can acquire a new one. One
        that an abandoned first call has acquired, whose id nobody knows, is looked for, and so is
        one that only other clients of the session have used.

        Raises:
            Fault: The worker did not answer, and the lease expires after its time to live; or the
                control plane did not, and other clients may have one.
        """
        session = self.book.session(key.session)
        is_known = session.tracks(key.server_id)
        lease = session.release(key.server_id, self._loop.time())
        abandoned = session.take_abandoned(key.server_id)
        # At once: a worker that hangs must not delay the release at another one.
        ended = [self._releases.leave_unknown(key, worker, 0.0) for worker in abandoned]
        if not is_known and not abandoned:
            return await self._release_of_others(key)
        if lease is not None:
            ended.append(self._releases.release(lease))
        return any(await asyncio.gather(*ended))

    async def _release_of_others(self, key: LeaseKey) -> bool:
        """Release the lease that other clients of a session use; return whether this ended one."""
        deadline = self._loop.time() + _RELEASE_TIMEOUT
        lease = await self.lookup.find(key, deadline)
        if lease is None:
            return False
        is_ended = await self._releases.release(lease)
        # A call of this client may have joined it meanwhile.
        self.book.forget_released(key, lease.lease_id, self._loop.time())
        return is_ended

    async def close_session(self, session: str, holder: object) -> None:
        """Leave a session: its leases end unless another client uses them.

        That includes leases granted later. If the caller is cancelled meanwhile, as at the end of
        a block whose time is over, the leases are left all the same.

        Args:
            holder: An object that lives as long as calls of the session are in flight.
        """
        self._closed_sessions[session] = holder
        self.changes.wake(session)
        await asyncio.shield(self._leave_in_background(session))

    def _leave_in_background(self, session: str) -> asyncio.Task[None]:
        task = self._loop.create_task(self._leave_session(session))
        self._release_tasks.add(task)
        task.add_done_callback(self._release_tasks.discard)
        return task

    def _leave_if_closed(self, session: str) -> None:
        """Leave a session again if a call of it ended only after its block."""
        if session in self._closed_sessions:
            self._leave_in_background(session)

    def reopen_session(self, session: str) -> None:
        """Allow a closed session to hold leases again."""
        self._closed_sessions.pop(session, None)

    async def leave_all(self, ended: Collection[str]) -> None:
        """Leave all sessions, because the client closes.

        Args:
            ended: The sessions that end with the client. Leases of the others are kept until no
                call has run on them for their idle limit: other processes may use them.
        """
        self.book.is_closing = True
        await asyncio.gather(
            *(
                self._leave_session(session, keep=session not in ended, is_closing=True)
                for session in self.book.session_keys()
            )
        )

    async def leave_session(self, session: str, keep: float) -> None:
        """Leave one session; its leases are kept until no call has run for `keep` seconds."""
        self.set_idle_limit(session, keep)
        await self._leave_session(session, keep=True)

    async def _leave_session(
        self, session: str, *, keep: bool = False, is_closing: bool = False
    ) -> None:
        """Leave the leases of a session, and those that abandoned first calls may have acquired.

        Args:
            keep: Whether its leases outlive the client until their idle limit. Those of a closed
                session do not: its block may be left already, its first call given up.
            is_closing: Whether the calls of the session end too.
        """
        keep = keep and session not in self._closed_sessions
        idle = self.book.session(session).idle
        self._mcp_clients.pop(session, None)
        # The book forgets the leases at once, so that the next call acquires a new one.
        leases, unknown = self.book.leave(session, self._loop.time(), is_closing=is_closing)
        held = {lease.key for lease in leases}
        searches = asyncio.gather(
            *(
                # A second lease of a key is of no use to the session.
                self._releases.leave_unknown(
                    key, worker, _kept(idle) if keep and key not in held else 0.0
                )
                for key, worker in unknown
            )
        )
        requests = (
            self._releases.leave(lease, _kept(lease.idle) if keep else 0.0) for lease in leases
        )
        results = await asyncio.gather(*requests, return_exceptions=True)
        for lease, result in zip(leases, results, strict=True):
            if isinstance(result, BaseException):
                _log.warning(
                    "Lease %s of server %s could not be left: %s Without another client it "
                    "expires within %g s.",
                    lease.lease_id,
                    lease.key.server_id,
                    result,
                    lease.ttl,
                )
        await searches

    def abort(self) -> None:
        """Stop renewing, without waiting."""
        self._keep_alive.cancel()
        for task in (*self._requests.values(), *self._release_tasks, *self._cleanup_tasks):
            task.cancel()

    async def close(self) -> None:
        """Stop renewing."""
        requests = list(self._requests.values())
        for task in (*requests, *self._cleanup_tasks):
            task.cancel()
        await asyncio.gather(
            *requests,
            *self._release_tasks,
            *self._cleanup_tasks,
            *self._keep_alive.cancel(),
            return_exceptions=True,
        )

    async def _release_idle(self, lease: ClientLease) -> None:
        """Release a lease that reached its idle limit, unless another client has called on it."""
        try:
            answer = await self._releases.request(lease, idle=lease.idle)
        except Fault as fault:
            if fault.reason in LEASE_ENDED:
                self.book.end(lease.lease_id, fault, self._loop.time())
            lease.used_at = self._loop.time() - lease.idle + _IDLE_RETRY
            return
        if answer.HasField("idle"):
            lease.used_at = max(lease.used_at, self._loop.time() - seconds(answer.idle))
        else:
            self.book.end(lease.lease_id, _idle_limit_reached(lease), self._loop.time())

    def _release_lost(self, lost: list[ClientLease]) -> None:
        """Release leases that were reported as lost, in case their worker becomes reachable."""
        owned = [lease for lease in lost if lease.owned]
        if owned:
            task = start_lasting_task(self._releases.retry(owned))
            self._cleanup_tasks.add(task)
            task.add_done_callback(self._cleanup_tasks.discard)

    async def _place_or_wait(
        self, session: SessionLeases, key: LeaseKey, attempts: AcquireAttempts
    ) -> WorkerRun:
        """Return the worker that should hold the lease; wait for capacity as long as the caller."""
        now = self._loop.time()
        wait = attempts.wait_until - now
        if wait <= 0:
            try:
                return await self._place(
                    session, key, attempts.deadline, attempts.avoid, report_end=False
                )
            except Fault as fault:
                if fault.reason not in LEASE_ENDED:
                    raise
                # A call that asked at the same time was told how the previous lease ended.
                session = self.book.session(key.session)
                return await self._request_placement(
                    key, attempts.deadline, attempts.avoid, session
                )
        worker = session.placed_on(key.server_id, now)
        if worker is not None and worker not in attempts.avoid:
            return worker
        return await self._request_placement(key, attempts.deadline, attempts.avoid, session, wait)

    async def _share(
        self,
        session: SessionLeases,
        key: LeaseKey,
        purpose: Purpose,
        terms: Terms,
        deadline: float,
        send: Callable[[], Coroutine[Any, Any, _T]],
    ) -> _T | None:
        """Return the answer of the request in flight, or of a new one.

        Returns None if the caller must ask again: a request with other terms was in flight, or one
        of a caller with less time, which passed.
        """
        waiter: asyncio.Future[tuple[Flight, asyncio.Task[_T]] | None] = self._loop.create_future()
        flight = session.ask(key.server_id, purpose, terms, deadline, waiter)
        if flight is not None:
            task = self._requests[flight] = self._loop.create_task(send())
            task.add_done_callback(partial(self._answer, flight))
        try:
            answer = await waiter
        except asyncio.CancelledError:
            unwanted = session.give_up(key.server_id, purpose, waiter)
            if unwanted is not None:
                self._requests[unwanted].cancel()
                self._leave_if_closed(key.session)
            raise
        if answer is None:
            return None
        answered, task = answer
        if task.cancelled():  # with the client; this caller is not
            raise client_closed(sent=purpose is Purpose.ACQUIRE)
        try:
            return task.result()
        except Fault as fault:
            if fault.reason in UNANSWERED and answered.deadline < deadline:
                return None
            raise

    def _answer(self, flight: Flight, task: asyncio.Task[Any]) -> None:
        """Wake the callers that wait for a request, which has ended."""
        del self._requests[flight]
        if not task.cancelled():
            task.exception()  # retrieved here, because every caller may have given up
        answered, later = flight.session.answer(flight)
        for waiter in answered:
            if not waiter.done():
                waiter.set_result((flight, task))
        for waiter in later:
            if not waiter.done():
                waiter.set_result(None)

    async def _request_placement(
        self,
        key: LeaseKey,
        deadline: float,
        exclude: Collection[WorkerRun],
        session: SessionLeases,
        wait: float = 0.0,
        *,
        report_end: bool = False,
    ) -> WorkerRun:
        told = session.known_ends(key.server_id)
        known_ends = told if report_end else None
        request = leases_pb2.PlaceRequest(
            client=self._control.identity.client_info,
            tenant=key.tenant,
            session=key.session,
            server_id=key.server_id,
            exclude_workers=[worker.id for worker in exclude],
            unreached_workers=self.losses.unreachable_workers(self._loop.time()),
            lost_lease=session.lost_lease(key.server_id),
            wait=duration(wait) if wait > 0 else None,
            report_end=report_end,
            prefers=self._pool.local_id,
            known_ends=told,
            mcp_client=self._mcp_clients.get(key.session, b""),
            acquirer=self._acquirer,
        )
        place = self._control.placement.Place
        try:
            answer = await self._control.request(place, request, deadline, wait=wait)
        except Fault as fault:
            session.tell(key.server_id, fault)
            raise
        if self.book.is_closing:  # its call would acquire a lease that nobody leaves
            raise client_closed(sent=False)
        worker = worker_from_proto(answer.worker)
        if known_ends is not None and answer.known_end:
            known_ends = (*known_ends, answer.known_end)
        self.book.session(key.session).place(
            key.server_id, worker, self._loop.time(), known_ends, answer.lease_id
        )
        return worker

    async def _request_lease(self, key: LeaseKey, worker: WorkerRun, terms: Terms) -> ClientLease:
        link = self._pool.link(worker)
        sent_at = self._loop.time()
        request = leases_pb2.AcquireLeaseRequest(
            client=self._control.identity.client_info_for(self._users.of(key.session)),
            tenant=key.tenant,
            session=key.session,
            server_id=key.server_id,
            ttl=duration(terms.ttl),
            registry_version=terms.version,
            acquirer=self._acquirer,
            subject_token=self._users.token_of(key.session),
            mcp_client=self._mcp_clients.get(key.session, b""),
        )
        answer = await link.request(link.leases.AcquireLease, request, _ACQUIRE_TIMEOUT)
        return self.record_grant(key, answer.lease, worker, sent_at, owned=answer.created)


def _kept(idle: float) -> float:
    """Return for how many seconds without a call a lease outlives its client.

    A lease without a limit lives as long as its client, and then as long as any other.
    """
    return LEASE_IDLE if idle > MAX_LEASE_TTL else idle


def _idle_limit_reached(lease: ClientLease) -> Fault:
    return Fault(
        Reason.LEASE_RELEASED,
        f"Lease {lease.lease_id} of session '{lease.key.session}' for server "
        f"'{lease.key.server_id}' was released: no call had run on it for {lease.idle:g} s, its "
        "idle limit (client.session(key, idle=...)). Acquire it again; the server's state is lost.",
    )
