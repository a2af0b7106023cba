"""Requests of servers that are rejected, because a handler or its answer is invalid."""

from __future__ import annotations

import asyncio
import json
import logging
from typing import Any

import pytest
from tests.calls import ReceivedCall
from tests.sdk.asking import ACCEPTED, ELICIT, SAMPLE, SAMPLED, asking, returning
from tests.sdk.fakes import BOUND, FakeWorker, text_result, until

from leaseway.sdk import AsyncClient, Client
from leaseway.wire.bounds import MAX_ASKS
from leaseway.wire.errors import Reason
from leaseway.wire.status import fault_from_status


@pytest.mark.parametrize(
    ("returned", "sentence"),
    [
        (None, "a handler of elicitation/create returns a mapping or a pydantic model, not None"),
        ({"action": "yes"}, "whose action is accept, decline, cancel"),
        ({"action": "accept", "content": [1]}, "a mapping of the form's fields, not list"),
        ({"action": "accept", "content": {"x": object()}}, "JSON cannot represent"),
        ({"action": "accept", "content": {"x": "y" * 500_000}}, "has 5000"),
    ],
)
async def test_an_invalid_answer_is_rejected_and_the_call_continues(
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


async def test_an_invalid_sampling_answer_is_rejected(
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


async def test_an_exception_of_a_handler_is_logged_and_only_its_type_is_sent(
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
    assert "test_rejected_requests.py" in caplog.text  # where it was raised
    assert fault_from_status(worker.answers[0].error).reason is Reason.INPUT_REQUIRED


async def test_a_handler_whose_own_task_was_cancelled_has_failed(
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


async def test_params_that_are_not_a_json_object_reach_no_handler(
    client: AsyncClient, worker: FakeWorker
) -> None:
    for params in (b"[]", b"{"):
        worker.answer = asking(params=params)
        result = await client.call_tool("time_now", on_elicitation=lambda _: ACCEPTED)
        assert "the params of the request are not a JSON object" in result.text


async def test_too_many_concurrent_requests_are_rejected(
    client: AsyncClient, worker: FakeWorker
) -> None:
    async def answer(worker: FakeWorker, call: ReceivedCall, arguments: bytes) -> bytes:
        requests = [asyncio.create_task(worker.ask(call, ELICIT)) for _ in range(MAX_ASKS + 1)]
        await until(lambda: worker.answers)
        assert fault_from_status(worker.answers[0].error).message.startswith("16 requests")
        go.set()
        answers = await asyncio.gather(*requests)
        return text_result(str(sum(not each_answer.HasField("error") for each_answer in answers)))

    go = asyncio.Event()

    async def on_elicitation(params: dict[str, Any]) -> dict[str, Any]:
        await go.wait()
        return ACCEPTED

    worker.answer = answer
    async with asyncio.timeout(BOUND):
        result = await client.call_tool("time_now", on_elicitation=on_elicitation)
    assert result.text == "16"


@pytest.mark.parametrize(
    ("wrong", "kind", "sentence"),
    [
        ({"on_elicitation": 1}, TypeError, "on_elicitation is a function or None, not int"),
        ({"on_sampling": "ask"}, TypeError, "on_sampling is a function or None, not str"),
        ({"roots": "file:///a"}, TypeError, "roots is a list of file:// URIs"),
        ({"roots": [5]}, TypeError, "A root is a file:// URI"),
        ({"roots": ["/home"]}, ValueError, r"Root '/home' is not a file:// URI; .*as_uri\(\)"),
    ],
)
async def test_an_invalid_handler_fails_before_the_call(
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
