"""A worker without a connection to the control plane, while callers reach both."""

from __future__ import annotations

import asyncio
import contextlib
from contextlib import AsyncExitStack
from pathlib import Path

import pytest
from tests.e2e.system import System, eventually, python_server

from leaseway.sdk import AsyncClient

SERVERS = {
    "shared": python_server(
        "echo_raw.py", **{"truely-stateless": True, "transform": [{"prefix": "shared_"}]}
    ),
    "counter": python_server("counter.py", transform=[{"prefix": "counter_"}]),
}


class Link:
    """A proxy between a worker and its control plane, which can be cut and restored."""

    def __init__(self, target: str) -> None:
        host, port = target.rsplit(":", 1)
        self._target = host, int(port)
        self._connected = True
        self._writers: set[asyncio.StreamWriter] = set()
        self._server: asyncio.Server | None = None
        self.address = ""

    async def open(self) -> None:
        self._server = await asyncio.start_server(self._carry, "127.0.0.1", 0)
        self.address = f"127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    def cut(self) -> None:
        """Close all connections, and reject new ones."""
        self._connected = False
        for writer in self._writers:
            writer.transport.abort()

    def join(self) -> None:
        self._connected = True

    async def close(self) -> None:
        self.cut()
        assert self._server is not None
        self._server.close()

    async def _carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if not self._connected:
            writer.transport.abort()
            return
        try:
            inward, outward = await asyncio.open_connection(*self._target)
        except OSError:  # the target does not listen at the moment
            writer.transport.abort()
            return
        ends = {writer, outward}
        self._writers |= ends
        await asyncio.gather(_pump(reader, outward), _pump(inward, writer))
        self._writers -= ends


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError):
        while data := await reader.read(1 << 16):
            writer.write(data)
            await writer.drain()
    writer.transport.abort()


@pytest.mark.usefixtures("leak_guard")
async def test_calls_continue_while_the_control_plane_counts_their_worker_as_lost(
    tmp_path: Path,
) -> None:
    system = System(tmp_path, SERVERS)
    await system.start_control_plane()
    link = Link(system.address)
    await link.open()
    async with AsyncExitStack() as stack:
        stack.push_async_callback(link.close)
        stack.push_async_callback(system.stop)
        client = await stack.enter_async_context(AsyncClient(system.address))
        control_plane, system.address = system.address, link.address
        await system.start_worker("worker-1")
        system.address = control_plane
        await system.ready()
        session = client.session("dialog")
        assert (await session.call_tool("counter_next")).text == "1"
        assert (await client.call_tool("shared_echo", {"text": "x"})).text
        link.cut()

        async def state() -> str:
            return {worker.id: worker.state for worker in await client.workers()}["worker-1"]

        async def lost() -> bool:
            return "WORKER_LOST" in {problem.reason for problem in await client.problems()}

        calls = 1
        while not await lost():  # for 10 s, in which every call succeeds
            await asyncio.sleep(0.1)  # to keep the load low
            calls += 1
            assert (await session.call_tool("counter_next")).text == str(calls)
            assert (await client.call_tool("shared_echo", {"text": "x"})).text
        assert await state() == "lost"
        for target in client._runtime().resolver._targets.values():
            target.refresh_at = 0.0  # as after another 10 s
        for _ in range(20):
            calls += 1
            assert (await session.call_tool("counter_next")).text == str(calls)
            assert (await client.call_tool("shared_echo", {"text": "x"})).text
        async with AsyncClient(system.address) as fresh:  # it has resolved no name before
            assert (await fresh.call_tool("shared_echo", {"text": "x"})).text
        link.join()

        async def is_connected() -> bool:
            return await state() == "connected"

        await eventually(is_connected)
        assert (await session.call_tool("counter_next")).text == str(calls + 1)
        await session.release("counter")
