"""Workers of a large fleet, many in a process: they hold content, acknowledge and report.

The rows start it as `python -m benchmarks.scale.simulated ADDRESS CONTENT FIRST COUNT LEASES
calls|silent`, with a file of what they hold. It takes a command a line and prints an answer a
line, both JSON.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import grpc

from benchmarks.scale.content import HeldContent, tool_definition
from benchmarks.scale.executions import Executions
from leaseway.v1 import catalog_pb2, sync_pb2
from leaseway.wire.messages.message_parts import Joiner, split
from leaseway.wire.timing.backoff import RECONNECT

_OPTIONS = [("grpc.max_receive_message_length", 2**24), ("grpc.use_local_subchannel_pool", 1)]


def worker_id(number: int) -> str:
    return f"simulated-{number:05}"


class Worker:
    """One Sync stream.

    Attributes:
        number: Its place in the fleet.
        acked: The registry version that it has acknowledged.
        takes_changes: Whether its control plane takes changes of instances.
    """

    def __init__(
        self,
        address: str,
        number: int,
        content: HeldContent,
        leases: int,
        answers_calls: bool,
        seen: Counter[str],
    ) -> None:
        self.id = worker_id(number)
        self.number = number
        self.acked = 0
        self.takes_changes = False
        self.changed = asyncio.Event()
        self._content = content
        self._leases = leases
        self._executions = Executions(self.id) if answers_calls else None
        self._address = "127.0.0.1:9"
        self._seen = seen
        self._channel = grpc.aio.insecure_channel(address, options=_OPTIONS)
        self._sync: Any = self._channel.stream_stream(
            "/leaseway.v1.SyncService/Sync", response_deserializer=sync_pb2.SyncResponse.FromString
        )
        self._stream: Any = None
        self._joiner = Joiner()
        self._writing = asyncio.Lock()
        self._pulse: asyncio.Task[None] | None = None

    async def run(self) -> None:
        """Join, and join again when the stream ends, as real workers do."""
        if self._executions is not None:
            self._address = await self._executions.start()
        attempt = 0
        while True:
            try:
                await self._run_stream()
            except (grpc.aio.AioRpcError, asyncio.InvalidStateError) as error:
                if not self._seen["rejoins"]:
                    print(f"A stream ended first: {error}", file=sys.stderr)
            if self._pulse is not None:
                self._pulse.cancel()  # the next stream begins with a hello
            self._seen["rejoins"] += 1
            await asyncio.sleep(RECONNECT.delay(attempt))
            attempt += 1

    async def _run_stream(self) -> None:
        self._stream, self._joiner = self._sync(), Joiner()
        me = catalog_pb2.WorkerRef(id=self.id, incarnation=self.id, address=self._address)
        await self._send_bytes(self._content.hello(me, self._leases))
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
        match message.WhichOneof("message"):
            case "welcome":
                # By name, so that earlier control planes can be measured, too.
                self.takes_changes = getattr(message.welcome, "takes_instance_changes", False)
                seconds = message.welcome.pulse_interval.ToTimedelta().total_seconds()
                if self._pulse is not None:
                    self._pulse.cancel()
                self._pulse = asyncio.create_task(self._send_pulses(seconds))
            case "delta":
                delta = message.delta
                self._seen["upserts"] += len(delta.upserts)
                self._seen["removals"] += len(delta.removals)
                await self.send(
                    ack=sync_pb2.Ack(nonce=delta.nonce, registry_version=delta.registry_version)
                )
                self.acked = delta.registry_version
                self.changed.set()
            case "ask_held":
                self._seen["lists"] += 1
                await self.send(held_list=sync_pb2.HeldList(held=self._content.held_list))
            case "want":
                self._seen["wants"] += 1
                self._seen["wanted"] += len(message.want.keys)
                await self._send_bytes(self._content.held(message.want))
            case "probe":
                self._seen["probes"] += 1
                await self.send(probe_result=_probed(message.probe))
            case _:
                pass

    async def report_events(self, instances: int, events: int) -> int:
        """Report this number of instances, then an event of one of them at a time.

        Returns:
            The bytes of the events.
        """
        states = {f"i{number}": _instance(self.id, number, 0) for number in range(instances)}
        sent = 0
        for event in range(events + 1):
            name = f"i{event % instances}"
            states[name] = _instance(self.id, event % instances, event)
            if self.takes_changes:
                changed = states if not event else {name: states[name]}
                changes = [
                    sync_pb2.InstanceChange(key=key, status=status)
                    for key, status in changed.items()
                ]
                report = sync_pb2.Report(instance_changes=changes, instances_version=event + 1)
            else:
                report = sync_pb2.Report(instances=states.values(), instances_changed=True)
            message = sync_pb2.SyncRequest(report=report).SerializeToString()
            await self._send_bytes(message)
            sent += len(message) if event else 0
        return sent

    async def send(self, **message: Any) -> None:
        """Send a message."""
        await self._send_bytes(sync_pb2.SyncRequest(**message).SerializeToString())

    async def _send_bytes(self, message: bytes) -> None:
        async with self._writing:  # a stream allows one write at a time
            if len(message) <= 2**20:
                await self._stream.write(message)
                return
            for part in split(message):
                await self._stream.write(sync_pb2.SyncRequest(part=part).SerializeToString())

    async def _send_pulses(self, seconds: float) -> None:
        while seconds:
            await self.send(pulse=sync_pb2.Pulse())
            await asyncio.sleep(seconds)

    async def close(self) -> None:
        """End the stream."""
        if self._pulse is not None:
            self._pulse.cancel()
        if self._stream is not None:
            self._stream.cancel()
        if self._executions is not None:
            await self._executions.stop()
        await self._channel.close()


def _probed(probe: sync_pb2.Probe) -> sync_pb2.ProbeResult:
    definition = tool_definition(f"{probe.key.server_id}_0", 200)
    return sync_pb2.ProbeResult(
        id=probe.id,
        key=probe.key,
        launch_hash=probe.launch_hash,
        tools=[sync_pb2.RecordedTool(definition=definition)],
        protocol_version="2025-11-25",
    )


def _instance(worker_id: str, number: int, starts: int) -> catalog_pb2.InstanceStatus:
    return catalog_pb2.InstanceStatus(
        worker_id=worker_id,
        id=f"{worker_id}-s00000-{number}",
        state="ready",
        lease_id=f"{worker_id}-{number}",
        pid=1_000 + number,
        variant=catalog_pb2.VariantKey(server_id="s00000"),
        starts=starts,
        launch_hash="0123456789abcdef0123456789abcdef",
        role="leased",
    )


class _Fleet:
    def __init__(
        self,
        address: str,
        first: int,
        count: int,
        content: HeldContent,
        leases: int,
        answers_calls: bool,
    ) -> None:
        self.seen: Counter[str] = Counter()
        self.workers = [
            Worker(address, first + number, content, leases, answers_calls, self.seen)
            for number in range(count)
        ]
        self._running: list[asyncio.Task[None]] = []

    async def do(self, command: Mapping[str, Any]) -> Mapping[str, Any]:
        """Do what a command says; return the answer."""
        start = time.perf_counter()
        match command["do"]:
            case "join":
                self._running = [asyncio.create_task(worker.run()) for worker in self.workers]
                await self._until_acked(1, command["within"])
            case "acked":
                await self._until_acked(command["version"], command["within"])
            case "report":
                sent = await asyncio.gather(
                    *(
                        worker.report_events(command["instances"], command["events"])
                        for worker in self.workers
                    )
                )
                self.seen["report_bytes"] += sum(sent)
            case "leave":
                leaving = [worker for worker in self.workers if worker.number < command["count"]]
                for worker, task in zip(self.workers, self._running, strict=True):
                    if worker in leaving:
                        task.cancel()
                await asyncio.gather(*(worker.close() for worker in leaving))
            case other:
                raise ValueError(f"There is no command {other}.")
        seconds = time.perf_counter() - start
        lowest = min(worker.acked for worker in self.workers)
        return {"seconds": seconds, "acked": lowest, **self.seen}

    async def _until_acked(self, version: int, within: float) -> None:
        async with asyncio.timeout(within):
            for worker in self.workers:
                while worker.acked < version:
                    worker.changed.clear()
                    await worker.changed.wait()


async def _main(
    address: str, content: Path, first: int, count: int, leases: int, answers_calls: bool
) -> None:
    held = HeldContent.load(content)
    fleet = _Fleet(address, first, count, held, leases, answers_calls)
    print(json.dumps({"ready": True}), flush=True)
    loop = asyncio.get_running_loop()
    while line := await loop.run_in_executor(None, sys.stdin.readline):
        print(json.dumps(await fleet.do(json.loads(line))), flush=True)


if __name__ == "__main__":
    _address, _content, *_numbers, _role = sys.argv[1:]
    _first, _count, _leases = map(int, _numbers)
    asyncio.run(_main(_address, Path(_content), _first, _count, _leases, _role == "calls"))
