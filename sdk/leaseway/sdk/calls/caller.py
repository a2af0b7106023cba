"""Runs one tool call from name to result: resolves the name, picks the worker and the lease.

Most calls need only local lookups: the name in the resolver's cache, the worker in the pool, the
lease in the book. The control plane is asked for a name's first use, after a change or after a
failure (design.md#calls). `recovery` decides what follows a failed try.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from functools import lru_cache, partial
from typing import Final

from leaseway.sdk.calls import tracing
from leaseway.sdk.calls.begun import BegunCall, CallWay
from leaseway.sdk.calls.media import MediaReader
from leaseway.sdk.calls.own_lists import SessionLists
from leaseway.sdk.calls.recovery import CallRecovery
from leaseway.sdk.calls.requests import CallState, Release, encode_arguments
from leaseway.sdk.calls.results import ToolResult
from leaseway.sdk.catalog.resolver import Resolver
from leaseway.sdk.catalog.targets import Target
from leaseway.sdk.leases.lease import ClientLease, Lease
from leaseway.sdk.leases.manager import LeaseManager
from leaseway.sdk.leases.state import SessionLeases
from leaseway.sdk.transport.events import CallEvents
from leaseway.sdk.transport.identity import ClientIdentity
from leaseway.sdk.transport.session_users import SessionUsers
from leaseway.sdk.transport.workers import ServingWorkers, WorkerLink, WorkerPool
from leaseway.v1 import execution_pb2
from leaseway.wire.bounds import BATCH_SIZE, CALL_TIMEOUT, MAX_ARGUMENTS, MAX_CALL_TIMEOUT
from leaseway.wire.channels.trace_context import NO_TRACE, headers_of
from leaseway.wire.errors import Fault, Reason
from leaseway.wire.messages import artifact_refs
from leaseway.wire.messages.admin import LOGIN_TOOL, RELEASE_TOOL, named_server
from leaseway.wire.messages.frames import head_field
from leaseway.wire.messages.states import LEASE_ENDED
from leaseway.wire.names import qualified
from leaseway.wire.status import fault_from_status

_MAX_CACHED: Final = 1024
"""Serialized call parts in each cache, such as those of sessions and leases."""


class CallRunner:
    """Runs the calls of one client.

    Args:
        identity: The client's names and credential.
        resolver: Resolves names.
        pool: Connections to the workers.
        leases: The client's leases.
        own_session: The session of calls that are made outside a session.
        users: The users for whom sessions call.
        media: Reads the artifacts in results.

    Attributes:
        own_lists: The tools, prompts and resources that only leases have.
    """

    def __init__(
        self,
        identity: ClientIdentity,
        resolver: Resolver,
        pool: WorkerPool,
        leases: LeaseManager,
        *,
        own_session: str,
        users: SessionUsers,
        media: MediaReader,
    ) -> None:
        self._media = media
        self._own_session = own_session
        make_head = partial(_call_head, identity.tenant or "", identity.agent or "")
        self._heads = lru_cache(_MAX_CACHED)(make_head)
        self._users = users
        self._resolver = resolver
        self._pool = pool
        self._leases = leases
        self._sessions: Mapping[str, SessionLeases] = leases.book.sessions
        self._recovery = CallRecovery(resolver, pool, leases)
        self.own_lists = SessionLists(identity, leases, pool, resolver)
        self._now = asyncio.get_running_loop().time
        self._tracer = tracing.CallTracer(identity)

    async def run(self, state: CallState) -> ToolResult:
        """Run a call, once, and return the tool's result.

        Raises:
            Fault: The call failed, and no other try is possible.
        """
        users = self._users
        if state.outcome is None:
            self._tracer.start(state)
            state.user = users.known.get(state.session, users.default)
        if users.have_tokens:
            state.subject_token = users.token_of(state.session)
        try:
            if state.outcome is None:
                self._set_deadline(state)
            while True:
                try:
                    if state.outcome is None:
                        return await self._try(state)
                    return self._go_on(state)
                except Fault as fault:
                    await self._recovery.next_try(state, fault)
        except Fault as fault:
            if state.span is not None:
                tracing.record_failure(state.span, fault)
            if state.session == self._own_session and fault.reason in LEASE_ENDED:
                # No user can acquire a lease in this session, so only one call reports the end.
                self._leases.book.forget_end(state.session, fault.metadata.get("lease", ""))
            raise
        except asyncio.CancelledError:
            self._recovery.record_cancellation(state)
            raise
        finally:
            if state.span is not None:
                state.span.end()

    def _set_deadline(self, state: CallState) -> None:
        """Set the deadline of a new call, and encode its arguments; raises a Fault."""
        timeout = state.timeout
        if timeout is None:
            state.open_ended = True
            state.deadline = self._now() + CALL_TIMEOUT
        elif timeout > 0:
            state.deadline = self._now() + min(timeout, MAX_CALL_TIMEOUT)
        else:
            raise Fault(Reason.DEADLINE_EXCEEDED, f"timeout={timeout} leaves no time to call.")
        if state.request is None and not 0 < len(state.payload) <= MAX_ARGUMENTS:
            state.payload = encode_arguments(str(state.name), state.arguments, state.payload)

    def begin(self, call: BegunCall) -> bool:
        """Send a call now, if that needs no wait and no token; return whether it is sent.

        Whoever gets False lets `run` make the call, which then meets what was in the way.
        """
        users, way, payload = self._users, call.way, call.payload
        if users.have_tokens or users.known or len(payload) > BATCH_SIZE:
            return False  # sessions may differ in what a way does not know
        at = self._now()
        target = self._resolver.cached(way.name, at)
        if target is None or (target is not way.target and not self._can_begin(way, target)):
            return False
        known, lease, lease_id = self._sessions.get(way.session), None, ""
        try:
            if known is not None and known.tracks(target.server_id):
                lease = known.find(target.server_id, at)
                if lease is None:
                    return False
                lease_id, link = lease.lease_id, self._pool.link(lease.worker)
            elif target.shared:
                near = target.workers
                workers = near if len(near) == 1 else _artifact_holders(near, payload)
                link = self._pool.pick(workers)
            else:
                return False
            exchange = call.exchange = link.exchange
        except Fault:
            return False
        events = call.events
        fields = way.fields
        if (
            not fields
            or way.lease_id != lease_id
            or way.log_level != events.log_level
            or way.wants_progress is not events.wants_progress
        ):
            fields = self._fields_of(way, target, lease_id, events)
        if self._tracer.records():
            span = call.span = self._tracer.start_begun(way.session, way.name, call.trace)
            tracing.record_route(span, target.server_id, link.worker.id, lease_id)
            call.trace = headers_of(span)
        if call.trace is not NO_TRACE or events.meta:
            fields += _own_fields(call.trace, "", events)
        call.target, call.link, call.lease, call.sent_at = target, link, lease, at
        if lease is not None:
            call.leases = self._leases
        deadline = events.deadline = at + target.call_timeout
        return exchange.begin(fields, payload, deadline, way.timeout_ms, call)

    def _can_begin(self, way: CallWay, target: Target) -> bool:
        """Return whether calls of a target, new or changed, can begin without a task."""
        if target.own_tool:
            return False
        way.target, way.user, way.fields = target, self._users.default, b""
        way.timeout_ms = max(1, int(target.call_timeout * 1000))
        return True

    def _fields_of(self, way: CallWay, target: Target, lease_id: str, events: CallEvents) -> bytes:
        """Return the fields of a call that begins without a task, and remember them."""
        options = _options_of(events)
        way.lease_id, way.log_level = lease_id, events.log_level
        way.wants_progress = events.wants_progress
        way.fields = self._heads(target.head, way.session, way.user, lease_id, options)
        return way.fields

    async def run_on_lease(
        self, lease: ClientLease, method: str, events: CallEvents, deadline: float
    ) -> ToolResult:
        """Send the server of a held lease a message without params, once.

        Args:
            lease: The lease.
            method: The MCP method.
            events: Handles what the server asks.
            deadline: When it fails, in the event loop's time.

        Raises:
            Fault: The lease has ended, or its worker was not reached.
        """
        session, server_id = lease.key.session, lease.key.server_id
        state = CallState(session, method, None, events)
        if self._users.have_tokens:
            state.subject_token = self._users.token_of(session)
        user = self._users.known.get(session, self._users.default)
        options = execution_pb2.CallOptions(method=method)
        target = execution_pb2.CallHead(server_id=server_id, options=options)
        head = self._heads(
            target.SerializeToString(),
            session,
            user,
            lease.lease_id,
            _options(state, lease.lease_id),
        )
        fields = head + _own_fields(NO_TRACE, state.subject_token, events)
        what = f"{method} of server '{server_id}'"
        link = self._pool.link(lease.worker)
        result, payload = await link.exchange.call(fields, b"", deadline, what, events)
        if not payload and result.HasField("status"):
            raise fault_from_status(result.status)
        return ToolResult(payload, result.is_error)

    async def _try(self, state: CallState) -> ToolResult:
        at = self._now()
        state.tries += 1
        target = self._resolver.cached(state.name, at)
        if target is None or (target.of_user and state.user != self._users.default):
            target = await self._resolve(state, at)
            at = self._now()
        state.target = target
        if state.open_ended:
            state.open_ended = False
            state.deadline = at + target.call_timeout
        lease_id = ""
        if target.own_tool:
            link = state.link = await self._route_own_tool(state, target, at)
            lease_id = state.release.lease_id if state.release is not None else ""
        elif target.shared and not (
            (known := self._sessions.get(state.session)) is not None
            and known.tracks(target.server_id)
        ):
            near = target.workers
            workers = near if len(near) == 1 else _artifact_holders(near, state.payload)
            link = state.link = self._pool.pick(workers, state.avoid)
        else:
            link = state.link = await self._route(state, target, at)
            at = self._now()
            if state.lease is not None:
                lease_id = state.lease.lease_id
            else:
                state.acquirer = self._own_session
                leases = self._leases.book.session(state.session)
                state.known_ends = leases.known_ends_of_placement(target.server_id)
                state.joins = bool(
                    state.known_ends is not None and leases.placed_lease(target.server_id)
                )
        if state.span is not None:
            tracing.record_route(state.span, target.server_id, link.worker.id, lease_id)
        if (
            state.events is None
            and state.request is None
            and not state.acquirer
            and state.trace is NO_TRACE
            and not state.subject_token
        ):
            fields = self._heads(target.head, state.session, state.user, lease_id, b"")
            arguments = state.payload
        else:
            fields, arguments = self._special(state, target, lease_id)
        result, payload = await link.exchange.call(
            fields, arguments, state.deadline, target.what, state.events
        )
        return self._accept(state, target, link, result, payload, at)

    def _go_on(self, state: CallState) -> ToolResult:
        """Return the result of a first try that had no task; raises its fault."""
        outcome, state.outcome = state.outcome, None
        if isinstance(outcome, BaseException):
            raise outcome
        target, link = state.target, state.link
        assert outcome is not None
        assert target is not None
        assert link is not None
        return self._accept(state, target, link, *outcome, state.sent_at)

    def _accept(
        self,
        state: CallState,
        target: Target,
        link: WorkerLink,
        result: execution_pb2.Result,
        payload: bytes,
        at: float,
    ) -> ToolResult:
        """Return what the worker answered to a try that was sent `at`; raises its fault."""
        new_lease = None
        if state.release is not None:
            self._leases.book.forget_released(*state.release, self._now())
        elif state.lease is None and result.HasField("lease"):
            new_lease = self._record_lease(state, target, link, result, at)
        # A result with a payload has no status, so the field is rarely read.
        if not payload and result.HasField("status"):
            raise fault_from_status(result.status)
        if state.lease is not None:
            self._leases.record_call(state.lease, at)
        return ToolResult(payload, result.is_error, new_lease, self._media, state.session)

    def _special(self, state: CallState, target: Target, lease_id: str) -> tuple[bytes, bytes]:
        """Return the fields of a call that asks for more than most, and its arguments."""
        if state.events is not None:
            state.events.deadline = state.deadline
        options, arguments = _options(state, lease_id), state.payload
        if state.request is not None:
            request, arguments = state.request.complete(target)
            options += request
        head = self._heads(target.head, state.session, state.user, lease_id, options)
        return head + _own_fields(state.trace, state.subject_token, state.events), arguments

    async def _route(self, state: CallState, target: Target, at: float) -> WorkerLink:
        """Return the worker that holds the session's lease, or on which it is placed."""
        lease = state.lease = self._leases.book.find(state.session, target.server_id, at)
        if lease is not None:
            return self._pool.link(lease.worker)
        key = self._leases.key(state.session, target.server_id)
        if state.span is not None:
            state.span.add_event("leaseway.place")
        # No user of the client's own session could know an earlier lease of it.
        named = state.session != self._own_session
        worker = await self._leases.place(key, state.deadline, state.avoid, report_end=named)
        if state.span is not None:
            state.span.add_event("leaseway.placed", {"leaseway.worker": worker.id})
        return self._pool.link(worker)

    async def _route_own_tool(self, state: CallState, target: Target, at: float) -> WorkerLink:
        """Return the worker for a call of one of Leaseway's own tools, by the server it names."""
        server_id = named_server(state.payload)
        workers = target.workers
        if server_id is not None and target.own_tool == RELEASE_TOOL:
            return await self._route_release(state, target, server_id, at)
        if server_id is not None and target.own_tool == LOGIN_TOOL:
            workers = await self._login_workers(state, target, server_id)
        return self._pool.pick(workers, state.avoid)

    async def _login_workers(
        self, state: CallState, target: Target, server_id: str
    ) -> ServingWorkers:
        """Return the workers that serve a server with logins, or all if that is not known."""
        try:
            name = qualified(server_id, LOGIN_TOOL)
            found = await self._resolver.resolve(name, state.deadline, state.user)
        except Fault:
            return target.workers
        return found.workers

    async def _route_release(
        self, state: CallState, target: Target, server_id: str, at: float
    ) -> WorkerLink:
        """Return the worker that holds the lease which a call of `mcp_release` releases.

        The worker of a lease that another client of the session acquired is requested from the
        control plane. If it does not answer, the call is sent to any worker (design.md#leases).
        """
        key = self._leases.key(state.session, server_id)
        lease = self._leases.book.find_held(state.session, server_id, at)
        if lease is not None:
            state.release = Release(key, lease.lease_id)
            return self._pool.link(lease.worker)
        worker = await self._leases.lookup.find_worker(key)
        if worker is not None:
            link = self._pool.link(worker)
        else:
            link = self._pool.pick(target.workers, state.avoid)
        # Without an id, the lease that the session has when the call runs is released.
        state.release = Release(key, "")
        return link

    async def _resolve(self, state: CallState, at: float) -> Target:
        name = state.name
        own = self._resolver.cached_for(state.user, name, at)
        if own is None:
            own = self.own_lists.cached(state.session, name, at)
        if own is not None:
            return own
        state.cached = False
        if state.span is not None:
            state.span.add_event("leaseway.resolve")
        target = await self._resolve_name(state)
        if state.span is not None:
            state.span.add_event("leaseway.resolved")
        return target

    async def _resolve_name(self, state: CallState) -> Target:
        """Resolve a new name, at the workers of the session's leases if need be.

        That is so without a control plane, and for what only a lease has.
        """
        name = state.name
        resolve = partial(self.own_lists.resolve, state.session, name, state.user)
        is_asked = self._resolver.is_unknown(name, state.user)
        if is_asked:
            target = await resolve(is_known_to_all=True)
            if target is not None:
                return target
        try:
            return await self._resolver.resolve(name, state.deadline, state.user)
        except Fault as fault:
            # It may be lost before the client notices.
            is_lost = fault.reason is Reason.CONTROL_PLANE_UNAVAILABLE and not is_asked
            if not is_lost and fault.reason is not Reason.TOOL_NOT_FOUND:
                raise
            target = await resolve(is_known_to_all=is_lost)
            if target is None:
                raise
            return target

    def _record_lease(
        self,
        state: CallState,
        target: Target,
        link: WorkerLink,
        result: execution_pb2.Result,
        at: float,
    ) -> Lease | None:
        """Record the lease that a result reports; return it if this call acquired it."""
        key = self._leases.key(state.session, target.server_id)
        owned = result.is_new_lease
        lease = self._leases.record_grant(key, result.lease, link.worker, at, owned=owned)
        if state.span is not None:
            tracing.record_route(state.span, target.server_id, link.worker.id, lease.lease_id)
        if not owned:
            return None
        if target.shared:
            self._resolver.invalidate(target, at_once=True)  # the server is now leased
        return Lease(lease)


def _call_head(
    tenant: str, agent: str, target: bytes, session: str, user: str, lease_id: str, options: bytes
) -> bytes:
    """Return the head of a call as a serialized `Call`; `target` and `options` are `CallHead`s."""
    head = execution_pb2.CallHead(
        tenant=tenant, agent=agent, user=user, session=session, lease_id=lease_id
    )
    return head_field(target + head.SerializeToString() + options)


def _options_of(events: CallEvents) -> bytes:
    """Return what a call's events ask for, as a serialized `CallHead`."""
    return _event_options(
        events.wants_progress,
        events.log_level,
        events.answers,
        events.inline_media,
        events.passes_input,
        events.mcp_client,
    )


def _options(state: CallState, lease_id: str) -> bytes:
    """Return what few calls ask for, as a serialized `CallHead`."""
    events = state.events
    options = b""
    if events is not None:
        options = _options_of(events)
    if state.acquirer and not lease_id:
        ttl = events.lease_ttl if events is not None else 0.0
        options += _acquirer_options(state.acquirer, ttl, state.known_ends)
    return options


@lru_cache(_MAX_CACHED)
def _acquirer_options(acquirer: str, ttl: float, known_ends: tuple[str, ...] | None) -> bytes:
    options = execution_pb2.CallOptions(acquirer=acquirer)
    if ttl:
        options.lease_ttl.FromMilliseconds(int(ttl * 1000))
    if known_ends is not None:
        options.report_end = True
        options.known_ends.extend(known_ends)
    return execution_pb2.CallHead(options=options).SerializeToString()


@lru_cache(_MAX_CACHED)
def _event_options(
    wants_progress: bool,
    log_level: str,
    answers: tuple[str, ...],
    inline_media: bool,
    passes_input: bool,
    mcp_client: bytes,
) -> bytes:
    options = execution_pb2.CallOptions(
        wants_progress=wants_progress,
        log_level=log_level,
        answers=answers,
        inline_media=inline_media,
        passes_input=passes_input,
        mcp_client=mcp_client,
    )
    return execution_pb2.CallHead(options=options).SerializeToString()


def _own_fields(trace: tuple[str, str], subject_token: str, events: CallEvents | None) -> bytes:
    """Return what no other call shares, as a serialized `Call`; nearly always nothing."""
    if (
        trace is NO_TRACE
        and not subject_token
        and not (events is not None and (events.meta or events.input or events.subject_token))
    ):
        return b""
    traceparent, tracestate = trace
    call = execution_pb2.Call(traceparent=traceparent, tracestate=tracestate)
    if events is not None:
        subject_token = events.subject_token or subject_token
        call.meta, call.input = events.meta, events.input
    call.subject_token = subject_token
    return call.SerializeToString()


def _artifact_holders(workers: ServingWorkers, payload: bytes) -> ServingWorkers:
    """Return the workers that store the artifacts referenced in the arguments, or else all."""
    if artifact_refs.PREFIX not in payload:
        return workers
    marks = artifact_refs.marks_in(payload)
    holders = [run for run in workers if artifact_refs.incarnation_mark(run.incarnation) in marks]
    return ServingWorkers(holders) if holders else workers
