"""Server requests to callers in a whole system: handlers of the SDK, and unary calls."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import grpc
import pytest
from tests.conftest import BOUND
from tests.e2e.system import python_server, running

from leaseway.sdk import AsyncClient, InputRequired
from leaseway.v1 import execution_pb2, execution_pb2_grpc

ELICIT = {"method": "elicitation/create", "params": {"message": "Name?"}}
SAMPLE = {"method": "sampling/createMessage", "params": {"messages": [], "maxTokens": 8}}
ROOTS = {"method": "roots/list"}
ALL = {"questions": [ELICIT, SAMPLE, ROOTS], "rounds": 2}
SAMPLED = {"role": "assistant", "model": "m", "content": {"type": "text", "text": "four"}}


def servers() -> dict[str, object]:
    """Return a server of each era."""
    old = python_server("asking_stdio.py", "--legacy", transform=[{"prefix": "old_"}])
    new = python_server("asking_stdio.py", transform=[{"prefix": "new_"}])
    return {"old": old, "new": new}


async def accept(params: dict[str, Any]) -> dict[str, Any]:
    """Accept, with the message as the name."""
    await asyncio.sleep(0)
    return {"action": "accept", "content": {"name": params["message"]}}


@pytest.mark.usefixtures("leak_guard")
async def test_handlers_of_the_sdk_answer_servers_of_both_eras(tmp_path: Path) -> None:
    async with running(tmp_path, servers()) as (_, client):
        for tool, count in (("old_ask", 3), ("new_ask", 6)):
            result = await client.call_tool(
                tool,
                ALL,
                on_elicitation=accept,
                on_sampling=lambda params: SAMPLED,
                roots=["file:///srv/data"],
            )
            parsed = json.loads(result.text)
            replies = parsed if isinstance(parsed, list) else list(parsed.values())
            assert len(replies) == count
            assert {"action": "accept", "content": {"name": "Name?"}} in replies
            assert SAMPLED in replies
            assert {"roots": [{"uri": "file:///srv/data"}]} in replies


@pytest.mark.usefixtures("leak_guard")
async def test_the_error_without_a_handler_names_the_missing_parameter(tmp_path: Path) -> None:
    async with running(tmp_path, servers()) as (_, client):
        refused = json.loads((await client.call_tool("old_ask", ALL)).text)
        assert ["on_elicitation=" in refused[0]["message"], "roots=" in refused[2]["message"]] == [
            True,
            True,
        ]
        with pytest.raises(InputRequired, match="pass on_sampling= to the call"):
            await client.call_tool("new_ask", {"questions": [SAMPLE]}, on_elicitation=accept)


@pytest.mark.usefixtures("leak_guard")
async def test_each_of_a_hundred_callers_gets_the_requests_of_its_own_call(tmp_path: Path) -> None:
    async with running(tmp_path, servers()) as (_, client):

        async def call(tool: str, number: int) -> None:
            question = {"method": ELICIT["method"], "params": {"message": f"{tool} {number}"}}
            arguments = {"questions": [question], "rounds": 3}
            async with client.session(f"{tool}-{number % 10}") as session:
                result = await session.call_tool(tool, arguments, on_elicitation=accept)
            parsed = json.loads(result.text)
            replies = parsed if isinstance(parsed, list) else list(parsed.values())
            assert {reply["content"]["name"] for reply in replies} == {f"{tool} {number}"}

        # A request of a legacy server does not name its call: one call at a time per lease.
        async with asyncio.timeout(BOUND):
            await asyncio.gather(*(call("new_ask", number) for number in range(100)))
            await asyncio.gather(*(call("old_ask", number) for number in range(10)))


@pytest.mark.usefixtures("leak_guard")
async def test_a_unary_caller_continues_a_call_with_its_responses(tmp_path: Path) -> None:
    async with running(tmp_path, servers()) as (_, client):
        (worker,) = await client.workers()
        async with grpc.aio.insecure_channel(worker.address) as channel:
            service: Any = execution_pb2_grpc.ExecutionServiceStub(channel)
            request = execution_pb2.CallToolRequest(
                tool="new_ask",
                session="unary",
                answers=["elicitation/create", "roots/list"],
            )
            arguments: Any = {"questions": [ELICIT, ROOTS], "rounds": 2}
            request.arguments.update(arguments)
            for _ in range(2):
                response = await service.CallTool(request, timeout=60)
                assert [asked.method for asked in response.input_required] == [
                    "elicitation/create",
                    "roots/list",
                ]
                request = execution_pb2.CallToolRequest(request_state=response.request_state)
                for asked in response.input_required:
                    request.input_responses[asked.id].update({"said": asked.method})
            response = await service.CallTool(request, timeout=60)
            assert len(json.loads(response.content[0].text)) == 4


@pytest.mark.usefixtures("leak_guard")
async def test_a_lease_is_usable_after_a_call_is_cancelled_during_an_elicitation(
    tmp_path: Path,
) -> None:
    async with running(tmp_path, servers()) as (_, client):
        for tool in ("old_ask", "new_ask"):
            await _cancel_call(client, tool)


async def _cancel_call(client: AsyncClient, tool: str) -> None:
    asked = asyncio.Event()

    async def never(params: dict[str, Any]) -> dict[str, Any]:
        asked.set()
        await asyncio.Event().wait()
        raise AssertionError("The event is never set.")

    async with client.session("s") as session, asyncio.timeout(BOUND):
        call = asyncio.ensure_future(
            session.call_tool(tool, {"questions": [ELICIT]}, on_elicitation=never)
        )
        await asked.wait()
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        echoed = await session.call_tool(tool.replace("ask", "echo"), {"a": 1})
        assert json.loads(echoed.text) == {"a": 1}
