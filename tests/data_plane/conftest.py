"""A worker over real gRPC, with a control plane and in-memory MCP servers that tests control."""

from __future__ import annotations

import asyncio
import itertools
import json
import logging
import os
import signal
from collections.abc import AsyncIterator, Awaitable, Coroutine, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from contextvars import Context
from datetime import timedelta
from pathlib import Path
from typing import Any

import grpc
import pytest
from tests.calls import call_message
from tests.data_plane.doubles.servers import MemoryCall, MemoryInstance, MemoryServers
from tests.data_plane.doubles.told import settled, with_all_instances

from leaseway.data_plane.app import run
from leaseway.data_plane.background import Background
from leaseway.data_plane.worker import Shutdown, Surroundings, Worker, WorkerOptions
from leaseway.identity.authenticator import authenticator_for
from leaseway.spec.codec import encode_spec, key_to_proto
from leaseway.spec.kinds.table import server_spec
from leaseway.spec.model import ServerSpec, VariantKey
from leaseway.telemetry.logs import configure_logging
from leaseway.telemetry.metrics import Meter
from leaseway.v1 import (
    catalog_pb2,
    execution_pb2,
    execution_pb2_grpc,
    leases_pb2,
    leases_pb2_grpc,
    sync_pb2,
    sync_pb2_grpc,
)
from leaseway.wire.channels.auth import bearer_metadata
from leaseway.wire.channels.endpoint import Endpoint, Endpoints
from leaseway.wire.channels.local import LocalStream, LocalWorker
from leaseway.wire.channels.serving import bind, make_server
from leaseway.wire.errors import Fault
from leaseway.wire.messages.message_parts import Joiner, split
from leaseway.wire.status import fault_from_rpc_error, fault_from_status
from leaseway.wire.version import PROTOCOL_VERSION

WAIT = 60.0
MANY_STARTS = 64
"""Processes that start at the same time where a test is not about their places."""


async def rpc_fault(call: Awaitable[Any]) -> Fault:
    """Return the fault that an RPC ends with."""
    with pytest.raises(grpc.aio.AioRpcError) as error:
        async with asyncio.timeout(WAIT):
            await call
    fault = fault_from_rpc_error(error.value)
    assert fault is not None
    return fault


@contextmanager
def logging_to(path: Path, fmt: Any = "text") -> Iterator[None]:
    """Configure logging as a worker does; restore it afterwards."""
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    root.handlers.clear()
    try:
        configure_logging("info", fmt, str(path), "worker w1")
        yield
    finally:
        for handler in root.handlers:
            with suppress(OSError):
                handler.close()
        root.handlers[:] = handlers
        root.setLevel(level)


async def read_all(stream: Any) -> None:
    """Read a stream to its end."""
    while await stream.read() is not grpc.aio.EOF:
        pass


class ControlPlane(sync_pb2_grpc.SyncServiceServicer):
    """A fake control plane that serves one sync stream at a time."""

    def __init__(self, epoch: int = 1) -> None:
        self.epoch = epoch
        self.protocol_version = PROTOCOL_VERSION
        self.pulse_interval = 0.0
        self.patience = timedelta()
        self.fleet: sync_pb2.Fleet | None = None
        self.lists_subjects = False
        self.instances: dict[str, catalog_pb2.InstanceStatus] = {}
        self.welcomes = asyncio.Event()
        self.welcomes.set()
        self.hellos: asyncio.Queue[sync_pb2.Hello] = asyncio.Queue()
        self.received: asyncio.Queue[sync_pb2.SyncRequest] = asyncio.Queue()
        self.reports: asyncio.Queue[sync_pb2.SyncRequest] = asyncio.Queue()
        self.outgoing: asyncio.Queue[sync_pb2.SyncResponse | None] = asyncio.Queue()
        self.refusal: Fault | tuple[grpc.StatusCode, str] | None = None
        self.parts = 0
        self.reads = asyncio.Event()
        self.reads.set()

    async def Sync(self, requests: Any, context: Any) -> None:  # type: ignore[override]
        outgoing = self.outgoing = asyncio.Queue()
        hello = (await context.read()).hello
        await context.write(sync_pb2.SyncResponse(ask_held=sync_pb2.AskHeld()))
        self.received.put_nowait(told := await context.read())
        hello.held.extend(sync_pb2.Hello.FromString(told.held_list.held).held)
        self.hellos.put_nowait(hello)
        self.instances.clear()
        if isinstance(self.refusal, tuple):
            await context.abort(*self.refusal)
        elif self.refusal is not None:
            from leaseway.wire.status import abort

            await abort(context, self.refusal)
        welcome = sync_pb2.Welcome(
            protocol_version=self.protocol_version,
            epoch=self.epoch,
            lists_subjects=True,
            fleet=self.fleet,
        )
        await self.welcomes.wait()
        welcome.pulse_interval.FromTimedelta(timedelta(seconds=self.pulse_interval))
        welcome.patience.FromTimedelta(self.patience)
        await context.write(sync_pb2.SyncResponse(welcome=welcome))
        reader = asyncio.create_task(self._read(context, outgoing))
        try:
            while (message := await self.outgoing.get()) is not None:
                await context.write(message)
        finally:
            reader.cancel()

    async def _read(
        self, context: Any, outgoing: asyncio.Queue[sync_pb2.SyncResponse | None]
    ) -> None:
        joiner = Joiner()
        while (message := await context.read()) is not grpc.aio.EOF:
            if message.HasField("part"):
                self.parts += 1
                whole = joiner.add(message.part)
                if whole is None:
                    continue
                message = sync_pb2.SyncRequest.FromString(whole)
            if message.report.instances_version:
                with_all_instances(message.report, self.instances)
            if message.HasField("subject_listing") and not self.lists_subjects:
                self.send(subject_toolset=settled(message.subject_listing))
            queue = self.reports if message.HasField("report") else self.received
            queue.put_nowait(message)
            await self.reads.wait()
        outgoing.put_nowait(None)  # the worker has left

    def send(self, **message: Any) -> None:
        """Send a message to the worker."""
        self.outgoing.put_nowait(sync_pb2.SyncResponse(**message))

    def send_in_parts(self, **message: Any) -> None:
        """Send a message in parts."""
        for part in split(sync_pb2.SyncResponse(**message).SerializeToString()):
            self.send(part=part)

    def end_stream(self) -> None:
        """End the stream from this side."""
        self.outgoing.put_nowait(None)

    async def hello(self) -> sync_pb2.Hello:
        """Return the next Hello."""
        async with asyncio.timeout(WAIT):
            return await self.hellos.get()

    async def expect(self, kind: str) -> Any:
        """Return the next message of a kind; drop all others except reports.

        Reports arrive at any time: they are coalesced.
        """
        queue = self.reports if kind == "report" else self.received
        async with asyncio.timeout(WAIT):
            while True:
                message = await queue.get()
                if message.WhichOneof("message") == kind:
                    return getattr(message, kind)

    async def expect_report(self, matches: Any) -> sync_pb2.Report:
        """Return the next report that matches."""
        while True:
            report: sync_pb2.Report = await self.expect("report")
            if matches(report):
                return report


class Caller:
    """One exchange stream.

    Attributes:
        says_goodbye: Whether it answers the worker's goodbye, as clients do.
    """

    def __init__(
        self, stub: execution_pb2_grpc.ExecutionServiceStub, key: str | None = None
    ) -> None:
        self.stream: Any = stub.Exchange(metadata=bearer_metadata(key))  # type: ignore[call-arg]
        self.frames: list[execution_pb2.ExchangeResponse] = []
        self.results: dict[int, asyncio.Future[execution_pb2.Result]] = {}
        self.payloads: dict[int, bytes] = {}
        self.changed = asyncio.Event()
        self.ended = False
        self.says_goodbye = True
        self._ids = itertools.count(1)
        self._writing = asyncio.Lock()
        self._reader = asyncio.create_task(self._read())

    async def _read(self) -> None:
        try:
            while (message := await self.stream.read()) is not grpc.aio.EOF:
                self.frames.append(message)
                if message.going_away.last and self.says_goodbye:
                    await self.send(going_away=execution_pb2.GoingAway())
                for chunk in message.chunks:
                    held = self.payloads.get(chunk.call_id, b"")
                    self.payloads[chunk.call_id] = held + chunk.data
                for result in message.results:
                    self.payloads[result.call_id] = (
                        self.payloads.get(result.call_id, b"") + result.payload
                    )
                    self.results[result.call_id].set_result(result)
                self.changed.set()
        finally:
            self.ended = True
            self.changed.set()

    async def until(self, condition: Any) -> None:
        """Wait for a condition that received messages can change."""
        async with asyncio.timeout(WAIT):
            while not condition():
                self.changed.clear()
                await self.changed.wait()

    async def send(self, **fields: Any) -> None:
        """Send one message."""
        async with self._writing:  # gRPC takes one write at a time
            await self.stream.write(execution_pb2.ExchangeRequest(**fields))

    async def begin(self, server_id: str, tool: str = "echo", **fields: Any) -> int:
        """Send a call; return its id."""
        fields.setdefault("arguments", b'{"text": "hi"}')
        call_id = fields.pop("id", None) or next(self._ids)
        self.results[call_id] = asyncio.get_running_loop().create_future()
        call = call_message(id=call_id, server_id=server_id, tool=tool, **fields)
        await self.send(calls=[call])
        return call_id

    async def result(self, call_id: int) -> execution_pb2.Result:
        """Return the result of a call."""
        async with asyncio.timeout(WAIT):
            return await self.results[call_id]

    async def call(self, server_id: str, tool: str = "echo", **fields: Any) -> Any:
        """Call and return the result."""
        return await self.result(await self.begin(server_id, tool, **fields))

    async def refused(self, server_id: str, tool: str = "echo", **fields: Any) -> Fault:
        """Call and return the fault."""
        result = await self.call(server_id, tool, **fields)
        assert result.HasField("status"), "the call has a result"
        return fault_from_status(result.status)

    def close(self) -> None:
        """Cut the stream."""
        self.stream.cancel()
        self._reader.cancel()


class InProcessCaller(Caller):
    """One stream of a caller in the worker's process (`LocalCaller`)."""

    def __init__(self, local: LocalWorker, key: str | None = None) -> None:
        self.frames = []
        self.results = {}
        self.payloads = {}
        self.changed = asyncio.Event()
        self.ended = False
        self._ids = itertools.count(1)
        self._opened: asyncio.Future[LocalStream] = asyncio.get_running_loop().create_future()
        hello = catalog_pb2.ClientInfo(protocol_version=PROTOCOL_VERSION)
        carrying = local.carry(self, dict(bearer_metadata(key)).get("authorization"), hello)
        self._reader = asyncio.create_task(self._carry(carrying), context=Context())

    async def _carry(self, carrying: Coroutine[Any, Any, None]) -> None:
        try:
            await carrying
        finally:
            self.ended = True
            self.changed.set()

    def open(self, stream: LocalStream) -> None:
        self._opened.set_result(stream)

    def handle_result(self, call_id: int, result: execution_pb2.Result, payload: bytes) -> None:
        whole = execution_pb2.Result(call_id=call_id, payload=payload)
        whole.MergeFrom(result)
        self.results[call_id].set_result(whole)
        self.payloads[call_id] = payload
        self.changed.set()

    def handle_response(self, message: execution_pb2.ExchangeResponse) -> None:
        self.frames.append(message)
        self.changed.set()

    async def send(self, **fields: Any) -> None:
        stream = await self._opened
        for call in fields.pop("calls", ()):
            arguments = call.arguments
            call.ClearField("arguments")
            stream.start_call(call, arguments)
        stream.handle_request(execution_pb2.ExchangeRequest(**fields))

    def close(self) -> None:
        self._reader.cancel()


BOTH_WAYS = pytest.mark.parametrize("bench", ["grpc", "in process"], indirect=True)
"""For tests of what streams over gRPC and within the process have in common."""


class Bench:
    """A worker that has joined a control plane, with its servers and callers."""

    def __init__(self, servers: MemoryServers, plane: ControlPlane) -> None:
        self.servers = servers
        self.plane = plane
        self.shutdown = Shutdown()
        self.worker: Worker
        self.address = ""
        self.background: Background
        self.first_hello: sync_pb2.Hello
        self.exit: asyncio.Task[int]
        self._versions = itertools.count(1)
        self._callers: list[Caller] = []
        self.in_process = False

    def connect(self, address: str) -> None:
        """Open a channel to the worker."""
        self.address = address
        self.channel = grpc.aio.insecure_channel(address)
        self.execution: Any = execution_pb2_grpc.ExecutionServiceStub(self.channel)
        self.leases: Any = leases_pb2_grpc.LeaseServiceStub(self.channel)

    def caller(self, key: str | None = None) -> Caller:
        """Open an exchange, with a credential or without."""
        caller: Caller
        if self.in_process:
            caller = InProcessCaller(self.worker.local, key)
        else:
            caller = Caller(self.execution, key)
        self._callers.append(caller)
        return caller

    def spec(self, server_id: str, *, shared: bool = True, **fields: Any) -> ServerSpec:
        """Return a spec of a server in memory."""
        key = VariantKey(server_id, fields.pop("tenant", ""))
        if "auth" in fields:
            fields |= {"url": "http://127.0.0.1:1/mcp", "truely_stateless": shared}
            return server_spec(key, "streamable_http", **fields)
        fields.setdefault("command", "memory")
        return server_spec(key, "stdio", truely_stateless=shared, **fields)

    def upsert(self, spec: ServerSpec, tools: Any = None, exposed: Any = None) -> sync_pb2.Upsert:
        """Return a spec with its toolset; each tool is exposed with the server's id in front."""
        tools = self.servers.tools if tools is None else tools
        names = list(tools) if exposed is None else exposed
        return sync_pb2.Upsert(
            spec=encode_spec(spec),
            hashes=sync_pb2.HeldHashes(
                key=key_to_proto(spec.key),
                launch_hash=spec.launch_hash,
                exposure_hash=spec.exposure_hash,
                toolset_hash=str(hash((tuple(tools.items()), tuple(names)))),
            ),
            toolset=sync_pb2.Toolset(
                recorded=[sync_pb2.RecordedTool(definition=tool) for tool in tools.values()],
                exposed=[
                    sync_pb2.ExposedTool(original_name=name, name=f"{spec.key.server_id}_{name}")
                    for name in names
                ],
                protocol_version="2025-11-25",
            ),
        )

    def delta(self, *upserts: sync_pb2.Upsert, **fields: Any) -> sync_pb2.Delta:
        """Return a delta at the next registry version."""
        version = next(self._versions)
        fields.setdefault("registry_version", version)
        return sync_pb2.Delta(nonce=version, epoch=self.plane.epoch, upserts=upserts, **fields)

    async def push(self, *upserts: sync_pb2.Upsert, **fields: Any) -> sync_pb2.Ack:
        """Send a delta, and wait until the worker has applied it."""
        self.plane.send(delta=self.delta(*upserts, **fields))
        ack: sync_pb2.Ack = await self.plane.expect("ack")
        return ack

    async def serve(self, server_id: str, *, shared: bool = True, **fields: Any) -> ServerSpec:
        """Serve an in-memory server."""
        spec = self.spec(server_id, shared=shared, **fields)
        await self.push(self.upsert(spec))
        return spec

    async def hold(self, server_id: str, *, shared: bool = True, **fields: Any) -> ServerSpec:
        """Serve a server that leaves its calls unanswered until the test answers them."""
        spec = await self.serve(server_id, shared=shared, **fields)
        self.servers.holds = True
        return spec

    async def wait_for_calls(self, count: int = 1) -> list[MemoryCall]:
        """Wait until servers have this many unanswered calls; return them, oldest first."""

        def calls() -> list[MemoryCall]:
            return [call for instance in self.servers.opened for call in instance.calls]

        await self.until(lambda: len(calls()) >= count)
        return calls()

    async def answer_call(
        self, server_id: str, payload: bytes = b"{}", *, is_error: bool = False, **fields: Any
    ) -> MemoryCall:
        """Call a held server and answer the call, whose result has then arrived; return it."""
        caller = self.caller()
        call_id = await caller.begin(server_id, **fields)
        call = (await self.wait_for_calls())[-1]
        call.answer(payload, is_error=is_error)
        await caller.result(call_id)
        return call

    async def probe_unserved(self, spec: ServerSpec) -> sync_pb2.ProbeResult:
        """Probe a server."""
        key, encoded, launch = key_to_proto(spec.key), encode_spec(spec), spec.launch_hash
        self.plane.send(probe=sync_pb2.Probe(id=1, key=key, spec=encoded, launch_hash=launch))
        result: sync_pb2.ProbeResult = await self.plane.expect("probe_result")
        assert not result.HasField("problem"), result.problem.message
        return result

    async def probe(self, spec: ServerSpec) -> sync_pb2.ProbeResult:
        """Probe a server, and serve the tools that it listed."""
        result = await self.probe_unserved(spec)
        tools = {json.loads(tool.definition)["name"]: tool.definition for tool in result.tools}
        await self.push(self.upsert(spec, tools=tools))
        return result

    async def acquire(self, session: str = "s1", server_id: str = "db", **fields: Any) -> Any:
        """Acquire a lease and return it."""
        request = leases_pb2.AcquireLeaseRequest(session=session, server_id=server_id, **fields)
        async with asyncio.timeout(WAIT):
            return (await self.leases.AcquireLease(request)).lease

    async def acquire_fault(self, session: str = "s1", server_id: str = "db") -> Fault:
        """Acquire a lease and return why there is none."""
        return await rpc_fault(self.acquire(session, server_id))

    async def release(self, lease: Any) -> None:
        """Release a lease."""
        await self.leases.ReleaseLease(
            leases_pb2.ReleaseLeaseRequest(
                lease_id=lease.id, tenant=lease.tenant, session=lease.session
            )
        )

    async def hold_call(
        self, caller: Caller, server_id: str, **fields: Any
    ) -> tuple[int, MemoryCall]:
        """Send a call that its server holds; return its id and the server's end of it."""
        self.servers.holds = True
        before = [call for instance in self.servers.opened for call in instance.calls]
        call_id = await caller.begin(server_id, **fields)
        held: list[MemoryCall] = []

        def arrived() -> bool:
            calls = (call for instance in self.servers.opened for call in instance.calls)
            held[:] = [call for call in calls if call not in before]
            return bool(held)

        await self.until(arrived)
        return call_id, held[0]

    async def until_ready(self, number: int = 1) -> MemoryInstance:
        """Return the n-th instance that was opened, once it is ready."""
        await self.until(lambda: len(self.servers.opened) >= number)
        instance = self.servers.opened[number - 1]
        await self.until(lambda: instance.state == "ready")
        return instance

    async def until(self, condition: Any) -> None:
        """Run the loop until a condition holds."""
        async with asyncio.timeout(WAIT):
            while not condition():
                await asyncio.sleep(0)


@asynccontextmanager
async def control_plane() -> AsyncIterator[tuple[ControlPlane, Endpoint]]:
    """Serve a control plane on a port of its own."""
    plane = ControlPlane()
    server = grpc.aio.server()
    sync_pb2_grpc.add_SyncServiceServicer_to_server(plane, server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    try:
        yield plane, Endpoint("127.0.0.1", port)
    finally:
        await server.stop(None)


@pytest.fixture
async def running() -> AsyncIterator[Bench]:
    """A whole worker, as the command runs it, with real servers; SIGTERM ends it."""
    async with control_plane() as (plane, address), asyncio.TaskGroup() as group:
        bench = Bench(MemoryServers(), plane)
        listening: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        options = WorkerOptions(Endpoints(address), Endpoint("127.0.0.1", 0), id="w1")
        bench.exit = group.create_task(run(options, ready=listening.set_result))
        bench.connect(await listening)
        bench.first_hello = await plane.hello()
        try:
            yield bench
        finally:
            if not bench.exit.done():
                os.kill(os.getpid(), signal.SIGTERM)
            assert await asyncio.wait_for(bench.exit, 2 * WAIT) == 0
            await bench.channel.close()


@pytest.fixture
async def bench(request: pytest.FixtureRequest) -> AsyncIterator[Bench]:
    """A worker joined to a control plane, serving nothing yet."""
    async with worker_bench() as made:
        made.in_process = getattr(request, "param", "") == "in process"
        yield made


@asynccontextmanager
async def worker_bench(
    capacity: int = 4, meter: Meter | None = None, **fields: Any
) -> AsyncIterator[Bench]:
    """Run a worker that has joined a control plane and serves nothing yet.

    Args:
        capacity: The most leases that it takes.
        meter: Measures it.
        fields: Of its options, or parts of it: `known` (its vault), `storage`, `watch_timing`,
            `audit`, `shipper`, `login_links`. Or `interceptors` of its server, such as who calls,
            and the `authenticator` of callers in its process.
    """
    server = make_server(interceptors=fields.pop("interceptors", ()))
    authenticator = fields.pop("authenticator", None) or authenticator_for(None)
    bound = bind(server, Endpoint("127.0.0.1", 0))
    async with control_plane() as (plane, address), asyncio.TaskGroup() as group:
        bench = Bench(MemoryServers(), plane)
        parts: dict[str, Any] = {"vault": fields.pop("known", None)}
        parts |= {
            name: fields.pop(name)
            for name in ("storage", "watch_timing", "audit", "shipper", "login_links")
            if name in fields
        }
        fields = {"labels": {"zone": "a"}, "concurrent_starts": MANY_STARTS, **fields}
        options = WorkerOptions(Endpoints(address), bound, id="w1", capacity=capacity, **fields)
        background = bench.background = Background(group)
        bench.worker = Worker(
            options,
            bound,
            Surroundings(
                bench.servers, background, bench.shutdown, authenticator, meter=meter, **parts
            ),
        )
        listening = asyncio.Event()
        serving = group.create_task(bench.worker.serve(server, bench.shutdown, listening.set))
        await listening.wait()
        bench.connect(str(bound))
        bench.first_hello = await plane.hello()
        async with asyncio.timeout(WAIT):
            await bench.worker.sync.joined.wait()
        try:
            yield bench
        finally:
            for caller in bench._callers:
                caller.close()
            bench.shutdown.request("the test is over")
            bench.shutdown.request("and in a hurry")
            await asyncio.wait_for(serving, WAIT)
            await bench.channel.close()
            background.cancel_all()
