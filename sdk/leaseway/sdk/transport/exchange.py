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
import logging
from collections import deque
from collections.abc import Callable
from typing import Any, Final

import grpc

from leaseway.sdk.transport import exchange_errors as call_faults
from leaseway.sdk.transport.events import CallEvents, SideFrames
from leaseway.sdk.transport.grpc_errors import fault_of_worker
from leaseway.v1 import catalog_pb2, execution_pb2, leases_pb2
from leaseway.wire.bounds import BATCH_SIZE, MAX_CALLS_IN_FLIGHT, MAX_RESULT
from leaseway.wire.errors import Fault
from leaseway.wire.messages.frames import call_frame, frame, frame_tag
from leaseway.wire.messages.outbox import Assembler, Outbox, OversizePayload
from leaseway.wire.timing.deadlines import Deadlines
from leaseway.wire.version import PROTOCOL_VERSION

Reply = tuple[execution_pb2.Result, bytes]
"""The frame that ended a call, and its payload put together."""

_logger = logging.getLogger(__name__)
_SERVICE: Final = execution_pb2.DESCRIPTOR.services_by_name["ExecutionService"].full_name
_CANCELS: Final = frame_tag(execution_pb2.ExchangeRequest, "cancels")
_KEEP_ALIVE: Final = frame_tag(execution_pb2.ExchangeRequest, "keep_alive")
_GREETING_BOUND: Final = 0.5
"""Seconds that a worker is given to speak first."""


class _Pending:
    """A call in flight."""

    __slots__ = ("chunked", "events", "reply", "ticket", "what")

    def __init__(
        self,
        reply: asyncio.Future[Reply],
        ticket: int,
        chunked: bool,
        what: str,
        events: CallEvents | None,
    ) -> None:
        self.reply = reply
        self.ticket = ticket
        self.chunked = chunked
        self.what = what
        self.events = events


class Exchange:
    """One stream; made open, in a running event loop.

    Args:
        channel: Leads to the worker.
        metadata: What to send with the stream, the credential.
        hello: Who calls.
        worker: The worker's id, for messages.
        on_end: Called once, when the stream has ended.

    Attributes:
        pending: The calls in flight, by call id.
        going_away: Whether the worker takes no more calls.
        ended: Whether the stream has ended.
        suspect: Whether the worker may stand still: a call's time passed, or the stream broke, and
            nothing was heard from it since.
    """

    def __init__(
        self,
        channel: grpc.aio.Channel,
        metadata: tuple[tuple[str, str], ...],
        hello: catalog_pb2.ClientInfo,
        worker: str,
        on_end: Callable[[Exchange], None],
    ) -> None:
        self.pending: dict[int, _Pending] = {}
        self.going_away = False
        self.ended = False
        self.suspect = False
        self._worker = worker
        self._hello = hello
        self._on_end = on_end
        self._loop = asyncio.get_running_loop()
        self._last_id = 0
        self._last_id_when_heard = 0
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._granted = 0
        self._renewal: asyncio.Future[leases_pb2.KeepAliveResponse] | None = None
        self._heard = False
        self._closed = False
        self._wake = asyncio.Event()
        self._outbox = Outbox(self._wake.set)
        self._deadlines = Deadlines(self._loop, self.pending, self._expire)
        self._assembler = Assembler(MAX_RESULT, MAX_CALLS_IN_FLIGHT)
        self._side_frames = SideFrames(self.pending, self._outbox)
        # Batches are written as they are; the generated stub would take messages.
        self._stream: Any = channel.stream_stream(
            f"/{_SERVICE}/Exchange",
            request_serializer=None,
            response_deserializer=execution_pb2.ExchangeResponse.FromString,
        )(metadata=metadata)
        self._task = self._loop.create_task(self._run(), name=f"leaseway exchange {worker}")

    @property
    def load(self) -> int:
        """Calls in flight or waiting for room."""
        return len(self.pending) + len(self._waiting)

    async def call(
        self,
        head: bytes,
        payload: bytes,
        deadline: float,
        what: str,
        events: CallEvents | None = None,
    ) -> Reply:
        """Send a call and wait for its end.

        Cancelling the waiting task tells the worker. So does the deadline, and neither waits
        for what the worker makes of it.

        Args:
            head: A serialized `Call` without id, arguments and timeout; see `call_frame`.
            payload: The arguments as UTF-8 JSON.
            deadline: When to give up, in the event loop's time.
            what: What is called, for messages.
            events: Takes the progress, log messages and questions of the call.

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
        timeout_ms = max(1, int((deadline - self._loop.time()) * 1000))
        chunked = len(payload) > BATCH_SIZE
        if chunked:
            last = call_frame(call_id, head, b"", timeout_ms)
            ticket = self._outbox.put_large(last, call_id, payload)
        else:
            ticket = self._outbox.put(call_frame(call_id, head, payload, timeout_ms))
        reply: asyncio.Future[Reply] = self._loop.create_future()
        pending[call_id] = _Pending(reply, ticket, chunked, what, events)
        self._deadlines.add(deadline, call_id)
        try:
            return await reply
        except asyncio.CancelledError:
            self._abandon(call_id, "The caller was cancelled.")
            if reply.done() and not reply.cancelled():
                reply.exception()  # seen, so that the loop does not report it as forgotten
            raise

    async def keep_alive(
        self, lease_ids: list[str], sessions: list[str]
    ) -> leases_pb2.KeepAliveResponse:
        """Renew leases and wait for what became of them. One request at a time.

        Args:
            lease_ids: Which.
            sessions: Who holds each of them.

        Raises:
            Fault: The stream was lost first.
        """
        if self.ended:
            raise self._lost(sent=False, cause=None)
        self._renewal = self._loop.create_future()
        request = leases_pb2.KeepAliveRequest(lease_ids=lease_ids, sessions=sessions)
        self._outbox.put(frame(_KEEP_ALIVE, request))
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
            raise call_faults.no_turn(self._worker) from None
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
        call = self.pending[call_id]
        if call_id > self._last_id_when_heard:
            self.suspect = True
        sent = self._abandon(call_id, "The caller's timeout passed.")
        if not call.reply.done():
            call.reply.set_exception(call_faults.late(self._worker, call.what, sent))

    def _abandon(self, call_id: int, reason: str) -> bool:
        """Stop waiting for a call; return whether its frame may have left."""
        call = self.pending.pop(call_id, None)
        if call is None:
            return True
        self._assembler.drop(call_id)
        sent = not self._outbox.withdraw(call.ticket)
        # What has not left needs no word, but chunks of it may have.
        if not self.ended and (sent or call.chunked):
            cancel = execution_pb2.Cancel(call_id=call_id, reason=reason)
            self._outbox.put(frame(_CANCELS, cancel))
        if self._waiting:
            self._give_turns()
        return sent

    async def _run(self) -> None:
        cause: Fault | None = None
        parts: list[asyncio.Task[None]] = []
        try:
            await self._open()
            parts = [self._loop.create_task(part()) for part in (self._read, self._write)]
            await self._until_end(*parts)
        except grpc.aio.AioRpcError as error:
            # Also of a worker that has said goodbye: where this side was writing as the stream
            # ended, gRPC tells neither whether it ended in order nor all that came before.
            cause = fault_of_worker(error, self._worker)
        except Fault as fault:
            cause = fault
        except asyncio.CancelledError:
            self._closed = True
        except Exception:
            _logger.exception("The stream to worker %s failed in this client.", self._worker)
            cause = call_faults.broken(self._worker)
        finally:
            for part in parts:
                part.cancel()
            self._stream.cancel()
            self._end(cause)

    async def _until_end(self, reader: asyncio.Task[None], writer: asyncio.Task[None]) -> None:
        """Wait for the reader, and no longer than the writer works: calls would pile up."""
        await asyncio.wait((reader, writer), return_when=asyncio.FIRST_COMPLETED)
        if writer.done():
            writer.result()
        await reader

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
            self._last_id_when_heard = self._last_id
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
        talk = message.progress or message.logs or message.asks or message.updates
        if talk or message.withdrawals:
            self._side_frames.take(message)
        for result in message.results:
            call_id = result.call_id
            call = pending.pop(call_id, None)
            if call is None or call.reply.done():
                continue  # nobody waits for it any more
            try:
                call.reply.set_result((result, self._assembler.take(call_id, result.payload)))
            except OversizePayload as error:
                call.reply.set_exception(call_faults.too_large(self._worker, error))
        if self._waiting:
            self._give_turns()
        renewal = self._renewal
        if message.HasField("keep_alive") and renewal is not None and not renewal.done():
            renewal.set_result(message.keep_alive)
        if message.HasField("going_away"):
            self.going_away = True
            self._keep_back()

    def _keep_back(self) -> None:
        """End the calls that have not left: their worker would refuse them."""
        for call_id, call in list(self.pending.items()):
            if self._outbox.holds(call.ticket):
                self._abandon(call_id, "Its worker ends.")
                if not call.reply.done():
                    call.reply.set_exception(call_faults.left(self._worker))

    def _end(self, cause: Fault | None) -> None:
        self.ended = True
        self.suspect = self.suspect or cause is not None
        self._deadlines.close()
        for call in self.pending.values():
            if not call.reply.done():
                sent = not self._outbox.holds(call.ticket)
                call.reply.set_exception(self._lost(sent, cause))
        self.pending.clear()
        if self._renewal is not None and not self._renewal.done():
            self._renewal.set_exception(self._lost(sent=False, cause=cause))
        self._give_turns()
        self._on_end(self)

    def _lost(self, sent: bool, cause: Fault | None) -> Fault:
        if self._closed:
            return call_faults.closed(sent)
        # A stream whose worker leaves ends in order, with status OK, after its last result: no
        # call beyond that was begun.
        if self.going_away and cause is None:
            return call_faults.left(self._worker)
        return call_faults.lost(self._worker, sent=sent, heard=self._heard, cause=cause)
