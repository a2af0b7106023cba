"""Handlers of the synchronous client: they run in the thread that waits for the call."""

from __future__ import annotations

import json
import threading
from typing import Any

import pytest
from tests.calls import ReceivedCall
from tests.sdk.asking import ACCEPTED, ELICIT, SAMPLE, SAMPLED, asking, heard
from tests.sdk.fakes import FakeControlPlane, FakeWorker, in_thread, until

from leaseway.sdk import AsyncClient, Client, Progress
from leaseway.v1 import execution_pb2
from leaseway.wire.messages.mcp import ELICIT_URL


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
    async def answer(worker: FakeWorker, call: ReceivedCall, arguments: bytes) -> bytes:
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


async def test_an_error_of_a_synchronous_handler_is_sent_to_the_server(
    plane: FakeControlPlane, worker: FakeWorker
) -> None:
    def work() -> None:
        with Client(plane.address) as client:
            result = client.call_tool("time_now", on_elicitation=lambda _: 1 // 0)
            assert "handler failed (ZeroDivisionError)" in result.text

    worker.answer = asking()
    await in_thread(work)


async def test_a_handler_that_turns_out_to_be_async_is_an_error_of_the_caller(
    plane: FakeControlPlane, worker: FakeWorker
) -> None:
    async def hidden(params: dict[str, Any]) -> dict[str, Any]:
        return ACCEPTED

    def work() -> None:
        with Client(plane.address) as client:
            for handler in (hidden, lambda params: hidden(params)):
                with pytest.raises(TypeError, match="on_elicitation of the synchronous client"):
                    client.call_tool("time_now", on_elicitation=handler)

    worker.answer = asking()
    await in_thread(work)


async def test_an_interrupt_of_a_synchronous_handler_cancels_the_call(
    plane: FakeControlPlane, worker: FakeWorker
) -> None:
    def interrupted(params: dict[str, Any]) -> dict[str, Any]:
        raise KeyboardInterrupt

    client = Client(plane.address)

    def work() -> None:
        with pytest.raises(KeyboardInterrupt):
            client.call_tool("time_now", on_elicitation=interrupted)

    worker.answer = asking()
    await in_thread(work)
    await until(lambda: worker.cancels)  # a client that is closed may send no cancellation
    await in_thread(client.close)


async def test_a_clients_handlers_also_answer_for_prompts_and_resources(
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
    both = [ELICIT, ELICIT_URL]
    assert [list(call.answers) for call in worker.calls] == [both, both]
    assert [json.loads(answer.result) for answer in worker.answers] == [ACCEPTED, ACCEPTED]
