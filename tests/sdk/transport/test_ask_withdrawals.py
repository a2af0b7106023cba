"""Questions that servers take back while their callers' handlers still think."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from tests.sdk.asking import ELICIT
from tests.sdk.fakes import BOUND, FakeWorker, text_result

from leaseway.sdk import AsyncClient
from leaseway.v1 import execution_pb2


def withdraw(worker: FakeWorker, call: execution_pb2.Call, ask_id: int) -> None:
    """Have a question taken back."""
    taken_back = execution_pb2.AskWithdrawal(call_id=call.id, ask_id=ask_id)
    for stream in worker._outboxes.values():
        if stream.has(call.id):
            stream.put("withdrawals", taken_back)


class Several:
    """A handler that thinks about several questions until it is told to answer them."""

    def __init__(self) -> None:
        self.asked: asyncio.Queue[str] = asyncio.Queue()
        self.stopped: list[str] = []
        self.answer = asyncio.Event()

    async def __call__(self, params: dict[str, Any]) -> dict[str, Any]:
        self.asked.put_nowait(params["message"])
        try:
            await self.answer.wait()
        except asyncio.CancelledError:
            self.stopped.append(params["message"])
            raise
        return {"action": "accept", "content": {"name": params["message"]}}


async def test_a_question_taken_back_stops_its_handler_and_no_other(
    client: AsyncClient, worker: FakeWorker
) -> None:
    async def answer(worker: FakeWorker, call: execution_pb2.Call, arguments: bytes) -> bytes:
        first = asyncio.ensure_future(worker.ask(call, ELICIT, {"message": "first"}))
        second = asyncio.ensure_future(worker.ask(call, ELICIT, {"message": "second"}))
        assert {await handler.asked.get(), await handler.asked.get()} == {"first", "second"}
        withdraw(worker, call, 1)
        withdraw(worker, call, 77)  # of nothing that is open
        while not handler.stopped:
            await asyncio.sleep(0)
        handler.answer.set()
        result = (await second).result.decode()
        first.cancel()
        return text_result(result)

    handler = Several()
    worker.answer = answer
    async with asyncio.timeout(BOUND):
        result = await client.call_tool("time_now", on_elicitation=handler)
    assert '"second"' in result.text
    assert handler.stopped == ["first"]
    assert len(worker.answers) == 1


@pytest.mark.parametrize("answers", [True, False])
async def test_a_question_taken_back_at_once_harms_nothing(
    client: AsyncClient, worker: FakeWorker, answers: bool
) -> None:
    async def answer(worker: FakeWorker, call: execution_pb2.Call, arguments: bytes) -> bytes:
        asked = asyncio.ensure_future(worker.ask(call, ELICIT, {"message": "?"}))
        await asyncio.sleep(0)
        withdraw(worker, call, 1)
        asked.cancel()
        return text_result("done")

    worker.answer = answer
    handlers: Any = {"on_elicitation": Several()} if answers else {}
    async with asyncio.timeout(BOUND):
        result = await client.call_tool("time_now", **handlers)
    assert result.text == "done"
