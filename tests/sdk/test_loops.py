"""Clients and event loops: one after the other, side by side, and synchronous ones among them."""

from __future__ import annotations

import asyncio
import logging

import pytest
from tests.sdk.fakes import BOUND, FakeControlPlane

from leaseway.sdk import AsyncClient, Client
from leaseway.sdk.testing import FakeLeaseway


async def call(address: str) -> str:
    async with AsyncClient(address) as client:
        return (await client.call_tool("time_now")).text


async def test_loops_that_come_and_go_leave_nothing_behind(
    plane: FakeControlPlane, caplog: pytest.LogCaptureFixture
) -> None:
    def work() -> list[str]:
        return [asyncio.run(call(plane.address)) for _ in range(10)]

    with caplog.at_level(logging.ERROR, "asyncio"):
        async with asyncio.timeout(3 * BOUND):
            answers = await asyncio.gather(*(asyncio.to_thread(work) for _ in range(3)))
    assert answers == [["{}"] * 10] * 3
    assert [record for record in caplog.records if record.name == "asyncio"] == []


async def test_a_synchronous_client_works_in_the_thread_of_a_running_loop() -> None:
    with FakeLeaseway() as fake:  # which lives in another loop than the one that this blocks
        fake.tool(name="time_now")(lambda: "noon")
        with Client(fake.address) as client:
            assert client.call_tool("time_now").text == "noon"
        assert await call(fake.address) == "noon"
