"""An exchange with one worker: many calls, each of which waits for its result (design.md#calls).

Calls have no tasks. When the exchange ends, each call in flight fails: `WORKER_LOST` if it was
never sent (another try is safe), else `FATE_UNKNOWN`. How messages reach the worker is left to
`GrpcExchange` and, in the worker's own process, to `local_exchange`.

An exchange only transports calls. Names, leases and retries are handled by its callers.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable
from contextvars import Context
from typing import Any, Final

import grpc

from leaseway.sdk.transport import faults
from leaseway.sdk.transport.events import CallEvents
from leaseway.sdk.transport.in_flight import AwaitedCall, BeginningCall, InFlightCall, RawResult
from leaseway.sdk.transport.server_requests import ServerRequest
from leaseway.v1 import catalog_pb2, execution_pb2, leases_pb2
from leaseway.wire.bounds import BATCH_SIZE, MAX_CALLS_IN_FLIGHT, MAX_RESULT
from leaseway.wire.channels.replaceable_channel import RpcCutOff
from leaseway.wire.errors import Fault
from leaseway.wire.messages.frames import (
    Assembler,
    Outbox,
    OversizePayload,
    call_frame,
    frame,
    frame_tag,
)
from leaseway.wire.timing.deadlines import Deadlines
from leaseway.wire.timing.running_tasks import is_cancelled, start_lasting_task
from leaseway.wire.version import PROTOCOL_VERSION

_SERVICE: Final = execution_pb2.DESCRIPTOR.services_by_name["ExecutionService"].full_name
_TAGS: Final = {
    field: frame_tag(execution_pb2.ExchangeRequest, field)
    for field in ("answers", "cancels", "keep_alive", "going_away")
}
_GREETING_TIMEOUT: Final = 0.5
"""Seconds to wait for the worker's first metadata before the client writes."""

_logger = logging.getLogger(__name__)

OnNotification = Callable[[execution_pb2.ServerNotification], None]
OnLeaseEnd = Callable[[leases_pb2.LeaseRenewal], None]


def ignore_notification(_notification: execution_pb2.ServerNotification) -> None:
    """Ignore a notification that belongs to no call."""


def ignore_lease_end(_end: leases_pb2.LeaseRenewal) -> None:
    """Ignore the end of a lease: its next renewal tells it."""


class Exchange(ABC):
    """The exchange with one run of a worker; created in a running event loop, it opens at once.

    Args:
        worker: The worker's id, for messages.
        on_end: Called once, when the exchange has ended.
        on_notification: Called with the notifications of leased servers that belong to no call.
        on_lease_end: Called with leases that have ended at the worker.

    Attributes:
        pending: The calls in flight, by call id.
        going_away: Whether the worker accepts no new calls.
        ended: Whether the exchange has ended.
        suspect: Whether the worker may be stalled: a call timed out or the stream broke, and no
            message has arrived since.
    """

    def __init__(
        self,
        worker: str,
        on_end: Callable[[Exchange], None],
        on_notification: OnNotification = ignore_notification,
        on_lease_end: OnLeaseEnd = ignore_lease_end,
    ) -> None:
        self._on_notification = on_notification
        self._on_lease_end = on_lease_end
        self.pending: dict[int, InFlightCall] = {}
        self.going_away = False
        self.ended = False
        self.suspect = False
        self._worker = worker
        self._on_end = on_end
        self._loop = asyncio.get_running_loop()
        self._last_id = 0
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._granted = 0
        self._renewal: asyncio.Future[leases_pb2.KeepAliveResponse] | None = None
        self._unwanted_renewals = 0
        self._accepted = False
        self._said_goodbye = False
        self._closed = False
        self._deadlines = Deadlines(self._loop, self.pending, self._expire)

    @abstractmethod
    async def _carry(self) -> None:
        """Carry messages both ways until the exchange ends; raises a Fault if that is no end."""

    @abstractmethod
    def _send_call(self, call_id: int, fields: bytes, payload: bytes, timeout_ms: int) -> int:
        """Send a call, now or once the exchange is open; return a ticket to withdraw it."""

    @abstractmethod
    def _withdraw(self, ticket: int) -> bool:
        """Take back a call that was not sent; return whether it was not."""

    @abstractmethod
    def _holds(self, ticket: int) -> bool:
        """Return whether a call was not sent yet."""

    @abstractmethod
    def _send(self, field: str, message: Any) -> None:
        """Send a message other than a call, in its field of `ExchangeRequest`."""

    @abstractmethod
    def _forget(self, call_id: int) -> None:
        """Drop what has arrived of the result of a call that is given up."""

    def _is_silent_since(self, _call_id: int) -> bool:
        """Return whether nothing has arrived from the worker since a call was sent."""
        return False

    @property
    def load(self) -> int:
        """Number of calls that are in flight or wait for a slot."""
        return len(self.pending) + len(self._waiting)

    @property
    def idle(self) -> bool:
        """Whether neither a call nor a renewal of leases is in flight."""
        return self._renewal is None and not self.load

    async def call(
        self,
        fields: bytes,
        payload: bytes,
        deadline: float,
        what: str,
        events: CallEvents | None = None,
    ) -> RawResult:
        """Send a call and wait for its result.

        If the task is cancelled or the deadline passes, a cancellation is sent to the worker, and
        its response is not awaited.

        Args:
            fields: A serialized `Call` without id, arguments and timeout; see `call_frame`.
            payload: The arguments as UTF-8 JSON.
            deadline: The call's deadline, in the event loop's time.
            what: The tool, prompt or resource, for messages.
            events: Handles the progress, log messages and server requests of the call.

        Raises:
            Fault: The deadline passed, or the exchange ended.
        """
        pending = self.pending
        if len(pending) + self._granted >= MAX_CALLS_IN_FLIGHT or self._waiting:
            await self._wait_for_slot(deadline)
        if self.ended:
            raise self._lost_fault(sent=False, cause=None)
        if self.going_away:
            raise faults.worker_draining(self._worker)
        self._last_id = call_id = self._last_id + 1
        timeout_ms = max(1, int((deadline - self._loop.time()) * 1000))
        reply: asyncio.Future[RawResult] = self._loop.create_future()
        # In the table before it is sent: in this process its result may be there at once.
        call = AwaitedCall(reply, what, events, chunked=len(payload) > BATCH_SIZE)
        pending[call_id] = call
        self._deadlines.add(deadline, call_id)
        call.ticket = self._send_call(call_id, fields, payload, timeout_ms)
        try:
            return await reply
        except asyncio.CancelledError:
            self.abandon(call_id, (events or CallEvents).cancel_reason)
            if reply.done() and not reply.cancelled():
                reply.exception()  # retrieved, so that the loop does not report it as unhandled
            raise

    def begin(
        self,
        fields: bytes,
        payload: bytes,
        deadline: float,
        timeout_ms: int,
        call: BeginningCall,
    ) -> bool:
        """Send a call whose outcome is set on its `reply`, perhaps before this returns.

        Return False, without a call, if it would have to wait or to fail. The other arguments are
        those of `call`, and the milliseconds until the deadline.
        """
        pending = self.pending
        if self.ended or self.going_away or self._waiting:
            return False
        if len(pending) + self._granted >= MAX_CALLS_IN_FLIGHT:
            return False
        self._last_id = call_id = call.call_id = self._last_id + 1
        pending[call_id] = call
        self._deadlines.add(deadline, call_id)
        try:
            call.ticket = self._send_call(call_id, fields, payload, timeout_ms)
        except BaseException:
            pending.pop(call_id, None)  # whoever catches it makes the call in another way
            raise
        return True

    def hand_over(self, call_id: int) -> asyncio.Future[RawResult]:
        """Return a future that gets the outcome of a call in flight, in place of its `reply`."""
        call = self.pending[call_id]
        reply: asyncio.Future[RawResult] = self._loop.create_future()
        self.pending[call_id] = AwaitedCall(
            reply=reply,
            what=call.what,
            events=call.events,
            chunked=call.chunked,
            ticket=call.ticket,
        )
        return reply

    async def keep_alive(
        self, lease_ids: list[str], sessions: list[str]
    ) -> leases_pb2.KeepAliveResponse:
        """Renew leases and wait for the response. Only one caller may wait.

        Args:
            sessions: The session of each lease.

        Raises:
            Fault: The stream was lost first.
        """
        if self.ended or self._said_goodbye:
            raise self._lost_fault(sent=False, cause=None)
        self._renewal = self._loop.create_future()
        renewal = self._renewal
        request = leases_pb2.KeepAliveRequest(lease_ids=lease_ids, sessions=sessions)
        self._send("keep_alive", request)
        try:
            return await renewal
        except asyncio.CancelledError:
            if renewal.cancelled():  # the answer is still to come, and none to the next request
                self._unwanted_renewals += len(lease_ids)
            raise
        finally:
            self._renewal = None

    def _start(self, name: str) -> None:
        """Carry messages in a task from now on; the end of a subclass's constructor."""
        self._task = start_lasting_task(self._run(), name)
        self._task.add_done_callback(self._on_task_end)

    def _on_task_end(self, task: asyncio.Task[None]) -> None:
        """End the exchange also if its task was cancelled before its first step."""
        if task.cancelled():
            self._closed = True
        self._end(None)

    async def close(self) -> None:
        """End the exchange; calls in flight fail as cancelled."""
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)

    def abort(self) -> None:
        """Start ending the exchange, without waiting."""
        self._task.cancel()

    async def _wait_for_slot(self, deadline: float) -> None:
        slot: asyncio.Future[None] = self._loop.create_future()
        self._waiting.append(slot)
        try:
            async with asyncio.timeout_at(deadline):
                await slot
        except TimeoutError:
            raise faults.no_slot(self._worker) from None
        finally:
            if slot in self._waiting:
                self._waiting.remove(slot)
            else:
                self._granted -= 1
                # If this call was cancelled, its slot is passed on.
                self._loop.call_soon(self._grant_slots)

    def _grant_slots(self) -> None:
        """Grant slots to waiting calls in order; to all if the stream ended, so that they fail."""
        while self._waiting and (
            self.ended or len(self.pending) + self._granted < MAX_CALLS_IN_FLIGHT
        ):
            slot = self._waiting.popleft()
            self._granted += 1
            if not slot.done():
                slot.set_result(None)

    def _expire(self, call_id: int) -> None:
        call = self.pending[call_id]
        if self._is_silent_since(call_id):
            self.suspect = True
        sent = self.abandon(call_id, "The caller's timeout passed.", timed_out=True)
        if not call.reply.done():
            call.reply.set_exception(faults.deadline_passed(self._worker, call.what, sent))

    def abandon(self, call_id: int, reason: str, *, timed_out: bool = False) -> bool:
        """Give up a call, with a reason for its server; return whether it may have been sent.

        Nothing is set on its reply.
        """
        call = self.pending.pop(call_id, None)
        if call is None:
            return True
        self._forget(call_id)
        sent = not self._withdraw(call.ticket)
        # A call that was never sent needs no cancellation, unless chunks of it were sent.
        if not (self.ended or self._said_goodbye) and (sent or call.chunked):
            cancel = execution_pb2.Cancel(call_id=call_id, reason=reason, timed_out=timed_out)
            self._send("cancels", cancel)
        if self._waiting:
            self._grant_slots()
        return sent

    async def _run(self) -> None:
        """Carry messages until the exchange ends, then fail the calls in flight."""
        cause: Fault | None = None
        try:
            await self._carry()
        except Fault as fault:
            cause = fault
        except asyncio.CancelledError:
            if is_cancelled():
                self._closed = True
            else:
                cause = faults.fault_of_worker(RpcCutOff(), self._worker)
        except Exception:
            _logger.exception("The stream to worker %s failed in this client.", self._worker)
            cause = faults.stream_failed(self._worker)
        finally:
            self._end(cause)

    def _handle_control(self, message: execution_pb2.ExchangeResponse) -> None:
        """Handle what a message says about leases and about the exchange itself."""
        if message.HasField("keep_alive"):
            self._handle_renewals(message.keep_alive)
        if message.HasField("going_away"):
            self.going_away = True
            self._fail_unsent()
            if message.going_away.last and not self._said_goodbye:
                self._said_goodbye = True
                self._send("going_away", execution_pb2.GoingAway())

    def _handle_renewals(self, answer: leases_pb2.KeepAliveResponse) -> None:
        # In the order of the requests, an entry for each lease; those in a batch are one message.
        unwanted = min(self._unwanted_renewals, len(answer.renewals))
        self._unwanted_renewals -= unwanted
        del answer.renewals[:unwanted]
        is_wanted = not unwanted or len(answer.renewals) > 0
        if is_wanted and self._renewal is not None and not self._renewal.done():
            self._renewal.set_result(answer)

    def _handle_events(self, message: execution_pb2.ExchangeResponse) -> None:
        """Pass what servers say before a result, or to no call, to those that it concerns."""
        for report in message.progress:
            events = self._events(report.call_id)
            if events is not None:
                events.handle_progress(report)
        for log in message.logs:
            events = self._events(log.call_id)
            if events is not None:
                events.handle_log(log)
        for update in message.updates:
            events = self._events(update.call_id)
            if events is not None:
                events.handle_update(update)
        for ask in message.asks:
            self._handle_ask(ask)
        for withdrawal in message.withdrawals:
            events = self._events(withdrawal.call_id)
            if events is not None:
                events.handle_withdrawal(withdrawal.ask_id)
        for notification in message.notifications:
            self._on_notification(notification)
        for end in message.lease_ends:
            self._on_lease_end(end)

    def _handle_ask(self, ask: execution_pb2.Ask) -> None:
        if ask.call_id not in self.pending:
            return
        request = ServerRequest(ask, self._send_answer)
        events = self._events(ask.call_id)
        if events is None:
            request.reject("This caller answers no requests.")
        else:
            events.handle_request(request)

    def _events(self, call_id: int) -> CallEvents | None:
        call = self.pending.get(call_id)
        return call.events if call is not None else None

    def _send_answer(self, answer: execution_pb2.Answer) -> None:
        """Send an answer, unless its call has ended."""
        if answer.call_id in self.pending:
            self._send("answers", answer)

    def _fail_unsent(self) -> None:
        """Fail the calls that were not sent yet: their worker would reject them."""
        for call_id, call in list(self.pending.items()):
            if self._holds(call.ticket):
                self.abandon(call_id, "Its worker is shutting down.")
                if not call.reply.done():
                    call.reply.set_exception(faults.worker_draining(self._worker))

    def _end(self, cause: Fault | None) -> None:
        if self.ended:
            return
        self.ended = True
        self.suspect = self.suspect or cause is not None
        self._deadlines.close()
        for call in self.pending.values():
            if not call.reply.done():
                sent = not self._holds(call.ticket)
                call.reply.set_exception(self._lost_fault(sent, cause))
        self.pending.clear()
        if self._renewal is not None and not self._renewal.done():
            self._renewal.set_exception(self._lost_fault(sent=False, cause=cause))
        self._grant_slots()
        self._on_end(self)

    def _lost_fault(self, sent: bool, cause: Fault | None) -> Fault:
        if self._closed:
            return faults.client_closed(sent)
        # The stream of a draining worker ends with status OK after its last result, so the worker
        # started none of the remaining calls.
        if self.going_away and cause is None:
            return faults.worker_draining(self._worker)
        return faults.stream_lost(self._worker, sent=sent, accepted=self._accepted, cause=cause)


class GrpcExchange(Exchange):
    """One stream over gRPC: calls are batched in both directions (design.md#calls).

    A writer task sends all queued frames as one message; a reader task sets the results of the
    calls' futures.

    Args:
        channel: The channel to the worker.
        metadata: gRPC metadata of the stream: the credential.
        hello: The client's first message.
    """

    def __init__(
        self,
        channel: grpc.aio.Channel,
        metadata: tuple[tuple[str, str], ...],
        hello: catalog_pb2.ClientInfo,
        worker: str,
        on_end: Callable[[Exchange], None],
        on_notification: OnNotification = ignore_notification,
        on_lease_end: OnLeaseEnd = ignore_lease_end,
    ) -> None:
        super().__init__(worker, on_end, on_notification, on_lease_end)
        self._hello = hello
        self._last_id_at_read = 0
        self._wake = asyncio.Event()
        self._outbox = Outbox(self._wake.set)
        self._assembler = Assembler(MAX_RESULT, MAX_CALLS_IN_FLIGHT)
        # The outbox serializes batches itself; the generated stub would expect messages.
        method: Any = channel.stream_stream(
            f"/{_SERVICE}/Exchange",
            request_serializer=None,
            response_deserializer=execution_pb2.ExchangeResponse.FromString,
        )
        # gRPC starts tasks in it, which last as `start_lasting_task` says.
        self._stream: Any = Context().run(method, metadata=metadata)
        self._start(f"leaseway exchange {worker}")

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
        has_outside = message.notifications or message.lease_ends
        if has_events or message.withdrawals or has_outside:
            self._handle_events(message)
        for result in message.results:
            call_id = result.call_id
            call = pending.pop(call_id, None)
            if call is None or (reply := call.reply).done():
                continue  # the call was cancelled
            try:
                payload = self._assembler.take(call_id, result.payload)
            except OversizePayload as error:
                reply.set_exception(faults.result_too_large(self._worker, error))
            else:
                reply.set_result((result, payload))
        if self._waiting:
            self._grant_slots()
        self._handle_control(message)
