"""The exchange: any number of calls and results over one stream (DESIGN §6).

One reader handles frames as they come, one writer sends what the outbox holds. Nothing on the
way of a call awaits: results land in the outbox from the instances' callbacks.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Any, Final

import grpc

from leaseway.data_plane.core.arguments import oversize_arguments
from leaseway.data_plane.core.calls import Ask
from leaseway.data_plane.core.gathering import Gathering
from leaseway.data_plane.edge.executor import Executor
from leaseway.data_plane.edge.lease_keeper import LeaseKeeper
from leaseway.data_plane.edge.renewals import renew_all
from leaseway.data_plane.edge.run import Run
from leaseway.data_plane.edge.updates import Updates
from leaseway.v1 import catalog_pb2, execution_pb2, leases_pb2
from leaseway.wire import bounds
from leaseway.wire.client_version import check_client_version
from leaseway.wire.fault import Fault, abort, status_from_fault
from leaseway.wire.frames import frame, frame_tag, result_frame
from leaseway.wire.outbox import Assembler, Outbox, OversizePayload
from leaseway.wire.reasons import Reason
from leaseway.wire.version import PROTOCOL_VERSION, user_agent

__all__ = ["Context", "ExchangeStream"]

_logger = logging.getLogger(__name__)
_MAX_QUEUED: Final = 64 * bounds.MIB
"""With more than this waiting to be sent, the reader takes no further frames."""
_MOST_UNREAD: Final = 256 * bounds.MIB
"""With more than this waiting to be sent, the caller does not read and its stream is ended."""

_GATHERING: Final = 0.001
"""Seconds that results wait for others at most."""
_MOST_GATHERED: Final = 64 * bounds.KIB
"""With more than this waiting to be sent, none waits for others."""
_MOST_CHUNKED: Final = 32
"""Arguments in chunks that may be under way on one stream."""
_RESULTS: Final = frame_tag(execution_pb2.ExchangeResponse, "results")
_PROGRESS: Final = frame_tag(execution_pb2.ExchangeResponse, "progress")
_LOGS: Final = frame_tag(execution_pb2.ExchangeResponse, "logs")
_ASKS: Final = frame_tag(execution_pb2.ExchangeResponse, "asks")
_WITHDRAWALS: Final = frame_tag(execution_pb2.ExchangeResponse, "withdrawals")
_KEEP_ALIVE: Final = frame_tag(execution_pb2.ExchangeResponse, "keep_alive")
_GOING_AWAY: Final = frame_tag(execution_pb2.ExchangeResponse, "going_away")

Result = execution_pb2.Result
Context = grpc.aio.ServicerContext[Any, Any]
"""What gRPC gives a stream."""


class ExchangeStream:
    """One stream; the sink of its calls."""

    def __init__(
        self,
        context: Context,
        executor: Executor,
        leases: LeaseKeeper,
        lease_message: Callable[[Any], leases_pb2.Lease],
        worker: catalog_pb2.WorkerRef,
    ) -> None:
        self._context = context
        self._executor = executor
        self._meters = executor.meters
        self._leases = leases
        self._lease_message = lease_message
        self._worker = worker
        self._calls: dict[int, Run] = {}
        self._wake = asyncio.Event()
        self._room = asyncio.Event()
        self._room.set()
        self._outbox = Outbox(self._wake.set)
        self._gathering = Gathering(self._calls)
        self._calm = _MOST_UNREAD  # bytes that wait; with more, each result is looked at
        self._updates = Updates(self._outbox)
        self._chunks = Assembler(bounds.MAX_ARGUMENTS, _MOST_CHUNKED)
        self._refused_chunks: set[int] = set()
        self._no_more_calls = False
        self._breach: Fault | None = None
        self._writing = asyncio.timeout(None)

    async def serve(self) -> None:
        """Read and write until both sides are done; the stream's end cancels its calls."""
        reader = asyncio.get_running_loop().create_task(self._read(), name="exchange reader")
        try:
            async with self._writing:
                await self._write()
        except TimeoutError:
            if self._breach is None:
                raise
        finally:
            reader.cancel()
            for run in tuple(self._calls.values()):
                run.cancel("the caller's stream has ended")
            await asyncio.wait([reader])
        if self._breach is not None:
            self._outbox.clear()  # the abort may wait for as long as the caller does not read
            await abort(self._context, self._breach)

    @property
    def queued_bytes(self) -> int:
        """How much waits to be sent."""
        return self._outbox.queued_bytes

    def go_away(self, reason: str) -> None:
        """Say that no more calls are taken; the stream ends with its last result."""
        self._no_more_calls = True
        self._outbox.put(frame(_GOING_AWAY, execution_pb2.GoingAway(reason=reason)))
        self._wake.set()

    async def _read(self) -> None:
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
                if self._breach is not None:
                    break  # the writer ends the stream with it
                if self._outbox.queued_bytes > _MAX_QUEUED:
                    self._room.clear()
                    await self._room.wait()
        except Fault as fault:
            self._breach = fault
        except Exception:
            _logger.exception("Reading an exchange stream failed; the stream ends.")
            self._breach = Fault(
                Reason.INTERNAL, "The worker failed to read the stream.", "unknown"
            )
        finally:
            self._no_more_calls = True
            self._wake.set()

    def _handle(self, message: execution_pb2.ExchangeRequest) -> None:
        for chunk in message.chunks:
            self._take_chunk(chunk)
        for call in message.calls:
            self._begin(call)
        for answer in message.answers:
            run = self._calls.get(answer.call_id)
            if run is not None:  # of a call that has ended, nobody waits for it
                run.answer(answer)
        for cancel in message.cancels:
            self._cancel(cancel)
        if message.HasField("keep_alive"):
            self._outbox.put(frame(_KEEP_ALIVE, renew_all(self._leases, message.keep_alive)))
        if message.HasField("going_away"):
            self._no_more_calls = True
            self._wake.set()

    def _cancel(self, cancel: execution_pb2.Cancel) -> None:
        run = self._calls.get(cancel.call_id)
        if run is not None:
            run.cancel(cancel.reason[:256] or "the caller cancelled")
        else:  # of a call that has ended, or whose frame will never follow its chunks
            self._chunks.drop(cancel.call_id)
            self._refused_chunks.discard(cancel.call_id)

    def _take_chunk(self, chunk: execution_pb2.Chunk) -> None:
        if chunk.call_id in self._refused_chunks:
            return
        try:
            self._chunks.add(chunk)
        except OversizePayload:
            self._refused_chunks.add(chunk.call_id)
            if len(self._refused_chunks) > bounds.MAX_CALLS_IN_FLIGHT:
                self._breach = _too_many("chunked payloads", _MOST_CHUNKED)

    def _begin(self, call: execution_pb2.Call) -> None:
        call_id = call.id
        if call_id in self._calls or not call_id:
            self._breach = Fault(
                Reason.INVALID_REQUEST,
                f"Call id {call_id} is zero or in use; each call needs an id of its own.",
            )
            return
        try:
            arguments = self._arguments(call)
        except Fault as fault:
            self._refuse(call_id, fault)
            return
        if self._no_more_calls or len(self._calls) >= bounds.MAX_CALLS_IN_FLIGHT:
            self._refuse(call_id, self._why_not())
            return
        run = self._executor.begin(call, arguments, self)
        if not run.over:
            self._calls[call_id] = run

    def _arguments(self, call: execution_pb2.Call) -> bytes:
        if self._refused_chunks and call.id in self._refused_chunks:
            self._refused_chunks.discard(call.id)
            raise _too_many("chunked payloads", _MOST_CHUNKED)
        try:
            return self._chunks.take(call.id, call.arguments)
        except OversizePayload:
            raise oversize_arguments() from None

    def _why_not(self) -> Fault:
        if self._no_more_calls:
            return Fault(
                Reason.DRAINING,
                f"Worker {self._worker.id} or the caller has said goodbye on this stream; use "
                "another worker or stream.",
                retry_delay=0.1,
            )
        return _too_many("calls", bounds.MAX_CALLS_IN_FLIGHT)

    def _refuse(self, call_id: int, fault: Fault) -> None:
        if self._meters is not None:
            self._meters.call_refused(fault.reason)
        result = Result(call_id=call_id, status=status_from_fault(fault))
        self._outbox.put(frame(_RESULTS, result))

    def finish(self, run: Run, payload: bytes, is_error: bool) -> None:
        """Queue a call's result."""
        call_id = run.call.id
        self._calls.pop(call_id, None)
        lease = self._lease(run).SerializeToString() if run.lease is not None else b""
        if len(payload) <= bounds.BATCH_SIZE:
            self._put_result(result_frame(call_id, payload, is_error, lease))
            return
        last = result_frame(call_id, b"", is_error, lease)
        self._outbox.put_large(last, call_id, payload)
        if self._outbox.queued_bytes > _MOST_UNREAD:
            self._give_up()

    def _give_up(self) -> None:
        if self._breach is None:
            self._breach = Fault(
                Reason.OVERLOADED,
                f"More than {_MOST_UNREAD} bytes of results wait for this stream's caller, who "
                "does not read them; the stream ends and its calls are cancelled. Read results "
                "as they come.",
                "unknown",
            )
            # The writer waits for the caller; only an interruption ends that.
            self._writing.reschedule(asyncio.get_running_loop().time())

    def fail(self, run: Run, fault: Fault) -> None:
        """Queue why a call has no result."""
        call_id = run.call.id
        self._calls.pop(call_id, None)
        self._updates.forget(call_id)
        result = self._lease(run)
        result.call_id = call_id
        result.status.CopyFrom(status_from_fault(fault))
        self._put_result(frame(_RESULTS, result))

    def _put_result(self, result: bytes) -> None:
        outbox = self._outbox
        outbox.put(result)
        if outbox.queued_bytes > self._calm:
            self._look()

    def _look(self) -> None:
        """See whether a result ends the stream, or the wait for others."""
        if self._outbox.queued_bytes > _MOST_UNREAD:
            self._give_up()
        elif self._gathering.is_enough(len(self._outbox)):
            self._wake.set()

    def _lease(self, run: Run) -> execution_pb2.Result:
        """Return the part of a result that names the lease, where the caller could not know it."""
        result = Result()
        if run.lease is None:
            return result
        if run.is_new_lease:
            result.new_lease.CopyFrom(self._lease_message(run.lease))
        elif not run.call.lease_id and self._leases.get(run.lease.id) is not None:
            result.joined_lease.CopyFrom(self._lease_message(run.lease))
        return result

    def progress(self, run: Run, progress: float, total: float | None, message: str) -> None:
        """Queue a progress report; beyond the bound it is dropped, for a newer one will come."""
        if self._outbox.queued_bytes > _MAX_QUEUED:
            if self._meters is not None:
                self._meters.frame_dropped("progress")
            return
        report = execution_pb2.Progress(
            call_id=run.call.id, progress=progress, total=total, message=message
        )
        self._outbox.put(frame(_PROGRESS, report))

    def log(self, run: Run, level: str, logger: str, data: bytes) -> None:
        """Queue a server's log message; beyond the bound it is dropped, and the worker says so."""
        if self._outbox.queued_bytes > _MAX_QUEUED:
            if self._meters is not None:
                self._meters.frame_dropped("log")
            _logger.warning("A log message of server %s was dropped.", run.call.server_id)
            return
        said = execution_pb2.LogMessage(call_id=run.call.id, level=level, logger=logger, data=data)
        self._outbox.put(frame(_LOGS, said))

    def ask(self, run: Run, ask_id: int, ask: Ask) -> None:
        """Queue what a server asks; beyond the bound the server is told that it can't be asked."""
        if self._outbox.queued_bytes > _MAX_QUEUED:
            run.refuse(ask_id, "The caller does not read what is sent to it.")
            return
        question = execution_pb2.Ask(
            call_id=run.call.id, ask_id=ask_id, method=ask.method, params=ask.params
        )
        self._outbox.put(frame(_ASKS, question))

    def withdraw_ask(self, run: Run, ask_id: int) -> None:
        """Queue that a server does not want an answer any more."""
        withdrawal = execution_pb2.AskWithdrawal(call_id=run.call.id, ask_id=ask_id)
        self._outbox.put(frame(_WITHDRAWALS, withdrawal))

    def admit_updates(self, run: Run) -> None:
        """Make room for changes of a resource that a call follows."""
        self._updates.admit(run.call.id)

    def updated(self, run: Run, uri: str) -> None:
        """Queue that a resource changed."""
        self._updates.put(run.call.id, uri, run.call.tool)

    async def _write(self) -> None:
        outbox, wake, write = self._outbox, self._wake, self._context.write
        gathering, now = self._gathering, asyncio.get_running_loop().time
        await write(
            execution_pb2.ExchangeResponse(
                worker=execution_pb2.WorkerInfo(
                    id=self._worker.id,
                    incarnation=self._worker.incarnation,
                    protocol_version=PROTOCOL_VERSION,
                    package_version=user_agent(),
                )
            ).SerializeToString()
        )
        while self._breach is None:
            if not outbox:
                if self._no_more_calls and not self._calls:
                    return
                wake.clear()
                await wake.wait()
                continue
            if gathering.pays(len(outbox), now()):
                await self._gather()
            await write(outbox.next_batch())
            if outbox.queued_bytes <= _MAX_QUEUED and not self._room.is_set():
                self._room.set()

    async def _gather(self) -> None:
        """Wait a moment for more results to share the next message."""
        outbox, wake = self._outbox, self._wake
        if outbox.queued_bytes > _MOST_GATHERED:
            return
        ready = len(outbox)
        wake.clear()
        self._calm = 0
        timer = asyncio.get_running_loop().call_later(_GATHERING, wake.set)
        try:
            await wake.wait()
        finally:
            timer.cancel()
            self._calm = _MOST_UNREAD
        self._gathering.waited(len(outbox) - ready)


def _too_many(what: str, limit: int) -> Fault:
    return Fault(
        Reason.OVERLOADED,
        f"More than {limit} {what} are under way on this stream; wait for some to end.",
        retry_delay=0.1,
    )
