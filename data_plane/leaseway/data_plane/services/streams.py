"""What all streams of calls share: whose calls they are, their limits, and their start and end.

A stream over gRPC (`exchange`) and one within the process (`local`) differ in how messages arrive
and leave.
"""

from __future__ import annotations

from typing import Any, Final, Protocol

from msgspec.structs import replace

from leaseway.data_plane.calls.executor import Executor
from leaseway.data_plane.core.calls.incoming import IncomingCall
from leaseway.data_plane.core.tools.arguments import oversize_arguments
from leaseway.data_plane.leases.acquirer import bounded_client
from leaseway.data_plane.leases.manager import WorkerLeaseManager
from leaseway.data_plane.services.leases import renew_leases
from leaseway.data_plane.services.replies import Replies
from leaseway.identity.interceptor import caller
from leaseway.identity.principal import Principal
from leaseway.v1 import catalog_pb2, execution_pb2
from leaseway.wire import bounds
from leaseway.wire.errors import Fault, Reason
from leaseway.wire.messages.decoding import MessageDecoder, MessageLimit
from leaseway.wire.sharing.limits import LimitScope, over_limit
from leaseway.wire.timing.durations import seconds

_HEAD_LIMIT: Final = MessageLimit(bounds.MAX_CALL_HEAD, fields=1_000)
_decode_head: Final = MessageDecoder(
    "Exchange with a call's head", execution_pb2.CallHead.FromString, _HEAD_LIMIT
)
_MAX_KNOWN: Final = bounds.KIB
"""Bytes of a head that is known again; longer ones are decoded for each call."""
_HEAD_OBJECTS: Final = 600
"""Bytes of the objects of a known head, measured."""
_LONG_ARGUMENTS: Final = 4 * bounds.KIB
"""Longer arguments count as memory of their stream until their call ends."""


class ClientCalls:
    """The calls in flight of one client, on its streams and unary. Recounted only when necessary.

    Args:
        scope: Whether the client is a tenant, or the connection of an unauthenticated caller.
    """

    def __init__(self, scope: LimitScope) -> None:
        self.scope = scope
        self.streams: list[CallStream] = []
        self.unary = 0
        self._available = 0  # a lower bound: calls that ended since the last count free more

    def try_start(self) -> bool:
        """Count one more call and return True, or return False if the client has too many."""
        if self._available <= 0:
            in_flight = self.unary + sum(stream.in_flight for stream in self.streams)
            self._available = bounds.MAX_CLIENT_CALLS - in_flight
            if self._available <= 0:
                return False
        self._available -= 1
        return True

    @property
    def may_chunk(self) -> bool:
        """Whether one more call may send its arguments in chunks."""
        chunked = sum(stream.chunked for stream in self.streams)
        return chunked < bounds.MAX_CLIENT_CHUNKED

    def too_many(self) -> Fault:
        return too_many("calls", self.scope, "This client", bounds.MAX_CLIENT_CALLS, "calls")


class CallHeads:
    """The heads of one stream's calls.

    Subject tokens are no part of a head, so none outlives its call here.

    Args:
        caller: Whose stream it is; calls get the names that its credential binds them to.

    Attributes:
        held_bytes: Memory that the known heads take, about.
    """

    def __init__(self, caller: Principal) -> None:
        self._caller = caller
        self._known: dict[bytes, IncomingCall] = {}
        self.held_bytes = 0

    def read(self, call: execution_pb2.Call, call_id: int) -> IncomingCall:
        """Return a call as a value, without its arguments.

        Raises:
            Fault: INVALID_REQUEST: its head is none, or too large. PERMISSION_DENIED: it is for a
                tenant or user for whom the caller may not call.
        """
        encoded = call.head
        head = self._known.get(encoded)
        if head is None:
            head = self._decode(encoded)
        traceparent, meta, token = call.traceparent, call.meta, call.subject_token
        if self._caller.token and not token:
            token = self._caller.subject_token_for(head.user, "")
        if not (traceparent or meta or token or head.passes_input):
            return replace(head, id=call_id, timeout_ms=call.timeout_ms)
        return replace(
            head,
            id=call_id,
            timeout_ms=call.timeout_ms,
            traceparent=traceparent,
            tracestate=call.tracestate,
            meta=meta,
            input=call.input,
            subject_token=token,
        )

    def _decode(self, encoded: bytes) -> IncomingCall:
        head = _head_from_proto(_decode_head(encoded), self._caller)
        if len(encoded) <= _MAX_KNOWN:
            if len(self._known) >= bounds.MAX_KNOWN_HEADS:  # the oldest makes room
                oldest = next(iter(self._known))
                del self._known[oldest]
                self.held_bytes -= _size_of_head(oldest)
            head = self._known[encoded] = replace(head, head=object())
            self.held_bytes += _size_of_head(encoded)
        return head


def _size_of_head(encoded: bytes) -> int:
    """Return the memory that a known head takes, about: its bytes, its texts and their objects."""
    return _HEAD_OBJECTS + 2 * len(encoded)


def _head_from_proto(head: execution_pb2.CallHead, caller: Principal) -> IncomingCall:
    options: dict[str, Any] = _options(head.options) if head.HasField("options") else {}
    return IncomingCall(
        server_id=head.server_id,
        tool=head.tool,
        registry_version=head.registry_version,
        tenant=caller.tenant_for(head.tenant),
        agent=caller.agent_for(head.agent),
        user=caller.user_for(head.user),
        session=head.session,
        lease_id=head.lease_id,
        **options,
    )


def _options(options: execution_pb2.CallOptions) -> dict[str, Any]:
    return {
        "method": options.method,
        "wants_progress": options.wants_progress,
        "log_level": options.log_level,
        "answers": tuple(options.answers),
        "inline_media": options.inline_media,
        "passes_input": options.passes_input,
        "mcp_client": options.mcp_client,
        "acquirer": bounded_client(options.acquirer),
        "lease_ttl": seconds(options.lease_ttl) if options.HasField("lease_ttl") else None,
        "report_end": options.report_end,
        "known_ends": tuple(options.known_ends),
    }


class StreamOwner(Protocol):
    """All streams of a worker, as one of them uses them.

    Attributes:
        executor: Runs the calls.
        leases: Renews leases.
        worker: The worker.
    """

    executor: Executor
    leases: WorkerLeaseManager
    worker: catalog_pb2.WorkerRef

    def record_growth(self, size: int) -> None:
        """Note that one of them holds more bytes."""


class CallStream:
    """One stream of a caller's calls; created where `caller()` is its principal.

    Args:
        connection: The connection, which no other caller has.
        owner: All streams of the worker.
        replies: Sends what the calls of this stream have to tell.

    Attributes:
        connection: As given.
        client: The caller's tenant, or the connection of an unauthenticated caller.
        client_calls: The calls of the client, on all its streams.
    """

    def __init__(self, connection: str, owner: StreamOwner, replies: Replies) -> None:
        self._on_growth = owner.record_growth
        self._executor = owner.executor
        self._leases = owner.leases
        self._worker = owner.worker
        self._replies = replies
        self._calls = replies.calls
        self._long_arguments: dict[int, int] = {}  # bytes by call id; pruned when counted
        self._caller = caller()
        self._heads = CallHeads(self._caller)
        self.connection = connection
        self.client = client_of(self._caller, connection)
        self.client_calls = ClientCalls(scope_of(self._caller))

    @property
    def queued_bytes(self) -> int:
        """Bytes that wait to be sent."""
        return self._replies.queued_bytes

    @property
    def held_bytes(self) -> int:
        """Memory held for the caller: unread results, known heads, arguments until a call ends."""
        held = self._replies.queued_bytes + self._heads.held_bytes
        if self._long_arguments:
            self._long_arguments = {
                call_id: size
                for call_id, size in self._long_arguments.items()
                if call_id in self._calls
            }
            held += sum(self._long_arguments.values())
        return held

    @property
    def in_flight(self) -> int:
        """How many of its calls have no result yet."""
        return len(self._calls)

    @property
    def chunked(self) -> int:
        """How many calls are sending their arguments in chunks."""
        return 0

    @property
    def is_aborted(self) -> bool:
        """Whether it is ending with a fault, which frees its memory."""
        return self._replies.fault is not None

    def abort(self, fault: Fault) -> None:
        """End the stream at once, even if its caller does not read."""
        self._replies.abort(fault)

    def go_away(self, reason: str) -> None:
        """Announce that new calls are rejected; the stream ends after its last result."""
        self._replies.go_away(reason)

    def skip_goodbye(self) -> None:
        """End the stream after its last result, even if its caller may still be sending."""
        self._replies.close()

    def _cancel_calls(self) -> None:
        """Cancel all calls, because the stream has ended."""
        fault = self._replies.fault
        for active in tuple(self._calls.values()):
            if fault is not None:
                active.abort(fault, "the caller's stream has ended")
            else:
                active.cancel("the caller's stream has ended")

    def _handle_rest(self, message: execution_pb2.ExchangeRequest) -> None:
        """Handle what a message carries besides calls and chunks."""
        for answer in message.answers:
            active = self._calls.get(answer.call_id)
            if active is not None:  # None if the call has ended
                active.answer(answer)
        for cancel in message.cancels:
            self._cancel_call(cancel)
        if message.HasField("keep_alive"):
            renewals = renew_leases(self._leases, message.keep_alive, self._caller)
            self._replies.send_renewals(renewals)
        if message.HasField("going_away"):
            self._replies.close()

    def _cancel_call(self, cancel: execution_pb2.Cancel) -> None:
        active = self._calls.get(cancel.call_id)
        if active is not None:
            reason = cancel.reason[:256] or "the caller cancelled"
            active.cancel(reason, timed_out=cancel.timed_out)

    def _start_call(self, message: execution_pb2.Call, arguments: bytes) -> None:
        call_id = message.id
        if call_id in self._calls or not call_id:
            text = f"Call id {call_id} is zero or in use; each call needs its own id."
            self._replies.end_with(Fault(Reason.INVALID_REQUEST, text))
            return
        try:
            arguments = self._arguments(call_id, arguments)
            call = self._heads.read(message, call_id)
        except Fault as fault:
            self._replies.reject_call(call_id, fault)
            return
        if self._replies.closing or len(self._calls) >= bounds.MAX_CALLS_IN_FLIGHT:
            self._replies.reject_call(call_id, self._rejection())
            return
        if not self.client_calls.try_start():
            self._replies.reject_call(call_id, self.client_calls.too_many())
            return
        active = self._executor.start_call(call, arguments, self._replies, self._caller)
        if active.has_ended:
            return
        self._calls[call_id] = active
        if len(arguments) > _LONG_ARGUMENTS:
            self._long_arguments[call_id] = len(arguments)
            self._on_growth(len(arguments))
        elif self._long_arguments:
            self._long_arguments.pop(call_id, None)  # of an earlier call with this id

    def _arguments(self, _call_id: int, rest: bytes) -> bytes:
        """Return the whole arguments of a call, of which `rest` came with it; raises a Fault."""
        if len(rest) > bounds.MAX_ARGUMENTS:
            raise oversize_arguments()
        return rest

    def _rejection(self) -> Fault:
        if self._replies.closing:
            return Fault(
                Reason.DRAINING,
                f"Worker {self._worker.id} or the caller is closing this stream; use another "
                "worker or stream.",
                retry_delay=0.1,
            )
        limit = bounds.MAX_CALLS_IN_FLIGHT
        return too_many("stream_calls", "connection", "This stream", limit, "calls")


def client_of(principal: Principal, connection: str) -> object:
    """Return a caller's authenticated tenant or agent, or else its connection."""
    if principal.tenant is not None:
        return (principal.tenant,)  # one client for all agents of a tenant
    return (None, principal.agent) if principal.agent is not None else connection


def scope_of(principal: Principal) -> LimitScope:
    """Return whether a caller's client is a tenant or a connection."""
    return "connection" if principal.tenant is None and principal.agent is None else "tenant"


def tenant_client(principal: Principal) -> object | None:
    """Return a caller's authenticated tenant or agent, or None."""
    return None if scope_of(principal) == "connection" else client_of(principal, "")


def too_many(limit: str, scope: LimitScope, owner: str, maximum: int, what: str) -> Fault:
    return over_limit(
        limit,
        scope,
        f"{owner} has {maximum} {what} in flight on this worker, its limit; wait for some to end.",
        retry_delay=0.1,
    )
