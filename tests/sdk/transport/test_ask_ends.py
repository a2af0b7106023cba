"""Questions whose call ends first, in whichever way: their handlers end with it."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from tests.sdk.asking import ACCEPTED, ELICIT, Thinking, asking, heard
from tests.sdk.fakes import BOUND, FakeWorker, text_result, until

from leaseway.sdk import AsyncClient, DeadlineExceeded
from leaseway.v1 import execution_pb2
from leaseway.wire.errors import Fault, Reason


async def test_the_deadline_holds_while_a_handler_thinks_and_ends_it(
    client: AsyncClient, worker: FakeWorker
) -> None:
    await client.call_tool("time_now")  # what a first call has to look up is known now
    worker.answer = asking()
    handler = Thinking()
    async with asyncio.timeout(BOUND):
        with pytest.raises(DeadlineExceeded):
            await client.call_tool("time_now", timeout=1.5, on_elicitation=handler)
    # On a machine that stands still the time may have passed before the question came.
    assert handler.ended.is_set() is handler.entered.is_set()
    assert not worker.answers


async def test_a_call_that_ends_first_ends_its_handlers_and_nothing_is_answered(
    client: AsyncClient, worker: FakeWorker
) -> None:
    handler = Thinking()

    async def answer(worker: FakeWorker, call: execution_pb2.Call, arguments: bytes) -> bytes:
        question = asyncio.create_task(worker.ask(call, ELICIT))
        await handler.entered.wait()
        question.cancel()
        return text_result("changed my mind")

    worker.answer = answer
    async with asyncio.timeout(BOUND):
        result = await client.call_tool("time_now", on_elicitation=handler)
    assert result.text == "changed my mind"
    assert handler.ended.is_set()
    assert not worker.answers


async def test_cancelling_a_call_ends_its_handlers(client: AsyncClient, worker: FakeWorker) -> None:
    handler = Thinking()
    worker.answer = asking()
    task = asyncio.create_task(client.call_tool("time_now", on_elicitation=handler))
    async with asyncio.timeout(BOUND):
        await handler.entered.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await until(lambda: worker.cancels)
    assert handler.ended.is_set()


async def test_a_lost_stream_ends_the_handlers_of_its_calls(
    client: AsyncClient, worker: FakeWorker
) -> None:
    handler = Thinking()
    worker.answer = asking()
    call = asyncio.create_task(client.call_tool("time_now", on_elicitation=handler))
    async with asyncio.timeout(BOUND):
        await handler.entered.wait()
        await worker.stop()
        with pytest.raises(Exception, match="lost"):
            await call
        await handler.ended.wait()


async def test_another_try_begins_with_no_questions_of_the_first(
    client: AsyncClient, worker: FakeWorker
) -> None:
    entered, first = asyncio.Event(), asyncio.Event()

    async def answer(worker: FakeWorker, call: execution_pb2.Call, arguments: bytes) -> bytes:
        question = asyncio.create_task(worker.ask(call, ELICIT))
        if len(worker.calls) == 1:
            await entered.wait()
            question.cancel()
            raise Fault(Reason.OVERLOADED, "Full.", "no")
        return heard(await question)

    async def on_elicitation(params: dict[str, Any]) -> dict[str, Any]:
        if not entered.is_set():
            entered.set()
            try:
                await asyncio.Event().wait()
            finally:
                first.set()
        return ACCEPTED

    worker.answer = answer
    async with asyncio.timeout(BOUND):
        result = await client.call_tool("time_now", on_elicitation=on_elicitation)
    assert json.loads(result.text) == ACCEPTED
    assert first.is_set()
    assert len(worker.calls) == 2
    assert len(worker.answers) == 1
