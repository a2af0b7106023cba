"""One tool call from name to result: where it goes, and on which lease.

Everything that a call needs is looked up: the name in the resolution cache, the worker in the
pool, the lease in the book. Only a first use, a move or a failure asks anybody (DESIGN §6). What
follows from a failure is `recovery`'s to say.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Mapping, Sequence
from functools import lru_cache, partial
from typing import Any, Final

from leaseway.sdk.calls import tracing
from leaseway.sdk.calls.call_state import CallState
from leaseway.sdk.calls.media import MediaReader
from leaseway.sdk.calls.recovery import Recovery
from leaseway.sdk.calls.release_routing import Releases
from leaseway.sdk.calls.requests import McpRequest, encode_arguments
from leaseway.sdk.calls.results import ToolResult
from leaseway.sdk.catalog.resolver import Resolver
from leaseway.sdk.catalog.targets import Target
from leaseway.sdk.leases.book import Lease, SessionLeaseKey
from leaseway.sdk.leases.manager import LEASE_ENDED, LeaseManager
from leaseway.sdk.transport.events import CallEvents
from leaseway.sdk.transport.identity import Identity
from leaseway.sdk.transport.workers import WorkerLink, WorkerPool, WorkerRun
from leaseway.sdk.validation import check_call, check_seconds
from leaseway.v1 import execution_pb2
from leaseway.wire.bounds import CALL_TIMEOUT, MAX_CALL_TIMEOUT
from leaseway.wire.errors import Fault, Reason
from leaseway.wire.messages import artifact_refs
from leaseway.wire.status import fault_from_status

_MAX_HEADS: Final = 1024
"""Sessions whose part of a call is kept."""


class CallRunner:
    """Makes the calls of one client; `own_session` is that of calls outside of any."""

    def __init__(
        self,
        identity: Identity,
        resolver: Resolver,
        pool: WorkerPool,
        leases: LeaseManager,
        own_session: str,
    ) -> None:
        self.media: MediaReader | None = None  # set by whoever can say where artifacts are
        self._own_session = own_session
        make_head = partial(_session_head, identity.tenant or "", identity.agent or "")
        self._heads = lru_cache(_MAX_HEADS)(make_head)
        self._resolver = resolver
        self._pool = pool
        self._leases = leases
        self._releases = Releases(pool, leases)
        self._recovery = Recovery(resolver, pool, leases)
        self._now = asyncio.get_running_loop().time
        self._tracer = tracing.CallTracer(identity)

    def call(
        self,
        session: str,
        name: str,
        arguments: Mapping[str, Any] | None,
        timeout: float | None,
        events: CallEvents | None = None,
    ) -> Coroutine[Any, Any, ToolResult]:
        """Call a tool; to be awaited.

        Args:
            session: The session to call in.
            name: An exposed or a qualified name.
            arguments: Anything that JSON can hold, by name.
            timeout: Seconds until the call is given up; None means the server's `call_timeout`
                (60 unless configured), counted from when it is known where the call goes.
            events: What the call asks for beside its result; takes what the server says on the
                way. Another try begins anew there too.

        Returns:
            The tool's result.

        Raises:
            Fault: It failed for good.
            TypeError: A parameter is of the wrong type.
        """
        check_call(name, arguments, timeout)
        return self._run(CallState(session, name, events), arguments, timeout)

    def relay(
        self,
        session: str,
        name: str,
        arguments: bytes,
        timeout: float | None,
        events: CallEvents,
    ) -> Coroutine[Any, Any, ToolResult]:
        """Call a tool with arguments that somebody else wrote as JSON; to be awaited.

        Args:
            session: As for `call`.
            name: As for `call`.
            arguments: One JSON object in UTF-8.
            timeout: As for `call`.
            events: As for `call`.

        Raises:
            Fault: It failed for good.
        """
        check_call(name, None, timeout)
        state = CallState(session, name, events)
        state.payload = arguments
        return self._run(state, None, timeout)

    def request(
        self,
        session: str,
        request: McpRequest,
        timeout: float | None,
        events: CallEvents | None = None,
    ) -> Coroutine[Any, Any, ToolResult]:
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
            TypeError: A parameter is of the wrong type.
        """
        if timeout is not None:
            check_seconds("timeout", timeout)
        state = CallState(session, request.item, events)
        state.request = request
        return self._run(state, None, timeout)

    async def _run(
        self, state: CallState, arguments: Mapping[str, Any] | None, timeout: float | None
    ) -> ToolResult:
        if state.request is None:
            state.span = self._tracer.begin(str(state.name), state.session)
        else:
            state.span = self._tracer.begin_request(state.request, state.session)
        state.trace = tracing.trace_headers(state.span)
        try:
            if timeout is None:
                state.open_ended, timeout = True, CALL_TIMEOUT
            elif not timeout > 0:
                raise Fault(Reason.DEADLINE_EXCEEDED, f"timeout={timeout} leaves no time to call.")
            state.deadline = self._now() + min(timeout, MAX_CALL_TIMEOUT)
            if state.request is None:
                state.payload = encode_arguments(str(state.name), arguments, state.payload)
            while True:
                try:
                    return await self._try(state)
                except Fault as fault:
                    await self._recovery.next_try(state, fault)
        except Fault as fault:
            if state.span is not None:
                tracing.fail(state.span, fault)
            if state.session == self._own_session and fault.reason in LEASE_ENDED:
                # Nobody holds this session, to acquire anew: it learns that once and begins anew.
                self._leases.book.forget_end(state.session, fault.metadata.get("lease", ""))
            raise
        except asyncio.CancelledError:
            self._recovery.cancelled(state)
            raise
        finally:
            if state.span is not None:
                state.span.end()

    async def _try(self, state: CallState) -> ToolResult:
        at = self._now()
        state.tries += 1
        target = self._resolver.cached(state.name, at)
        if target is None:
            target = await self._resolve(state)
            at = self._now()
        state.target = target
        if state.open_ended:
            state.open_ended = False
            state.deadline = at + target.call_timeout
        lease_id = ""
        if target.releases:
            link, release = await self._releases.route(
                state.session, state.payload, target, state.avoid, at
            )
            state.link, state.release = link, release
            lease_id = release.lease_id if release is not None else ""
        elif target.shared and not self._leases.book.tracks(state.session, target.server_id):
            workers = _keepers(target.workers, state.payload)
            link = state.link = self._pool.pick(workers, state.avoid)
        else:
            link = state.link = await self._route(state, target, at)
            at = self._now()
            if state.held is not None:
                lease_id = state.held.lease_id
            else:
                state.acquirer = self._own_session
        if state.span is not None:
            tracing.describe(state.span, target.server_id, link.worker.id, lease_id)
        if state.events is not None:
            state.events.deadline = state.deadline
        head = target.head + self._heads(state.session) + _rest(state, lease_id)
        sent = state.payload
        if state.request is not None:
            more, sent = state.request.complete(target)
            head += more
        result, payload = await link.exchange.call(
            head, sent, state.deadline, target.what, state.events
        )
        new_lease = None
        if state.release is not None:
            self._leases.book.forget_released(*state.release)
        elif not target.shared or state.held is not None or _names_lease(result):
            new_lease = self._note_lease(state, target, link, result, at)
        # A result that has a payload has no status: most need not be asked.
        if not payload and result.HasField("status"):
            raise fault_from_status(result.status)
        return ToolResult(payload, result.is_error, new_lease, self.media, state.session)

    async def _route(self, state: CallState, target: Target, at: float) -> WorkerLink:
        """Return the worker that holds the session's lease, or that is to grant it."""
        key = SessionLeaseKey(state.session, target.server_id)
        held = state.held = self._leases.book.find(key, at)
        if held is not None:
            return self._pool.link(held.worker)
        if state.span is not None:
            state.span.add_event("leaseway.place")
        worker = await self._leases.place(key, state.deadline, state.avoid)
        if state.span is not None:
            state.span.add_event("leaseway.placed", {"leaseway.worker": worker.id})
        return self._pool.link(worker)

    async def _resolve(self, state: CallState) -> Target:
        state.cached = False
        if state.span is not None:
            state.span.add_event("leaseway.resolve")
        target = await self._resolve_here(state)
        if target is None:
            target = await self._resolver.resolve(state.name, state.deadline)
        if state.span is not None:
            state.span.add_event("leaseway.resolved")
        return target

    async def _resolve_here(self, state: CallState) -> Target | None:
        """Ask the workers of the session's leases while nobody else can be asked."""
        name = state.name
        if not isinstance(name, str) or not self._resolver.is_unknown(name):
            return None
        found = await self._leases.resolve_on_workers(state.session, name)
        if found is None:
            return None
        worker, answer = found
        answer.tool.workers.add(
            id=worker.id, incarnation=worker.incarnation, address=worker.address
        )
        return self._resolver.learn(name, answer.tool, answer.registry_version)

    def _note_lease(
        self,
        state: CallState,
        target: Target,
        link: WorkerLink,
        result: execution_pb2.Result,
        at: float,
    ) -> Lease | None:
        """Note what a result says about the session's lease."""
        key = SessionLeaseKey(state.session, target.server_id)
        if result.HasField("new_lease"):
            held = self._leases.record_grant(key, result.new_lease, link.worker, at, owned=True)
            if target.shared:
                self._resolver.doubt(target, at_once=True)  # the server is leased by now
            if state.span is not None:
                tracing.describe(state.span, target.server_id, link.worker.id, held.lease_id)
            return Lease(held)
        if result.HasField("joined_lease"):
            held = self._leases.record_grant(key, result.joined_lease, link.worker, at, owned=False)
            if state.span is not None:
                tracing.describe(state.span, target.server_id, link.worker.id, held.lease_id)
        elif state.held is not None and not result.HasField("status"):
            self._leases.record_call(state.held, at)
        return None


def _names_lease(result: execution_pb2.Result) -> bool:
    return result.HasField("new_lease") or result.HasField("joined_lease")


def _session_head(tenant: str, agent: str, session: str) -> bytes:
    """Return what every call in a session says, as a serialized `Call`."""
    return execution_pb2.Call(tenant=tenant, agent=agent, session=session).SerializeToString()


def _rest(state: CallState, lease_id: str) -> bytes:
    """Return what a call says that most do not, as a serialized `Call`."""
    traceparent, tracestate = state.trace
    events = state.events
    if not lease_id and not traceparent and events is None and not state.acquirer:
        return b""
    if traceparent:
        trace = execution_pb2.Call(traceparent=traceparent, tracestate=tracestate)
        rest = trace.SerializeToString()
    else:
        rest = b""
    if lease_id:
        rest += _lease_part(lease_id)
    elif state.acquirer:
        rest += _acquirer_part(state.acquirer, events.lease_ttl if events is not None else 0.0)
    if events is not None:
        rest += _events_part(
            events.wants_progress,
            events.log_level,
            events.answers,
            events.inline_media,
            events.passes_input,
        )
        if events.input or events.meta:
            more = execution_pb2.Call(input=events.input, meta=events.meta)
            rest += more.SerializeToString()
    return rest


@lru_cache(_MAX_HEADS)
def _lease_part(lease_id: str) -> bytes:
    return execution_pb2.Call(lease_id=lease_id).SerializeToString()


@lru_cache(_MAX_HEADS)
def _acquirer_part(acquirer: str, ttl: float) -> bytes:
    call = execution_pb2.Call(acquirer=acquirer)
    if ttl:
        call.lease_ttl.FromMilliseconds(int(ttl * 1000))
    return call.SerializeToString()


@lru_cache(64)
def _events_part(
    wants_progress: bool,
    log_level: str,
    answers: tuple[str, ...],
    inline_media: bool,
    passes_input: bool,
) -> bytes:
    return execution_pb2.Call(
        wants_progress=wants_progress,
        log_level=log_level,
        answers=answers,
        inline_media=inline_media,
        passes_input=passes_input,
    ).SerializeToString()


def _keepers(workers: Sequence[WorkerRun], payload: bytes) -> Sequence[WorkerRun]:
    """Return the workers that keep the artifacts which arguments name, or else all of them."""
    if len(workers) == 1 or artifact_refs.BEGINNING not in payload:
        return workers
    marks = artifact_refs.marks_in(payload)
    keep = [each for each in workers if artifact_refs.incarnation_mark(each.incarnation) in marks]
    return keep or workers
