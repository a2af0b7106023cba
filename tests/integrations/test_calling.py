"""The answers that models receive to their calls, in every framework."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator

import pytest
from tests.sdk.fakes import BOUND

from leaseway.integrations.calling import ToolCaller, schema_for_models
from leaseway.sdk import LeaseLost, PermissionDenied, ServerLost
from leaseway.sdk.testing import CallContext, FakeLeaseway, Reply

started, ended = threading.Event(), threading.Event()


@pytest.fixture
def planes() -> Iterator[FakeLeaseway]:
    with FakeLeaseway() as fake:

        @fake.tool
        def add(a: int, b: int) -> int:
            return a + b

        @fake.tool
        def structured() -> Reply:
            return Reply(content=[], structured={"rain": True})

        @fake.tool(schema={"type": "object", "properties": {"since>": {"type": "string"}}})
        def log(**arguments: str) -> str:
            return str(arguments)

        @fake.tool
        async def wait() -> str:
            started.set()
            try:
                await asyncio.Future()
            finally:
                ended.set()
            return "never"

        @fake.server("counter", stateful=True).tool
        def count(context: CallContext) -> str:
            return "counted"

        yield fake


async def test_errors_that_a_model_can_react_to_are_answers_and_others_are_raised(
    planes: FakeLeaseway,
) -> None:
    async with planes.async_client() as client:
        tools = {tool.name: tool for tool in await client.list_tools()}
        calls = ToolCaller(tools.values(), client)
        answer = await calls.call(tools["add"], {"a": 1})
        assert answer.is_error
        assert answer.result is None
        assert '"b"' in answer.text
        planes.fail_next("add", PermissionDenied("Not for you."))
        assert (await calls.call(tools["add"], {"a": 1, "b": 2})).text == "Not for you."
        for error in (ServerLost("It died."), LeaseLost("It is gone.")):
            planes.fail_next("add", error)
            with pytest.raises(type(error)):
                await calls.call(tools["add"], {"a": 1, "b": 2})


async def test_arguments_that_models_cannot_name_have_another_name(planes: FakeLeaseway) -> None:
    async with planes.async_client() as client:
        tools = {tool.name: tool for tool in await client.list_tools()}
        assert list(schema_for_models(tools["log"])["properties"]) == ["since"]
        answer = await ToolCaller(tools.values(), client).call(tools["log"], {"since": "x"})
        assert answer.text == "{'since>': 'x'}"


async def test_a_structured_result_without_text_becomes_json_text(planes: FakeLeaseway) -> None:
    async with planes.async_client() as client:
        tools = {tool.name: tool for tool in await client.list_tools()}
        answer = await ToolCaller(tools.values(), client).call(tools["structured"], {})
        assert answer.text == '{"rain": true}'


@pytest.mark.parametrize("offered", [True, False])
def test_the_release_reminder_is_only_shown_to_a_model_with_mcp_release(
    offered: bool, planes: FakeLeaseway
) -> None:
    with planes.client() as client, client.session("s") as session:
        tools = [tool for tool in client.list_tools() if offered or tool.name != "mcp_release"]
        count = next(tool for tool in tools if tool.name == "count")
        text = ToolCaller(tools, session).call_and_wait(count, {}).text
        assert ("mcp_release" in text) is offered


async def test_a_synchronous_caller_is_called_in_a_thread(planes: FakeLeaseway) -> None:
    with planes.client() as client:
        tools = {tool.name: tool for tool in client.list_tools()}
        assert (await ToolCaller(tools.values(), client).call(tools["add"], {"a": 1, "b": 2})).text


@pytest.mark.parametrize("has_handlers", [False, True])
async def test_a_cancelled_call_of_a_synchronous_caller_is_cancelled_at_its_server(
    has_handlers: bool, planes: FakeLeaseway
) -> None:
    roots = ["file:///work"] if has_handlers else None
    with planes.client(roots=roots) as client:
        tools = {tool.name: tool for tool in client.list_tools()}
        call = asyncio.create_task(ToolCaller(tools.values(), client).call(tools["wait"], {}))
        await _set(started)
        call.cancel()
        await _set(ended)
        assert call.cancelled()
        assert client.call_tool("add", {"a": 1, "b": 2}).text == "3"


async def _set(event: threading.Event) -> None:
    assert await asyncio.to_thread(event.wait, BOUND)
    event.clear()


async def test_a_caller_of_the_wrong_type_is_rejected(planes: FakeLeaseway) -> None:
    with pytest.raises(TypeError, match=r"AsyncClient.*Session.*it is str"):
        ToolCaller([], "client")  # type: ignore[arg-type]
    async with planes.async_client() as client:
        with pytest.raises(TypeError, match="one of Client, Session; it is AsyncClient"):
            ToolCaller([], client, waits=True)
        tools = await client.list_tools()
        with pytest.raises(TypeError, match="made with an asynchronous caller"):
            ToolCaller(tools, client).call_and_wait(tools[0], {})
