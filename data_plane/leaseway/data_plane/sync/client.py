"""The worker's end of the Sync stream to the control plane, which it reopens for ever.

A lost stream does not change what the worker serves. A new stream starts with a Hello that lists
the held variants, so that nothing is sent twice.

See design.md#sync.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable
from functools import partial
from typing import Any, Final

import grpc

from leaseway.data_plane.core.desired_state import HeldVariant
from leaseway.data_plane.core.problems import WorkerProblem
from leaseway.data_plane.core.tools.toolset import CompiledToolset
from leaseway.data_plane.instances.pool import Pool
from leaseway.data_plane.sync import convert
from leaseway.data_plane.sync.approvals import ApprovalQuestions
from leaseway.data_plane.sync.audit import AuditSync
from leaseway.data_plane.sync.budgets import Permits
from leaseway.data_plane.sync.logins import LoginSteps
from leaseway.data_plane.sync.outgoing import MAX_QUEUED, Outgoing
from leaseway.data_plane.sync.probes import Prober
from leaseway.data_plane.sync.status import WorkerStatus
from leaseway.data_plane.sync.subjects import SubjectLists
from leaseway.spec.codec import key_from_proto
from leaseway.telemetry.tracing import tracer
from leaseway.v1 import sync_pb2, sync_pb2_grpc
from leaseway.wire import bounds
from leaseway.wire.channels.auth import bearer_metadata
from leaseway.wire.channels.leader_channel import LEADER, LeaderChannel
from leaseway.wire.channels.serving import CHANNEL_OPTIONS
from leaseway.wire.channels.tls import cause_in_tls, hint_at_tls, open_channel
from leaseway.wire.channels.trace_context import context_from
from leaseway.wire.errors import Reason
from leaseway.wire.messages.message_parts import Joiner, OversizeMessage, split
from leaseway.wire.span_attributes import Attr
from leaseway.wire.status import fault_from_rpc_error
from leaseway.wire.timing.backoff import RECONNECT, REDIRECT
from leaseway.wire.version import PROTOCOL_VERSION

_logger = logging.getLogger(__name__)
_tracer = tracer("leaseway.data_plane")
_REPORT_INTERVAL: Final = 0.1
_LEAVE_TIMEOUT: Final = 5.0
_WELCOME_TIMEOUT: Final = 60.0
"""Seconds for the welcome: a proxy may answer pings for a control plane that is gone. A large fleet
that joins at once waits some seconds."""
_MAX_UNHANDLED: Final = 64
"""Messages that wait while a delta is applied; with more, the stream is not read."""
_COMPILE_SLICE: Final = 0.005
"""Seconds that compiling schemas may hold up calls at a time."""
_COMPILED_INLINE: Final = 4 * bounds.KIB
"""Bytes of a server with few schemas, which is compiled on the loop."""

_REFUSAL_CODES: Final = frozenset(
    {
        grpc.StatusCode.ALREADY_EXISTS,
        grpc.StatusCode.INVALID_ARGUMENT,
        grpc.StatusCode.ABORTED,
    }
)
"""Codes with which only a control plane ends a stream, never gRPC itself."""
_UNTRUSTED: Final = frozenset({Reason.UNAUTHENTICATED, Reason.PERMISSION_DENIED})
_JOIN_HINT: Final = " A worker joins with the control plane's LEASEWAY_WORKER_KEY, if that has one."

Stream = grpc.aio.StreamStreamCall[sync_pb2.SyncRequest, sync_pb2.SyncResponse]


class _StreamEnded(Exception):
    """Why this end closes the stream, in a sentence."""


class SyncClient:
    """Keeps a worker joined to its control plane.

    Args:
        status: Builds the messages with the worker's state.
        outgoing: Queues the messages of the current stream.
        approvals: Handles the answers to the worker's questions.
        permits: Handles the answers to its requests for permits of limits.
        on_drain: Called with a reason when the control plane asks the worker to shut down.
        inspect: Answers operators' inspections.
        audit: Exchanges what concerns the audit.
        logins: Takes the steps of logins at the console.

    Attributes:
        joined: Set once a control plane has welcomed this worker.
        caught_up: Set once this worker has applied the first delta.
        server_folders: The folders that the entries of all configured servers name as their own.
    """

    def __init__(
        self,
        status: WorkerStatus,
        outgoing: Outgoing,
        approvals: ApprovalQuestions,
        permits: Permits,
        on_drain: Callable[[str], None],
        inspect: Callable[[sync_pb2.Inspect], sync_pb2.Inspected],
        audit: AuditSync,
        logins: LoginSteps,
    ) -> None:
        self._status = status
        self._outgoing = outgoing
        self._approvals = approvals
        self._permits = permits
        self._registration = status.registration
        self._planes = len(list(status.registration.control_planes))
        self._pool = status.pool
        self._leases = status.leases
        self._on_drain = on_drain
        self._inspect = inspect
        self._audit = audit
        self._logins = logins
        self._subjects = SubjectLists(status.pool, outgoing)
        self._reports = status.pool.context.reports
        self._prober = Prober(status.pool, self._send_probe_result, self._subjects, status.leases)
        self.server_folders: tuple[str, ...] = ()
        self._stream: Stream | None = None
        self._leaves = False
        self._left = asyncio.Event()
        self._highest_epoch = 0
        self._applied_delta = False  # on the current stream
        self._last_refusal: str | None = None
        self._redirected = False
        self.joined = asyncio.Event()
        self.caught_up = asyncio.Event()

    async def run(self) -> None:
        """Join, serve the stream, and join again when it ends; until cancelled."""
        channel = self._channel = LeaderChannel(
            list(map(str, self._registration.control_planes)),
            partial(open_channel, options=CHANNEL_OPTIONS),
        )
        # The generated stub cannot be typed for writing to an open stream.
        stub: Any = sync_pb2_grpc.SyncServiceStub(channel)
        failures = 0
        try:
            while True:
                self._redirected = False
                self._outgoing.switch_to(channel.address)
                welcomed = await self._run_stream(stub, first_failure=failures == 0)
                if self._leaves:
                    self._left.set()
                    return
                failures = 1 if welcomed else failures + 1
                # With standbys the next one is tried soon: one of them is about to lead.
                await asyncio.sleep(
                    REDIRECT.delay(0) if self._redirected else RECONNECT.delay(failures - 1)
                )
        finally:
            await channel.close()

    async def report_leaving(self) -> None:
        """Report that this worker accepts no new work.

        A client that learns it from the worker may have its lease placed elsewhere at once. If the
        control plane learned it later, it would treat the new lease as the twin of the old one.
        """
        self._status.leaving = True
        await self.flush()

    async def flush(self) -> None:
        """Report all changes now, and wait until they are written, for at most 0.5 s."""
        if self._outgoing.is_open:
            self._outgoing.send(sync_pb2.SyncRequest(report=self._status.report()))
            await self._outgoing.flush()

    async def leave(self) -> None:
        """Tell the last record of the audit, and end the stream when all is read, within 5 s.

        A stream that is cancelled instead loses what the control plane has not read yet.
        """
        self._audit.tell()
        await self.flush()
        self._leaves = True
        self._outgoing.close()
        if self._stream is not None:
            with contextlib.suppress(TimeoutError, grpc.aio.BaseError, asyncio.InvalidStateError):
                async with asyncio.timeout(_LEAVE_TIMEOUT):
                    await self._stream.done_writing()
                    await self._left.wait()

    async def _run_stream(self, stub: Any, first_failure: bool) -> bool:
        """Serve one stream until it ends; return whether the control plane welcomed the worker."""
        stream: Stream = stub.Sync(metadata=bearer_metadata(self._registration.key))
        self._stream = stream
        welcomed = False
        try:
            hello = self._status.hello(self._highest_epoch)
            try:
                async with asyncio.timeout(_WELCOME_TIMEOUT):
                    await self._write(stream, sync_pb2.SyncRequest(hello=hello))
                    welcome = await self._receive_welcome(stream)
            except TimeoutError:
                raise _StreamEnded(
                    f"{self._outgoing.address} has taken the Sync stream and sent no welcome "
                    f"within {_WELCOME_TIMEOUT:g} s; a proxy there may have lost its control "
                    "plane. The worker tries again."
                ) from None
            welcomed = True
            await self._serve(stream, welcome)
            if not self._leaves:
                _logger.info("The control plane ended the Sync stream; reconnecting.")
        except (grpc.aio.AioRpcError, asyncio.InvalidStateError) as error:
            if not welcomed:
                self._record_failed_attempt(error)
            if not self._switch_control_plane(error):
                self._log_loss(error, welcomed or first_failure)
        except (_StreamEnded, OversizeMessage) as error:
            if not welcomed:
                self._leases.confirmation.handle_miss(self._planes)
            _logger.error("%s", error)
            self._channel.switch_to_next()
        except Exception:
            _logger.exception("The Sync stream failed in this worker; reconnecting.")
        finally:
            self._outgoing.close()
            self._permits.handle_loss()
            self._approvals.handle_loss()
            self._prober.cancel_all()
            self._stream = None
            stream.cancel()
        return welcomed

    def _record_failed_attempt(self, error: Exception) -> None:
        """Record what an attempt that was not welcomed says about this worker's leases."""
        fault = fault_from_rpc_error(error) if isinstance(error, grpc.aio.AioRpcError) else None
        if fault is not None and fault.reason is Reason.NOT_LEADER:
            if not fault.metadata.get(LEADER, ""):
                self._leases.confirmation.handle_miss(self._planes)
        elif isinstance(error, grpc.aio.AioRpcError) and _refusal(error) is not None:
            self._leases.confirmation.handle_refusal()
        else:
            self._leases.confirmation.handle_miss(self._planes)

    def _switch_control_plane(self, error: Exception) -> bool:
        """Connect to the leader next; return whether the loss was only a redirect to it."""
        fault = fault_from_rpc_error(error) if isinstance(error, grpc.aio.AioRpcError) else None
        if fault is None or fault.reason is not Reason.NOT_LEADER:
            self._redirected = self._channel.switch_to_next()
            return False
        self._redirected = True
        leader = fault.metadata.get(LEADER, "")
        self._channel.follow(leader)
        is_new, self._last_refusal = leader != self._last_refusal, leader
        _logger.log(
            logging.INFO if is_new else logging.DEBUG,
            "The control plane at %s does not lead; worker %s joins %s.",
            self._outgoing.address,
            self._registration.worker.id,
            leader or "the next leader",
        )
        return True

    def _log_loss(self, error: Exception, first: bool) -> None:
        refusal = _refusal(error) if isinstance(error, grpc.aio.AioRpcError) else None
        is_new, self._last_refusal = refusal != self._last_refusal, refusal
        worker_id = self._registration.worker.id
        if refusal is not None:
            _logger.log(
                logging.ERROR if first or is_new else logging.DEBUG,
                "The control plane at %s rejected worker %s, which tries again: %s",
                self._outgoing.address,
                worker_id,
                refusal,
            )
            return
        details = error.details() if isinstance(error, grpc.aio.AioRpcError) else None
        details = details or str(error)
        cause = cause_in_tls(details) or hint_at_tls(details)
        message = (
            "The control plane at %s cannot be reached; worker %s keeps serving and tries again. "
            "%s(%s)"
            if self.joined.is_set()
            else "The control plane at %s cannot be reached; worker %s serves nothing until it has "
            "joined. %s(%s)"
            if cause
            else "Nothing answers at %s; worker %s waits for the control plane there and serves "
            "nothing until it has joined. Check that the control plane runs and that "
            "--control-plane is its address. %s(%s)"
        )
        level = logging.WARNING if first else logging.DEBUG
        hint = f"{cause} " if cause else ""
        _logger.log(level, message, self._outgoing.address, worker_id, hint, details)

    async def _receive_welcome(self, stream: Stream) -> sync_pb2.Welcome:
        message = await _read(stream)
        if message is not None and message.WhichOneof("message") == "ask_held":
            await self._write(stream, sync_pb2.SyncRequest(held_list=self._status.held_list()))
            message = await _read(stream)
        if message is None:
            raise _StreamEnded("The control plane ended the Sync stream without a welcome.")
        if message.WhichOneof("message") != "welcome":
            raise _StreamEnded(
                f"The first message from {self._outgoing.address} was no welcome; is it a control "
                "plane?"
            )
        if message.welcome.protocol_version != PROTOCOL_VERSION:
            raise _StreamEnded(
                f"The control plane uses protocol {message.welcome.protocol_version} and this "
                f"worker {PROTOCOL_VERSION}; run the same version of Leaseway on both."
            )
        self._check_epoch(message.welcome.epoch)
        self._logins.use_console(message.welcome.console_url)
        _logger.info(
            "Worker %s has joined %s.", self._registration.worker.id, self._outgoing.address
        )
        return message.welcome

    def _check_epoch(self, epoch: int) -> None:
        if epoch < self._highest_epoch:
            raise _StreamEnded(
                f"The control plane at {self._outgoing.address} has epoch {epoch}, older than "
                f"{self._highest_epoch}, which this worker has seen; its stream is closed."
            )
        self._highest_epoch = epoch

    async def _serve(self, stream: Stream, welcome: sync_pb2.Welcome) -> None:
        outgoing = self._outgoing.open()
        self._permits.handle_welcome(welcome)
        self._audit.handle_welcome(welcome)
        self._approvals.handle_stream()
        self._leases.confirmation.handle_welcome(welcome.patience.ToTimedelta().total_seconds())
        pulse_interval = welcome.pulse_interval.ToTimedelta().total_seconds()
        self._applied_delta = False
        self.joined.set()
        loop = asyncio.get_running_loop()
        inbox: asyncio.Queue[sync_pb2.SyncResponse] = asyncio.Queue(_MAX_UNHANDLED)
        tasks = [
            loop.create_task(self._read_all(stream, inbox), name="sync reader"),
            loop.create_task(self._handle_all(inbox), name="sync handler"),
            loop.create_task(self._write_all(stream, outgoing), name="sync writer"),
            loop.create_task(self._report(), name="sync reporter"),
            loop.create_task(self._permits.return_idle(), name="sync slots"),
            loop.create_task(_fail_when_overfull(self._outgoing.overfull), name="sync limit"),
        ]
        if self._audit.tells_heads:
            tasks.append(loop.create_task(self._audit.tell_heads(), name="sync audit"))
        if pulse_interval > 0:
            tasks.append(loop.create_task(self._pulse(pulse_interval, inbox), name="sync pulse"))
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)
        for task in done:
            if task.cancelled():  # gRPC reports a stream that was cancelled on this side so
                raise _StreamEnded("The Sync stream was cancelled in this worker; reconnecting.")
            task.result()

    async def _read_all(self, stream: Stream, inbox: asyncio.Queue[sync_pb2.SyncResponse]) -> None:
        """Read until the stream ends; handle at once what decides whether leases may be served."""
        joiner = Joiner()
        try:
            while (message := await _read(stream)) is not None:
                if message.WhichOneof("message") == "part":
                    whole = joiner.add(message.part)
                    if whole is None:
                        continue
                    message = sync_pb2.SyncResponse.FromString(whole)
                    del whole  # megabytes that would stay until the next long message
                match message.WhichOneof("message"):
                    case "revoke":
                        self._leases.revoke(message.revoke.lease_id, message.revoke.reason)
                    case "pulse":
                        self._leases.confirmation.handle_answer(message.pulse.number)
                    case _:
                        await inbox.put(message)
        except grpc.aio.BaseError:
            await inbox.join()
            raise
        await inbox.join()

    async def _handle_all(self, inbox: asyncio.Queue[sync_pb2.SyncResponse]) -> None:
        while True:
            await self._handle(await inbox.get())
            inbox.task_done()

    async def _handle(self, message: sync_pb2.SyncResponse) -> None:
        match message.WhichOneof("message"):
            case "delta":
                self._check_epoch(message.delta.epoch)
                await self._apply(message.delta)
            case "want":
                self._outgoing.send(sync_pb2.SyncRequest(held=self._status.held(message.want)))
            case "probe":
                self._prober.start(message.probe)
            case "cancel_probe":
                self._prober.cancel(message.cancel_probe.id)
            case "drain":
                self._on_drain(message.drain.reason or "the control plane asked for it")
            case "inspect":
                self._outgoing.send(sync_pb2.SyncRequest(inspected=self._inspect(message.inspect)))
            case "ask_instances":
                self._status.report_all_instances()
            case "server_folders":
                self.server_folders = tuple(message.server_folders.folders)
            case _:
                self._handle_answer(message)

    def _handle_answer(self, message: sync_pb2.SyncResponse) -> None:
        """Pass on what is neither of the registry nor of a lease to the part that waits for it."""
        match message.WhichOneof("message"):
            case "approval_answer":
                self._approvals.handle_answer(message.approval_answer)
            case "budget_grant":
                self._permits.handle_grant(message.budget_grant)
            case "login_step":
                self._logins.start(message.login_step)
            case "list_subject":
                self._subjects.start(message.list_subject)
            case "subject_toolset":
                self._subjects.handle_toolset(message.subject_toolset)
            case "approval_decision" | "operator_action" | "refused_rpc" as kind:
                self._audit.handle_record(getattr(message, kind))
            case kind:
                _logger.warning("The control plane sent %s, which this worker ignores.", kind)

    async def _apply(self, delta: sync_pb2.Delta) -> None:
        refusals = await _apply_delta(self._pool, delta)
        self._leases.reconcile()
        if refusals:
            self._outgoing.send(
                sync_pb2.SyncRequest(nack=sync_pb2.Nack(nonce=delta.nonce, refusals=refusals))
            )
        version = self._pool.registry_version
        self._outgoing.send(
            sync_pb2.SyncRequest(ack=sync_pb2.Ack(nonce=delta.nonce, registry_version=version))
        )
        if not self._applied_delta:  # the recorded lists are known only from now on
            self._applied_delta = True
            self.caught_up.set()
            self._prober.relist_changed()
            self._subjects.send_all()

    def _send_probe_result(self, result: sync_pb2.ProbeResult) -> None:
        self._outgoing.send(sync_pb2.SyncRequest(probe_result=result))

    async def _write_all(
        self, stream: Stream, outgoing: asyncio.Queue[sync_pb2.SyncRequest]
    ) -> None:
        while True:
            await self._write(stream, await outgoing.get())
            outgoing.task_done()

    async def _write(self, stream: Stream, message: sync_pb2.SyncRequest) -> None:
        convert.redact_message(message)
        if message.ByteSize() <= bounds.MAX_MESSAGE:
            await stream.write(message)
            return
        for part in split(message.SerializeToString()):
            await stream.write(sync_pb2.SyncRequest(part=part))

    async def _pulse(self, interval: float, inbox: asyncio.Queue[sync_pb2.SyncResponse]) -> None:
        """Show that the worker's loop runs, also while a long delta is applied."""
        confirmation = self._leases.confirmation
        while True:
            if confirmation.is_silent() and not inbox.full():  # full: answers are not read
                raise _StreamEnded(
                    f"The control plane at {self._outgoing.address} has not answered this worker "
                    "for as long as it waits for workers itself; joining again."
                )
            number = confirmation.next_number()
            self._outgoing.send(sync_pb2.SyncRequest(pulse=sync_pb2.Pulse(number=number)))
            await asyncio.sleep(max(interval, _REPORT_INTERVAL))

    async def _report(self) -> None:
        while True:
            await self._reports.wait()
            self._outgoing.send(sync_pb2.SyncRequest(report=self._status.report()))
            await asyncio.sleep(_REPORT_INTERVAL)


async def _apply_delta(pool: Pool, delta: sync_pb2.Delta) -> list[sync_pb2.Refusal]:
    """Apply a delta to a pool; return the variants that this worker cannot serve, with reasons."""
    worker_id = pool.context.worker_id
    with _tracer.start_as_current_span(
        "leaseway.apply",
        context=context_from(delta.traceparent),
        attributes={
            Attr.WORKER: worker_id,
            Attr.REGISTRY_VERSION: delta.registry_version,
            "leaseway.upserts": len(delta.upserts),
            "leaseway.removals": len(delta.removals),
        },
    ) as span:
        refusals: list[sync_pb2.Refusal] = []
        variants: list[HeldVariant] = []
        of_server: dict[str, CompiledToolset] = {}
        loop = asyncio.get_running_loop()
        slice_end = loop.time() + _COMPILE_SLICE
        for upsert in delta.upserts:
            key = key_from_proto(upsert.hashes.key)
            held = pool.desired_state.variants.get(key)
            # A tenant's own variant has mostly the tools of the others.
            known = held.toolset if held is not None else of_server.get(key.server_id)
            try:
                variant = await _compile(upsert, known)
                variants.append(variant)
                of_server[key.server_id] = variant.toolset
            except convert.UnservableVariant as error:
                problem = convert.problem_to_proto(
                    WorkerProblem("server", error.reason, str(error), key), worker_id
                )
                refusals.append(sync_pb2.Refusal(key=upsert.hashes.key, problem=problem))
            if loop.time() > slice_end:
                await asyncio.sleep(0)
                slice_end = loop.time() + _COMPILE_SLICE
        pool.commit(convert.update_from_proto(delta, variants))
        span.set_attribute("leaseway.refused", len(refusals))
        return refusals


async def _compile(upsert: sync_pb2.Upsert, previous: CompiledToolset | None) -> HeldVariant:
    """Compile a variant; one with many or large schemas in a thread."""
    if upsert.ByteSize() <= _COMPILED_INLINE:
        return convert.variant_from_proto(upsert, previous)
    return await asyncio.to_thread(convert.variant_from_proto, upsert, previous)


async def _fail_when_overfull(overfull: asyncio.Event) -> None:
    await overfull.wait()
    raise _StreamEnded(
        f"The control plane does not read from this worker: {MAX_QUEUED} messages wait for it. "
        "The Sync stream is closed; reconnecting."
    )


def _refusal(error: grpc.aio.AioRpcError) -> str | None:
    """Return why the control plane ended a stream, or None if the connection was lost."""
    fault = fault_from_rpc_error(error)
    if fault is not None:
        return fault.message + (_JOIN_HINT if fault.reason in _UNTRUSTED else "")
    return (error.details() or str(error.code())) if error.code() in _REFUSAL_CODES else None


async def _read(stream: Stream) -> sync_pb2.SyncResponse | None:
    message = await stream.read()
    return message if isinstance(message, sync_pb2.SyncResponse) else None
