"""Clients in several event loops, one after the other and at the same time."""

from __future__ import annotations

import asyncio
import gc
import logging
import subprocess
import sys
import weakref
from contextvars import Context, ContextVar
from typing import Any

import pytest
from tests.sdk.fakes import BOUND, FakeControlPlane

from leaseway.sdk import AsyncClient, Client
from leaseway.sdk.testing import FakeLeaseway


async def call(address: str) -> str:
    async with AsyncClient(address) as client:
        return (await client.call_tool("time_now")).text


async def test_short_lived_event_loops_log_no_errors(
    plane: FakeControlPlane, caplog: pytest.LogCaptureFixture
) -> None:
    def work() -> list[str]:
        return [asyncio.run(call(plane.address)) for _ in range(10)]

    with caplog.at_level(logging.ERROR, "asyncio"):
        async with asyncio.timeout(3 * BOUND):
            answers = await asyncio.gather(*(asyncio.to_thread(work) for _ in range(3)))
    assert answers == [["{}"] * 10] * 3
    assert [record for record in caplog.records if record.name == "asyncio"] == []


async def test_what_outlasts_a_call_keeps_none_of_its_context_variables(
    plane: FakeControlPlane,
) -> None:
    request: ContextVar[str] = ContextVar("request")
    client = AsyncClient(plane.address)

    async def handle_first_request() -> None:
        request.set("first")
        await client.session("dialog").call_tool("desk_open")
        await client.call_tool("time_now")

    handled = asyncio.create_task(handle_first_request())
    await handled
    kept = [
        keeper
        for context in gc.get_objects()
        if isinstance(context, Context) and request in context
        for keeper in gc.get_referrers(context)
        if keeper is not handled and isinstance(keeper, asyncio.Future | asyncio.Handle)
    ]
    # asyncio drops cancelled timers later.
    assert [part for part in kept if isinstance(part, asyncio.Future) or not part.cancelled()] == []
    await client.close()


async def test_a_closed_client_is_freed_without_garbage_collection(plane: FakeControlPlane) -> None:
    # Uncollected objects keep channels open, whose end would be reported to an unrelated loop.
    gc.disable()
    try:
        async with AsyncClient(plane.address) as client:
            assert client._open_runtime is not None
            parts: list[weakref.ref[Any]] = [
                weakref.ref(client._open_runtime),
                weakref.ref(client._open_runtime.leases),
            ]
            await client.list_tools()
        assert [part() for part in parts] == [None, None]
    finally:
        gc.enable()


UNREACHED = """
import asyncio
from leaseway.sdk import AsyncClient, ControlPlaneUnavailable

async def reach_nobody():
    asyncio.get_running_loop().set_exception_handler(lambda _, report: print("reported", report))
    async with AsyncClient("127.0.0.1:1") as client:
        try:
            await client.list_tools(timeout=0.05)
        except ControlPlaneUnavailable:
            print("unreachable")

for _ in range(10):
    asyncio.run(reach_nobody())
"""


def test_failed_connections_of_one_loop_report_nothing_to_the_next_loop() -> None:
    done = subprocess.run(
        [sys.executable, "-c", UNREACHED],
        capture_output=True,
        text=True,
        timeout=2 * BOUND,
        check=False,
    )
    assert (done.stdout.splitlines(), done.stderr) == (["unreachable"] * 10, "")


async def test_a_synchronous_client_works_in_the_thread_of_a_running_loop() -> None:
    with FakeLeaseway() as fake:  # it runs in another loop than the one that this blocks
        fake.tool(name="time_now")(lambda: "noon")
        with Client(fake.address) as client:
            assert client.call_tool("time_now").text == "noon"
        assert await call(fake.address) == "noon"


def test_a_block_opens_a_closed_client_again_in_its_own_loop() -> None:
    with FakeLeaseway() as fake:
        desk = fake.server("desk", stateful=True)
        desk.tool(name="desk_open")(lambda: "open")
        client, twin = fake.async_client(), fake.client()

        async def use() -> None:
            async with client:
                assert (await client.session("dialog").call_tool("desk_open")).text == "open"
            with pytest.raises(RuntimeError, match="closed"):
                await client.list_tools()

        for _ in range(2):
            asyncio.run(use())
            with twin, twin.session("job") as session:
                assert session.call_tool("desk_open").text == "open"
            with pytest.raises(RuntimeError, match="closed"):
                twin.list_tools()


def test_without_a_loop_of_asyncio_the_error_names_the_client_to_use() -> None:
    with FakeLeaseway() as fake:
        client = AsyncClient(fake.address)

        def use_elsewhere() -> None:
            waiting = client.list_tools()
            with pytest.raises(RuntimeError, match=r"leaseway\.sdk\.Client"):
                waiting.send(None)  # as the loop of another library, such as trio, does

        async def use() -> None:
            async with client:
                await client.list_tools()
                await asyncio.to_thread(use_elsewhere)

        use_elsewhere()
        asyncio.run(use())
