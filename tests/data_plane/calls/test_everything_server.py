"""The npm reference server asks its caller through a worker."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from tests.conftest import BOUND

from leaseway.data_plane.core.calls.call import SERVER_METHODS
from leaseway.v1 import execution_pb2
from leaseway.wire.messages.mcp import ELICIT, ROOTS, SAMPLE

Bench = Any
ANSWERS = {
    ELICIT: {"action": "accept", "content": {"name": "Ada", "integer": 7}},
    SAMPLE: {
        "role": "assistant",
        "model": "test-model",
        "content": {"type": "text", "text": "42, of course"},
    },
    ROOTS: {"roots": [{"uri": "file:///srv/data", "name": "data"}]},
}


class Answering:
    """A caller that answers all questions."""

    def __init__(self, bench: Bench) -> None:
        self.caller = bench.caller()
        self.asked: list[execution_pb2.Ask] = []
        self._task = asyncio.create_task(self._answer())

    async def _answer(self) -> None:
        caller = self.caller
        while not caller.ended:
            asks = [ask for message in caller.frames for ask in message.asks]
            for ask in asks[len(self.asked) :]:
                self.asked.append(ask)
                result = json.dumps(ANSWERS[ask.method]).encode()
                answer = execution_pb2.Answer(call_id=ask.call_id, ask_id=ask.ask_id, result=result)
                await caller.send(answers=[answer])
            caller.changed.clear()
            await caller.changed.wait()

    async def text(self, tool: str, *answers: str, **arguments: Any) -> str:
        """Call a tool; return all its text."""
        call_id = await self.caller.begin(
            "everything",
            tool,
            arguments=json.dumps(arguments).encode(),
            session="s1",
            answers=answers,
        )
        async with asyncio.timeout(BOUND):
            await self.caller.results[call_id]
        content = json.loads(self.caller.payloads[call_id])["content"]
        return "\n".join(item["text"] for item in content)

    def close(self) -> None:
        """Close the stream."""
        self._task.cancel()
        self.caller.close()


def _params(ask: execution_pb2.Ask) -> Any:
    return json.loads(ask.params)


@pytest.mark.usefixtures("leak_guard")
async def test_the_reference_server_asks_through_a_worker(running: Bench, npm_server: Any) -> None:
    (command,) = npm_server("mcp-server-everything")
    spec = running.spec("everything", shared=False, command=command, args=("stdio",))
    await running.probe(spec)
    answering = Answering(running)
    try:
        told = await answering.text("trigger-elicitation-request", *SERVER_METHODS)
        assert "- Name: Ada" in told
        assert "- Favorite Integer: 7" in told
        sampled = await answering.text(
            "trigger-sampling-request", *SERVER_METHODS, prompt="6 times 7?"
        )
        assert "42, of course" in sampled
        assert "test-model" in sampled
        roots = await answering.text("get-roots-list", *SERVER_METHODS)
        assert "file:///srv/data" in roots
        visited = await answering.text(
            "trigger-url-elicitation",
            *SERVER_METHODS,
            url="https://127.0.0.1/",
            message="Visit",
            errorPath=True,
        )
        assert "accept" in visited
        assert {ask.method for ask in answering.asked} == SERVER_METHODS
        urls = [params["url"] for params in map(_params, answering.asked) if "url" in params]
        assert len(set(urls)) == 2, "one address that the error names, one that the call asks"
        (sampling,) = [ask for ask in answering.asked if ask.method == SAMPLE]
        assert "6 times 7?" in json.loads(sampling.params)["messages"][0]["content"]["text"]
    finally:
        answering.close()


@pytest.mark.usefixtures("leak_guard")
async def test_the_reference_server_gets_advice_when_its_caller_cannot_answer(
    running: Bench, npm_server: Any
) -> None:
    (command,) = npm_server("mcp-server-everything")
    spec = running.spec("everything", shared=False, command=command, args=("stdio",))
    await running.probe(spec)
    answering = Answering(running)
    try:
        told = await answering.text("trigger-elicitation-request", ROOTS)
        assert "pass on_elicitation= to the call" in told
        told = await answering.text("trigger-sampling-request", prompt="6 times 7?")
        assert "pass on_sampling= to the call" in told
        assert ELICIT not in {ask.method for ask in answering.asked}
    finally:
        answering.close()
