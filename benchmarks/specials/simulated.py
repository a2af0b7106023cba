"""Simulated workers: they answer probes and acknowledge deltas, but start nothing."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from typing import Any

import grpc

from leaseway.v1 import catalog_pb2, sync_pb2, sync_pb2_grpc
from leaseway.wire.messages.message_parts import Joiner
from leaseway.wire.version import PROTOCOL_VERSION

__all__ = ["Fleet", "SimulatedWorker"]

_OPTIONS = [("grpc.max_receive_message_length", 2**22), ("grpc.use_local_subchannel_pool", 1)]


def _listing(server_id: str) -> sync_pb2.RecordedTool:
    definition = {
        "name": f"{server_id}_echo",
        "description": "Returns its text.",
        "inputSchema": {"type": "object", "properties": {"text": {"type": "string"}}},
    }
    return sync_pb2.RecordedTool(definition=json.dumps(definition).encode())


class SimulatedWorker:
    """One Sync stream.

    Attributes:
        held: Acknowledged specs by server id.
        probe_seconds: The duration of its probes.
    """

    def __init__(self, address: str, number: int) -> None:
        self.id = f"simulated-{number}"
        self.held: dict[str, str] = {}
        self.probe_seconds = 0.0
        self.changed = asyncio.Event()
        self._channel = grpc.aio.insecure_channel(address, options=_OPTIONS)
        stub: Any = sync_pb2_grpc.SyncServiceStub(self._channel)
        self._stream = stub.Sync()
        self._joiner = Joiner()
        self._tasks: set[asyncio.Task[None]] = set()
        self._writing = asyncio.Lock()

    async def run(self) -> None:
        """Connect, then handle messages until the stream ends."""
        me = catalog_pb2.WorkerRef(id=self.id, incarnation=self.id, address="127.0.0.1:9")
        hello = sync_pb2.Hello(protocol_version=PROTOCOL_VERSION, worker=me, capacity=512)
        await self._send(sync_pb2.SyncRequest(hello=hello))
        while True:
            message = await self._stream.read()
            if not isinstance(message, sync_pb2.SyncResponse):
                return
            if message.HasField("part"):
                whole = self._joiner.add(message.part)
                if whole is None:
                    continue
                message = sync_pb2.SyncResponse.FromString(whole)
            await self._handle(message)

    async def _handle(self, message: sync_pb2.SyncResponse) -> None:
        if message.HasField("delta"):
            delta = message.delta
            for upsert in delta.upserts:
                self.held[upsert.hashes.key.server_id] = upsert.spec.hex()
            for key in delta.removals:
                self.held.pop(key.server_id, None)
            ack = sync_pb2.Ack(nonce=delta.nonce, registry_version=delta.registry_version)
            await self._send(sync_pb2.SyncRequest(ack=ack))
            self.changed.set()
        elif message.HasField("probe"):
            task = asyncio.create_task(self._probe(message.probe))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _probe(self, probe: sync_pb2.Probe) -> None:
        if self.probe_seconds:
            await asyncio.sleep(self.probe_seconds)
        result = sync_pb2.ProbeResult(
            id=probe.id,
            key=probe.key,
            launch_hash=probe.launch_hash,
            tools=[_listing(probe.key.server_id)],
            protocol_version="2025-11-25",
        )
        await self._send(sync_pb2.SyncRequest(probe_result=result))

    async def _send(self, message: sync_pb2.SyncRequest) -> None:
        async with self._writing:  # a stream allows one write at a time
            await self._stream.write(message)

    async def close(self) -> None:
        """End the stream."""
        self._stream.cancel()
        await self._channel.close()


class Fleet:
    """Some simulated workers, as an async context.

    Attributes:
        workers: All of them.
    """

    def __init__(self, address: str, count: int) -> None:
        self.workers: Sequence[SimulatedWorker] = [
            SimulatedWorker(address, number) for number in range(count)
        ]
        self._running: list[asyncio.Task[None]] = []

    async def __aenter__(self) -> Fleet:
        self._running = [asyncio.create_task(worker.run()) for worker in self.workers]
        return self

    async def __aexit__(self, *_error: object) -> None:
        for task in self._running:
            task.cancel()
        await asyncio.gather(*(worker.close() for worker in self.workers))

    async def until_all(self, done: Any, within: float = 120.0) -> None:
        """Wait until `done(worker)` is true for every worker."""
        async with asyncio.timeout(within):
            for worker in self.workers:
                while not done(worker):
                    worker.changed.clear()
                    await worker.changed.wait()
