"""The worker's side of Sync: one stream to the control plane, for ever (DESIGN §8).

Losing the stream changes nothing about what is served. A new stream begins with a Hello that
says what is held, so that nothing is sent twice.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable
from typing import Any, Final

import grpc

from leaseway.data_plane.instances.pool import Pool
from leaseway.data_plane.leases.manager import WorkerLeaseManager
from leaseway.data_plane.sync.apply import apply_delta
from leaseway.data_plane.sync.outgoing import without_secrets
from leaseway.data_plane.sync.probes import Prober
from leaseway.data_plane.sync.status import Introduction, WorkerStatus
from leaseway.v1 import sync_pb2, sync_pb2_grpc
from leaseway.wire import bounds
from leaseway.wire.channels.auth import bearer_metadata
from leaseway.wire.channels.leader_channel import LEADER, LeaderChannel
from leaseway.wire.channels.serving import CHANNEL_OPTIONS
from leaseway.wire.channels.tls import open_channel
from leaseway.wire.errors import Fault, Reason
from leaseway.wire.messages.message_parts import Joiner, OversizeMessage, split
from leaseway.wire.status import fault_from_rpc_error
from leaseway.wire.timing.backoff import Backoff
from leaseway.wire.version import PROTOCOL_VERSION

_logger = logging.getLogger(__name__)
_RECONNECT: Final = Backoff(0.1, 2.0)
_TURN: Final = Backoff(0.3, 0.3)
_MOST_QUEUED: Final = 1024
_BETWEEN_REPORTS: Final = 0.1
_FLUSH_BOUND: Final = 0.5
_ANSWERED_WITHIN: Final = 5.0

_ANSWERS: Final = frozenset(
    {
        grpc.StatusCode.ALREADY_EXISTS,
        grpc.StatusCode.INVALID_ARGUMENT,
        grpc.StatusCode.ABORTED,
    }
)
"""What a control plane ends a stream with in words of its own; gRPC itself never does."""

Stream = grpc.aio.StreamStreamCall[sync_pb2.SyncRequest, sync_pb2.SyncResponse]


class _StreamEnded(Exception):
    """Why this side ends the stream, in a sentence."""


def _nothing_to_see(question: sync_pb2.Inspect) -> sync_pb2.Inspected:
    return sync_pb2.Inspected(id=question.id)


Recorded = sync_pb2.ApprovalDecision | sync_pb2.OperatorAction | sync_pb2.RefusedRpc


class SyncClient:
    """Keeps a worker joined.

    Args:
        introduction: Who joins whom.
        status: Writes what the worker says of itself.
        pool: What is served.
        leases: What is held.
        on_drain: Called with a reason when the control plane wants the worker to end.
        inspect: Answers what operators want to see.
        on_record: Told what a person has decided about a call, and what an operator does.

    Attributes:
        joined: Set once a control plane has welcomed this worker.
        caught_up: Set once this worker has held all that one wants served.
    """

    def __init__(
        self,
        introduction: Introduction,
        status: WorkerStatus,
        pool: Pool,
        leases: WorkerLeaseManager,
        on_drain: Callable[[str], None],
        inspect: Callable[[sync_pb2.Inspect], sync_pb2.Inspected] = _nothing_to_see,
        on_record: Callable[[Recorded], None] = lambda _recorded: None,
    ) -> None:
        self._me = introduction
        self._status = status
        self._pool = pool
        self._leases = leases
        self._on_drain = on_drain
        self._inspect = inspect
        self._on_record = on_record
        self._reports = pool.context.reports
        self._prober = Prober(pool, self._send_probe_result)
        self._highest_epoch = 0
        self._outgoing: asyncio.Queue[sync_pb2.SyncRequest] | None = None
        self._overfull = asyncio.Event()
        self._caught_up = False
        self._refused_for: str | None = None
        self._where = str(introduction.control_plane)
        self._turned = False
        self._approvals: dict[int, asyncio.Future[sync_pb2.ApprovalAnswer]] = {}
        self._last_question = 0
        self.joined = asyncio.Event()
        self.caught_up = asyncio.Event()

    async def run(self) -> None:
        """Join, serve the stream, and join again when it ends; until cancelled."""
        channel = self._channel = LeaderChannel(
            [str(each) for each in (self._me.control_plane, *self._me.standbys)],
            lambda address: open_channel(address, CHANNEL_OPTIONS),
        )
        # The generated stub cannot be typed for writing to an open stream.
        stub: Any = sync_pb2_grpc.SyncServiceStub(channel)
        failures = 0
        try:
            while True:
                self._where, self._turned = self._channel.address, False
                welcomed = await self._one_stream(stub, first_failure=failures == 0)
                failures = 1 if welcomed else failures + 1
                # Where several lead in turn, each is asked soon: one of them is about to.
                await asyncio.sleep(
                    _TURN.delay(0) if self._turned else _RECONNECT.delay(failures - 1)
                )
        finally:
            await channel.close()

    async def report_leaving(self) -> None:
        """Tell the control plane that this worker takes no more work.

        Whoever learns of it from the worker may place a lease anew at once. If the control plane
        learnt of it later, it would take the new lease for the twin of the one that ends here.
        """
        self._status.leaving = True
        await self.flush()

    async def ask_approval(self, question: sync_pb2.ApprovalQuestion) -> sync_pb2.ApprovalAnswer:
        """Ask the control plane whether a person agrees to a call.

        Raises:
            Fault: CONTROL_PLANE_UNAVAILABLE: it does not answer.
        """
        self._last_question = question.id = self._last_question + 1
        answer: asyncio.Future[sync_pb2.ApprovalAnswer] = asyncio.get_running_loop().create_future()
        self._approvals[question.id] = answer
        try:
            if self._outgoing is not None:
                self._send(sync_pb2.SyncRequest(approval_question=question))
                async with asyncio.timeout(_ANSWERED_WITHIN):
                    return await answer
        except TimeoutError:
            pass
        finally:
            del self._approvals[question.id]
        raise Fault(
            Reason.CONTROL_PLANE_UNAVAILABLE,
            f"This call needs a person's agreement, and the control plane at {self._where}, which "
            "keeps that, does not answer this worker. Try again when it does.",
            retry_delay=1.0,
        )

    async def flush(self) -> None:
        """Report what has changed, now, and wait until it is written, for at most 0.5 s."""
        outgoing = self._outgoing
        if outgoing is None:
            return
        self._send(sync_pb2.SyncRequest(report=self._status.report()))
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_FLUSH_BOUND):
                await outgoing.join()

    async def _one_stream(self, stub: Any, first_failure: bool) -> bool:
        stream: Stream = stub.Sync(metadata=bearer_metadata(self._me.key))
        welcomed = False
        try:
            hello = self._status.hello(self._highest_epoch)
            await self._write(stream, sync_pb2.SyncRequest(hello=hello))
            welcome = await self._take_welcome(stream)
            welcomed = True
            await self._serve(stream, welcome.pulse_interval.ToTimedelta().total_seconds())
            _logger.info("The control plane ended the Sync stream; joining it again.")
        except (grpc.aio.AioRpcError, asyncio.InvalidStateError) as error:
            if not self._turn(error):
                self._log_loss(error, welcomed or first_failure)
        except (_StreamEnded, OversizeMessage) as error:
            _logger.error("%s", error)
            self._channel.switch_to_next()
        except Exception:
            _logger.exception("The Sync stream failed in this worker; it is joined again.")
        finally:
            self._outgoing = None
            self._prober.cancel_all()
            stream.cancel()
        return welcomed

    def _turn(self, error: Exception) -> bool:
        """Go where the leader is; return whether that is all that there is to say of a loss."""
        fault = fault_from_rpc_error(error) if isinstance(error, grpc.aio.AioRpcError) else None
        if fault is None or fault.reason is not Reason.NOT_LEADER:
            self._turned = self._channel.switch_to_next()
            return False
        self._turned = True
        leader = fault.metadata.get(LEADER, "")
        self._channel.follow(leader)
        known, self._refused_for = self._refused_for, leader
        _logger.log(
            logging.DEBUG if known == leader else logging.INFO,
            "The control plane at %s does not lead; worker %s joins %s.",
            self._where,
            self._me.worker.id,
            leader or "the one that will",
        )
        return True

    def _log_loss(self, error: Exception, loudly: bool) -> None:
        why = _refusal(error) if isinstance(error, grpc.aio.AioRpcError) else None
        known, self._refused_for = self._refused_for, why
        if why is not None:
            _logger.log(
                logging.ERROR if loudly or why != known else logging.DEBUG,
                "The control plane at %s refused worker %s and is asked again: %s",
                self._where,
                self._me.worker.id,
                why,
            )
            return
        details = error.details() if isinstance(error, grpc.aio.AioRpcError) else str(error)
        sentence = (
            "The control plane at %s cannot be reached; worker %s serves what it holds and tries "
            "again. (%s)"
            if self.joined.is_set()
            else "Nothing answers at %s; worker %s waits for the control plane there and serves "
            "nothing until it has joined it. Check that it runs and that --control-plane is its "
            "address. (%s)"
        )
        _logger.log(
            logging.WARNING if loudly else logging.DEBUG,
            sentence,
            self._where,
            self._me.worker.id,
            details,
        )

    async def _take_welcome(self, stream: Stream) -> sync_pb2.Welcome:
        message = await _read(stream)
        if message is None:
            raise _StreamEnded("The control plane ended the Sync stream without a welcome.")
        if message.WhichOneof("message") != "welcome":
            raise _StreamEnded("The control plane did not begin with a welcome; is it one?")
        if message.welcome.protocol_version != PROTOCOL_VERSION:
            raise _StreamEnded(
                f"The control plane speaks protocol {message.welcome.protocol_version} and this "
                f"worker {PROTOCOL_VERSION}; run the same version of Leaseway on both."
            )
        self._check_epoch(message.welcome.epoch)
        _logger.info("Worker %s has joined %s.", self._me.worker.id, self._where)
        return message.welcome

    def _check_epoch(self, epoch: int) -> None:
        if epoch < self._highest_epoch:
            raise _StreamEnded(
                f"The control plane at {self._where} is of epoch {epoch}, older than "
                f"{self._highest_epoch}, which this worker has seen; its stream is ended."
            )
        self._highest_epoch = epoch

    async def _serve(self, stream: Stream, pulse_interval: float) -> None:
        outgoing = self._outgoing = asyncio.Queue(_MOST_QUEUED)
        overfull = self._overfull = asyncio.Event()
        self._caught_up = False
        self.joined.set()
        loop = asyncio.get_running_loop()
        parts = [
            loop.create_task(self._read_all(stream), name="sync reader"),
            loop.create_task(self._write_all(stream, outgoing), name="sync writer"),
            loop.create_task(self._report(), name="sync reporter"),
            loop.create_task(_until_overfull(overfull), name="sync limit"),
        ]
        if pulse_interval > 0:
            parts.append(loop.create_task(self._pulse(pulse_interval), name="sync pulse"))
        try:
            done, _ = await asyncio.wait(parts, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for part in parts:
                part.cancel()
            await asyncio.wait(parts)
        for part in done:
            if part.cancelled():  # so gRPC says that the stream was cancelled on this side
                raise _StreamEnded("The Sync stream was cut off in this worker; joining it again.")
            part.result()

    async def _read_all(self, stream: Stream) -> None:
        joiner = Joiner()
        while (message := await _read(stream)) is not None:
            if message.WhichOneof("message") == "part":
                whole = joiner.add(message.part)
                if whole is None:
                    continue
                message = sync_pb2.SyncResponse.FromString(whole)
            await self._handle(message)

    async def _handle(self, message: sync_pb2.SyncResponse) -> None:
        match message.WhichOneof("message"):
            case "delta":
                self._check_epoch(message.delta.epoch)
                await self._apply(message.delta)
            case "want":
                self._send(sync_pb2.SyncRequest(held=self._status.held(message.want)))
            case "probe":
                self._prober.start(message.probe)
            case "cancel_probe":
                self._prober.cancel(message.cancel_probe.id)
            case "drain":
                self._on_drain(message.drain.reason or "the control plane asked for it")
            case "revoke":
                self._leases.revoke(message.revoke.lease_id, message.revoke.reason)
            case "inspect":
                self._send(sync_pb2.SyncRequest(inspected=self._inspect(message.inspect)))
            case "approval_answer":
                waiting = self._approvals.get(message.approval_answer.id)
                if waiting is not None and not waiting.done():
                    waiting.set_result(message.approval_answer)
            case "approval_decision" | "operator_action" | "refused_rpc" as kind:
                self._on_record(getattr(message, kind))
            case kind:
                _logger.warning("The control plane sent %s, which this worker ignores.", kind)

    async def _apply(self, delta: sync_pb2.Delta) -> None:
        refusals = await apply_delta(self._pool, delta)
        self._leases.reconcile()
        if refusals:
            self._send(
                sync_pb2.SyncRequest(nack=sync_pb2.Nack(nonce=delta.nonce, refusals=refusals))
            )
        version = self._pool.registry_version
        self._send(
            sync_pb2.SyncRequest(ack=sync_pb2.Ack(nonce=delta.nonce, registry_version=version))
        )
        if not self._caught_up:  # only now is it known what the others list
            self._caught_up = True
            self.caught_up.set()
            self._prober.catch_up()

    def _send_probe_result(self, result: sync_pb2.ProbeResult) -> None:
        self._send(sync_pb2.SyncRequest(probe_result=result))

    def _send(self, message: sync_pb2.SyncRequest) -> None:
        if self._outgoing is None:
            return  # the next stream's Hello, and what follows its first delta, say it all
        try:
            self._outgoing.put_nowait(message)
        except asyncio.QueueFull:
            # Not by cancelling the stream: its reader would pass that on as a cancelled task.
            self._overfull.set()

    async def _write_all(
        self, stream: Stream, outgoing: asyncio.Queue[sync_pb2.SyncRequest]
    ) -> None:
        while True:
            await self._write(stream, await outgoing.get())
            outgoing.task_done()

    async def _write(self, stream: Stream, message: sync_pb2.SyncRequest) -> None:
        without_secrets(message)
        if message.ByteSize() <= bounds.MAX_MESSAGE:
            await stream.write(message)
            return
        for part in split(message.SerializeToString()):
            await stream.write(sync_pb2.SyncRequest(part=part))

    async def _pulse(self, interval: float) -> None:
        """Say that this loop turns; a long delta that is being applied does not keep it waiting."""
        while True:
            self._send(sync_pb2.SyncRequest(pulse=sync_pb2.Pulse()))
            await asyncio.sleep(max(interval, _BETWEEN_REPORTS))

    async def _report(self) -> None:
        while True:
            await self._reports.wait()
            self._send(sync_pb2.SyncRequest(report=self._status.report()))
            await asyncio.sleep(_BETWEEN_REPORTS)


async def _until_overfull(overfull: asyncio.Event) -> None:
    await overfull.wait()
    raise _StreamEnded(
        f"The control plane does not take what this worker sends: {_MOST_QUEUED} messages wait for "
        "it. The Sync stream is ended and joined again."
    )


def _refusal(error: grpc.aio.AioRpcError) -> str | None:
    """Return what the control plane ended a stream for; None where it was not reached."""
    fault = fault_from_rpc_error(error)
    if fault is not None:
        return fault.message
    return (error.details() or str(error.code())) if error.code() in _ANSWERS else None


async def _read(stream: Stream) -> sync_pb2.SyncResponse | None:
    message = await stream.read()
    return message if isinstance(message, sync_pb2.SyncResponse) else None
