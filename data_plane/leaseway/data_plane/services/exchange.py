"""The exchange RPC: many concurrent calls over one stream (design.md#calls).

Each stream has one reader, which handles messages, and one writer, which sends responses
(`replies`). Nothing on the path of a call awaits.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final

import grpc

from leaseway.data_plane.calls.executor import Executor
from leaseway.data_plane.core.tools.arguments import oversize_arguments
from leaseway.data_plane.leases.manager import WorkerLeaseManager
from leaseway.data_plane.services.leases import renew_leases
from leaseway.data_plane.services.replies import Context, StreamWriter
from leaseway.identity.interceptor import caller
from leaseway.identity.principal import Principal
from leaseway.v1 import catalog_pb2, execution_pb2, leases_pb2
from leaseway.wire import bounds
from leaseway.wire.errors import Fault, Reason
from leaseway.wire.limits import LimitScope, UsageCounter, over_limit
from leaseway.wire.messages.frames import Assembler, OversizePayload
from leaseway.wire.status import abort
from leaseway.wire.version import check_client_version

_logger = logging.getLogger(__name__)
_LONG_ARGUMENTS: Final = 4 * bounds.KIB
"""Longer arguments count as memory of their stream until their call ends."""


class _ClientCalls:
    """The calls in flight of one client, on its streams and unary. Recounted only when necessary.

    Args:
        scope: Whether the client is a tenant, or the connection of an unauthenticated caller.
    """

    def __init__(self, scope: LimitScope) -> None:
        self.scope = scope
        self.streams: list[ExchangeStream] = []
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
        return _too_many("calls", self.scope, "This client", bounds.MAX_CLIENT_CALLS, "calls")


class ExchangeStream:
    """One exchange stream of a caller.

    Attributes:
        connection: The connection, as gRPC names it.
        client: The caller's tenant, or the connection of an unauthenticated caller.
        client_calls: The calls of the client, on all its streams.
    """

    def __init__(self, context: Context, exchanges: Exchanges) -> None:
        self._on_growth = exchanges.enforce_memory_limits
        self._context = context
        self._executor = exchanges.executor
        self._leases = exchanges.leases
        self._worker = exchanges.worker
        self._replies = StreamWriter(
            context,
            self._leases,
            exchanges.lease_message,
            self._executor.meters,
            self._on_growth,
        )
        self._calls = self._replies.calls
        self._chunks = Assembler(bounds.MAX_ARGUMENTS, bounds.MAX_CHUNKED)
        self._rejected_chunks: dict[int, Fault] = {}
        self._long_arguments: dict[int, int] = {}  # bytes by call id; pruned when counted
        self._caller = caller()
        self._is_bound = (
            self._caller.tenant is not None
            or self._caller.agent is not None
            or not self._caller.names_users
        )
        self.connection = str(context.peer())
        self.client = _client(self._caller, self.connection)
        self.client_calls = _ClientCalls(_scope(self._caller))

    async def serve(self) -> None:
        """Read and write until both sides have finished, then cancel calls without a result."""
        replies = self._replies
        reader = asyncio.get_running_loop().create_task(self._read(), name="exchange reader")
        try:
            # In the RPC's own task: if another one were interrupted in a write, gRPC would refuse
            # the status of an aborted stream, whose caller does not read.
            await replies.write(self._worker)
        finally:
            reader.cancel()
            for active in tuple(self._calls.values()):
                if replies.fault is not None:
                    active.abort(replies.fault, "the caller's stream has ended")
                else:
                    active.cancel("the caller's stream has ended")
            await asyncio.wait([reader])
        if replies.fault is not None:
            self._chunks = Assembler(bounds.MAX_ARGUMENTS, bounds.MAX_CHUNKED)
            replies.clear()  # the abort may wait for a caller that does not read
            await abort(self._context, replies.fault)

    @property
    def queued_bytes(self) -> int:
        """Bytes that wait to be sent."""
        return self._replies.queued_bytes

    @property
    def held_bytes(self) -> int:
        """Memory held for the caller: unread results, and arguments until their call ends."""
        held = self._replies.queued_bytes + self._chunks.held_bytes
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
        return len(self._chunks)

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

    async def _read(self) -> None:
        replies = self._replies
        checked_version = False
        try:
            while True:
                message = await self._context.read()
                if message is grpc.aio.EOF:
                    break
                if not checked_version:
                    checked_version = True
                    check_client_version(message.client, f"worker {self._worker.id}")
                self._handle_message(message)
                if replies.fault is not None:
                    break  # the writer ends the stream with it
                if replies.is_full:
                    await replies.wait_for_room()
        except Fault as fault:
            replies.end_with(fault)
        except Exception:
            _logger.exception("Reading an exchange stream failed; the stream ends.")
            replies.end_with(
                Fault(Reason.INTERNAL, "The worker failed to read the stream.", "unknown")
            )
        finally:
            replies.close()

    def _handle_message(self, message: execution_pb2.ExchangeRequest) -> None:
        for chunk in message.chunks:
            self._handle_chunk(chunk)
        for call in message.calls:
            self._start_call(call)
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
        else:  # the call has ended, or only chunks of it were sent
            self._chunks.drop(cancel.call_id)
            self._rejected_chunks.pop(cancel.call_id, None)

    def _handle_chunk(self, chunk: execution_pb2.Chunk) -> None:
        if chunk.call_id in self._rejected_chunks:
            return
        if chunk.call_id not in self._chunks and not self.client_calls.may_chunk:
            scope, limit = self.client_calls.scope, bounds.MAX_CLIENT_CHUNKED
            fault = _too_many("chunks", scope, "This client", limit, "chunked calls")
            self._reject_chunks(chunk.call_id, fault)
            return
        try:
            self._chunks.add(chunk)
            self._on_growth()
        except OversizePayload:
            limit = bounds.MAX_CHUNKED
            fault = _too_many("stream_chunks", "connection", "This stream", limit, "chunked calls")
            self._reject_chunks(chunk.call_id, fault)

    def _reject_chunks(self, call_id: int, fault: Fault) -> None:
        self._rejected_chunks[call_id] = fault
        if len(self._rejected_chunks) > bounds.MAX_CALLS_IN_FLIGHT:
            self._replies.end_with(fault)

    def _start_call(self, call: execution_pb2.Call) -> None:
        call_id = call.id
        if call_id in self._calls or not call_id:
            message = f"Call id {call_id} is zero or in use; each call needs its own id."
            self._replies.end_with(Fault(Reason.INVALID_REQUEST, message))
            return
        try:
            arguments = self._arguments(call)
            if self._is_bound:
                call.tenant = self._caller.tenant_for(call.tenant)
                call.agent = self._caller.agent_for(call.agent)
                call.user = self._caller.user_for(call.user)
                if self._caller.token and not call.subject_token:
                    call.subject_token = self._caller.subject_token_for(call.user, "")
        except Fault as fault:
            self._replies.reject_call(call_id, fault)
            return
        if self._replies.closing or len(self._calls) >= bounds.MAX_CALLS_IN_FLIGHT:
            self._replies.reject_call(call_id, self._rejection())
            return
        if not self.client_calls.try_start():
            self._replies.reject_call(call_id, self.client_calls.too_many())
            return
        active = self._executor.start_call(call, arguments, self._replies)
        if active.has_ended:
            return
        self._calls[call_id] = active
        if len(arguments) > _LONG_ARGUMENTS:
            self._long_arguments[call_id] = len(arguments)
            self._on_growth()
        elif self._long_arguments:
            self._long_arguments.pop(call_id, None)  # of an earlier call with this id

    def _arguments(self, call: execution_pb2.Call) -> bytes:
        if self._rejected_chunks and call.id in self._rejected_chunks:
            raise self._rejected_chunks.pop(call.id)
        try:
            return self._chunks.take(call.id, call.arguments)
        except OversizePayload:
            raise oversize_arguments() from None

    def _rejection(self) -> Fault:
        if self._replies.closing:
            return Fault(
                Reason.DRAINING,
                f"Worker {self._worker.id} or the caller is closing this stream; use another "
                "worker or stream.",
                retry_delay=0.1,
            )
        limit = bounds.MAX_CALLS_IN_FLIGHT
        return _too_many("stream_calls", "connection", "This stream", limit, "calls")


def _client(principal: Principal, connection: str) -> object:
    """Return a caller's authenticated tenant or agent, or else its connection."""
    if principal.tenant is not None:
        return (principal.tenant,)  # one client for all agents of a tenant
    return (None, principal.agent) if principal.agent is not None else connection


def _scope(principal: Principal) -> LimitScope:
    """Return whether a caller's client is a tenant or a connection."""
    return "connection" if principal.tenant is None and principal.agent is None else "tenant"


def _tenant_client(principal: Principal) -> object | None:
    """Return a caller's authenticated tenant or agent, or None."""
    return None if _scope(principal) == "connection" else _client(principal, "")


def _too_many(limit: str, scope: LimitScope, owner: str, maximum: int, what: str) -> Fault:
    return over_limit(
        limit,
        scope,
        f"{owner} has {maximum} {what} in flight on this worker, its limit; wait for some to end.",
        retry_delay=0.1,
    )


def _too_much_memory(scope: LimitScope, *, is_own: bool) -> Fault:
    owner, maximum = "all clients", bounds.MAX_HELD
    if is_own:
        owner, maximum = f"this {scope}", bounds.MAX_CLIENT_HELD
    share = "" if is_own else ", and those of this client hold more than any other's"
    return over_limit(
        "held",
        scope,
        f"The streams of {owner} hold more than {maximum} bytes of unread results, unfinished "
        f"arguments and arguments of calls in flight{share}; this stream ends and its calls are "
        "cancelled. Read results as they arrive.",
        started="unknown",
    )


class Exchanges:
    """All exchange streams of a worker, and the limits that each client has on all its streams.

    Args:
        executor: Runs the calls.
        leases: Renews leases.
        lease_message: Converts a lease to protobuf.
        worker: This worker.
    """

    def __init__(
        self,
        executor: Executor,
        leases: WorkerLeaseManager,
        lease_message: Callable[[Any], leases_pb2.Lease],
        worker: catalog_pb2.WorkerRef,
    ) -> None:
        self.executor = executor
        self.leases = leases
        self.lease_message = lease_message
        self.worker = worker
        self._streams: set[ExchangeStream] = set()
        self._clients: dict[object, _ClientCalls] = {}
        self._in_use = UsageCounter(
            "streams",
            "exchange streams to this worker",
            bounds.MAX_STREAMS,
            bounds.MAX_TENANT_STREAMS,
            "One stream carries any number of calls. End some of them.",
        )
        self._going_away: str | None = None

    async def serve(self, _requests: object, context: Context) -> None:
        """Carry the calls and results of one stream, both through its context, until it ends."""
        stream = ExchangeStream(context, self)
        connection, tenant = stream.connection, _tenant_client(caller())
        try:
            self._in_use.acquire(connection, tenant)
        except Fault as fault:
            self._record_rejection(fault)
            await abort(context, fault)
        self._streams.add(stream)
        client = stream.client
        stream.client_calls = self._clients.setdefault(client, stream.client_calls)
        stream.client_calls.streams.append(stream)
        try:
            if self._going_away is not None:
                stream.go_away(self._going_away)
            await stream.serve()
        finally:
            self._streams.discard(stream)
            self._in_use.release(connection, tenant)
            stream.client_calls.streams.remove(stream)
            self._remove_if_idle(client)

    @contextmanager
    def count_unary(self, context: Context) -> Iterator[None]:
        """Count a unary call among its client's calls.

        Raises:
            Fault: OVERLOADED: the client has too many calls in flight.
        """
        client = _client(caller(), str(context.peer()))
        calls = self._clients.setdefault(client, _ClientCalls(_scope(caller())))
        if not calls.try_start():
            fault = calls.too_many()
            self._record_rejection(fault)
            raise fault
        calls.unary += 1
        try:
            yield
        finally:
            calls.unary -= 1
            self._remove_if_idle(client)

    def _record_rejection(self, fault: Fault) -> None:
        if self.executor.meters is not None:
            self.executor.meters.record_refusal(fault)

    def record_limit(self, fault: Fault) -> None:
        """Count in the metrics that a limit was reached, for a request that is no call."""
        if self.executor.meters is not None:
            self.executor.meters.limits.record(fault.metadata)

    def _remove_if_idle(self, client: object) -> None:
        calls = self._clients[client]
        if not calls.streams and not calls.unary:
            del self._clients[client]

    def enforce_memory_limits(self) -> None:
        """Abort streams of the client that holds the most memory until all limits are met."""
        streams = [stream for stream in self._streams if not stream.is_aborted]
        held = {stream: stream.held_bytes for stream in streams}
        by_client: Counter[object] = Counter()
        for stream, size in held.items():
            by_client[stream.client] += size
        while by_client:
            largest_client, size = by_client.most_common(1)[0]
            is_own = size > bounds.MAX_CLIENT_HELD
            if not is_own and by_client.total() <= bounds.MAX_HELD:
                return
            largest = max(
                (stream for stream in held if stream.client == largest_client),
                key=held.__getitem__,
            )
            by_client[largest_client] -= held.pop(largest)
            largest.abort(_too_much_memory(largest.client_calls.scope, is_own=is_own))

    @property
    def open_streams(self) -> int:
        return len(self._streams)

    @property
    def queued_bytes(self) -> int:
        """Bytes that wait to be sent on all streams."""
        return sum(stream.queued_bytes for stream in self._streams)

    def go_away(self, reason: str) -> None:
        """Announce on every stream, also future ones, that new calls are rejected."""
        self._going_away = reason
        for stream in self._streams:
            stream.go_away(reason)

    def skip_goodbyes(self) -> None:
        """End every stream after its last result, without waiting for its caller."""
        for stream in self._streams:
            stream.skip_goodbye()
