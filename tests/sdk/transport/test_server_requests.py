"""Requests of servers during calls, and the handlers that answer them, over real gRPC."""

from __future__ import annotations

import asyncio
import json
from contextvars import ContextVar
from typing import Any

import pytest
from mcp_types import CreateMessageResult, ElicitResult, TextContent
from tests.calls import ReceivedCall
from tests.sdk.asking import ACCEPTED, ELICIT, ROOTS, SAMPLE, SAMPLED, Thinking, asking, heard
from tests.sdk.fakes import BOUND, FakeControlPlane, FakeWorker, text_result, until

from leaseway.sdk import AsyncClient, DeadlineExceeded, Progress
from leaseway.sdk.transport.server_requests import Roots
from leaseway.v1 import execution_pb2
from leaseway.wire.errors import Fault, Reason
from leaseway.wire.messages.mcp import ELICIT_URL


async def test_a_handler_receives_the_params_and_its_result_is_sent(
    client: AsyncClient, worker: FakeWorker
) -> None:
    worker.answer = asking(params={"message": "Who?", "requestedSchema": {"type": "object"}})
    given: list[dict[str, Any]] = []

    def on_elicitation(params: dict[str, Any]) -> dict[str, Any]:
        given.append(params)
        return ACCEPTED

    result = await client.call_tool("time_now", on_elicitation=on_elicitation)
    assert json.loads(result.text) == ACCEPTED
    assert given == [{"message": "Who?", "requestedSchema": {"type": "object"}}]
    assert list(worker.calls[0].answers) == [ELICIT, ELICIT_URL]


async def test_handlers_may_be_async_and_return_models(
    client: AsyncClient, worker: FakeWorker
) -> None:
    async def on_sampling(params: dict[str, Any]) -> CreateMessageResult:
        await asyncio.sleep(0)
        content = TextContent(type="text", text="four")
        return CreateMessageResult(
            role="assistant", model="m", content=content, stop_reason="endTurn"
        )

    worker.answer = asking(SAMPLE, {"messages": []})
    result = await client.session("a").call_tool("desk_open", on_sampling=on_sampling)
    assert json.loads(result.text) == {**SAMPLED, "stopReason": "endTurn"}
    worker.answer = asking()
    result = await client.call_tool(
        "time_now", on_elicitation=lambda _: ElicitResult(action="decline")
    )
    assert json.loads(result.text) == {"action": "decline"}


async def test_roots_are_answered_without_a_handler(
    client: AsyncClient, worker: FakeWorker
) -> None:
    worker.answer = asking(ROOTS)
    roots: Roots = ["file:///a", {"uri": "file:///b", "name": "B"}]
    result = await client.call_tool("time_now", roots=roots)
    expected = {"roots": [{"uri": "file:///a"}, {"uri": "file:///b", "name": "B"}]}
    assert json.loads(result.text) == expected
    assert list(worker.calls[0].answers) == [ROOTS]
    assert json.loads((await client.call_tool("time_now", roots=[])).text) == {"roots": []}


async def test_a_call_without_handlers_rejects_requests(
    client: AsyncClient, worker: FakeWorker
) -> None:
    worker.answer = asking()
    result = await client.call_tool("time_now")
    assert result.text == "refused: This caller answers no requests."
    assert not worker.calls[0].answers
    result = await client.call_tool("time_now", roots=[])
    assert result.text == "refused: This caller does not answer elicitation/create."


async def test_the_clients_handlers_are_the_defaults_of_a_call(
    plane: FakeControlPlane, worker: FakeWorker
) -> None:
    async with AsyncClient(
        plane.address, on_elicitation=lambda _: ACCEPTED, roots=["file:///own"]
    ) as client:
        worker.answer = asking()
        assert json.loads((await client.call_tool("time_now")).text) == ACCEPTED
        session = client.session("a")
        result = await session.call_tool("desk_open", on_elicitation=lambda _: {"action": "cancel"})
        assert json.loads(result.text) == {"action": "cancel"}
        worker.answer = asking(ROOTS)
        assert "file:///own" in (await session.call_tool("desk_open")).text
        assert (
            "file:///other" in (await session.call_tool("desk_open", roots=["file:///other"])).text
        )
    assert list(worker.calls[0].answers) == [ELICIT, ROOTS, ELICIT_URL]


async def test_requests_of_one_call_are_answered_concurrently(
    client: AsyncClient, worker: FakeWorker
) -> None:
    together = asyncio.Barrier(3)

    async def answer(worker: FakeWorker, call: ReceivedCall, arguments: bytes) -> bytes:
        answers = await asyncio.gather(*(worker.ask(call, ELICIT, {"n": n}) for n in range(3)))
        return json.dumps([json.loads(each_answer.result) for each_answer in answers]).encode()

    async def on_elicitation(params: dict[str, Any]) -> dict[str, Any]:
        await together.wait()
        return {"action": "accept", "content": params}

    worker.answer = answer
    async with asyncio.timeout(BOUND):
        result = await client.call_tool("time_now", on_elicitation=on_elicitation)
    answers = json.loads(result.payload)
    assert [each_answer["content"]["n"] for each_answer in answers] == [0, 1, 2]


async def test_a_slow_handler_delays_neither_progress_nor_other_calls(
    client: AsyncClient, worker: FakeWorker
) -> None:
    entered, go, told = asyncio.Event(), asyncio.Event(), asyncio.Event()

    async def answer(worker: FakeWorker, call: ReceivedCall, arguments: bytes) -> bytes:
        request = asyncio.create_task(worker.ask(call, ELICIT))
        await entered.wait()
        worker.say(call, execution_pb2.Progress(progress=1))
        return heard(await request)

    async def on_elicitation(params: dict[str, Any]) -> dict[str, Any]:
        entered.set()
        await go.wait()
        return ACCEPTED

    worker.answer = answer
    async with asyncio.timeout(BOUND):
        slow = asyncio.create_task(
            client.call_tool(
                "time_now", on_elicitation=on_elicitation, on_progress=lambda *_: told.set()
            )
        )
        await told.wait()
        worker.answer = asking(ROOTS)
        assert (await client.call_tool("time_now", roots=[])).text == '{"roots": []}'
        go.set()
        assert json.loads((await slow).text) == ACCEPTED


async def test_a_handler_has_the_callers_context(client: AsyncClient, worker: FakeWorker) -> None:
    who: ContextVar[str] = ContextVar("who")
    worker.answer = asking()
    who.set("Ada")
    result = await client.call_tool(
        "time_now", on_elicitation=lambda _: {"action": "accept", "content": {"name": who.get()}}
    )
    assert "Ada" in result.text


async def test_a_handler_may_call_tools_of_the_same_client(
    client: AsyncClient, worker: FakeWorker
) -> None:
    async def on_elicitation(params: dict[str, Any]) -> dict[str, Any]:
        worker.answer = lambda *_: text_result("inner")
        inner = await client.call_tool("time_now")
        return {"action": "accept", "content": {"name": inner.text}}

    worker.answer = asking()
    result = await client.call_tool("time_now", on_elicitation=on_elicitation)
    assert "inner" in result.text


async def test_handlers_of_a_stream_run_while_it_is_not_read(
    client: AsyncClient, worker: FakeWorker
) -> None:
    async def answer(worker: FakeWorker, call: ReceivedCall, arguments: bytes) -> bytes:
        worker.say(call, execution_pb2.Progress(progress=1))
        answered = await worker.ask(call, ELICIT)
        worker.say(call, execution_pb2.Progress(progress=2))
        return heard(answered)

    worker.answer = answer
    async with client.stream_tool("time_now", on_elicitation=lambda _: ACCEPTED) as stream:
        await until(lambda: worker.answers)
        events = [event async for event in stream]
    assert events == [Progress(1), Progress(2)]
    assert json.loads(stream.result.text) == ACCEPTED


async def test_the_deadline_cancels_a_handler(client: AsyncClient, worker: FakeWorker) -> None:
    await client.call_tool("time_now")  # resolves the name
    worker.answer = asking()
    handler = Thinking()
    async with asyncio.timeout(BOUND):
        with pytest.raises(DeadlineExceeded):
            await client.call_tool("time_now", timeout=1.5, on_elicitation=handler)
    # On a stalled machine the deadline may pass before the request arrives.
    assert handler.ended.is_set() is handler.entered.is_set()
    assert not worker.answers


async def test_the_result_of_a_call_cancels_its_handlers(
    client: AsyncClient, worker: FakeWorker
) -> None:
    handler = Thinking()

    async def answer(worker: FakeWorker, call: ReceivedCall, arguments: bytes) -> bytes:
        request = asyncio.create_task(worker.ask(call, ELICIT))
        await handler.entered.wait()
        request.cancel()
        return text_result("changed my mind")

    worker.answer = answer
    async with asyncio.timeout(BOUND):
        result = await client.call_tool("time_now", on_elicitation=handler)
    assert result.text == "changed my mind"
    assert handler.ended.is_set()
    assert not worker.answers


async def test_cancelling_a_call_cancels_its_handlers(
    client: AsyncClient, worker: FakeWorker
) -> None:
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


async def test_a_lost_stream_cancels_the_handlers_of_its_calls(
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


async def test_another_try_starts_without_the_requests_of_the_first(
    client: AsyncClient, worker: FakeWorker
) -> None:
    entered, first = asyncio.Event(), asyncio.Event()

    async def answer(worker: FakeWorker, call: ReceivedCall, arguments: bytes) -> bytes:
        request = asyncio.create_task(worker.ask(call, ELICIT))
        if len(worker.calls) == 1:
            await entered.wait()
            request.cancel()
            raise Fault(Reason.OVERLOADED, "Full.", "no")
        return heard(await request)

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


def withdraw(worker: FakeWorker, call: ReceivedCall, ask_id: int) -> None:
    """Withdraw a request."""
    withdrawal = execution_pb2.AskWithdrawal(call_id=call.id, ask_id=ask_id)
    for stream in worker._outboxes.values():
        if stream.has(call.id):
            stream.put("withdrawals", withdrawal)


class Several:
    """A handler that waits for `answer` before it answers its requests."""

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


async def test_a_withdrawn_request_cancels_only_its_own_handler(
    client: AsyncClient, worker: FakeWorker
) -> None:
    async def answer(worker: FakeWorker, call: ReceivedCall, arguments: bytes) -> bytes:
        first = asyncio.ensure_future(worker.ask(call, ELICIT, {"message": "first"}))
        second = asyncio.ensure_future(worker.ask(call, ELICIT, {"message": "second"}))
        assert {await handler.asked.get(), await handler.asked.get()} == {"first", "second"}
        withdraw(worker, call, 1)
        withdraw(worker, call, 77)  # an unknown request
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
async def test_a_request_may_be_withdrawn_at_once(
    client: AsyncClient, worker: FakeWorker, answers: bool
) -> None:
    async def answer(worker: FakeWorker, call: ReceivedCall, arguments: bytes) -> bytes:
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
