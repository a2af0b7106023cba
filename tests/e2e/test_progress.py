"""Progress and log messages reach callers: SDK, command line and plain gRPC."""

from __future__ import annotations

import asyncio
import contextlib
import json
import signal
import sys
from collections.abc import AsyncIterator
from typing import Any

import grpc
import pytest
from tests.conftest import BOUND
from tests.e2e.forking import run_leaseway
from tests.e2e.servers import raw_http_server
from tests.e2e.system import System, official_server, python_server, running

from leaseway.sdk import AsyncClient, Client, LogMessage, Progress
from leaseway.v1 import execution_pb2, execution_pb2_grpc

STEPS = [(0.0, 3.0, "step 0"), (1.0, 3.0, "step 1"), (2.0, 3.0, "step 2")]


def shared(name: str, settings: dict[str, object]) -> dict[str, object]:
    return {**settings, "truely-stateless": True, "transform": [{"prefix": f"{name}_"}]}


@pytest.fixture(scope="module")
async def site(
    tmp_path_factory: pytest.TempPathFactory,
) -> AsyncIterator[tuple[System, AsyncClient]]:
    async with raw_http_server("--sse") as modern, raw_http_server("--sse", "--legacy") as legacy:
        servers = {
            "piped": shared("piped", python_server("echo_raw.py")),
            "piped_old": shared("piped_old", python_server("echo_raw.py", "--legacy")),
            "official": shared("official", official_server("official_stdio.py")),
            "posted": shared("posted", {"transport": "streamable_http", "url": f"{modern}/mcp"}),
            "posted_old": shared(
                "posted_old", {"transport": "streamable_http", "url": f"{legacy}/mcp"}
            ),
            "leased": {
                **python_server("echo_raw.py"),
                "transform": [{"prefix": "leased_"}],
            },
            "big": shared("big", python_server("faults.py", "large")),
        }
        folder = tmp_path_factory.mktemp("progress")
        async with running(folder, servers) as (system, client):
            yield system, client


Site = tuple[System, AsyncClient]


@pytest.mark.parametrize("server", ["piped", "piped_old", "leased"])
async def test_progress_over_pipes_arrives_in_order_before_the_result(
    site: Site, server: str
) -> None:
    events: list[tuple[float, float | None, str | None]] = []
    async with site[1].session("dialog") as session:
        result = await session.call_tool(
            f"{server}_progress", on_progress=lambda *event: events.append(event)
        )
    assert result.text == "done"
    assert events == STEPS


async def test_progress_of_the_official_server_arrives(site: Site) -> None:
    events: list[tuple[float, float | None, str | None]] = []
    call = site[1].call_tool(
        "official_progress", {"text": "x"}, on_progress=lambda *event: events.append(event)
    )
    assert (await call).text == "done"
    assert events == [(0, 3, None), (1, 3, None), (2, 3, None)]


@pytest.mark.parametrize("server", ["posted", "posted_old"])
async def test_progress_and_logs_over_http_arrive_before_the_result(
    site: Site, server: str
) -> None:
    async with site[1].stream_tool(f"{server}_echo", {"text": "hi"}, log_level="warning") as stream:
        events = [event async for event in stream]
    assert stream.result.text == "hi"
    assert set(map(type, events)) == {Progress, LogMessage}
    assert Progress(1, 2, "half") in events
    assert LogMessage("warning", None, "logged") in events


async def test_log_messages_below_the_requested_level_are_dropped(site: Site) -> None:
    events: list[tuple[str, str | None, Any]] = []
    await site[1].call_tool("piped_log", on_log=lambda *log: events.append(log))
    assert events == [("warning", "raw", {"said": "warning"})]
    events.clear()
    await site[1].call_tool("piped_log", on_log=lambda *log: events.append(log), log_level="debug")
    assert [level for level, *_ in events] == ["debug", "warning"]


async def test_the_synchronous_client_receives_progress(site: Site) -> None:
    def work() -> list[Any]:
        events: list[Any] = []
        with Client(site[0].address) as client:
            client.call_tool("piped_progress", on_progress=lambda *event: events.append(event))
        return events

    async with asyncio.timeout(BOUND):
        assert await asyncio.to_thread(work) == STEPS


async def test_one_streaming_rpc_has_progress_logs_and_the_result(site: Site) -> None:
    async with grpc.aio.insecure_channel(site[0].workers["worker-1"].address) as channel:
        stub = execution_pb2_grpc.ExecutionServiceStub(channel)
        progress = await rpc(stub, "piped_progress", "")
        assert [event.WhichOneof("event") for event in progress] == ["progress"] * 3 + ["result"]
        assert [(event.progress.progress, event.progress.message) for event in progress[:3]] == [
            (at, text) for at, _, text in STEPS
        ]
        assert progress[-1].result.content[0].text == "done"
        logs = await rpc(stub, "piped_log", "info")
        assert [event.WhichOneof("event") for event in logs] == ["log", "result"]
        assert json.loads(logs[0].log.data) == {"said": "warning"}


async def rpc(stub: Any, tool: str, log_level: str) -> list[Any]:
    request = execution_pb2.CallToolStreamingRequest(
        call=execution_pb2.CallToolRequest(tool=tool), log_level=log_level
    )
    async with asyncio.timeout(BOUND):
        return [event async for event in stub.CallToolStreaming(request, timeout=60)]


async def test_the_command_shows_progress_and_logs_on_stderr(site: Site) -> None:
    address = ("--address", site[0].address)
    _, out, err = await run_leaseway("call", "piped_progress", "--progress", *address)
    assert out == "done\n"
    assert err.splitlines() == [f"leaseway: Progress {at:g}/3: step {at:g}" for at in range(3)]
    _, out, err = await run_leaseway("call", "piped_log", "--server-log", "info", *address)
    assert out == "logged\n"
    assert err == 'leaseway: Server log warning: raw: {"said": "warning"}\n'


READER = """
import asyncio, sys
from leaseway.sdk import AsyncClient, FateUnknown

async def main():
    client = AsyncClient(sys.argv[1])
    await client.call_tool("big_echo")
    size = {"size": 1 << 20}
    calls = [asyncio.create_task(client.call_tool("big_fault", size)) for _ in range(100)]
    await asyncio.wait(calls, return_when=asyncio.FIRST_COMPLETED)
    print("reading", flush=True)
    try:
        await asyncio.gather(*calls)
        print("done", flush=True)
    except FateUnknown:
        print("cut off", flush=True)
    await client.close()

asyncio.run(main())
"""


async def test_a_stopped_client_does_not_stall_other_clients(site: Site) -> None:
    system, client = site
    async with reader(system.address) as process:
        assert process.stdout is not None
        async with asyncio.timeout(BOUND):
            assert await process.stdout.readline() == b"reading\n"
        process.send_signal(signal.SIGSTOP)
        async with asyncio.timeout(BOUND):  # after the large results, which the server still sends
            await client.call_tool("big_echo", timeout=60)
        for _ in range(50):
            async with asyncio.timeout(BOUND):
                assert (await client.call_tool("big_echo", {"text": "x"})).text == "x"
                async with client.stream_tool("piped_progress") as stream:
                    assert len([event async for event in stream]) == 3
        process.send_signal(signal.SIGCONT)
        async with asyncio.timeout(BOUND):
            # On a slow machine it may be stopped for longer than a connection may be silent.
            assert await process.stdout.readline() in (b"done\n", b"cut off\n")


@contextlib.asynccontextmanager
async def reader(address: str) -> AsyncIterator[asyncio.subprocess.Process]:
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", READER, address, stdout=asyncio.subprocess.PIPE
    )
    try:
        yield process
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.wait()
