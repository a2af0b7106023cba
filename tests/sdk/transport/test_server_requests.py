"""What servers ask during calls, and the handlers that answer, over real gRPC."""

from __future__ import annotations

import asyncio
import json
from contextvars import ContextVar
from typing import Any

from mcp_types import CreateMessageResult, ElicitResult, TextContent
from tests.sdk.asking import ACCEPTED, ELICIT, ROOTS, SAMPLE, SAMPLED, asking, heard
from tests.sdk.fakes import BOUND, FakeControlPlane, FakeWorker, text_result, until

from leaseway.sdk import AsyncClient, Progress
from leaseway.sdk.transport.server_requests import Roots
from leaseway.v1 import execution_pb2


async def test_a_handler_is_given_the_params_and_its_result_goes_back(
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
    assert list(worker.calls[0].answers) == [ELICIT]


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


async def test_a_call_without_handlers_says_that_it_answers_nothing(
    client: AsyncClient, worker: FakeWorker
) -> None:
    worker.answer = asking()
    result = await client.call_tool("time_now")
    assert result.text == "refused: This caller answers no requests."
    assert not worker.calls[0].answers
    result = await client.call_tool("time_now", roots=[])
    assert result.text == "refused: This caller does not answer elicitation/create."


async def test_a_clients_own_handlers_answer_where_the_call_names_none(
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
    assert list(worker.calls[0].answers) == [ELICIT, ROOTS]


async def test_questions_of_one_call_are_answered_side_by_side(
    client: AsyncClient, worker: FakeWorker
) -> None:
    together = asyncio.Barrier(3)

    async def answer(worker: FakeWorker, call: execution_pb2.Call, arguments: bytes) -> bytes:
        answers = await asyncio.gather(*(worker.ask(call, ELICIT, {"n": n}) for n in range(3)))
        return json.dumps([json.loads(one.result) for one in answers]).encode()

    async def on_elicitation(params: dict[str, Any]) -> dict[str, Any]:
        await together.wait()
        return {"action": "accept", "content": params}

    worker.answer = answer
    async with asyncio.timeout(BOUND):
        result = await client.call_tool("time_now", on_elicitation=on_elicitation)
    answers = json.loads(result.payload)
    assert [one["content"]["n"] for one in answers] == [0, 1, 2]


async def test_a_slow_handler_holds_up_neither_progress_nor_other_calls(
    client: AsyncClient, worker: FakeWorker
) -> None:
    entered, go, told = asyncio.Event(), asyncio.Event(), asyncio.Event()

    async def answer(worker: FakeWorker, call: execution_pb2.Call, arguments: bytes) -> bytes:
        question = asyncio.create_task(worker.ask(call, ELICIT))
        await entered.wait()
        worker.say(call, execution_pb2.Progress(progress=1))
        return heard(await question)

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


async def test_a_stream_answers_by_handlers_even_while_nobody_reads(
    client: AsyncClient, worker: FakeWorker
) -> None:
    async def answer(worker: FakeWorker, call: execution_pb2.Call, arguments: bytes) -> bytes:
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
