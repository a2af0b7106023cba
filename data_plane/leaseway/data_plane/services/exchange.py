"""The exchange: any number of calls and results over one stream (DESIGN §6).

One reader handles frames as they come; one writer sends what goes back (`replies`). Nothing on
the way of a call awaits.

All exchange streams of a worker.
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
from leaseway.data_plane.services.leases import renew_all
from leaseway.data_plane.services.replies import Context, StreamWriter
from leaseway.identity.interceptor import caller
from leaseway.identity.principal import Principal
from leaseway.v1 import catalog_pb2, execution_pb2, leases_pb2
from leaseway.wire import bounds
from leaseway.wire.errors import Fault, Reason
from leaseway.wire.limits import InUse, Scope, over_limit
from leaseway.wire.messages.outbox import Assembler, OversizePayload
from leaseway.wire.status import abort
from leaseway.wire.version import check_client_version

_logger = logging.getLogger(__name__)
_COUNTED: Final = 4 * bounds.KIB
"""Arguments of calls under way that are longer count for what their stream holds."""


class _ClientCalls:
    """How many calls one client has in flight, on its streams and without; counted only at need.

    Args:
        scope: Whether the client is a tenant, or the connection of a caller that proved none.
    """

    def __init__(self, scope: Scope) -> None:
        self.scope = scope
        self.streams: list[ExchangeStream] = []
        self.unary = 0
        self._left = 0  # at least so many more may begin: those that end since only add to it

    def take(self) -> bool:
        """Return whether one more call may begin."""
        if self._left <= 0:
            under_way = self.unary + sum(one.in_flight for one in self.streams)
            self._left = bounds.MAX_CLIENT_CALLS - under_way
            if self._left <= 0:
                return False
        self._left -= 1
        return True

    @property
    def may_chunk(self) -> bool:
        """Whether one more of its calls may send arguments in chunks."""
        chunked = sum(one.chunked for one in self.streams)
        return chunked < bounds.MAX_CLIENT_CHUNKED


class ExchangeStream:
    """One stream, and what it reads."""

    def __init__(
        self,
        context: Context,
        executor: Executor,
        leases: WorkerLeaseManager,
        lease_message: Callable[[Any], leases_pb2.Lease],
        worker: catalog_pb2.WorkerRef,
        on_growth: Callable[[], None],
    ) -> None:
        self._on_growth = on_growth
        self._context = context
        self._executor = executor
        self._leases = leases
        self._worker = worker
        self._replies = StreamWriter(context, leases, lease_message, executor.meters, on_growth)
        self._calls = self._replies.calls
        self._chunks = Assembler(bounds.MAX_ARGUMENTS, bounds.MAX_CHUNKED)
        self._refused_chunks: dict[int, Fault] = {}
        self._long_arguments: dict[int, int] = {}  # bytes by call; forgotten when next counted
        self._caller = caller()
        self._is_bound = self._caller.tenant is not None or self._caller.agent is not None
        self.client_calls = _ClientCalls(_scope(self._caller))

    async def serve(self) -> None:
        """Read and write until both sides are done; the stream's end cancels its calls."""
        replies = self._replies
        reader = asyncio.get_running_loop().create_task(self._read(), name="exchange reader")
        try:
            await replies.write(self._worker)
        finally:
            reader.cancel()
            for active in tuple(self._calls.values()):
                active.cancel("the caller's stream has ended")
            await asyncio.wait([reader])
        if replies.breach is not None:
            self._chunks = Assembler(bounds.MAX_ARGUMENTS, bounds.MAX_CHUNKED)
            replies.drop()  # the abort may wait for as long as the caller does not read
            await abort(self._context, replies.breach)

    @property
    def queued_bytes(self) -> int:
        """How much waits to be sent."""
        return self._replies.queued_bytes

    @property
    def held_bytes(self) -> int:
        """How much is held for its caller: unread results, and arguments until their call ends."""
        held = self._replies.queued_bytes + self._chunks.held_bytes
        if self._long_arguments:
            calls, long = self._calls, self._long_arguments
            self._long_arguments = {each: size for each, size in long.items() if each in calls}
            held += sum(self._long_arguments.values())
        return held

    @property
    def in_flight(self) -> int:
        """How many of its calls have no result yet."""
        return len(self._calls)

    @property
    def chunked(self) -> int:
        """How many calls send their arguments in chunks at present."""
        return len(self._chunks)

    @property
    def is_given_up(self) -> bool:
        """Whether it ends, and gives back what is held for it."""
        return self._replies.breach is not None

    @property
    def client(self) -> object:
        """Whose it is."""
        return _client(self._caller, self.connection)

    @property
    def connection(self) -> str:
        """The connection that it came on."""
        return str(self._context.peer())

    def give_up(self, why: Fault) -> None:
        """End it at once, as it holds too much."""
        self._replies.give_up(why)

    def go_away(self, reason: str) -> None:
        """Say that no more calls are taken; the stream ends with its last result."""
        self._replies.go_away(reason)

    async def _read(self) -> None:
        replies = self._replies
        greeted = False
        try:
            while True:
                message = await self._context.read()
                if message is grpc.aio.EOF:
                    break
                if not greeted:
                    greeted = True
                    check_client_version(message.client, f"worker {self._worker.id}")
                self._handle(message)
                if replies.breach is not None:
                    break  # the writer ends the stream with it
                if replies.is_full:
                    await replies.until_room()
        except Fault as fault:
            replies.break_off(fault)
        except Exception:
            _logger.exception("Reading an exchange stream failed; the stream ends.")
            replies.break_off(
                Fault(Reason.INTERNAL, "The worker failed to read the stream.", "unknown")
            )
        finally:
            replies.close()

    def _handle(self, message: execution_pb2.ExchangeRequest) -> None:
        for chunk in message.chunks:
            self._take_chunk(chunk)
        for call in message.calls:
            self._begin(call)
        for answer in message.answers:
            active = self._calls.get(answer.call_id)
            if active is not None:  # of a call that has ended, nobody waits for it
                active.answer(answer)
        for cancel in message.cancels:
            self._cancel(cancel)
        if message.HasField("keep_alive"):
            self._replies.kept_alive(self._renewed(message.keep_alive))
        if message.HasField("going_away"):
            self._replies.close()

    def _renewed(self, request: leases_pb2.KeepAliveRequest) -> leases_pb2.KeepAliveResponse:
        return renew_all(self._leases, request, self._caller.tenant)

    def _cancel(self, cancel: execution_pb2.Cancel) -> None:
        active = self._calls.get(cancel.call_id)
        if active is not None:
            active.cancel(cancel.reason[:256] or "the caller cancelled")
        else:  # of a call that has ended, or whose frame will never follow its chunks
            self._chunks.drop(cancel.call_id)
            self._refused_chunks.pop(cancel.call_id, None)

    def _take_chunk(self, chunk: execution_pb2.Chunk) -> None:
        if chunk.call_id in self._refused_chunks:
            return
        if chunk.call_id not in self._chunks and not self.client_calls.may_chunk:
            self._refuse_chunks(chunk.call_id, _too_many_chunks(self.client_calls.scope))
            return
        try:
            self._chunks.add(chunk)
            self._on_growth()
        except OversizePayload:
            fault = _too_many("stream_chunks", "chunked payloads", bounds.MAX_CHUNKED)
            self._refuse_chunks(chunk.call_id, fault)

    def _refuse_chunks(self, call_id: int, fault: Fault) -> None:
        self._refused_chunks[call_id] = fault
        if len(self._refused_chunks) > bounds.MAX_CALLS_IN_FLIGHT:
            self._replies.break_off(fault)

    def _begin(self, call: execution_pb2.Call) -> None:
        call_id = call.id
        if call_id in self._calls or not call_id:
            wrong = f"Call id {call_id} is zero or in use; each call needs an id of its own."
            self._replies.break_off(Fault(Reason.INVALID_REQUEST, wrong))
            return
        try:
            arguments = self._arguments(call)
            if self._is_bound:
                call.tenant = self._caller.tenant_for(call.tenant)
                call.agent = self._caller.agent_for(call.agent)
        except Fault as fault:
            self._replies.refuse(call_id, fault)
            return
        if self._replies.closing or len(self._calls) >= bounds.MAX_CALLS_IN_FLIGHT:
            self._replies.refuse(call_id, self._why_not())
            return
        if not self.client_calls.take():
            self._replies.refuse(call_id, _too_many_of_client(self.client_calls.scope))
            return
        active = self._executor.begin(call, arguments, self._replies)
        if active.over:
            return
        self._calls[call_id] = active
        if len(arguments) > _COUNTED:
            self._long_arguments[call_id] = len(arguments)
            self._on_growth()
        elif self._long_arguments:
            self._long_arguments.pop(call_id, None)  # of an earlier call with this id

    def _arguments(self, call: execution_pb2.Call) -> bytes:
        if self._refused_chunks and call.id in self._refused_chunks:
            raise self._refused_chunks.pop(call.id)
        try:
            return self._chunks.take(call.id, call.arguments)
        except OversizePayload:
            raise oversize_arguments() from None

    def _why_not(self) -> Fault:
        if self._replies.closing:
            return Fault(
                Reason.DRAINING,
                f"Worker {self._worker.id} or the caller has said goodbye on this stream; use "
                "another worker or stream.",
                retry_delay=0.1,
            )
        return _too_many("stream_calls", "calls", bounds.MAX_CALLS_IN_FLIGHT)


def _client(principal: Principal, connection: str) -> object:
    """Return the tenant that a caller proved to be, else the connection that it came on."""
    if principal.tenant is not None:
        return (principal.tenant,)  # of all its agents: tenants are to be fair to others
    return (None, principal.agent) if principal.agent is not None else connection


def _scope(principal: Principal) -> Scope:
    """Return whether a caller's client is a tenant, or the connection that it came on."""
    return "connection" if principal.tenant is None and principal.agent is None else "tenant"


def holder_of(principal: Principal) -> object | None:
    """Return the tenant, or the agent without one, that a caller proved to be; else None."""
    return None if _scope(principal) == "connection" else _client(principal, "")


def _too_many(limit: str, what: str, most: int) -> Fault:
    return over_limit(
        limit,
        "connection",
        f"More than {most} {what} are under way on this stream; wait for some to end.",
        retry_delay=0.1,
    )


def _too_many_chunks(scope: Scope) -> Fault:
    return over_limit(
        "chunks",
        scope,
        f"More than {bounds.MAX_CLIENT_CHUNKED} chunked payloads of this client are under way on "
        "this worker; wait for some to end.",
        retry_delay=0.1,
    )


def _too_many_of_client(scope: Scope) -> Fault:
    return over_limit(
        "calls",
        scope,
        f"More than {bounds.MAX_CLIENT_CALLS} calls of this client are under way on this "
        "worker; wait for some to end.",
        retry_delay=0.1,
    )


def _holds_too_much(scope: Scope, *, is_own: bool) -> Fault:
    whose, most = "all clients", bounds.MAX_HELD
    if is_own:
        whose, most = f"this {scope}", bounds.MAX_CLIENT_HELD
    also = "" if is_own else ", and this client's hold the most"
    return over_limit(
        "held",
        scope,
        f"The streams of {whose} hold more than {most} bytes of results that are not read, "
        f"arguments that are not finished and those of calls under way{also}; the stream ends and "
        "its calls are cancelled. Read results as they come.",
        started="unknown",
    )


class Exchanges:
    """All exchange streams of a worker.

    Args:
        executor: Runs the calls.
        leases: Renews leases.
        lease_message: Makes the message that describes a lease.
        worker: Who answers.
    """

    def __init__(
        self,
        executor: Executor,
        leases: WorkerLeaseManager,
        lease_message: Callable[[Any], leases_pb2.Lease],
        worker: catalog_pb2.WorkerRef,
    ) -> None:
        self._executor = executor
        self._leases = leases
        self._lease_message = lease_message
        self._worker = worker
        self._streams: set[ExchangeStream] = set()
        self._clients: dict[object, _ClientCalls] = {}
        self._in_use = InUse(
            "streams",
            "exchange streams to this worker",
            lambda: bounds.MAX_STREAMS,
            lambda: bounds.MAX_TENANT_STREAMS,
            "One stream carries any number of calls. End some of them.",
        )
        self._leaving: str | None = None

    async def serve(self, context: Context) -> None:
        """Serve one stream until it ends."""
        stream = ExchangeStream(
            context, self._executor, self._leases, self._lease_message, self._worker, self._relieve
        )
        connection, tenant = stream.connection, holder_of(caller())
        try:
            self._in_use.take(connection, tenant)
        except Fault as fault:
            self._refused(fault)
            await abort(context, fault)
        self._streams.add(stream)
        client = stream.client
        stream.client_calls = self._clients.setdefault(client, stream.client_calls)
        stream.client_calls.streams.append(stream)
        try:
            if self._leaving is not None:
                stream.go_away(self._leaving)
            await stream.serve()
        finally:
            self._streams.discard(stream)
            self._in_use.give_back(connection, tenant)
            stream.client_calls.streams.remove(stream)
            self._forget(client)

    @contextmanager
    def counting(self, context: Context) -> Iterator[None]:
        """Count a call without a stream among those of its client.

        Raises:
            Fault: OVERLOADED: the client has too many under way.
        """
        client = _client(caller(), str(context.peer()))
        calls = self._clients.setdefault(client, _ClientCalls(_scope(caller())))
        if not calls.take():
            fault = _too_many_of_client(calls.scope)
            self._refused(fault)
            raise fault
        calls.unary += 1
        try:
            yield
        finally:
            calls.unary -= 1
            self._forget(client)

    def _refused(self, fault: Fault) -> None:
        if self._executor.meters is not None:
            self._executor.meters.call_refused(fault)

    def note_limit(self, fault: Fault) -> None:
        """Count the refusal of what is no call, where it names the bound that it reached."""
        if self._executor.meters is not None:
            self._executor.meters.limits.note(fault.metadata)

    def _forget(self, client: object) -> None:
        calls = self._clients[client]
        if not calls.streams and not calls.unary:
            del self._clients[client]

    def _relieve(self) -> None:
        """End streams of the client that holds the most until no more is held than may be."""
        streams = [stream for stream in self._streams if not stream.is_given_up]
        held = {stream: stream.held_bytes for stream in streams}
        by_client: Counter[object] = Counter()
        for stream, size in held.items():
            by_client[stream.client] += size
        while by_client:
            greediest, most = by_client.most_common(1)[0]
            is_own = most > bounds.MAX_CLIENT_HELD
            if not is_own and by_client.total() <= bounds.MAX_HELD:
                return
            worst = max((each for each in held if each.client == greediest), key=held.__getitem__)
            by_client[greediest] -= held.pop(worst)
            worst.give_up(_holds_too_much(worst.client_calls.scope, is_own=is_own))

    @property
    def open_streams(self) -> int:
        return len(self._streams)

    @property
    def queued_bytes(self) -> int:
        """How much waits to be sent on all of them."""
        return sum(stream.queued_bytes for stream in self._streams)

    def go_away(self, reason: str) -> None:
        """Tell every caller, those to come too, that no more calls are taken."""
        self._leaving = reason
        for stream in self._streams:
            stream.go_away(reason)
