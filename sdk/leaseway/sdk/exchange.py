"""One exchange stream to one worker: many calls, batched both ways (DESIGN §6).

A writer task sends everything queued at that moment as one message; a reader task hands results
to the futures of their calls inline. There is no task a call. When the stream ends, each call
still waiting fails by what is known of it: `WORKER_LOST` where its frame never left (another try
is safe), else `FATE_UNKNOWN`.

This is the transport of calls only: it knows neither names nor leases nor retries.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import Callable
from typing import Any, Final

import grpc

from leaseway.sdk import call_faults
from leaseway.sdk.events import CallEvents
from leaseway.sdk.grpc_faults import fault_of_worker, is_end
from leaseway.v1 import catalog_pb2, execution_pb2, execution_pb2_grpc, leases_pb2
from leaseway.wire.bounds import BATCH_SIZE, MAX_CALLS_IN_FLIGHT, MAX_RESULT
from leaseway.wire.deadlines import Deadlines
from leaseway.wire.fault import Fault
from leaseway.wire.outbox import Assembler, Outbox, OversizePayload
from leaseway.wire.version import PROTOCOL_VERSION

__all__ = ["Exchange", "Reply"]

Reply = tuple[execution_pb2.Result, bytes]
"""The frame that ended a call, and its payload put together."""
_Pending = tuple[asyncio.Future[Reply], execution_pb2.Call, CallEvents | None]

_CALL_OVERHEAD: Final = 256
"""Rough bytes of a call beside its arguments: ids, names, trace context."""
_GREETING_BOUND: Final = 0.5
"""Seconds that a worker is given to speak first."""


class Exchange:
    """One stream; made open, in a running event loop.

    Args:
        stub: The worker's service.
        metadata: What to send with the stream, the credential.
        hello: Who calls.
        worker: The worker's id, for messages.
        on_end: Called once, when the stream has ended.

    Attributes:
        pending: The calls in flight, by call id.
        going_away: Whether the worker takes no more calls.
        ended: Whether the stream has ended.
    """

    def __init__(
        self,
        stub: execution_pb2_grpc.ExecutionServiceAsyncStub,
        metadata: tuple[tuple[str, str], ...],
        hello: catalog_pb2.ClientInfo,
        worker: str,
        on_end: Callable[[Exchange], None],
    ) -> None:
        self.pending: dict[int, _Pending] = {}
        self.going_away = False
        self.ended = False
        self._worker = worker
        self._hello = hello
        self._on_end = on_end
        self._loop = asyncio.get_running_loop()
        self._last_id = 0
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._granted = 0
        self._renewal: asyncio.Future[leases_pb2.KeepAliveResponse] | None = None
        self._heard = False
        self._closed = False
        self._wake = asyncio.Event()
        self._outbox: Outbox[execution_pb2.ExchangeRequest] = Outbox(
            execution_pb2.ExchangeRequest, self._wake.set
        )
        self._deadlines = Deadlines(self._loop, self.pending, self._expire)
        self._assembler = Assembler(MAX_RESULT, MAX_CALLS_IN_FLIGHT)
        self._stream = stub.Exchange(metadata=metadata)
        self._task = self._loop.create_task(self._run(), name=f"leaseway exchange {worker}")

    @property
    def load(self) -> int:
        """Calls in flight or waiting for room."""
        return len(self.pending) + len(self._waiting)

    async def call(
        self,
        frame: execution_pb2.Call,
        payload: bytes,
        deadline: float,
        events: CallEvents | None = None,
    ) -> Reply:
        """Send a call and wait for its end.

        Cancelling the waiting task tells the worker. So does the deadline, and neither waits
        for what the worker makes of it.

        Args:
            frame: The call without id and arguments; both are set here.
            payload: The arguments as UTF-8 JSON.
            deadline: When to give up, in the event loop's time.
            events: Takes the progress and log messages that the frame asks for.

        Raises:
            Fault: The deadline passed, or the stream was lost.

        """
        pending = self.pending
        if len(pending) + self._granted >= MAX_CALLS_IN_FLIGHT or self._waiting:
            await self._wait_for_room(deadline)
        if self.ended:
            raise self._lost(sent=False, cause=None)
        if self.going_away:
            raise call_faults.left(self._worker)
        self._last_id = call_id = self._last_id + 1
        frame.id = call_id
        future: asyncio.Future[Reply] = self._loop.create_future()
        pending[call_id] = (future, frame, events)
        self._deadlines.add(deadline, call_id)
        if len(payload) <= BATCH_SIZE:
            frame.arguments = payload
            self._outbox.put("calls", frame, len(payload) + _CALL_OVERHEAD)
        else:
            self._outbox.put_large("calls", frame, call_id, payload)
        try:
            return await future
        except asyncio.CancelledError:
            self._abandon(call_id, "The caller was cancelled.")
            if future.done() and not future.cancelled():
                future.exception()  # seen, so that the loop does not report it as forgotten
            raise

    async def keep_alive(self, lease_ids: list[str]) -> leases_pb2.KeepAliveResponse:
        """Renew leases and wait for what became of them. One request at a time.

        Raises:
            Fault: The stream was lost first.

        """
        if self.ended:
            raise self._lost(sent=False, cause=None)
        self._renewal = self._loop.create_future()
        frame = leases_pb2.KeepAliveRequest(lease_ids=lease_ids)
        self._outbox.put("keep_alive", frame, frame.ByteSize())
        try:
            return await self._renewal
        finally:
            self._renewal = None

    async def close(self) -> None:
        """End the stream; calls in flight fail as cancelled."""
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)

    def abort(self) -> None:
        """Begin to end the stream, without waiting."""
        self._task.cancel()

    async def _wait_for_room(self, deadline: float) -> None:
        turn: asyncio.Future[None] = self._loop.create_future()
        self._waiting.append(turn)
        try:
            async with asyncio.timeout_at(deadline):
                await turn
        except TimeoutError:
            raise call_faults.no_room(self._worker) from None
        finally:
            if turn in self._waiting:
                self._waiting.remove(turn)
            else:
                self._granted -= 1
                # Whoever had this turn but does not use it passes it on.
                self._loop.call_soon(self._give_turns)

    def _give_turns(self) -> None:
        """Let waiting calls go in order; after the end all of them, to learn of it."""
        while self._waiting and (
            self.ended or len(self.pending) + self._granted < MAX_CALLS_IN_FLIGHT
        ):
            turn = self._waiting.popleft()
            self._granted += 1
            if not turn.done():
                turn.set_result(None)

    def _expire(self, call_id: int) -> None:
        future, frame, _ = self.pending[call_id]
        sent = self._abandon(call_id, "The caller's timeout passed.")
        if not future.done():
            future.set_exception(call_faults.late(self._worker, frame, sent))

    def _abandon(self, call_id: int, reason: str) -> bool:
        """Stop waiting for a call; return whether its frame may have left."""
        entry = self.pending.pop(call_id, None)
        if entry is None:
            return True
        frame = entry[1]
        self._assembler.drop(call_id)
        sent = not self._outbox.withdraw(frame)
        # A frame with arguments of its own that has not left needs no word; chunks may have.
        if not self.ended and (sent or not frame.arguments):
            cancel = execution_pb2.Cancel(call_id=call_id, reason=reason)
            self._outbox.put("cancels", cancel, 64)
        if self._waiting:
            self._give_turns()
        return sent

    async def _run(self) -> None:
        cause: Fault | None = None
        writer: asyncio.Task[None] | None = None
        try:
            await self._open()
            writer = self._loop.create_task(self._write())
            await self._read()
        except grpc.aio.AioRpcError as error:
            # One that has said goodbye ends the stream while this side may be writing to it.
            if not (self.going_away and is_end(error)):
                cause = fault_of_worker(error, self._worker)
        except Fault as fault:
            cause = fault
        except asyncio.CancelledError:
            self._closed = True
        finally:
            if writer is not None:
                writer.cancel()
            self._stream.cancel()
            self._end(cause)

    async def _open(self) -> None:
        """Wait until the worker has taken the stream, or refused it.

        A worker speaks first. Writing before that, to a stream that it is about to refuse, would
        make gRPC replace the reason with an error of its own. One that stays silent is written
        to all the same.
        """
        await self._stream.wait_for_connection()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_GREETING_BOUND):
                await self._stream.initial_metadata()

    async def _write(self) -> None:
        """Send batches until the stream ends; how it ended is the reader's to say."""
        outbox, wake, write = self._outbox, self._wake, self._stream.write
        first = execution_pb2.ExchangeRequest(client=self._hello)
        try:
            await write(first)
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
            if not self._heard:
                self._greet(message)
            self._dispatch(message)

    def _greet(self, message: execution_pb2.ExchangeResponse) -> None:
        self._heard = True
        theirs = message.worker.protocol_version
        if theirs not in (0, PROTOCOL_VERSION):
            package = message.worker.package_version
            raise call_faults.other_version(self._worker, package, theirs, PROTOCOL_VERSION)

    def _dispatch(self, message: execution_pb2.ExchangeResponse) -> None:
        pending = self.pending
        for chunk in message.chunks:
            if chunk.call_id in pending:
                self._assembler.add(chunk)
        if message.progress or message.logs:
            self._note_events(message)
        for result in message.results:
            call_id = result.call_id
            entry = pending.pop(call_id, None)
            if entry is None or entry[0].done():
                continue  # nobody waits for it any more
            try:
                entry[0].set_result((result, self._assembler.take(call_id, result.payload)))
            except OversizePayload as error:
                entry[0].set_exception(call_faults.too_large(self._worker, error))
        if self._waiting:
            self._give_turns()
        renewal = self._renewal
        if message.HasField("keep_alive") and renewal is not None and not renewal.done():
            renewal.set_result(message.keep_alive)
        if message.HasField("going_away"):
            self.going_away = True

    def _note_events(self, message: execution_pb2.ExchangeResponse) -> None:
        for report in message.progress:
            entry = self.pending.get(report.call_id)
            if entry is not None and entry[2] is not None:
                entry[2].take_progress(report)
        for log in message.logs:
            entry = self.pending.get(log.call_id)
            if entry is not None and entry[2] is not None:
                entry[2].take_log(log)

    def _end(self, cause: Fault | None) -> None:
        self.ended = True
        unsent: set[int] = {frame.id for frame in self._outbox.unsent("calls")}  # type: ignore[attr-defined]
        self._deadlines.close()
        for call_id, (future, _, _) in self.pending.items():
            if not future.done():
                future.set_exception(self._lost(call_id not in unsent, cause))
        self.pending.clear()
        if self._renewal is not None and not self._renewal.done():
            self._renewal.set_exception(self._lost(sent=False, cause=cause))
        self._give_turns()
        self._on_end(self)

    def _lost(self, sent: bool, cause: Fault | None) -> Fault:
        if self._closed:
            return call_faults.closed(sent)
        # A stream whose worker leaves ends in order with its last result: no call beyond that
        # was begun.
        if self.going_away and cause is None:
            return call_faults.left(self._worker)
        return call_faults.lost(self._worker, sent=sent, heard=self._heard, cause=cause)
