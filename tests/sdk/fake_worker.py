"""A worker whose responses a test controls."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import Any, Self

import grpc
from tests.calls import ReceivedCall
from tests.ports import free_port
from tests.sdk.fake_stream import FakeStream
from tests.sdk.helpers import text_result

from leaseway.v1 import (
    catalog_pb2,
    execution_pb2,
    execution_pb2_grpc,
    leases_pb2,
    leases_pb2_grpc,
)
from leaseway.wire.channels.serving import SERVER_OPTIONS
from leaseway.wire.errors import Fault, Reason
from leaseway.wire.status import abort, status_from_fault
from leaseway.wire.timing.durations import duration, seconds

Answer = Callable[["FakeWorker", ReceivedCall, bytes], "bytes | Awaitable[bytes]"]


def echo(worker: FakeWorker, call: ReceivedCall, arguments: bytes) -> bytes:
    return text_result(arguments.decode())


async def never(worker: FakeWorker, call: ReceivedCall, arguments: bytes) -> bytes:
    await asyncio.Event().wait()
    return b""


class Gate:
    """Has calls wait until it is opened, then answers with their arguments.

    Args:
        only: What the arguments of a call that waits hold.
    """

    def __init__(self, only: bytes = b"") -> None:
        self._only = only
        self._opened = asyncio.Event()

    def open(self) -> None:
        self._opened.set()

    async def __call__(self, worker: FakeWorker, call: ReceivedCall, arguments: bytes) -> bytes:
        if self._only in arguments:
            await self._opened.wait()
        return echo(worker, call, arguments)


class FakeWorker(execution_pb2_grpc.ExecutionServiceServicer, leases_pb2_grpc.LeaseServiceServicer):
    """Answers calls with `answer`, or fails them with `faults`; records what it receives."""

    def __init__(self, worker_id: str = "w1", answer: Answer = echo) -> None:
        self.id = worker_id
        self.answer: Answer = answer
        self.faults: list[Fault | None] = []
        self.stream_fault: Fault | None = None
        self.cut_acquires = 0  # answers that the connection breaks before
        self.answers_acquires = asyncio.Event()  # cleared, leases are granted but not told
        self.answers_acquires.set()
        self.acquire_faults: list[Fault] = []
        self.batches: list[execution_pb2.ExchangeRequest] = []
        self.calls: list[ReceivedCall] = []
        self.cancels: list[execution_pb2.Cancel] = []
        self.answers: list[execution_pb2.Answer] = []
        self.renewals: list[list[str]] = []
        self.released: list[str] = []
        self.left: list[tuple[str, float]] = []  # ids, and for how long to keep them
        self.idle: list[float] = []
        self.resolved: list[str] = []
        self.released_for: list[tuple[str, str]] = []
        self.acquires: list[leases_pb2.AcquireLeaseRequest] = []
        self.leases: dict[str, leases_pb2.Lease] = {}
        self.lease_faults: dict[str, Fault] = {}
        self.lease_tools: leases_pb2.ListLeaseToolsResponse | None = (
            leases_pb2.ListLeaseToolsResponse()
        )
        self.waits_for_tools = True
        self.waiting_lists = 0
        self.lists = 0
        self._tools_changed = asyncio.Event()
        self.stateful = {"desk"}
        self.ttl = 60.0
        self.silent = False
        self.streams = 0
        self.open_streams = 0
        self.protocol_version = 1
        self.metadata: dict[str, Any] = {}
        self.ref = catalog_pb2.WorkerRef()
        self._outboxes: dict[Any, FakeStream] = {}
        self._server: grpc.aio.Server | None = None
        self._counter = 0
        self._asked: dict[int, asyncio.Future[execution_pb2.Answer]] = {}

    async def start(self, incarnation: str = "one", port: int = 0) -> None:
        self._server = grpc.aio.server(options=SERVER_OPTIONS)
        execution_pb2_grpc.add_ExecutionServiceServicer_to_server(self, self._server)
        leases_pb2_grpc.add_LeaseServiceServicer_to_server(self, self._server)
        bound = self._server.add_insecure_port(f"127.0.0.1:{port or free_port()}")
        self.ref = catalog_pb2.WorkerRef(
            id=self.id, incarnation=f"{self.id}-{incarnation}", address=f"127.0.0.1:{bound}"
        )
        await self._server.start()

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *how: object) -> None:
        await self.stop()

    async def stop(self) -> None:
        """Die at once: streams are cut."""
        if self._server is not None:
            await self._server.stop(None)
            self._server = None

    def go_away(self) -> None:
        for stream in self._outboxes.values():
            stream.put("going_away", execution_pb2.GoingAway(reason="test"))

    def say(
        self, call: ReceivedCall, frame: execution_pb2.Progress | execution_pb2.LogMessage
    ) -> None:
        """Send progress or a log message of a call to its caller."""
        frame.call_id = call.id
        field = "progress" if isinstance(frame, execution_pb2.Progress) else "logs"
        for stream in self._outboxes.values():
            if stream.has(call.id):
                stream.put(field, frame)

    async def ask(
        self, call: ReceivedCall, method: str, params: dict[str, Any] | bytes | None = None
    ) -> execution_pb2.Answer:
        """Send a request to the caller of a call, and wait for the answer."""
        ask_id = len(self._asked) + 1
        answer: asyncio.Future[execution_pb2.Answer] = asyncio.get_running_loop().create_future()
        self._asked[ask_id] = answer
        data = params if isinstance(params, bytes) else json.dumps(params or {}).encode()
        ask = execution_pb2.Ask(call_id=call.id, ask_id=ask_id, method=method, params=data)
        for stream in self._outboxes.values():
            if stream.has(call.id):
                stream.put("asks", ask)
        return await answer

    def take_answer(self, answer: execution_pb2.Answer) -> None:
        self.answers.append(answer)
        waiting = self._asked[answer.ask_id]
        if not waiting.done():
            waiting.set_result(answer)

    async def Exchange(self, request_iterator: Any, context: Any) -> None:  # type: ignore[override]
        self.streams += 1
        self.metadata = dict(context.invocation_metadata())
        if self.stream_fault is not None:
            await abort(context, self.stream_fault)
        stream = FakeStream(self, context)
        self._outboxes[context] = stream
        self.open_streams += 1
        try:
            await stream.run(request_iterator)
        finally:
            self.open_streams -= 1
            del self._outboxes[context]

    def grant(
        self, session: str, server: str, tenant: str = "", acquirer: str = ""
    ) -> tuple[leases_pb2.Lease, bool]:
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
            acquirer=acquirer,
        )
        self.leases[lease.id] = lease
        return lease, True

    def check(self, lease_id: str) -> None:
        if lease_id in self.lease_faults:
            raise self.lease_faults[lease_id]
        if lease_id not in self.leases:
            raise Fault(Reason.LEASE_LOST, "This worker does not know the lease.")

    def release_by_tool(self, call: ReceivedCall, arguments: bytes) -> bytes:
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
        lease, created = self.grant(request.session, request.server_id, acquirer=request.acquirer)
        lease.ttl.CopyFrom(request.ttl)
        await self.answers_acquires.wait()
        if self.cut_acquires:
            self.cut_acquires -= 1
            await context.abort(grpc.StatusCode.UNAVAILABLE, "Socket closed")
        return leases_pb2.AcquireLeaseResponse(lease=lease, created=created)

    async def ReleaseLease(self, request: Any, context: Any) -> Any:
        try:
            self.check(request.lease_id)
        except Fault as fault:
            await abort(context, fault)
        if request.leaving_client and (
            request.HasField("keep")
            or request.leaving_client != self.leases[request.lease_id].acquirer
        ):
            self.left.append((request.lease_id, seconds(request.keep)))
            return leases_pb2.ReleaseLeaseResponse()
        if request.HasField("idle") and self.idle:
            return leases_pb2.ReleaseLeaseResponse(idle=duration(self.idle.pop(0)))
        self.released.append(request.lease_id)
        self.released_for.append((request.tenant, request.session))
        del self.leases[request.lease_id]
        return leases_pb2.ReleaseLeaseResponse(released=True)

    async def ListLeaseTools(self, request: Any, context: Any) -> Any:
        """Return the tools in which the lease differs; an older worker has no such method."""
        waits = request.HasField("wait") and self.waits_for_tools
        self.waiting_lists += waits
        self.lists += 1
        try:
            while True:
                changed = self._tools_changed
                self.check(request.lease_id)
                tools = self.lease_tools
                if tools is None:
                    await context.abort(grpc.StatusCode.UNIMPLEMENTED, "Method not found!")
                elif not waits or tools.digest != request.known_digest:
                    return tools
                await changed.wait()
        except Fault as fault:
            await abort(context, fault)
        finally:
            self.waiting_lists -= waits

    def change_tools(self, tools: leases_pb2.ListLeaseToolsResponse | None) -> None:
        """Change the tools of all leases, and answer those who wait for that."""
        self.lease_tools = tools
        changed, self._tools_changed = self._tools_changed, asyncio.Event()
        changed.set()

    async def ResolveLeased(self, request: Any, context: Any) -> Any:
        self.resolved.append(request.name)
        server_id, _, name = request.name.partition("_")
        if self.leases[request.lease_id].server_id != server_id:
            await abort(context, Fault(Reason.TOOL_NOT_FOUND, "It has no such tool."))
        tool = catalog_pb2.ResolvedTool(server_id=server_id, original_name=name)
        return leases_pb2.ResolveLeasedResponse(tool=tool, registry_version=1)

    async def KeepAlive(self, request: Any, context: Any) -> Any:
        return self.renew(request)

    def renew(self, request: leases_pb2.KeepAliveRequest) -> leases_pb2.KeepAliveResponse:
        self.renewals.append(list(request.lease_ids))
        answer = leases_pb2.KeepAliveResponse()
        for lease_id, session in zip(request.lease_ids, request.sessions, strict=True):
            renewal = answer.renewals.add(lease_id=lease_id)
            try:
                self.check(lease_id)
                assert self.leases[lease_id].session == session
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

    def ReadArtifact(self, request: Any, context: Any) -> Any:
        raise NotImplementedError
