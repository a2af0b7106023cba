"""What servers ask during calls: handlers of both clients, over real gRPC."""

from __future__ import annotations

import asyncio
import json
import logging
import threading
from collections.abc import Callable
from contextvars import ContextVar
from typing import Any

import pytest
from mcp_types import CreateMessageResult, ElicitResult, TextContent
from tests.sdk.fakes import BOUND, Answer, FakeControlPlane, FakeWorker, text_result, until

from leaseway.sdk import AsyncClient, Client, DeadlineExceeded, Progress
from leaseway.sdk.asks import Roots
from leaseway.v1 import execution_pb2
from leaseway.wire.bounds import MAX_ASKS
from leaseway.wire.fault import Fault, fault_from_status
from leaseway.wire.reasons import Reason

ELICIT = "elicitation/create"
SAMPLE = "sampling/createMessage"
ROOTS = "roots/list"
ACCEPTED = {"action": "accept", "content": {"name": "Ada"}}
SAMPLED = {"role": "assistant", "model": "m", "content": {"type": "text", "text": "four"}}


def asking(method: str = ELICIT, params: dict[str, Any] | bytes | None = None) -> Answer:
    """Return an answer that asks first and then tells what it heard."""

    async def answer(worker: FakeWorker, call: execution_pb2.Call, arguments: bytes) -> bytes:
        return heard(await worker.ask(call, method, params))

    return answer


def heard(answer: execution_pb2.Answer) -> bytes:
    if answer.HasField("error"):
        return text_result(f"refused: {fault_from_status(answer.error).message}")
    return text_result(answer.result.decode())


def returning(value: Any) -> Callable[[dict[str, Any]], Any]:
    return lambda params: value


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
    assert result.text == "refused: This caller answers nothing."
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


@pytest.mark.parametrize(
    ("returned", "sentence"),
    [
        (None, "a handler of elicitation/create returns a mapping or a pydantic model, not None"),
        ({"action": "yes"}, "whose action is accept, decline, cancel"),
        ({"action": "accept", "content": [1]}, "a mapping of the form's fields, not list"),
        ({"action": "accept", "content": {"x": object()}}, "JSON cannot hold"),
        ({"action": "accept", "content": {"x": "y" * 500_000}}, "takes 5000"),
    ],
)
async def test_a_result_of_the_wrong_shape_is_told_to_the_server_and_the_call_goes_on(
    client: AsyncClient,
    worker: FakeWorker,
    caplog: pytest.LogCaptureFixture,
    returned: Any,
    sentence: str,
) -> None:
    worker.answer = asking()
    with caplog.at_level(logging.WARNING, "leaseway.sdk"):
        result = await client.call_tool("time_now", on_elicitation=lambda _: returned)
    assert result.text.startswith("refused: There is no answer to elicitation/create: ")
    assert sentence in result.text
    assert sentence in caplog.text


async def test_a_sampling_result_without_a_model_is_told(
    client: AsyncClient, worker: FakeWorker
) -> None:
    worker.answer = asking(SAMPLE)
    for member, wrong in (("model", None), ("content", "four"), ("role", "system")):
        result = await client.call_tool(
            "time_now", on_sampling=returning({**SAMPLED, member: wrong})
        )
        assert "on_sampling returns {'role': 'assistant'" in result.text
    several = {**SAMPLED, "content": [SAMPLED["content"]]}
    result = await client.call_tool("time_now", on_sampling=returning(several))
    assert json.loads(result.text) == several


async def test_a_handler_that_raises_is_logged_and_the_server_told_no_more_than_its_kind(
    client: AsyncClient, worker: FakeWorker, caplog: pytest.LogCaptureFixture
) -> None:
    def on_elicitation(params: dict[str, Any]) -> dict[str, Any]:
        raise ZeroDivisionError("private")

    worker.answer = asking()
    with caplog.at_level(logging.WARNING, "leaseway.sdk"):
        result = await client.call_tool("time_now", on_elicitation=on_elicitation)
    assert "the caller's handler failed (ZeroDivisionError)" in result.text
    assert "private" not in result.text
    assert "time_now" in caplog.text
    assert "test_asks.py" in caplog.text  # where it was raised
    assert fault_from_status(worker.answers[0].error).reason is Reason.INPUT_REQUIRED


async def test_a_handler_whose_own_work_was_cancelled_has_failed(
    client: AsyncClient, worker: FakeWorker
) -> None:
    async def on_elicitation(params: dict[str, Any]) -> dict[str, Any]:
        work = asyncio.create_task(asyncio.Event().wait())
        work.cancel()
        await work
        return ACCEPTED

    worker.answer = asking()
    result = await client.call_tool("time_now", on_elicitation=on_elicitation)
    assert "the caller's handler failed (CancelledError)" in result.text


async def test_params_that_are_no_json_object_reach_no_handler(
    client: AsyncClient, worker: FakeWorker
) -> None:
    for params in (b"[]", b"{"):
        worker.answer = asking(params=params)
        result = await client.call_tool("time_now", on_elicitation=lambda _: ACCEPTED)
        assert "what the server asked is no JSON object" in result.text


async def test_the_deadline_holds_while_a_handler_thinks_and_ends_it(
    client: AsyncClient, worker: FakeWorker
) -> None:
    await client.call_tool("time_now")  # what a first call has to look up is known now
    worker.answer = asking()
    ended = asyncio.Event()

    async def on_elicitation(params: dict[str, Any]) -> dict[str, Any]:
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()
        return ACCEPTED

    async with asyncio.timeout(BOUND):
        with pytest.raises(DeadlineExceeded):
            await client.call_tool("time_now", timeout=1.5, on_elicitation=on_elicitation)
    assert ended.is_set()
    assert not worker.answers


async def test_a_call_that_ends_first_ends_its_handlers_and_nothing_is_answered(
    client: AsyncClient, worker: FakeWorker
) -> None:
    entered, ended = asyncio.Event(), asyncio.Event()

    async def answer(worker: FakeWorker, call: execution_pb2.Call, arguments: bytes) -> bytes:
        question = asyncio.create_task(worker.ask(call, ELICIT))
        await entered.wait()
        question.cancel()
        return text_result("changed my mind")

    async def on_elicitation(params: dict[str, Any]) -> dict[str, Any]:
        entered.set()
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()
        return ACCEPTED

    worker.answer = answer
    async with asyncio.timeout(BOUND):
        result = await client.call_tool("time_now", on_elicitation=on_elicitation)
    assert result.text == "changed my mind"
    assert ended.is_set()
    assert not worker.answers


async def test_cancelling_a_call_ends_its_handlers(client: AsyncClient, worker: FakeWorker) -> None:
    entered, ended = asyncio.Event(), asyncio.Event()

    async def on_elicitation(params: dict[str, Any]) -> dict[str, Any]:
        entered.set()
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()
        return ACCEPTED

    worker.answer = asking()
    task = asyncio.create_task(client.call_tool("time_now", on_elicitation=on_elicitation))
    async with asyncio.timeout(BOUND):
        await entered.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await until(lambda: worker.cancels)
    assert ended.is_set()


async def test_too_many_questions_at_once_are_refused(
    client: AsyncClient, worker: FakeWorker
) -> None:
    async def answer(worker: FakeWorker, call: execution_pb2.Call, arguments: bytes) -> bytes:
        questions = [asyncio.create_task(worker.ask(call, ELICIT)) for _ in range(MAX_ASKS + 1)]
        await until(lambda: worker.answers)
        assert fault_from_status(worker.answers[0].error).message.startswith("16 questions")
        go.set()
        answers = await asyncio.gather(*questions)
        return text_result(str(sum(not one.HasField("error") for one in answers)))

    go = asyncio.Event()

    async def on_elicitation(params: dict[str, Any]) -> dict[str, Any]:
        await go.wait()
        return ACCEPTED

    worker.answer = answer
    async with asyncio.timeout(BOUND):
        result = await client.call_tool("time_now", on_elicitation=on_elicitation)
    assert result.text == "16"


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


@pytest.mark.parametrize(
    ("wrong", "kind", "sentence"),
    [
        ({"on_elicitation": 1}, TypeError, "on_elicitation is a function or None, not int"),
        ({"on_sampling": "ask"}, TypeError, "on_sampling is a function or None, not str"),
        ({"roots": "file:///a"}, TypeError, "roots is a list of file:// URIs"),
        ({"roots": [5]}, TypeError, "A root is a file:// URI"),
        ({"roots": ["/home"]}, ValueError, r"Root '/home' is no file:// URI; .*as_uri\(\)"),
    ],
)
async def test_handlers_of_the_wrong_kind_are_named_before_anything_is_called(
    client: AsyncClient,
    worker: FakeWorker,
    wrong: dict[str, Any],
    kind: type[Exception],
    sentence: str,
) -> None:
    with pytest.raises(kind, match=sentence):
        await client.call_tool("time_now", **wrong)
    with pytest.raises(kind, match=sentence):
        client.stream_tool("time_now", **wrong)
    with pytest.raises(kind, match=sentence):
        AsyncClient("127.0.0.1:1", **wrong)
    with pytest.raises(kind, match=sentence):
        Client("127.0.0.1:1", **wrong)
    assert not worker.calls


async def in_thread(work: Callable[[], Any]) -> Any:
    async with asyncio.timeout(BOUND):
        return await asyncio.to_thread(work)


async def test_synchronous_handlers_run_in_the_calling_thread_and_may_call(
    plane: FakeControlPlane, worker: FakeWorker
) -> None:
    worker.answer = asking()

    def work() -> tuple[str, bool]:
        thread = threading.get_ident()
        here: list[bool] = []
        with Client(plane.address) as client:

            def on_elicitation(params: dict[str, Any]) -> dict[str, Any]:
                here.append(threading.get_ident() == thread)
                inner = client.call_tool("time_now", roots=[]).text
                return {"action": "accept", "content": {"name": inner}}

            session = client.session("a")
            return session.call_tool("desk_open", on_elicitation=on_elicitation).text, here == [
                True
            ]

    text, here = await in_thread(work)
    assert here
    assert "This caller does not answer elicitation/create." in text


async def test_a_synchronous_clients_own_handlers_answer_calls_and_streams(
    plane: FakeControlPlane, worker: FakeWorker
) -> None:
    async def answer(worker: FakeWorker, call: execution_pb2.Call, arguments: bytes) -> bytes:
        worker.say(call, execution_pb2.Progress(progress=1))
        answered = await worker.ask(call, SAMPLE)
        worker.say(call, execution_pb2.Progress(progress=2))
        return heard(answered)

    def work() -> None:
        with Client(plane.address, on_sampling=lambda _: SAMPLED) as client:
            assert json.loads(client.call_tool("time_now").text) == SAMPLED
            with client.session("a").stream_tool("desk_open") as stream:
                assert list(stream) == [Progress(1), Progress(2)]
            assert json.loads(stream.result.text) == SAMPLED

    worker.answer = answer
    await in_thread(work)


async def test_an_error_of_a_synchronous_handler_is_the_answer(
    plane: FakeControlPlane, worker: FakeWorker
) -> None:
    async def hidden(params: dict[str, Any]) -> dict[str, Any]:
        return ACCEPTED

    def work() -> None:
        with Client(plane.address) as client:
            result = client.call_tool("time_now", on_elicitation=lambda _: 1 // 0)
            assert "handler failed (ZeroDivisionError)" in result.text
            result = client.call_tool("time_now", on_elicitation=lambda params: hidden(params))
            assert "cannot be async; use AsyncClient" in result.text
            with pytest.raises(TypeError, match="on_elicitation of the synchronous client"):
                client.call_tool("time_now", on_elicitation=hidden)

    worker.answer = asking()
    await in_thread(work)


async def test_an_interrupt_of_a_synchronous_handler_cancels_the_call(
    plane: FakeControlPlane, worker: FakeWorker
) -> None:
    def interrupted(params: dict[str, Any]) -> dict[str, Any]:
        raise KeyboardInterrupt

    def work() -> None:
        with Client(plane.address) as client, pytest.raises(KeyboardInterrupt):
            client.call_tool("time_now", on_elicitation=interrupted)

    worker.answer = asking()
    await in_thread(work)
    await until(lambda: worker.cancels)


async def test_media_are_asked_for_in_place_by_call_and_stream(
    client: AsyncClient, plane: FakeControlPlane, worker: FakeWorker
) -> None:
    await client.call_tool("time_now")
    await client.call_tool("time_now", inline_media=True)
    await client.call_tool("time_now", inline_media=True, on_progress=print)
    async with client.stream_tool("time_now", inline_media=True) as stream:
        assert [event async for event in stream] == []

    def work() -> None:
        with Client(plane.address) as client:
            client.call_tool("time_now", inline_media=True)

    await in_thread(work)
    assert [call.inline_media for call in worker.calls] == [False, True, True, True, True]
    assert [call.wants_progress for call in worker.calls] == [False, False, True, True, False]


async def test_a_lost_stream_ends_the_handlers_of_its_calls(
    client: AsyncClient, worker: FakeWorker
) -> None:
    entered, ended = asyncio.Event(), asyncio.Event()

    async def on_elicitation(params: dict[str, Any]) -> dict[str, Any]:
        entered.set()
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()
        return ACCEPTED

    worker.answer = asking()
    call = asyncio.create_task(client.call_tool("time_now", on_elicitation=on_elicitation))
    async with asyncio.timeout(BOUND):
        await entered.wait()
        await worker.stop()
        with pytest.raises(Exception, match="lost"):
            await call
        await ended.wait()


async def test_a_clients_own_handlers_answer_prompts_and_resources_too(
    plane: FakeControlPlane, worker: FakeWorker
) -> None:
    worker.answer = asking()

    def work() -> None:
        with Client(plane.address, on_elicitation=lambda _: ACCEPTED) as client:
            client.session("a").get_prompt("time_now")

    async with AsyncClient(plane.address, on_elicitation=lambda _: ACCEPTED) as client:
        result = await client.read_resource("time_now", server="time")
        assert json.loads(result.raw["content"][0]["text"]) == ACCEPTED
    await in_thread(work)
    assert [call.method for call in worker.calls] == ["resources/read", "prompts/get"]
    assert [list(call.answers) for call in worker.calls] == [[ELICIT], [ELICIT]]
    assert [json.loads(answer.result) for answer in worker.answers] == [ACCEPTED, ACCEPTED]
