"""One tool call from name to result: where it goes, on which lease, and what failures mean.

Everything that a call needs is looked up: the name in the resolution cache, the worker in the
pool, the lease in the book. Only a first use, a move or a failure asks anybody (DESIGN §6).
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import replace
from functools import lru_cache, partial
from typing import Any, Final

from opentelemetry.trace import Span

from leaseway.sdk import tracing
from leaseway.sdk.arguments import encode_arguments
from leaseway.sdk.checks import check_call
from leaseway.sdk.events import CallEvents
from leaseway.sdk.identity import Identity
from leaseway.sdk.lease import Lease
from leaseway.sdk.lease_book import Held, Key, Worker
from leaseway.sdk.leases import LEASE_ENDED, LeaseDesk
from leaseway.sdk.media import MediaReader
from leaseway.sdk.releases import Release, Releases
from leaseway.sdk.requests import OfferRequest
from leaseway.sdk.resolution import Asked, Resolver, Target
from leaseway.sdk.results import ToolResult
from leaseway.sdk.retry import Again, Tried, decide, telling
from leaseway.sdk.workers import WorkerLink, WorkerPool
from leaseway.v1 import execution_pb2
from leaseway.wire.bounds import CALL_TIMEOUT, MAX_CALL_TIMEOUT
from leaseway.wire.fault import Fault, fault_from_status
from leaseway.wire.reasons import Reason

__all__ = ["Caller"]

_HOLDER_GONE: Final = frozenset({Reason.WORKER_LOST, Reason.DRAINING, Reason.FATE_UNKNOWN})
"""How a release fails on a worker that has gone or goes."""
_MAX_HEADS: Final = 1024
"""Sessions whose part of a call is kept."""


class _Order:
    """What one call is about, kept from try to try."""

    # Set where they differ: most calls end at the first try, outside any trace.
    request: OfferRequest | None = None
    target: Target | None = None
    link: WorkerLink | None = None
    held: Held | None = None
    release: Release | None = None
    known: Fault | None = None
    cached = True
    open_ended = False
    repeated = False
    acquirer = ""
    events: CallEvents | None = None
    tries = 0
    avoid: frozenset[Worker] = frozenset()

    def __init__(
        self, session: str, name: Asked, payload: bytes, deadline: float, span: Span | None
    ) -> None:
        self.session = session
        self.name = name
        self.payload = payload
        self.deadline = deadline
        self.span = span
        self.trace = tracing.trace_headers(span)


class Caller:
    """Makes the calls of one client; `own_session` is that of calls outside of any."""

    def __init__(
        self,
        identity: Identity,
        resolver: Resolver,
        pool: WorkerPool,
        desk: LeaseDesk,
        own_session: str,
    ) -> None:
        self.media: MediaReader | None = None  # set by whoever can say where artifacts are
        self._own_session = own_session
        make_head = partial(_session_head, identity.tenant or "", identity.agent or "")
        self._heads = lru_cache(_MAX_HEADS)(make_head)
        self._resolver = resolver
        self._pool = pool
        self._desk = desk
        self._releases = Releases(pool, desk)
        self._now = asyncio.get_running_loop().time
        self._tracer = tracing.CallTracer(identity)

    async def call(
        self,
        session: str,
        name: str,
        arguments: Mapping[str, Any] | None,
        timeout: float | None,
        events: CallEvents | None = None,
        request: OfferRequest | None = None,
    ) -> ToolResult:
        """Call a tool and return its result.

        Args:
            session: The session to call in.
            name: An exposed or a qualified name.
            arguments: Anything that JSON can hold, by name.
            timeout: Seconds until the call is given up; None means the server's `call_timeout`
                (60 unless configured), counted from when it is known where the call goes.
            events: What the call asks for beside its result; takes what the server says on the
                way. Another try begins anew there too.
            request: What to send instead of a tool call; see `request`.

        Raises:
            Fault: It failed for good.
            TypeError: A parameter is of the wrong type.

        """
        check_call(name, arguments, timeout)
        if request is None:
            span = self._tracer.begin(name, session)
        else:
            span = self._tracer.begin_request(request, session)
        try:
            if timeout is not None and not timeout > 0:
                raise Fault(Reason.DEADLINE_EXCEEDED, f"timeout={timeout} leaves no time to call.")
            deadline = self._now() + min(
                CALL_TIMEOUT if timeout is None else timeout, MAX_CALL_TIMEOUT
            )
            payload = encode_arguments(name, arguments)
            order = _Order(session, name, payload, deadline, span)
            order.open_ended = timeout is None
            order.events = events
            if request is not None:
                order.name, order.request = request.offer, request
            while True:
                try:
                    return await self._try(order)
                except Fault as fault:
                    await self._recover(order, fault)
        except Fault as fault:
            if span is not None:
                tracing.fail(span, fault)
            if session == self._own_session and fault.reason in LEASE_ENDED:
                # Nobody holds this session, to acquire anew: it is told once and begins anew.
                self._desk.book.told(session, fault.metadata.get("lease", ""))
            raise
        except asyncio.CancelledError:
            self._cancelled(order)  # there is one: nothing before it waits
            raise
        finally:
            if span is not None:
                span.end()

    async def request(
        self,
        session: str,
        request: OfferRequest,
        timeout: float | None,
        events: CallEvents | None = None,
    ) -> ToolResult:
        """Send a request about a prompt or a resource, the same way as a tool call.

        Args:
            session: The session to ask in.
            request: What is asked.
            timeout: As for `call`.
            events: As for `call`; takes changes of a resource, too.

        Returns:
            Its result, whatever that is made of.

        Raises:
            Fault: It failed for good.

        """
        return await self.call(session, "", None, timeout, events, request)

    async def _try(self, order: _Order) -> ToolResult:
        at = self._now()
        order.tries += 1
        target = self._resolver.cached(order.name, at)
        if target is None:
            target = await self._resolve(order)
            at = self._now()
        order.target = target
        if order.open_ended:
            order.open_ended = False
            order.deadline = at + target.call_timeout
        lease_id = ""
        if target.releases:
            link, release = await self._releases.route(
                order.session, order.payload, target, order.avoid, at
            )
            order.link, order.release = link, release
            lease_id = release.lease_id if release is not None else ""
        elif target.shared and not self._desk.book.concerns(order.session, target.server_id):
            link = order.link = self._pool.pick(target.workers, order.avoid)
        else:
            link = order.link = await self._route(order, target, at)
            at = self._now()
            if order.held is not None:
                lease_id = order.held.lease_id
            else:
                order.acquirer = self._own_session
        if order.span is not None:
            tracing.describe(order.span, target.server_id, link.worker.id, lease_id)
        if order.events is not None:
            order.events.deadline = order.deadline
        head = target.head + self._heads(order.session) + _rest(order, lease_id)
        sent = order.payload
        if order.request is not None:
            more, sent = order.request.complete(target)
            head += more
        result, payload = await link.exchange.call(
            head, sent, order.deadline, target.what, order.events
        )
        new_lease = None
        if order.release is not None:
            self._desk.released(*order.release)
        elif not target.shared or order.held is not None or _names_lease(result):
            new_lease = self._note_lease(order, target, link, result, at)
        # A result that has a payload has no status: most need not be asked.
        if not payload and result.HasField("status"):
            raise fault_from_status(result.status)
        return ToolResult(payload, result.is_error, new_lease, self.media, order.session)

    async def _route(self, order: _Order, target: Target, at: float) -> WorkerLink:
        """Return the worker that holds the session's lease, or that is to grant it."""
        key = Key(order.session, target.server_id)
        held = order.held = self._desk.book.find(key, at)
        if held is not None:
            return self._pool.link(held.worker)
        if order.span is not None:
            order.span.add_event("leaseway.place")
        worker = await self._desk.place(key, order.deadline, order.avoid)
        if order.span is not None:
            order.span.add_event("leaseway.placed", {"leaseway.worker": worker.id})
        return self._pool.link(worker)

    async def _resolve(self, order: _Order) -> Target:
        order.cached = False
        if order.span is not None:
            order.span.add_event("leaseway.resolve")
        target = await self._resolver.resolve(order.name, order.deadline)
        if order.span is not None:
            order.span.add_event("leaseway.resolved")
        return target

    def _note_lease(
        self,
        order: _Order,
        target: Target,
        link: WorkerLink,
        result: execution_pb2.Result,
        at: float,
    ) -> Lease | None:
        """Take note of what a result says about the session's lease."""
        key = Key(order.session, target.server_id)
        if result.HasField("new_lease"):
            held = self._desk.granted(key, result.new_lease, link.worker, at, owned=True)
            if target.shared:
                self._resolver.doubt(target, at_once=True)  # the server is leased by now
            if order.span is not None:
                tracing.describe(order.span, target.server_id, link.worker.id, held.lease_id)
            return Lease(held)
        if result.HasField("joined_lease"):
            held = self._desk.granted(key, result.joined_lease, link.worker, at, owned=False)
            if order.span is not None:
                tracing.describe(order.span, target.server_id, link.worker.id, held.lease_id)
        elif order.held is not None and not result.HasField("status"):
            self._desk.called(order.held, at)
        return None

    async def _recover(self, order: _Order, fault: Fault) -> None:
        """Prepare the next try, or raise the fault where there is none."""
        if order.events is not None:
            order.events.begin_anew()
        target, link, held = order.target, order.link, order.held
        if held is not None and link is not None:
            judge = self._desk.losses.judge
            fault = await judge(held, fault, order.deadline, leaving=link.leaving)
        if held is not None and fault.reason in LEASE_ENDED:
            fault = replace(fault, metadata={"lease": held.lease_id, **fault.metadata})
            self._desk.book.end(held.lease_id, fault)
        leased = target is not None and not target.shared
        placing = leased and held is None and link is not None
        if placing and target is not None and link is not None:
            self._desk.failed(Key(order.session, target.server_id), link.worker, fault)
        others = False
        if link is not None and target is not None and target.shared and held is None:
            others = self._pool.others(target.workers, order.avoid | {link.worker})
        again = decide(
            fault,
            Tried(
                tries=order.tries,
                remaining=order.deadline - self._now(),
                repeatable=target is not None and target.repeatable,
                repeated=order.repeated,
                cached=order.cached and link is not None,
                # What one worker holds is released there or nowhere.
                pinned=held is not None or bool(order.release and order.release.lease_id),
                leased=leased,
                placing=placing,
                elsewhere=others or placing,
            ),
        )
        if again is None:
            if order.release is not None and fault.reason in _HOLDER_GONE:
                self._desk.released(*order.release)  # it ends with its worker, or with its time
            raise telling(order.known, fault)
        order.known = telling(order.known, fault)
        await self._prepare(order, again)

    def _cancelled(self, order: _Order) -> None:
        """Take note of a call that its caller cancelled; it may have acquired a lease."""
        if order.span is not None:
            tracing.cancelled(order.span)
        target, link = order.target, order.link
        if target is not None and link is not None and not target.shared and order.held is None:
            self._desk.failed(Key(order.session, target.server_id), link.worker, None)

    async def _prepare(self, order: _Order, again: Again) -> None:
        if order.span is not None:
            order.span.add_event("leaseway.retry", {"leaseway.tries": order.tries})
        order.repeated = order.repeated or again.repeats
        if again.avoid_worker and order.link is not None:
            order.avoid = order.avoid | {order.link.worker}
        if order.target is not None and (again.resolve or again.avoid_worker):
            self._resolver.doubt(order.target, at_once=again.resolve)
        order.link = order.held = order.release = None
        if again.delay > 0:
            await asyncio.sleep(again.delay)


def _names_lease(result: execution_pb2.Result) -> bool:
    return result.HasField("new_lease") or result.HasField("joined_lease")


def _session_head(tenant: str, agent: str, session: str) -> bytes:
    """Return what every call in a session says, as a serialized `Call`."""
    return execution_pb2.Call(tenant=tenant, agent=agent, session=session).SerializeToString()


def _rest(order: _Order, lease_id: str) -> bytes:
    """Return what a call says that most do not, as a serialized `Call`."""
    traceparent, tracestate = order.trace
    events = order.events
    if not lease_id and not traceparent and events is None and not order.acquirer:
        return b""
    rest = execution_pb2.Call(
        lease_id=lease_id,
        traceparent=traceparent,
        tracestate=tracestate,
        acquirer=order.acquirer,
    )
    if events is not None:
        rest.wants_progress = events.wants_progress
        rest.log_level = events.log_level
        rest.answers.extend(events.answers)
        rest.inline_media = events.inline_media
    return rest.SerializeToString()
