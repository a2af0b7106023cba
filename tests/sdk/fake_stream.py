"""The fake worker's side of an exchange stream."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Any

from tests.calls import ReceivedCall, read_call

from leaseway.v1 import execution_pb2
from leaseway.wire.bounds import BATCH_SIZE, MAX_ARGUMENTS, MAX_CALLS_IN_FLIGHT
from leaseway.wire.errors import Fault
from leaseway.wire.messages.frames import Assembler, Outbox, frame, frame_tag
from leaseway.wire.status import status_from_fault

if TYPE_CHECKING:
    from tests.sdk.fake_worker import FakeWorker


def _tag(field: str) -> bytes:
    return frame_tag(execution_pb2.ExchangeResponse, field)


class FakeStream:
    """Reads calls and writes the worker's results."""

    def __init__(self, worker: FakeWorker, context: Any) -> None:
        self._worker = worker
        self._context = context
        self._wake = asyncio.Event()
        self._assembler = Assembler(MAX_ARGUMENTS, MAX_CALLS_IN_FLIGHT)
        self._tasks: dict[int, asyncio.Task[None]] = {}
        self._outbox = Outbox(self._wake.set)

    def has(self, call_id: int) -> bool:
        return call_id in self._tasks

    def put(self, field: str, message: Any) -> None:
        self._outbox.put(frame(_tag(field), message))

    async def run(self, requests: AsyncIterator[execution_pb2.ExchangeRequest]) -> None:
        writer = asyncio.create_task(self._write())
        try:
            async for message in requests:
                self._take(message)
        finally:
            writer.cancel()
            for task in self._tasks.values():
                task.cancel()

    async def _write(self) -> None:
        info = execution_pb2.WorkerInfo(
            id=self._worker.id, protocol_version=self._worker.protocol_version
        )
        await self._context.write(execution_pb2.ExchangeResponse(worker=info))
        while True:
            await self._wake.wait()
            self._wake.clear()
            while self._outbox:
                batch = execution_pb2.ExchangeResponse.FromString(self._outbox.next_batch())
                await self._context.write(batch)

    def _take(self, message: execution_pb2.ExchangeRequest) -> None:
        worker = self._worker
        worker.batches.append(message)
        for chunk in message.chunks:
            self._assembler.add(chunk)
        for sent in message.calls:
            call = read_call(sent)
            worker.calls.append(call)
            arguments = self._assembler.take(call.id, call.arguments)
            fault = worker.faults.pop(0) if worker.faults else None
            self._tasks[call.id] = asyncio.create_task(self._answer(call, arguments, fault))
        for answer in message.answers:
            worker.take_answer(answer)
        for cancel in message.cancels:
            worker.cancels.append(cancel)
            if cancel.call_id in self._tasks:
                self._tasks[cancel.call_id].cancel()
        if message.HasField("keep_alive") and not worker.silent:
            self.put("keep_alive", worker.renew(message.keep_alive))

    async def _answer(self, call: ReceivedCall, arguments: bytes, fault: Fault | None) -> None:
        worker = self._worker
        result = execution_pb2.Result(call_id=call.id)
        with contextlib.suppress(asyncio.CancelledError):
            try:
                if fault is not None:
                    raise fault
                if call.server_id == "mcp_admin":
                    answered: Any = worker.release_by_tool(call, arguments)
                else:
                    self._lease(call, result)
                    answered = worker.answer(worker, call, arguments)
                payload = answered if isinstance(answered, bytes) else await answered
            except Fault as refused:
                result.status.CopyFrom(status_from_fault(refused))
                self.put("results", result)
                return
            result.is_error = b'"isError": true' in payload
            if len(payload) > BATCH_SIZE:
                self._outbox.put_large(frame(_tag("results"), result), call.id, payload)
            else:
                result.payload = payload
                self.put("results", result)

    def _lease(self, call: ReceivedCall, result: execution_pb2.Result) -> None:
        worker = self._worker
        if call.lease_id:
            worker.check(call.lease_id)
        elif call.server_id in worker.stateful:
            lease, created = worker.grant(call.session, call.server_id, call.tenant, call.acquirer)
            result.lease.CopyFrom(lease)
            result.is_new_lease = created
