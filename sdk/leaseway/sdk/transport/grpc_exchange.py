"""An exchange stream over gRPC: calls batched in both directions (design.md#calls).

A writer task sends all queued frames as one message; a reader task sets the results of the calls'
futures.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from typing import Any, Final

import grpc

from leaseway.sdk.transport import faults
from leaseway.sdk.transport.exchange import Exchange, OnNotification, ignore_notification
from leaseway.v1 import catalog_pb2, execution_pb2
from leaseway.wire.bounds import BATCH_SIZE, MAX_CALLS_IN_FLIGHT, MAX_RESULT
from leaseway.wire.messages.frames import (
    Assembler,
    Outbox,
    OversizePayload,
    call_frame,
    frame,
    frame_tag,
)
from leaseway.wire.version import PROTOCOL_VERSION

_SERVICE: Final = execution_pb2.DESCRIPTOR.services_by_name["ExecutionService"].full_name
_TAGS: Final = {
    field: frame_tag(execution_pb2.ExchangeRequest, field)
    for field in ("answers", "cancels", "keep_alive", "going_away")
}
_GREETING_TIMEOUT: Final = 0.5
"""Seconds to wait for the worker's first metadata before the client writes."""


class GrpcExchange(Exchange):
    """One stream.

    Args:
        channel: The channel to the worker.
        metadata: gRPC metadata of the stream: the credential.
        hello: The client's first message.
        worker: As for `Exchange`.
        on_end: As for `Exchange`.
        on_notification: As for `Exchange`.
    """

    def __init__(
        self,
        channel: grpc.aio.Channel,
        metadata: tuple[tuple[str, str], ...],
        hello: catalog_pb2.ClientInfo,
        worker: str,
        on_end: Callable[[Exchange], None],
        on_notification: OnNotification = ignore_notification,
    ) -> None:
        super().__init__(worker, on_end, on_notification)
        self._hello = hello
        self._last_id_at_read = 0
        self._wake = asyncio.Event()
        self._outbox = Outbox(self._wake.set)
        self._assembler = Assembler(MAX_RESULT, MAX_CALLS_IN_FLIGHT)
        # The outbox serializes batches itself; the generated stub would expect messages.
        self._stream: Any = channel.stream_stream(
            f"/{_SERVICE}/Exchange",
            request_serializer=None,
            response_deserializer=execution_pb2.ExchangeResponse.FromString,
        )(metadata=metadata)
        self._task = self._loop.create_task(self._run(), name=f"leaseway exchange {worker}")

    async def close(self) -> None:
        """End the stream; calls in flight fail as cancelled."""
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)

    def abort(self) -> None:
        """Start ending the stream, without waiting."""
        self._task.cancel()

    def _send_call(self, call_id: int, fields: bytes, payload: bytes, timeout_ms: int) -> int:
        if len(payload) > BATCH_SIZE:
            last = call_frame(call_id, fields, b"", timeout_ms)
            return self._outbox.put_large(last, call_id, payload)
        return self._outbox.put(call_frame(call_id, fields, payload, timeout_ms))

    def _withdraw(self, ticket: int) -> bool:
        return self._outbox.withdraw(ticket)

    def _holds(self, ticket: int) -> bool:
        return self._outbox.holds(ticket)

    def _send(self, field: str, message: Any) -> None:
        self._outbox.put(frame(_TAGS[field], message))

    def _forget(self, call_id: int) -> None:
        self._assembler.drop(call_id)

    def _is_silent_since(self, call_id: int) -> bool:
        return call_id > self._last_id_at_read

    async def _carry(self) -> None:
        parts: list[asyncio.Task[None]] = []
        try:
            await self._open()
            parts = [self._loop.create_task(part()) for part in (self._read, self._write)]
            await self._until_end(*parts)
        except grpc.aio.AioRpcError as error:
            # Even if the worker is going away: if this side was writing while the stream ended,
            # gRPC reports neither that it ended normally nor every message sent before.
            raise faults.fault_of_worker(error, self._worker) from None
        finally:
            for part in parts:
                part.cancel()
            self._stream.cancel()

    async def _until_end(self, reader: asyncio.Task[None], writer: asyncio.Task[None]) -> None:
        """Wait for the reader, or for a failed writer, behind which calls would pile up."""
        await asyncio.wait((reader, writer), return_when=asyncio.FIRST_COMPLETED)
        if writer.done():
            writer.result()
        await reader

    async def _open(self) -> None:
        """Wait until the worker has accepted or rejected the stream.

        A worker sends its metadata first. If the client wrote before that to a stream that the
        worker rejects, gRPC would replace the reason with its own error. If the metadata
        does not arrive in time, the client writes anyway.
        """
        await self._stream.wait_for_connection()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_GREETING_TIMEOUT):
                await self._stream.initial_metadata()

    async def _write(self) -> None:
        """Send batches until the stream ends; the reader raises the error that ended it."""
        outbox, wake, write = self._outbox, self._wake, self._stream.write
        first = execution_pb2.ExchangeRequest(client=self._hello)
        try:
            await write(first.SerializeToString())
            while True:
                await wake.wait()
                wake.clear()
                while outbox:
                    await write(outbox.next_batch())
        except (grpc.aio.AioRpcError, asyncio.InvalidStateError):
            return

    async def _read(self) -> None:
        read = self._stream.read
        while True:
            message: Any = await read()
            if message is grpc.aio.EOF:
                return
            self.suspect = False
            self._last_id_at_read = self._last_id
            if not self._accepted:
                self._greet(message)
            self._dispatch(message)

    def _greet(self, message: execution_pb2.ExchangeResponse) -> None:
        self._accepted = True
        version = message.worker.protocol_version
        if version not in (0, PROTOCOL_VERSION):
            package = message.worker.package_version
            raise faults.incompatible_version(self._worker, package, version, PROTOCOL_VERSION)

    def _dispatch(self, message: execution_pb2.ExchangeResponse) -> None:
        pending = self.pending
        for chunk in message.chunks:
            if chunk.call_id in pending:
                self._assembler.add(chunk)
        has_events = message.progress or message.logs or message.asks or message.updates
        if has_events or message.withdrawals or message.notifications:
            self._handle_events(message)
        for result in message.results:
            call_id = result.call_id
            call = pending.pop(call_id, None)
            if call is None or call.reply.done():
                continue  # the call was cancelled
            try:
                call.reply.set_result((result, self._assembler.take(call_id, result.payload)))
            except OversizePayload as error:
                call.reply.set_exception(faults.result_too_large(self._worker, error))
        if self._waiting:
            self._grant_slots()
        self._handle_control(message)
