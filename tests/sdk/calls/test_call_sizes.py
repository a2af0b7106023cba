"""Calls that are large, and calls that are many: chunks, bounds, and room in flight."""

from __future__ import annotations

import asyncio
import json

import pytest
from tests.sdk.fakes import BOUND, FakeWorker, Gate, never, text_result, until

from leaseway.sdk import AsyncClient, DeadlineExceeded, InvalidArguments, ResultTooLarge
from leaseway.wire.bounds import BATCH_SIZE, MAX_ARGUMENTS, MAX_CALLS_IN_FLIGHT, MAX_RESULT


async def test_arguments_above_a_batch_travel_in_chunks(
    client: AsyncClient, worker: FakeWorker
) -> None:
    text = "x" * (3 * BATCH_SIZE)
    result = await client.call_tool("time_now", {"text": text}, timeout=BOUND)
    assert json.loads(result.text)["text"] == text
    assert sum(len(batch.chunks) for batch in worker.batches) == 4


async def test_the_largest_arguments_arrive(client: AsyncClient, worker: FakeWorker) -> None:
    worker.answer = lambda fake, call, arguments: text_result(str(len(arguments)))
    text = "x" * (MAX_ARGUMENTS - len('{"text":""}'))
    assert (await client.call_tool("time_now", {"text": text})).text == str(MAX_ARGUMENTS)
    with pytest.raises(InvalidArguments):
        await client.call_tool("time_now", {"text": text + "x"})
    assert len(worker.calls) == 1


async def test_small_calls_pass_a_large_one(client: AsyncClient, worker: FakeWorker) -> None:
    await client.call_tool("time_now")
    large = asyncio.create_task(client.call_tool("time_now", {"text": "x" * (8 * BATCH_SIZE)}))
    await asyncio.sleep(0)
    await client.call_tool("time_now", {"small": 1})
    assert [call.id for call in worker.calls] == [1, 3]
    await large


async def test_results_above_a_batch_travel_in_chunks(
    client: AsyncClient, worker: FakeWorker
) -> None:
    worker.answer = lambda *_: text_result("x" * 5_000_000)
    assert (await client.call_tool("time_now", timeout=BOUND)).text == "x" * 5_000_000


async def test_a_result_over_its_bound_fails_alone(client: AsyncClient, worker: FakeWorker) -> None:
    worker.answer = lambda *_: b'"' + b"x" * MAX_RESULT + b'"'
    with pytest.raises(ResultTooLarge) as caught:
        await client.call_tool("time_now", timeout=BOUND)
    assert caught.value.started == "yes"
    worker.answer = lambda *_: text_result("small")
    assert (await client.call_tool("time_now")).text == "small"


async def test_at_most_1024_calls_are_in_flight_and_the_others_follow_in_order(
    client: AsyncClient, worker: FakeWorker
) -> None:
    worker.answer = gate = Gate()
    total = MAX_CALLS_IN_FLIGHT + 50
    tasks = [
        asyncio.create_task(client.call_tool("time_now", {"n": n}, timeout=BOUND))
        for n in range(total)
    ]
    await until(lambda: len(worker.calls) >= MAX_CALLS_IN_FLIGHT)
    for _ in range(20):
        await asyncio.sleep(0)
    assert len(worker.calls) == MAX_CALLS_IN_FLIGHT
    gate.open()
    results = await asyncio.gather(*tasks)
    assert [json.loads(result.text)["n"] for result in results] == list(range(total))
    assert [json.loads(call.arguments)["n"] for call in worker.calls] == list(range(total))


async def test_a_call_that_gets_no_slot_in_time_is_not_sent(
    client: AsyncClient, worker: FakeWorker
) -> None:
    worker.answer = never
    tasks = [asyncio.create_task(client.call_tool("time_now")) for _ in range(MAX_CALLS_IN_FLIGHT)]
    await until(lambda: len(worker.calls) == MAX_CALLS_IN_FLIGHT)
    with pytest.raises(DeadlineExceeded, match="before the call could be sent") as caught:
        await client.call_tool("time_now", timeout=0.02)
    assert caught.value.started == "no"
    tasks[0].cancel()
    worker.answer = lambda *_: text_result("room again")
    assert (await client.call_tool("time_now", timeout=BOUND)).text == "room again"
    for task in tasks:
        task.cancel()
