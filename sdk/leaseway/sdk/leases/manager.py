"""Leases of one client: asked for, kept alive and given back (DESIGN §5).

The book says what is held; this is what talks. Placement is the control plane's, everything
else goes to the worker that holds the lease, so that leases live on without a control plane.
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

from leaseway.sdk.leases.book import (
    Held,
    LeaseBook,
    LeaseKey,
    PendingAcquisition,
    PendingAcquisitions,
)
from leaseway.sdk.leases.keep_alive import Keepers
from leaseway.sdk.leases.loss_detection import LossJudge
from leaseway.sdk.leases.placement import Placements
from leaseway.sdk.retry_policy import UNREADY, Tried, decide, more_informative
from leaseway.sdk.transport.control import ControlPlane, every_page
from leaseway.sdk.transport.workers import WorkerAddress, WorkerPool, worker_from_wire
from leaseway.v1 import leases_pb2
from leaseway.wire.bounds import LEASE_IDLE, LEASE_TTL, STARTUP_TIMEOUT
from leaseway.wire.errors import Fault, Reason
from leaseway.wire.timing.backoff import Backoff
from leaseway.wire.timing.durations import duration, seconds
from leaseway.wire.timing.lease_ttl import check_lease_ttl

LEASE_ENDED: Final = frozenset(
    {Reason.LEASE_EXPIRED, Reason.LEASE_REVOKED, Reason.LEASE_RELEASED, Reason.LEASE_LOST}
)
_START_BOUND: Final = 600.0
"""Seconds for a lease's instance to start; the worker bounds it by the server's own timeout."""
_MAX_WAIT: Final = 24 * 3600.0
"""Seconds that the control plane lets anybody wait for room."""
_RELEASE_BOUND: Final = 5.0
_IDLE_AGAIN: Final = 10.0
"""Seconds after which a worker that could not be told is told again of an idle lease."""
_MOST_LIMITS: Final = 16_384
"""Sessions whose idle limit is remembered; of one beyond them leases that come have the default."""
_FIND_BOUND: Final = 2.0

_AGAIN: Final = Backoff(0.1, 1.0)
_BURIAL: Final = Backoff(1.0, 15.0)
_MOST_CUT_OFF: Final = 4
"""Times that a worker is asked again after its connection broke."""

ResolvedHere = leases_pb2.ResolveLeasedResponse
"""Where a worker says that a name leads."""

_log = logging.getLogger("leaseway.sdk")


class LeaseManager:
    """Gets, keeps and gives back the leases of one client.

    Args:
        control: Knows where leases are to be.
        pool: The workers that hold them.
        acquirer: The client's random name, which the leases that it acquires bear.

    Attributes:
        book: What is held.
        losses: Says what a worker's failure means for a lease.
    """

    def __init__(self, control: ControlPlane, pool: WorkerPool, acquirer: str) -> None:
        self.book = LeaseBook()
        # A circle would keep channels beyond the end of their loop, and the next one gets errors.
        me = proxy(self)
        self.losses = LossJudge(control, self.book, lambda lost: me._bury(lost))
        self._control = control
        self._pool = pool
        self._loop = asyncio.get_running_loop()
        self._keepers = Keepers(self.book, pool, lambda held: me._release_idle(held))
        self._limits: dict[str, float] = {}
        self._pending_acquisitions = PendingAcquisitions(acquirer)
        self._placements = Placements()
        # A session that was left can be granted a lease only by a call of it that is still in
        # flight, and that holds the session: nothing is to be remembered for longer.
        self._left: WeakValueDictionary[str, object] = WeakValueDictionary()
        self._returns: set[asyncio.Task[None]] = set()
        self._burials: set[asyncio.Task[None]] = set()

    async def place(
        self, key: LeaseKey, deadline: float, exclude: Collection[WorkerAddress] = ()
    ) -> WorkerAddress:
        """Return the worker that is to hold the lease of a key.

        First calls of one key share one placement, as long as no worker is excluded.

        Raises:
            Fault: There is no room, or the control plane cannot be reached.
        """
        if exclude:
            return await self._place(key, deadline, exclude)
        worker = self.book.placed(key, self._loop.time())
        if worker is not None:
            return worker
        place = partial(self._place, key, deadline, ())
        return await self._placements.share(key, deadline, place)

    def granted(
        self,
        key: LeaseKey,
        lease: leases_pb2.Lease,
        worker: WorkerAddress,
        at: float,
        *,
        owned: bool,
    ) -> Held:
        """Record a lease that came with an answer to a request sent at a time.

        A request may have taken longer than the time to live, which counts from its end: a third
        is taken off for what the way back may have cost, and the next renewal sets it right.
        """
        now = self._loop.time()
        owned = self._pending_acquisitions.learn(key, worker, lease) or owned
        ttl = seconds(lease.ttl) or LEASE_TTL
        since = max(at, now - ttl / 3)
        held = self.book.grant(
            key,
            lease.id,
            worker,
            ttl=ttl,
            at=since,
            wall=time.time() - (now - since),
            owned=owned,
            reminder=lease.reminder,
        )
        held.used_at, held.idle = now, self._limits.get(key.session, LEASE_IDLE)
        self._keepers.watch(worker)
        if key.session in self._left:
            task = self._loop.create_task(self.release_owned(key.session))
            self._returns.add(task)
            task.add_done_callback(self._returns.discard)
        return held

    def failed(self, key: LeaseKey, worker: WorkerAddress, fault: Fault | None) -> None:
        """Note how a first call of a key failed; None means that it was cancelled."""
        if fault is not None:
            self.book.unplace(key, worker)
            if fault.started == "no" and fault.reason is not Reason.DEADLINE_EXCEEDED:
                return self._pending_acquisitions.refuse(key, worker)
        return self._pending_acquisitions.give_up(key, worker)

    def called(self, held: Held, at: float) -> None:
        """Note a call on a lease that was answered: it renewed the lease."""
        now = self._loop.time()
        since = max(at, now - held.ttl / 3)
        held.renew(held.ttl, since, time.time() - (now - since))
        held.used_at = now

    def limit_idle(self, session: str, seconds: float) -> None:
        """Give back leases of a session when no call has run on them for so long."""
        if self._limits.get(session) == seconds:
            return
        self._limits.pop(session, None)
        self._limits[session] = seconds
        if len(self._limits) > _MOST_LIMITS:
            del self._limits[next(iter(self._limits))]
        for held in self.book.held(session):
            held.idle = seconds
            self._keepers.watch(held.worker)

    async def _release_idle(self, held: Held) -> None:
        """Give back a lease that has been idle for too long, unless others call on it."""
        link = self._pool.link(held.worker)
        request = leases_pb2.ReleaseLeaseRequest(
            lease_id=held.lease_id,
            tenant=self._control.identity.tenant,
            session=held.session,
            idle=duration(held.idle),
        )
        try:
            answer = await link.ask(link.leases.ReleaseLease, request, _RELEASE_BOUND)
        except Fault as fault:
            if fault.reason in LEASE_ENDED:
                self.book.end(held.lease_id, fault)
            held.used_at = self._loop.time() - held.idle + _IDLE_AGAIN
            return
        if answer.HasField("idle"):
            held.used_at = max(held.used_at, self._loop.time() - seconds(answer.idle))
        else:
            self.book.end(held.lease_id, _idle(held))

    async def acquire(self, key: LeaseKey, ttl: float, wait: float | None, version: int) -> Held:
        """Acquire the lease of a key, or renew the one that is held.

        Args:
            key: The session and the server.
            ttl: Seconds that the lease lives without renewal.
            wait: Seconds to wait for room, at most a day; None fails at once.
            version: The registry version that the server was seen at.

        Raises:
            Fault: It was refused.
        """
        check_lease_ttl(ttl)
        if wait is not None and not wait >= 0:
            raise Fault(
                Reason.INVALID_REQUEST,
                f"wait={wait:g} is no time to wait for room; give 0 s or more, or None to fail at "
                "once.",
            )
        wait = min(wait or 0.0, _MAX_WAIT)
        return await self._seek(key, ttl, self._loop.time() + wait, version)

    async def _seek(self, key: LeaseKey, ttl: float, give_up: float, version: int) -> Held:
        """Ask one worker after the other; where none has room, the control plane knows who is next.

        A worker that refuses what was placed there is avoided; behind the others it is asked
        again, no more often than once a second, since the control plane lets so much time pass.

        One that was slow or out of reach, and did not say that it is full, is asked again where no
        other has room. One whose connection broke may have granted the lease: it is asked again
        first, since it would answer with the same one, and another worker with a twin.
        """
        deadline = give_up + STARTUP_TIMEOUT
        tries = 0
        avoid: set[WorkerAddress] = set()
        slow: set[WorkerAddress] = set()  # those of them that did not say that they have no room
        known: Fault | None = None
        cut_off = 0  # tries of this worker since its connection broke
        worker = self._holder(key)
        while True:
            tries += 1
            try:
                if worker is None:
                    worker = await self._room(key, deadline, avoid, give_up)
                return await self._acquire(key, worker, ttl, version)
            except Fault as fault:
                if worker is not None:
                    self.failed(key, worker, fault)
                now = self._loop.time()
                if fault.reason is Reason.CAPACITY and now < give_up:
                    tries = 1  # it is time that bounds these
                tried = Tried(
                    tries,
                    deadline - now,
                    placing=True,
                    elsewhere=worker is not None,
                    slow=bool(slow),
                )
                if worker is not None and _is_cut_off(fault, cut_off):
                    cut_off += 1
                    await asyncio.sleep(_AGAIN.delay(cut_off - 1))
                    continue
                again = decide(replace(fault, started="no") if cut_off else fault, tried)
                known = more_informative(known, fault)
                if again is None:
                    raise known from None
                if worker is not None and again.avoid_worker:
                    avoid.add(worker)
                    if fault.reason in UNREADY:
                        slow.add(worker)
                if again.return_to_slow:
                    avoid -= slow
                    slow.clear()
                worker, cut_off = None, 0
                await asyncio.sleep(again.delay)

    async def find_holder(self, key: LeaseKey) -> WorkerAddress | None:
        """Ask the control plane once which worker holds the lease of a key.

        None where there is none, or nobody can say.
        """
        deadline = self._loop.time() + _FIND_BOUND
        try:
            answer = await self._control.find_lease(*key, deadline)
        except Fault:
            return None  # any worker can say what it knows
        return worker_from_wire(answer.worker) if answer.HasField("worker") else None

    async def resolve(self, session: str, name: str) -> tuple[WorkerAddress, ResolvedHere] | None:
        """Ask the workers of a session's leases where a tool's name leads, without a control plane.

        None where none of their servers has it, or none answers.
        """
        identity = self._control.identity
        for held in self.book.held(session):
            link = self._pool.link(held.worker)
            request = leases_pb2.ResolveLeasedRequest(
                client=identity.client_info,
                tenant=identity.tenant,
                session=session,
                lease_id=held.lease_id,
                name=name,
            )
            try:
                answer = await link.ask(link.leases.ResolveLeased, request, _FIND_BOUND)
            except Fault:
                continue  # of another server, perhaps, or of an older worker
            return held.worker, answer
        return None

    def released(self, key: LeaseKey, lease_id: str) -> None:
        """Note a lease that was released by a call: the session may begin anew."""
        self.book.released(key, lease_id)

    async def release(self, key: LeaseKey) -> bool:
        """Give a lease back; say whether this ended it.

        What is known of an ended lease is forgotten, so that the session can begin anew.

        Raises:
            Fault: The worker could not be told; the lease ends by itself after its time.
        """
        held = self.book.forget(key)
        if held is None:
            return False
        return await self._end(held.worker, held.lease_id, key.session)

    async def _end(self, worker: WorkerAddress, lease_id: str, session: str) -> bool:
        link = self._pool.link(worker)
        request = leases_pb2.ReleaseLeaseRequest(
            lease_id=lease_id,
            tenant=self._control.identity.tenant,
            session=session,
        )
        cut_off = 0
        while True:
            try:
                answer = await link.ask(link.leases.ReleaseLease, request, _RELEASE_BOUND)
                return bool(answer.released)
            except Fault as fault:
                if _is_cut_off(fault, cut_off):
                    cut_off += 1
                    await asyncio.sleep(_AGAIN.delay(cut_off - 1))
                    continue
                if fault.reason in LEASE_ENDED or fault.reason is Reason.WORKER_LOST:
                    # It has ended, which may have been what was asked for when the connection
                    # broke, or ends with its worker or its time.
                    return bool(cut_off) and fault.reason is Reason.LEASE_RELEASED
                raise

    async def leave(self, session: str, holder: object) -> None:
        """Give back what this client acquired in a session, also what is granted to it later.

        Args:
            session: The session.
            holder: What lives as long as calls of the session are in flight.
        """
        self._left[session] = holder
        await self.release_owned(session)

    def reopen(self, session: str) -> None:
        """Let a session that was left hold leases again."""
        self._left.pop(session, None)

    async def release_owned(self, session: str | None = None) -> None:
        """Give back what this client acquired, of one session or of all; forget the rest."""
        returns = asyncio.gather(*map(self._return, self._pending_acquisitions.take(session)))
        leases = self.book.held(session)
        for held in leases:
            self.book.forget(held.key)  # at once: whoever comes next begins anew
        owned = [held for held in leases if held.owned]
        ends = await asyncio.gather(
            *(self._end(held.worker, held.lease_id, held.session) for held in owned),
            return_exceptions=True,
        )
        for held, end in zip(owned, ends, strict=True):
            if isinstance(end, BaseException):
                _log.warning(
                    "Lease %s of server %s could not be released: %s It ends by itself within "
                    "%g s.",
                    held.lease_id,
                    held.server_id,
                    end,
                    held.ttl,
                )
        await returns
        if session is not None:
            self.book.leave(session)
            self._limits.pop(session, None)

    def _bury(self, lost: list[Held]) -> None:
        """End leases that were taken as lost, if their worker should come back."""
        owned = [held for held in lost if held.owned]
        if owned:
            task = self._loop.create_task(self._release_later(owned))
            self._burials.add(task)
            task.add_done_callback(self._burials.discard)

    async def _release_later(self, lost: list[Held]) -> None:
        ends = self._loop.time() + max(held.ttl for held in lost)
        tries = 0
        while self._loop.time() < ends:
            await asyncio.sleep(_BURIAL.ceiling(tries))
            tries += 1
            try:
                for held in lost:
                    await self._release_once(held)
                return
            except Fault as fault:
                _log.debug("Lost leases are not released yet: %s", fault)

    async def _release_once(self, held: Held) -> None:
        link = self._pool.link(held.worker)
        request = leases_pb2.ReleaseLeaseRequest(
            lease_id=held.lease_id,
            tenant=self._control.identity.tenant,
            session=held.session,
        )
        try:
            await link.ask(link.leases.ReleaseLease, request, _RELEASE_BOUND)
        except Fault as fault:
            if fault.reason not in LEASE_ENDED:
                raise

    async def _return(self, first: PendingAcquisition) -> None:
        """Give back what a first call acquired whose result nobody waits for."""
        link = self._pool.link(first.worker)
        tenant = self._control.identity.tenant

        async def page(token: str) -> leases_pb2.ListLeasesResponse:
            request = leases_pb2.ListLeasesRequest(tenant=tenant, page_token=token)
            answer: leases_pb2.ListLeasesResponse = await link.ask(
                link.leases.ListLeases, request, _FIND_BOUND
            )
            return answer

        try:
            async for each in every_page(page):
                for lease in each.leases:
                    if self._pending_acquisitions.acquired(lease, first.key):
                        await self._end(first.worker, lease.id, lease.session)
        except Fault as fault:
            _log.warning(
                "A call of server %s was given up, and a lease that it may have acquired could "
                "not be released: %s It ends by itself.",
                first.key.server_id,
                fault,
            )

    def abort(self) -> None:
        """Stop renewing, without waiting."""
        self._keepers.abort()
        self._placements.abort()
        for task in (*self._returns, *self._burials):
            task.cancel()

    async def close(self) -> None:
        """Stop renewing."""
        for task in self._burials:
            task.cancel()
        ends = (self._placements.close(), *self._returns, *self._burials, self._keepers.close())
        await asyncio.gather(*ends, return_exceptions=True)

    def _holder(self, key: LeaseKey) -> WorkerAddress | None:
        try:
            held = self.book.find(key, self._loop.time())
        except Fault:
            self.book.forget(key)  # an explicit acquire is how a session begins anew
            return None
        return held.worker if held is not None else None

    async def _room(
        self, key: LeaseKey, deadline: float, avoid: Collection[WorkerAddress], give_up: float
    ) -> WorkerAddress:
        """Return the worker that is to hold the lease, when there is one with room."""
        wait = give_up - self._loop.time()
        if wait <= 0:
            return await self.place(key, deadline, avoid)
        placed = self.book.placed(key, self._loop.time())
        if placed is not None and placed not in avoid:
            return placed
        return await self._place(key, deadline, avoid, wait)

    async def _acquire(
        self, key: LeaseKey, worker: WorkerAddress, ttl: float, version: int
    ) -> Held:
        link = self._pool.link(worker)
        at = self._loop.time()
        request = leases_pb2.AcquireLeaseRequest(
            client=self._control.identity.client_info,
            tenant=self._control.identity.tenant,
            session=key.session,
            server_id=key.server_id,
            ttl=duration(ttl),
            registry_version=version,
            acquirer=self._pending_acquisitions.acquirer,
        )
        try:
            answer = await link.ask(link.leases.AcquireLease, request, _START_BOUND)
        except asyncio.CancelledError:
            self.failed(key, worker, None)
            raise
        return self.granted(key, answer.lease, worker, at, owned=answer.created)

    async def _place(
        self, key: LeaseKey, deadline: float, exclude: Collection[WorkerAddress], wait: float = 0.0
    ) -> WorkerAddress:
        request = leases_pb2.PlaceRequest(
            client=self._control.identity.client_info,
            tenant=self._control.identity.tenant,
            session=key.session,
            server_id=key.server_id,
            exclude_workers=[worker.id for worker in exclude],
            unreached_workers=self.losses.unreached(self._loop.time()),
            lost_lease=self.losses.lost(key),
        )
        if wait > 0:
            request.wait.CopyFrom(duration(wait))
        place = self._control.placement.Place
        answer = await self._control.ask(place, request, deadline, wait=wait)
        worker = worker_from_wire(answer.worker)
        self.losses.forget(key)
        now = self._loop.time()
        self.book.place(key, worker, now)
        self._pending_acquisitions.begin(key, worker)
        return worker


def _is_cut_off(fault: Fault, before: int) -> bool:
    """Return whether to ask a worker again whose connection broke, or broke just before.

    Args:
        fault: How the newest try failed.
        before: How often it was asked again.
    """
    if fault.reason is not Reason.WORKER_LOST or before >= _MOST_CUT_OFF:
        return False
    return before > 0 or fault.started != "no"


def _idle(held: Held) -> Fault:
    return Fault(
        Reason.LEASE_RELEASED,
        f"Lease {held.lease_id} of session '{held.session}' for server '{held.server_id}' was "
        f"released: no call had run on it for {held.idle:g} s, its idle limit (client.session(key, "
        "idle=...)). Acquire it again; what its server kept is lost.",
    )
