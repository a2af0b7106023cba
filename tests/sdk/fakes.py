"""A control plane and workers that say what a test wants, over real gRPC on port 0."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from typing import Any

import grpc
from google.protobuf.duration_pb2 import Duration

from leaseway.v1 import (
    admin_pb2,
    admin_pb2_grpc,
    catalog_pb2,
    catalog_pb2_grpc,
    execution_pb2,
    execution_pb2_grpc,
    leases_pb2,
    leases_pb2_grpc,
)
from leaseway.wire.bounds import BATCH_SIZE, MAX_ARGUMENTS, MAX_CALLS_IN_FLIGHT
from leaseway.wire.fault import Fault, abort, status_from_fault
from leaseway.wire.frames import frame, frame_tag
from leaseway.wire.outbox import Assembler, Outbox
from leaseway.wire.reasons import Reason
from leaseway.wire.serving import SERVER_OPTIONS

BOUND = 10.0
"""Seconds that any single wait of a test may take."""

Answer = Callable[["FakeWorker", execution_pb2.Call, bytes], "bytes | Awaitable[bytes]"]


def text_result(text: str) -> bytes:
    return json.dumps({"content": [{"type": "text", "text": text}]}).encode()


def echo(worker: FakeWorker, call: execution_pb2.Call, arguments: bytes) -> bytes:
    return text_result(arguments.decode())


async def never(worker: FakeWorker, call: execution_pb2.Call, arguments: bytes) -> bytes:
    await asyncio.Event().wait()
    return b""


def duration(seconds: float) -> Duration:
    message = Duration()
    message.FromNanoseconds(round(seconds * 1e9))
    return message


async def until(condition: Callable[[], object]) -> None:
    """Let the loop run until a condition holds."""
    async with asyncio.timeout(BOUND):
        while not condition():
            await asyncio.sleep(0.001)


@dataclass
class FakeTool:
    name: str
    server_id: str
    original_name: str
    shared: bool = True
    idempotent: bool = False
    read_only: bool = False
    call_timeout: float | None = None


class FakeControlPlane(
    catalog_pb2_grpc.CatalogServiceServicer,
    leases_pb2_grpc.PlacementServiceServicer,
    admin_pb2_grpc.AdminServiceServicer,
):
    """Answers from what the test put into its attributes."""

    def __init__(self) -> None:
        self.tools: dict[str, FakeTool] = {}
        self.workers: list[FakeWorker] = []
        self.version = 1
        self.page_size = 1000
        self.pending: list[str] = []
        self.resolves: list[list[str]] = []
        self.places: list[leases_pb2.PlaceRequest] = []
        self.place_faults: list[Fault] = []
        self.finds: list[leases_pb2.FindLeaseRequest] = []
        self.drained: list[str] = []
        self.revoked: list[admin_pb2.RevokeLeaseRequest] = []
        self.resolve_faults: dict[str, Fault] = {}
        self.hold_resolve: dict[str, asyncio.Event] = {}
        self.clients: list[catalog_pb2.ClientInfo] = []
        self.metadata: list[dict[str, Any]] = []
        self.problems: list[admin_pb2.Problem] = []
        self.on_list: Callable[[], None] = lambda: None
        self.address = ""
        self._watchers: set[asyncio.Event] = set()
        self._server: grpc.aio.Server | None = None

    def add(self, server: str, *names: str, **options: Any) -> None:
        for name in names:
            tool = FakeTool(f"{server}_{name}", server, name, **options)
            self.tools[tool.name] = self.tools[f"{server}:{name}"] = tool

    async def start(self, port: int = 0) -> None:
        self._server = grpc.aio.server(options=SERVER_OPTIONS)
        catalog_pb2_grpc.add_CatalogServiceServicer_to_server(self, self._server)
        leases_pb2_grpc.add_PlacementServiceServicer_to_server(self, self._server)
        admin_pb2_grpc.add_AdminServiceServicer_to_server(self, self._server)
        bound = self._server.add_insecure_port(f"127.0.0.1:{port}")
        self.address = f"127.0.0.1:{bound}"
        await self._server.start()

    async def stop(self) -> None:
        if self._server is not None:
            await self._server.stop(None)
            self._server = None

    def move(self) -> None:
        """Begin a new registry version and tell watchers."""
        self.version += 1
        self.tell()

    def tell(self) -> None:
        """Tell watchers the version once more: other workers serve the tools."""
        for watcher in self._watchers:
            watcher.set()

    @property
    def watchers(self) -> int:
        return len(self._watchers)

    async def ListTools(self, request: Any, context: Any) -> Any:
        self.clients.append(request.client)
        self.metadata.append(dict(context.invocation_metadata()))
        tools = sorted(
            {tool.name: tool for tool in self.tools.values()}.values(), key=lambda tool: tool.name
        )
        chosen = [t for t in tools if not request.servers or t.server_id in request.servers]
        start = int(request.page_token or 0)
        page = chosen[start : start + self.page_size]
        more = start + self.page_size < len(chosen)
        answer = catalog_pb2.ListToolsResponse(
            registry_version=self.version,
            pending=self.pending,
            next_page_token=str(start + self.page_size) if more else "",
        )
        answer.config_loaded_at.FromSeconds(1_700_000_000)
        for tool in page:
            answer.tools.add(
                name=tool.name,
                original_name=tool.original_name,
                server_id=tool.server_id,
                title="A title",
                description="What it does.",
                input_schema=b'{"type": "object"}',
                annotations=b'{"readOnlyHint": true}',
                shared=tool.shared,
            )
        self.on_list()
        return answer

    async def ResolveTools(self, request: Any, context: Any) -> Any:
        self.clients.append(request.client)
        self.resolves.append(list(request.names))
        for name in request.names:
            if name in self.hold_resolve:
                await self.hold_resolve[name].wait()
        answer = catalog_pb2.ResolveToolsResponse(registry_version=self.version)
        for name in request.names:
            resolved = answer.tools.add(name=name)
            tool = self.tools.get(name)
            if name in self.resolve_faults:
                resolved.error.CopyFrom(status_from_fault(self.resolve_faults[name]))
            elif tool is None:
                fault = Fault(Reason.TOOL_NOT_FOUND, f"There is no tool '{name}'.")
                resolved.error.CopyFrom(status_from_fault(fault))
            else:
                resolved.server_id = tool.server_id
                resolved.original_name = tool.original_name
                resolved.shared = tool.shared
                resolved.idempotent = tool.idempotent
                resolved.read_only = tool.read_only
                if tool.call_timeout is not None:
                    resolved.call_timeout.CopyFrom(duration(tool.call_timeout))
                resolved.workers.extend(worker.ref for worker in self.workers)
        return answer

    async def WatchTools(self, request: Any, context: Any) -> AsyncIterator[Any]:
        wake = asyncio.Event()
        self._watchers.add(wake)
        told = 0
        try:
            while True:
                yield catalog_pb2.WatchToolsResponse(
                    registry_version=self.version, workers_changed=told == self.version
                )
                told = self.version
                await wake.wait()
                wake.clear()
        finally:
            self._watchers.discard(wake)

    async def ListServers(self, request: Any, context: Any) -> Any:
        answer = catalog_pb2.ListServersResponse(registry_version=self.version)
        for server in sorted({tool.server_id for tool in self.tools.values()}):
            answer.servers.add(
                server_id=server,
                state=catalog_pb2.SERVER_STATE_READY,
                transport="stdio",
                instances=[catalog_pb2.InstanceStatus(worker_id="w1", id="i1", state="ready")],
            )
        return answer

    async def Place(self, request: Any, context: Any) -> Any:
        self.places.append(request)
        if self.place_faults:
            await abort(context, self.place_faults.pop(0))
        fit = [w for w in self.workers if w.ref.id not in request.exclude_workers]
        if not fit and request.HasField("wait"):
            fit = self.workers  # who waits may try again where it was refused
        if not fit:
            await abort(context, Fault(Reason.CAPACITY, "No worker has room.", retry_delay=0.01))
        return leases_pb2.PlaceResponse(worker=fit[0].ref, registry_version=self.version)

    async def FindLease(self, request: Any, context: Any) -> Any:
        self.finds.append(request)
        for worker in self.workers:
            for lease in worker.leases.values():
                if (lease.session, lease.server_id) == (request.session, request.server_id):
                    return leases_pb2.FindLeaseResponse(worker=worker.ref, lease_id=lease.id)
        return leases_pb2.FindLeaseResponse()

    async def GetStatus(self, request: Any, context: Any) -> Any:
        return admin_pb2.GetStatusResponse(
            ready=True, registry_version=self.version, workers=len(self.workers)
        )

    async def ListWorkers(self, request: Any, context: Any) -> Any:
        answer = admin_pb2.ListWorkersResponse()
        for worker in self.workers:
            answer.workers.add(worker=worker.ref, state="connected", capacity=512)
        return answer

    async def ListHeldLeases(self, request: Any, context: Any) -> Any:
        leases = [lease for worker in self.workers for lease in worker.leases.values()]
        return admin_pb2.ListHeldLeasesResponse(leases=leases)

    async def ListProblems(self, request: Any, context: Any) -> Any:
        return admin_pb2.ListProblemsResponse(problems=self.problems)

    async def ReportProblem(self, request: Any, context: Any) -> Any:
        self.problems.append(request.problem)
        return admin_pb2.ReportProblemResponse()

    async def DrainWorker(self, request: Any, context: Any) -> Any:
        if request.worker_id not in [worker.id for worker in self.workers]:
            message = f"No worker '{request.worker_id}' is connected."
            await abort(context, Fault(Reason.INVALID_REQUEST, message))
        self.drained.append(request.worker_id)
        return admin_pb2.DrainWorkerResponse()

    async def RevokeLease(self, request: Any, context: Any) -> Any:
        self.revoked.append(request)
        for worker in self.workers:
            if worker.leases.pop(request.lease_id, None) is not None:
                revoked = Fault(Reason.LEASE_REVOKED, f"It was revoked: {request.reason}.")
                worker.lease_faults[request.lease_id] = revoked
                return admin_pb2.RevokeLeaseResponse(ended=True)
        await abort(context, Fault(Reason.LEASE_LOST, f"No worker holds '{request.lease_id}'."))
        return None


class FakeWorker(execution_pb2_grpc.ExecutionServiceServicer, leases_pb2_grpc.LeaseServiceServicer):
    """Runs calls by `answer`, or fails them by `faults`; keeps what it was sent."""

    def __init__(self, worker_id: str = "w1", answer: Answer = echo) -> None:
        self.id = worker_id
        self.answer: Answer = answer
        self.faults: list[Fault | None] = []
        self.stream_fault: Fault | None = None
        self.acquire_faults: list[Fault] = []
        self.batches: list[execution_pb2.ExchangeRequest] = []
        self.calls: list[execution_pb2.Call] = []
        self.cancels: list[execution_pb2.Cancel] = []
        self.renewals: list[list[str]] = []
        self.released: list[str] = []
        self.acquires: list[leases_pb2.AcquireLeaseRequest] = []
        self.leases: dict[str, leases_pb2.Lease] = {}
        self.lease_faults: dict[str, Fault] = {}
        self.stateful: set[str] = set()
        self.ttl = 60.0
        self.silent = False
        self.streams = 0
        self.open_streams = 0
        self.protocol_version = 1
        self.metadata: dict[str, Any] = {}
        self.ref = catalog_pb2.WorkerRef()
        self._outboxes: dict[Any, _Stream] = {}
        self._server: grpc.aio.Server | None = None
        self._counter = 0

    async def start(self, incarnation: str = "one", port: int = 0) -> None:
        self._server = grpc.aio.server(options=SERVER_OPTIONS)
        execution_pb2_grpc.add_ExecutionServiceServicer_to_server(self, self._server)
        leases_pb2_grpc.add_LeaseServiceServicer_to_server(self, self._server)
        bound = self._server.add_insecure_port(f"127.0.0.1:{port}")
        self.ref = catalog_pb2.WorkerRef(
            id=self.id, incarnation=f"{self.id}-{incarnation}", address=f"127.0.0.1:{bound}"
        )
        await self._server.start()

    async def stop(self) -> None:
        """Die at once: streams are cut."""
        if self._server is not None:
            await self._server.stop(None)
            self._server = None

    def go_away(self) -> None:
        for stream in self._outboxes.values():
            stream.put("going_away", execution_pb2.GoingAway(reason="test"))

    def say(
        self, call: execution_pb2.Call, frame: execution_pb2.Progress | execution_pb2.LogMessage
    ) -> None:
        """Send progress or a log message of a call to whoever made it."""
        frame.call_id = call.id
        field = "progress" if isinstance(frame, execution_pb2.Progress) else "logs"
        for stream in self._outboxes.values():
            if stream.has(call.id):
                stream.put(field, frame)

    async def Exchange(self, request_iterator: Any, context: Any) -> None:  # type: ignore[override]
        self.streams += 1
        self.metadata = dict(context.invocation_metadata())
        if self.stream_fault is not None:
            await abort(context, self.stream_fault)
        stream = _Stream(self, context)
        self._outboxes[context] = stream
        self.open_streams += 1
        try:
            await stream.run(request_iterator)
        finally:
            self.open_streams -= 1
            del self._outboxes[context]

    def grant(self, session: str, server: str, tenant: str = "") -> tuple[leases_pb2.Lease, bool]:
        for lease in self.leases.values():
            if (lease.session, lease.server_id) == (session, server):
                return lease, False
        self._counter += 1
        lease = leases_pb2.Lease(
            id=f"{self.ref.incarnation}-{self._counter}",
            server_id=server,
            worker_id=self.id,
            session=session,
            tenant=tenant,
            ttl=duration(self.ttl),
            reminder=f"Release {server} when you are done.",
        )
        self.leases[lease.id] = lease
        return lease, True

    def check(self, lease_id: str) -> None:
        if lease_id in self.lease_faults:
            raise self.lease_faults[lease_id]
        if lease_id not in self.leases:
            raise Fault(Reason.LEASE_LOST, "This worker does not know the lease.")

    def release_by_tool(self, call: execution_pb2.Call, arguments: bytes) -> bytes:
        server = json.loads(arguments)["serverId"]
        for lease in list(self.leases.values()):
            if (lease.session, lease.server_id) == (call.session, server):
                del self.leases[lease.id]
                self.released.append(lease.id)
                self.lease_faults[lease.id] = Fault(Reason.LEASE_RELEASED, "It was released.")
                return text_result(f"Released {server}.")
        nothing = {"content": [{"type": "text", "text": f"No lease of {server}."}]}
        return json.dumps({**nothing, "isError": True}).encode()

    async def AcquireLease(self, request: Any, context: Any) -> Any:
        self.acquires.append(request)
        if self.acquire_faults:
            await abort(context, self.acquire_faults.pop(0))
        lease, created = self.grant(request.session, request.server_id)
        lease.ttl.CopyFrom(request.ttl)
        return leases_pb2.AcquireLeaseResponse(lease=lease, created=created)

    async def ReleaseLease(self, request: Any, context: Any) -> Any:
        try:
            self.check(request.lease_id)
        except Fault as fault:
            await abort(context, fault)
        self.released.append(request.lease_id)
        del self.leases[request.lease_id]
        return leases_pb2.ReleaseLeaseResponse(released=True)

    async def KeepAlive(self, request: Any, context: Any) -> Any:
        return self.renew(request)

    def renew(self, request: leases_pb2.KeepAliveRequest) -> leases_pb2.KeepAliveResponse:
        self.renewals.append(list(request.lease_ids))
        answer = leases_pb2.KeepAliveResponse()
        for lease_id in request.lease_ids:
            renewal = answer.renewals.add(lease_id=lease_id)
            try:
                self.check(lease_id)
                renewal.ttl.CopyFrom(self.leases[lease_id].ttl)
            except Fault as fault:
                renewal.error.CopyFrom(status_from_fault(fault))
        return answer

    async def ListLeases(self, request: Any, context: Any) -> Any:
        return leases_pb2.ListLeasesResponse(leases=list(self.leases.values()))

    async def ReadLogs(self, request: Any, context: Any) -> Any:
        answer = execution_pb2.ReadLogsResponse()
        answer.instances.add(instance_id="i1", lines=["a", "b"][-request.lines :], state="running")
        return answer

    async def CallTool(self, request: Any, context: Any) -> Any:
        raise NotImplementedError

    def CallToolStreaming(self, request: Any, context: Any) -> Any:
        raise NotImplementedError


def _tag(field: str) -> bytes:
    return frame_tag(execution_pb2.ExchangeResponse, field)


class _Stream:
    """One exchange as the fake worker sees it."""

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
        for call in message.calls:
            worker.calls.append(call)
            arguments = self._assembler.take(call.id, call.arguments)
            fault = worker.faults.pop(0) if worker.faults else None
            self._tasks[call.id] = asyncio.create_task(self._answer(call, arguments, fault))
        for cancel in message.cancels:
            worker.cancels.append(cancel)
            if cancel.call_id in self._tasks:
                self._tasks[cancel.call_id].cancel()
        if message.HasField("keep_alive") and not worker.silent:
            self.put("keep_alive", worker.renew(message.keep_alive))

    async def _answer(
        self, call: execution_pb2.Call, arguments: bytes, fault: Fault | None
    ) -> None:
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

    def _lease(self, call: execution_pb2.Call, result: execution_pb2.Result) -> None:
        worker = self._worker
        if call.lease_id:
            worker.check(call.lease_id)
        elif call.server_id in worker.stateful:
            lease, created = worker.grant(call.session, call.server_id, call.tenant)
            (result.new_lease if created else result.joined_lease).CopyFrom(lease)
