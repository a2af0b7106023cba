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
from typing import Any

import grpc

from leaseway.data_plane.calls.executor import Executor
from leaseway.data_plane.core.tools.arguments import oversize_arguments
from leaseway.data_plane.leases.manager import WorkerLeaseManager
from leaseway.data_plane.services.replies import Context, StreamWriter
from leaseway.data_plane.services.streams import (
    CallStream,
    ClientCalls,
    client_of,
    scope_of,
    tenant_client,
    too_many,
)
from leaseway.identity.interceptor import caller
from leaseway.v1 import catalog_pb2, execution_pb2, leases_pb2
from leaseway.wire import bounds
from leaseway.wire.errors import Fault, Reason
from leaseway.wire.messages.frames import Assembler, OversizePayload
from leaseway.wire.sharing.limits import LimitScope, UsageCounter, over_limit
from leaseway.wire.status import abort
from leaseway.wire.version import check_client_version

_logger = logging.getLogger(__name__)


class ExchangeStream(CallStream):
    """One exchange stream of a caller, over gRPC."""

    def __init__(self, context: Context, exchanges: Exchanges) -> None:
        self._context = context
        replies = self._writer = StreamWriter(
            context,
            exchanges.leases,
            exchanges.lease_message,
            exchanges.executor.meters,
            exchanges.record_growth,
        )
        super().__init__(str(context.peer()), exchanges, replies)
        self._chunks = Assembler(bounds.MAX_ARGUMENTS, bounds.MAX_CHUNKED)
        self._rejected_chunks: dict[int, Fault] = {}

    async def serve(self) -> None:
        """Read and write until both sides have finished, then cancel calls without a result."""
        replies = self._writer
        reader = asyncio.get_running_loop().create_task(self._read(), name="exchange reader")
        try:
            # In the RPC's own task: if another one were interrupted in a write, gRPC would refuse
            # the status of an aborted stream, whose caller does not read.
            await replies.write(self._worker)
        finally:
            reader.cancel()
            self._cancel_calls()
            await asyncio.wait([reader])
        if replies.fault is not None:
            self._chunks = Assembler(bounds.MAX_ARGUMENTS, bounds.MAX_CHUNKED)
            replies.clear()  # the abort may wait for a caller that does not read
            await abort(self._context, replies.fault)

    @property
    def held_bytes(self) -> int:
        return super().held_bytes + self._chunks.held_bytes

    @property
    def chunked(self) -> int:
        return len(self._chunks)

    async def _read(self) -> None:
        replies = self._writer
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
            self._start_call(call, call.arguments)
        self._handle_rest(message)

    def _cancel_call(self, cancel: execution_pb2.Cancel) -> None:
        super()._cancel_call(cancel)
        if cancel.call_id not in self._calls:  # it has ended, or only chunks of it were sent
            self._chunks.drop(cancel.call_id)
            self._rejected_chunks.pop(cancel.call_id, None)

    def _handle_chunk(self, chunk: execution_pb2.Chunk) -> None:
        if chunk.call_id in self._rejected_chunks:
            return
        if chunk.call_id not in self._chunks and not self.client_calls.may_chunk:
            scope, limit = self.client_calls.scope, bounds.MAX_CLIENT_CHUNKED
            fault = too_many("chunks", scope, "This client", limit, "chunked calls")
            self._reject_chunks(chunk.call_id, fault)
            return
        try:
            held = self._chunks.held_bytes
            self._chunks.add(chunk)
            self._on_growth(self._chunks.held_bytes - held)
        except OversizePayload:
            limit = bounds.MAX_CHUNKED
            fault = too_many("stream_chunks", "connection", "This stream", limit, "chunked calls")
            self._reject_chunks(chunk.call_id, fault)

    def _reject_chunks(self, call_id: int, fault: Fault) -> None:
        self._rejected_chunks[call_id] = fault
        if len(self._rejected_chunks) > bounds.MAX_CALLS_IN_FLIGHT:
            self._replies.end_with(fault)

    def _arguments(self, call_id: int, rest: bytes) -> bytes:
        if self._rejected_chunks and call_id in self._rejected_chunks:
            raise self._rejected_chunks.pop(call_id)
        try:
            return self._chunks.take(call_id, rest)
        except OversizePayload:
            raise oversize_arguments() from None


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
        self._streams: set[CallStream] = set()
        self._clients: dict[object, ClientCalls] = {}
        self._in_use = UsageCounter(
            "streams",
            "exchange streams to this worker",
            bounds.MAX_STREAMS,
            bounds.MAX_TENANT_STREAMS,
            "One stream carries any number of calls. End some of them.",
        )
        self._grown = 0  # bytes since the memory of all streams was counted
        self._going_away: str | None = None

    async def serve(self, _requests: object, context: Context) -> None:
        """Carry the calls and results of one stream, both through its context, until it ends."""
        stream = ExchangeStream(context, self)
        try:
            with self.counted(stream):
                await stream.serve()
        except Fault as fault:
            await abort(context, fault)

    @contextmanager
    def counted(self, stream: CallStream) -> Iterator[None]:
        """Count a stream among those of its caller while the block runs.

        Raises:
            Fault: OVERLOADED: the caller has too many streams.
        """
        connection, tenant = stream.connection, tenant_client(caller())
        try:
            self._in_use.acquire(connection, tenant)
        except Fault as fault:
            self._record_rejection(fault)
            raise
        self._streams.add(stream)
        client = stream.client
        stream.client_calls = self._clients.setdefault(client, stream.client_calls)
        stream.client_calls.streams.append(stream)
        try:
            if self._going_away is not None:
                stream.go_away(self._going_away)
            yield
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
        principal = caller()
        client = client_of(principal, str(context.peer()))
        calls = self._clients.get(client)
        if calls is None:
            calls = self._clients[client] = ClientCalls(scope_of(principal))
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

    def record_growth(self, size: int) -> None:
        """Note that a stream holds more bytes; enforce the limits after each 1/64 of one.

        That is seldom enough to look at all streams, of which there may be thousands.
        """
        self._grown += size
        if self._grown >= min(bounds.MAX_CLIENT_HELD, bounds.MAX_HELD) // 64:
            self._grown = 0
            self.enforce_memory_limits()

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
