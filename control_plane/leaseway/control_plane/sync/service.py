"""The Sync service: one stream per worker (design.md#sync)."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Iterator
from datetime import timedelta

import grpc

from leaseway.control_plane.core.catalog.listing import ServerListing
from leaseway.control_plane.core.catalog.variants import Served
from leaseway.control_plane.core.problems import Problem
from leaseway.control_plane.core.workers.actions import PushDelta, WorkerAction
from leaseway.control_plane.core.workers.records import WorkerHello, WorkerRefused
from leaseway.control_plane.plane import Plane
from leaseway.control_plane.sync.approvals import ApprovalAnswers
from leaseway.control_plane.sync.budgets import BudgetAnswers
from leaseway.control_plane.sync.convert import (
    action_to_proto,
    hello_from_proto,
    lease_ends_from_proto,
    problem_from_proto,
    refusal_from_proto,
    report_from_proto,
)
from leaseway.control_plane.sync.deltas import DeltaWriter
from leaseway.control_plane.sync.earlier_runs import has_ended, is_local_peer
from leaseway.control_plane.sync.held import HeldHashes
from leaseway.control_plane.sync.login_steps import LoginSteps
from leaseway.control_plane.sync.seal import Seal
from leaseway.control_plane.sync.subjects import SubjectAnswers
from leaseway.control_plane.sync.toolsets import (
    MalformedMessage,
    listing_from_proto,
    served_from_proto,
)
from leaseway.spec.codec import SpecNotUnderstood, key_from_proto
from leaseway.v1 import admin_pb2, sync_pb2, sync_pb2_grpc
from leaseway.wire.bounds import AUDIT_ANCHOR_INTERVAL, MAX_MESSAGE
from leaseway.wire.messages.audit_heads import head_from_proto
from leaseway.wire.messages.events import event_from_proto
from leaseway.wire.messages.message_parts import Joiner, OversizeMessage, split
from leaseway.wire.version import PROTOCOL_VERSION, user_agent

_logger = logging.getLogger(__name__)
_MAX_QUEUED = 1024
_HELLO_TIMEOUT = 10.0
_PULSE_INTERVAL = 2.5
_MAX_SILENT_CHECKS = 4
"""Checks, one pulse interval apart, that may find a worker silent. Counts checks, not seconds: a
control plane that was suspended has not read the messages that arrived meanwhile."""

_Context = grpc.aio.ServicerContext[sync_pb2.SyncRequest, sync_pb2.SyncResponse]


class _Stream:
    """The sending side of one stream: a bounded queue and a task that writes it."""

    def __init__(self, plane: Plane, deltas: DeltaWriter) -> None:
        self._plane = plane
        self._deltas = deltas
        self._queue: asyncio.Queue[WorkerAction | sync_pb2.SyncResponse] = asyncio.Queue(
            _MAX_QUEUED
        )
        self.ended: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self._has_pulse = False
        self._silent_checks = 0

    def send(self, message: WorkerAction | sync_pb2.SyncResponse) -> None:
        try:
            self._queue.put_nowait(message)
        except asyncio.QueueFull:
            self.end(f"The worker is too slow: {_MAX_QUEUED} messages are queued for it.")

    def end(self, reason: str) -> None:
        if not self.ended.done():
            self.ended.set_result(reason)

    def record_contact(self, *, pulse: bool) -> None:
        self._has_pulse = self._has_pulse or pulse
        self._silent_checks = 0

    async def watch(self) -> None:
        """End the stream if the worker's event loop is blocked."""
        while self._silent_checks <= _MAX_SILENT_CHECKS:
            await asyncio.sleep(_PULSE_INTERVAL)
            self._silent_checks += self._has_pulse
        self.end(
            f"The worker sent nothing for {_PULSE_INTERVAL * _MAX_SILENT_CHECKS:g} s: its event"
            " loop is blocked, or it gets no processor time."
        )

    async def write(self, context: _Context) -> None:
        while True:
            action = await self._queue.get()
            for message in self._messages(action):
                await context.write(message)

    def _messages(
        self, action: WorkerAction | sync_pb2.SyncResponse
    ) -> Iterator[sync_pb2.SyncResponse]:
        if isinstance(action, PushDelta):
            yield from self._deltas.messages(action, self._plane.state.epoch)
            return
        message = action if isinstance(action, sync_pb2.SyncResponse) else action_to_proto(action)
        if message.ByteSize() <= MAX_MESSAGE:
            yield message
            return
        for part in split(message.SerializeToString()):
            yield sync_pb2.SyncResponse(part=part)


class SyncService(sync_pb2_grpc.SyncServiceServicer):
    """Connects workers to the plane.

    Args:
        seal: Signs the variants that workers are sent.
        logins: Gets the results of steps of logins.
        console_url: The address of the console for people's browsers, or empty.
    """

    def __init__(
        self, plane: Plane, seal: Seal, logins: LoginSteps | None = None, console_url: str = ""
    ) -> None:
        self._logins = logins or LoginSteps(plane.streams)
        self._plane = plane
        self._seal = seal
        self._console_url = console_url
        self._deltas = DeltaWriter(seal)
        self._held = HeldHashes()
        self._budgets = BudgetAnswers(plane)
        self._subjects = SubjectAnswers(plane)
        self._questions = ApprovalAnswers(plane)

    async def Sync(  # type: ignore[override]  # noqa: N802 - it writes by its context
        self, request_iterator: AsyncIterator[sync_pb2.SyncRequest], context: _Context
    ) -> None:
        """Serve one worker until its stream ends."""
        messages = _join_parts(request_iterator)
        try:
            hello = await self._receive_hello(messages, context)
        except MalformedMessage as error:
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, str(error))
        await self._end_earlier_run(hello, context)
        stream = _Stream(self._plane, self._deltas)
        try:
            self._join(hello, stream)
        except WorkerRefused as refusal:
            await context.abort(grpc.StatusCode.ALREADY_EXISTS, str(refusal))
        try:
            had_leader = 0 < hello.highest_epoch < self._plane.state.epoch
            self._plane.budgets.handle_joined(hello.address.id, had_leader=had_leader)
            await self._send_welcome(context, hello.address.id)
            self._budgets.handle_fleet_changed()
            await self._serve(hello, messages, stream, context)
        finally:
            stream.end("The stream has ended.")
            self._handle_stream_ended(hello, stream)

    async def _receive_hello(
        self, messages: AsyncIterator[sync_pb2.SyncRequest], context: _Context
    ) -> WorkerHello:
        hello = (await _first(messages, "hello")).hello
        if hello.protocol_version != PROTOCOL_VERSION:
            raise MalformedMessage(
                f"The worker uses protocol version {hello.protocol_version}, this control"
                f" plane {PROTOCOL_VERSION}. Run the same release of both."
            )

        async def ask() -> bytes:
            await context.write(sync_pb2.SyncResponse(ask_held=sync_pb2.AskHeld()))
            return (await _first(messages, "held_list")).held_list.held

        held = await self._held.of_worker(hello, ask)
        return hello_from_proto(hello, self._plane.clock(), held)

    async def _end_earlier_run(self, hello: WorkerHello, context: _Context) -> None:
        """Find out whether the disconnected run that this one may replace has ended."""
        earlier = self._plane.state.roster.doubtful_run(hello.address)
        if earlier is None:
            return
        is_local = is_local_peer(context.peer())
        if await has_ended(earlier.address, hello.address.address, is_local=is_local):
            with self._plane.transition() as (state, now):
                state.handle_run_ended(earlier, now)

    async def _send_welcome(self, context: _Context, worker_id: str) -> None:
        welcome = sync_pb2.Welcome(
            protocol_version=PROTOCOL_VERSION,
            package_version=user_agent(),
            epoch=self._plane.state.epoch,
            console_url=self._console_url,
            fleet=self._budgets.fleet(worker_id),
            lists_subjects=True,
            takes_instance_changes=True,
            takes_held_digest=True,
        )
        welcome.pulse_interval.FromTimedelta(timedelta(seconds=_PULSE_INTERVAL))
        welcome.audit_interval.FromTimedelta(timedelta(seconds=AUDIT_ANCHOR_INTERVAL))
        welcome.patience.FromTimedelta(timedelta(seconds=_PULSE_INTERVAL * _MAX_SILENT_CHECKS))
        await context.write(sync_pb2.SyncResponse(welcome=welcome))

    def _join(self, hello: WorkerHello, stream: _Stream) -> None:
        worker_id = hello.address.id
        streams = self._plane.streams
        older = streams.get(worker_id)
        if self._plane.server_folders.folders:
            stream.send(sync_pb2.SyncResponse(server_folders=self._plane.server_folders))
        streams[worker_id] = stream  # first: joining queues actions for the new stream
        try:
            with self._plane.transition() as (state, now):
                state.handle_worker_joined(hello, now)
        except WorkerRefused:
            if older is None:
                del streams[worker_id]
            else:
                streams[worker_id] = older
            raise
        if older is not None:  # the worker reconnected before its old stream ended
            older.end("The worker has opened a newer stream.")
        _logger.info("worker joined", extra={"worker": worker_id, "at": hello.address.address})
        specs = (self._plane.state.servers.desired or {}).values()
        if not hello.lists_subjects and any(spec.part.auth.is_of_people for spec in specs):
            _logger.warning(
                "Worker %s is older: for servers that act for people, it checks the calls of all "
                "tenants and users by the list of the first one of them. Upgrade it.",
                worker_id,
            )

    def _handle_stream_ended(self, hello: WorkerHello, stream: _Stream) -> None:
        worker_id = hello.address.id
        if self._plane.streams.get(worker_id) is not stream:
            return
        del self._plane.streams[worker_id]
        self._budgets.handle_fleet_changed()
        self._plane.audit_anchors.handle_left(worker_id, self._plane.clock().unix)
        with self._plane.transition() as (state, now):
            state.handle_worker_disconnected(worker_id, now)
        _logger.info("worker left", extra={"worker": worker_id})

    async def _serve(
        self,
        hello: WorkerHello,
        messages: AsyncIterator[sync_pb2.SyncRequest],
        stream: _Stream,
        context: _Context,
    ) -> None:
        reader = asyncio.create_task(self._read(hello.address.id, messages, stream))
        writer = asyncio.create_task(stream.write(context))
        watch = asyncio.create_task(stream.watch())
        try:
            await asyncio.wait((reader, writer, stream.ended), return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in (reader, writer, watch):
                task.cancel()
            results = await asyncio.gather(reader, writer, watch, return_exceptions=True)
        for result in results:
            if isinstance(result, MalformedMessage | OversizeMessage):
                await context.abort(grpc.StatusCode.INVALID_ARGUMENT, str(result))
            if isinstance(result, Exception) and not isinstance(result, grpc.aio.BaseError):
                _logger.error("a Sync stream failed here", exc_info=result)
                message = "The control plane failed to serve this stream; see its log."
                await context.abort(grpc.StatusCode.INTERNAL, message)
        if stream.ended.done():
            await context.abort(grpc.StatusCode.ABORTED, stream.ended.result())

    async def _read(
        self, worker_id: str, messages: AsyncIterator[sync_pb2.SyncRequest], stream: _Stream
    ) -> None:
        async for message in messages:
            if self._plane.streams.get(worker_id) is not stream:
                return  # the worker has a newer stream with its own nonces
            is_pulse = message.WhichOneof("message") == "pulse"
            stream.record_contact(pulse=is_pulse)
            if not is_pulse:
                self._handle(worker_id, message)
            elif message.pulse.number:
                stream.send(sync_pb2.SyncResponse(pulse=message.pulse))

    def _handle(self, worker_id: str, message: sync_pb2.SyncRequest) -> None:
        transition = self._plane.transition
        self._plane.state.record_contact(worker_id)
        match message.WhichOneof("message"):
            case "ack":
                with transition() as (state, now):
                    state.handle_ack(worker_id, message.ack.nonce, now)
            case "nack":
                nack = message.nack
                refusals = [refusal_from_proto(refusal) for refusal in nack.refusals]
                with transition() as (state, now):
                    state.handle_nack(worker_id, nack.nonce, refusals, now)
            case "held":
                variants = list(self._restored(worker_id, message.held))
                with transition() as (state, now):
                    state.handle_content(worker_id, variants, now)
            case "probe_result":
                self._handle_probe_result(worker_id, message.probe_result)
            case "inspected":
                self._plane.handle_inspected(message.inspected)
            case "login_result":
                self._logins.handle_result(worker_id, message.login_result)
            case "budget_ask" | "budgets_told":
                self._budgets.handle(worker_id, message)
            case "subject_listing":
                self._subjects.handle(worker_id, message.subject_listing)
            case "audit_head":
                self._anchor(worker_id, message.audit_head)
            case "approval_question":
                self._questions.handle(worker_id, message.approval_question)
            case "report":
                mono = self._plane.clock().mono
                self._record_events(worker_id, message.report)
                ends = lease_ends_from_proto(message.report)
                self._plane.lease_ends.record(ends, mono)
                report = report_from_proto(message.report, worker_id, mono)
                with transition() as (state, now):
                    state.handle_report(worker_id, report, now)
                self._plane.record_ends(ends)
            case _:
                raise MalformedMessage("A worker sent a second hello, or an unknown message.")

    def _anchor(self, worker_id: str, message: admin_pb2.AuditHead) -> None:
        head = head_from_proto(message)
        if head is None:
            raise MalformedMessage("A worker sent the head of an audit that names no record.")
        self._plane.audit_anchors.record(worker_id, head, self._plane.clock().unix)

    def _record_events(self, worker_id: str, report: sync_pb2.Report) -> None:
        record = self._plane.state.workers.get(worker_id)
        if report.events and record is not None:
            incarnation = record.hello.address.incarnation
            events = map(event_from_proto, report.events)
            self._plane.events.record_worker_events(worker_id, incarnation, events)

    def _restored(self, worker_id: str, held: sync_pb2.Held) -> Iterator[Served]:
        for variant in held.variants:
            if not self._check_seal(worker_id, variant):
                continue
            try:
                yield served_from_proto(variant)
            except SpecNotUnderstood as error:
                _logger.warning(
                    "Worker %s holds a variant that only the configuration restores: %s",
                    worker_id,
                    error,
                )

    def _check_seal(self, worker_id: str, variant: sync_pb2.Upsert) -> bool:
        if self._seal.is_valid(variant):
            return True
        _logger.warning(
            "Worker %s holds server %s with a signature that does not match this control plane's "
            "key; its content is ignored, and only the configuration defines the server.",
            worker_id,
            key_from_proto(variant.hashes.key),
        )
        return False

    def _may_list(self, worker_id: str, result: sync_pb2.ProbeResult) -> bool:
        """Return whether the worker may send a listing: of its own probe, or of a server it has.

        The result of a cancelled probe is allowed and ignored.
        """
        state = self._plane.state
        if result.id:
            return not state.servers.probes.runs_elsewhere(result.id, worker_id)
        record = state.workers.get(worker_id)
        key = key_from_proto(result.key)
        return record is not None and record.subscription.was_sent(key, result.launch_hash)

    def _handle_probe_result(self, worker_id: str, result: sync_pb2.ProbeResult) -> None:
        if not self._may_list(worker_id, result):
            _logger.warning(
                "Worker %s sent a listing of server %s, which it was not asked to probe and does "
                "not serve; the listing is ignored.",
                worker_id,
                key_from_proto(result.key),
            )
            return
        if result.HasField("problem"):
            self._handle_outcome(worker_id, result, problem_from_proto(result.problem))
            return
        try:
            self._handle_outcome(worker_id, result, listing_from_proto(result))
        except Exception:  # what one server lists must not end the stream of all others
            _logger.exception("The listing of server %s failed.", key_from_proto(result.key))
            self._handle_outcome(worker_id, result, _unusable_listing(result))

    def _handle_outcome(
        self, worker_id: str, result: sync_pb2.ProbeResult, outcome: ServerListing | Problem
    ) -> None:
        if result.id:
            self._plane.traces.end_probe(result.id, outcome)
            if self._plane.meters is not None:
                self._plane.meters.record_probe(result.id, outcome)
            with self._plane.transition() as (state, now):
                state.handle_probe_result(result.id, outcome, now)
        else:
            key = key_from_proto(result.key)
            with self._plane.transition() as (state, now):
                state.handle_relisting(worker_id, key, result.launch_hash, outcome, now)


def _unusable_listing(result: sync_pb2.ProbeResult) -> Problem:
    key = key_from_proto(result.key)
    return Problem(
        "server",
        "LIST_FAILED",
        f"The control plane could not use what server {key} lists; see its log, and report this.",
        server_id=key.server_id,
        tenant=key.tenant,
    )


async def _first(messages: AsyncIterator[sync_pb2.SyncRequest], kind: str) -> sync_pb2.SyncRequest:
    """Return the next message, which a worker owes before it joins.

    Raises:
        MalformedMessage: It is another one, or none comes in time.
    """
    try:
        async with asyncio.timeout(_HELLO_TIMEOUT):
            message = await anext(messages, None)
    except (TimeoutError, OversizeMessage) as error:
        raise MalformedMessage(f"A worker must send its {kind} first.") from error
    if message is None or message.WhichOneof("message") != kind:
        raise MalformedMessage(f"A worker must send its {kind} first.")
    return message


async def _join_parts(
    requests: AsyncIterator[sync_pb2.SyncRequest],
) -> AsyncIterator[sync_pb2.SyncRequest]:
    """Yield whole messages, joining those that arrive in parts.

    Raises:
        OversizeMessage: A joined message exceeds its limit.
    """
    joiner = Joiner()
    async for request in requests:
        if request.WhichOneof("message") != "part":
            yield request
            continue
        whole = joiner.add(request.part)
        if whole is not None:
            message = sync_pb2.SyncRequest.FromString(whole)
            del whole  # megabytes that would stay until the next long message
            yield message
            del message
