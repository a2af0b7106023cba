"""A worker that accepts calls without answering is avoided until it sends a message."""

from __future__ import annotations

import asyncio

import pytest
from tests.sdk.fakes import BOUND, FakeControlPlane, FakeWorker, echo, never

from leaseway.sdk import AsyncClient, DeadlineExceeded
from leaseway.v1 import execution_pb2


@pytest.fixture
async def silent(
    client: AsyncClient, plane: FakeControlPlane, worker: FakeWorker, second: FakeWorker
) -> FakeWorker:
    """Return one of two known workers, which no longer answers."""
    plane.workers = [worker, second]
    while not (worker.calls and second.calls):
        await client.call_tool("time_now")
    worker.answer = never
    return worker


async def call_twice(client: AsyncClient) -> None:
    for _ in range(2):
        await client.call_tool("time_now", timeout=1.5)


async def let_one_time_out(client: AsyncClient) -> None:
    with pytest.raises(DeadlineExceeded):
        await call_twice(client)  # the workers alternate


async def call_until_called(client: AsyncClient, worker: FakeWorker) -> None:
    before = len(worker.calls)
    async with asyncio.timeout(BOUND):
        while len(worker.calls) == before:
            await client.call_tool("time_now")


async def test_calls_avoid_a_worker_that_was_silent_until_a_timeout(
    client: AsyncClient, silent: FakeWorker
) -> None:
    await let_one_time_out(client)
    before = len(silent.calls)
    for _ in range(6):
        assert (await client.call_tool("time_now", timeout=BOUND)).text == "{}"
    assert len(silent.calls) == before


async def test_a_silent_worker_is_called_again_after_any_message(
    client: AsyncClient, silent: FakeWorker
) -> None:
    await let_one_time_out(client)
    silent.answer = echo
    silent.say(silent.calls[-1], execution_pb2.Progress(progress=1))
    await call_until_called(client, silent)


async def test_a_silent_worker_is_called_again_after_a_reconnect(
    client: AsyncClient, silent: FakeWorker
) -> None:
    await let_one_time_out(client)
    silent.answer = echo
    port = int(silent.ref.address.rsplit(":", 1)[1])
    await silent.stop()
    for _ in range(3):
        assert (await client.call_tool("time_now")).text == "{}"
    await silent.start(port=port)
    await call_until_called(client, silent)


async def test_the_only_worker_is_called_even_if_it_was_silent(
    client: AsyncClient, worker: FakeWorker
) -> None:
    await client.call_tool("time_now")
    worker.answer = never
    await let_one_time_out(client)
    worker.answer = echo
    assert (await client.call_tool("time_now")).text == "{}"


async def test_names_are_resolved_again_if_the_only_known_worker_was_silent(
    client: AsyncClient, plane: FakeControlPlane, worker: FakeWorker, second: FakeWorker
) -> None:
    await client.call_tool("time_now")
    worker.answer = never
    plane.workers = [worker, second]  # without notifying clients
    await let_one_time_out(client)
    assert (await client.call_tool("time_now", timeout=BOUND)).text == "{}"
    assert second.calls
