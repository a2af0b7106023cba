"""A fake worker that speaks the Sync protocol."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from typing import Final

import grpc
from tests.conftest import BOUND

from leaseway.control_plane.plane import Plane
from leaseway.v1 import catalog_pb2, sync_pb2, sync_pb2_grpc
from leaseway.wire.messages.message_parts import Joiner, split
from leaseway.wire.version import PROTOCOL_VERSION

END = grpc.aio.EOF
PLANES: Final[dict[str, Plane]] = {}
"""The planes that this process serves, by their address."""


def recorded(*names: str, size: int = 0) -> list[sync_pb2.RecordedTool]:
    """Return the listing of a server with these tools, each of about `size` bytes."""
    return [
        sync_pb2.RecordedTool(
            definition=json.dumps(
                {
                    "name": name,
                    "description": "d" * size,
                    "inputSchema": {"type": "object"},
                    "annotations": {"readOnlyHint": True},
                    "icons": [{"src": "x"}],
                }
            ).encode()
        )
        for name in names
    ]


class FakeWorker:
    """One stream; the test reads and writes its messages.

    What has applied a delta returns when the plane has handled the acknowledgement, so that a test
    may then read the plane's state.
    """

    def __init__(
        self,
        address: str,
        worker_id: str = "w1",
        incarnation: str = "run-1",
        advertised: str = "127.0.0.1:9",
    ) -> None:
        self._channel = grpc.aio.insecure_channel(address)
        self._call = sync_pb2_grpc.SyncServiceStub(self._channel).Sync()
        self._joiner = Joiner()
        self._plane = PLANES[address]
        self.id = worker_id
        self.incarnation = incarnation
        self.advertised = advertised
        self.held: dict[str, sync_pb2.Upsert] = {}
        self.parts = 0
        self.operated: list[sync_pb2.OperatorAction] = []
        self.refused: list[sync_pb2.RefusedRpc] = []

    async def join(self, **hello: object) -> sync_pb2.Welcome:
        """Send the hello and return the welcome."""
        await self.send_hello(**hello)
        return (await self.receive("welcome")).welcome

    async def send_hello(self, **hello: object) -> None:
        """Send the hello."""
        await self.send(
            hello=sync_pb2.Hello(
                protocol_version=PROTOCOL_VERSION,
                worker=catalog_pb2.WorkerRef(
                    id=self.id, incarnation=self.incarnation, address=self.advertised
                ),
                capacity=4,
                **hello,  # type: ignore[arg-type]
            )
        )

    async def send(self, **message: object) -> None:
        """Send a message, in parts if it is long."""
        whole = sync_pb2.SyncRequest(**message)  # type: ignore[arg-type]
        if whole.ByteSize() <= 1024 * 1024:
            await self._call.write(whole)
            return
        for part in split(whole.SerializeToString()):
            await self._call.write(sync_pb2.SyncRequest(part=part))

    async def receive(self, kind: str) -> sync_pb2.SyncResponse:
        """Return the next message, which must be of this kind.

        Deltas are acknowledged; audit records are kept in `operated` and `refused`.
        """
        async with asyncio.timeout(BOUND):
            while True:
                message = await self._next()
                received = message.WhichOneof("message")
                if received == "delta":
                    await self._apply(message.delta)
                if received == "operator_action":
                    self.operated.append(message.operator_action)
                if received == "refused_rpc":
                    self.refused.append(message.refused_rpc)
                if received == kind:
                    return message
                assert received in ("delta", "operator_action", "refused_rpc"), (
                    f"received {received}, not {kind}"
                )

    async def serve(
        self,
        *tools: str,
        prompts: Iterable[bytes] = (),
        resources: Iterable[bytes] = (),
        templates: Iterable[bytes] = (),
        more_tools: Iterable[bytes] = (),
        introduction: catalog_pb2.Introduction | None = None,
    ) -> str:
        """Answer the next probe with these tools and definitions; return the server's id."""
        probe = (await self.receive("probe")).probe
        await self.send(
            probe_result=sync_pb2.ProbeResult(
                id=probe.id,
                key=probe.key,
                launch_hash=probe.launch_hash,
                tools=[
                    *recorded(*tools),
                    *(sync_pb2.RecordedTool(definition=tool) for tool in more_tools),
                ],
                protocol_version="2025-11-25",
                prompts=prompts,
                resources=resources,
                resource_templates=templates,
                introduction=introduction,
            )
        )
        return probe.key.server_id

    async def apply_until(self, *servers: str) -> None:
        """Apply deltas until exactly these servers are held."""
        async with asyncio.timeout(BOUND):
            while set(self.held) != set(servers):
                message = await self._next()
                if message.WhichOneof("message") == "delta":
                    await self._apply(message.delta)

    async def serve_until(self, server: str, *tools: str) -> None:
        """Answer every probe with these tools until exactly this server is held."""
        async with asyncio.timeout(BOUND):
            while set(self.held) != {server}:
                message = await self._next()
                if message.WhichOneof("message") == "delta":
                    await self._apply(message.delta)
                elif message.WhichOneof("message") == "probe":
                    result = sync_pb2.ProbeResult(id=message.probe.id, tools=recorded(*tools))
                    await self.send(probe_result=result)

    async def ended(self) -> grpc.StatusCode:
        """Return how the stream ended."""
        async with asyncio.timeout(BOUND):
            with contextlib.suppress(grpc.aio.AioRpcError):
                while await self._call.read() is not END:
                    pass  # the status follows all messages
            return await self._call.code()

    async def close(self) -> None:
        """End the stream."""
        self._call.cancel()
        await self._channel.close()

    async def _next(self) -> sync_pb2.SyncResponse:
        while True:
            message = await self._call.read()
            assert isinstance(message, sync_pb2.SyncResponse), "the stream ended"
            if message.WhichOneof("message") != "part":
                return message
            self.parts += 1
            whole = self._joiner.add(message.part)
            if whole is not None:
                return sync_pb2.SyncResponse.FromString(whole)

    async def _apply(self, delta: sync_pb2.Delta) -> None:
        for upsert in delta.upserts:
            self.held[upsert.hashes.key.server_id] = upsert
        for key in delta.removals:
            self.held.pop(key.server_id, None)
        ack = sync_pb2.Ack(nonce=delta.nonce, registry_version=delta.registry_version)
        await self.send(ack=ack)
        while self._is_pending(delta.nonce) and not self._call.done():
            await self._plane.wait_for_change(1)

    def _is_pending(self, nonce: int) -> bool:
        record = self._plane.state.workers.get(self.id)
        pending = None if record is None else record.subscription.pending
        return pending is not None and pending.nonce == nonce


@asynccontextmanager
async def worker(address: str, worker_id: str = "w1", **hello: object) -> AsyncIterator[FakeWorker]:
    """Run a worker that has joined."""
    fake = FakeWorker(address, worker_id)
    try:
        await fake.join(**hello)
        yield fake
    finally:
        await fake.close()
