"""The reference server with all features of MCP, over each of its transports."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import pytest
from tests.conftest import BOUND, ServerCommand
from tests.e2e.servers import entry, http_server
from tests.e2e.system import eventually, running
from tests.ports import free_port

from leaseway.sdk import AsyncClient, AsyncSession, ToolNotFound, ToolResult

pytestmark = [pytest.mark.npm, pytest.mark.usefixtures("leak_guard")]

PATHS = {"streamable_http": ("streamableHttp", "/mcp"), "sse": ("sse", "/sse")}
DATA_URI = "data:text/plain;base64,aGVsbG8="


@dataclass(frozen=True)
class Use:
    """A call of a tool and a check of its result."""

    arguments: Mapping[str, Any] = field(default_factory=dict)
    shows: Callable[[ToolResult], bool] = lambda result: bool(result.text)


def _kinds(result: ToolResult) -> list[str]:
    return [str(item["type"]) for item in result.content]


TOOLS = {
    "echo": Use({"message": "hi"}, lambda r: r.text == "Echo: hi"),
    "get-annotated-message": Use(
        {"messageType": "success", "includeImage": True}, lambda r: _kinds(r) == ["text", "image"]
    ),
    "get-env": Use(shows=lambda r: "PATH" in r.text),
    "get-resource-links": Use({"count": 2}, lambda r: _kinds(r).count("resource_link") == 2),
    "get-resource-reference": Use(
        {"resourceType": "Text", "resourceId": 1}, lambda r: "resource" in _kinds(r)
    ),
    "get-structured-content": Use(
        {"location": "Chicago"}, lambda r: "temperature" in dict(r.structured)
    ),
    "get-sum": Use({"a": 2, "b": 3}, lambda r: "5" in r.text),
    "get-tiny-image": Use(shows=lambda r: "image" in _kinds(r)),
    "gzip-file-as-resource": Use(
        {"name": "hello.gz", "data": DATA_URI}, lambda r: "resource_link" in _kinds(r)
    ),
    "toggle-simulated-logging": Use(),
    "toggle-subscriber-updates": Use(),
    "trigger-long-running-operation": Use({"duration": 0.2, "steps": 2}),
}
ASKING = {
    "get-roots-list": "roots/list",
    "trigger-elicitation-request": "elicitation/create",
    "trigger-url-elicitation": "elicitation/create",
    "trigger-sampling-request": "sampling/createMessage",
}
TASK_ONLY = {"simulate-research-query": {"topic": "leases"}}
"""Tools that run only as MCP tasks: they are skipped, since every call would be rejected."""

PROMPTS: dict[str, dict[str, str]] = {
    "simple-prompt": {},
    "args-prompt": {"city": "Basel", "state": "BS"},
    "completable-prompt": {"department": "Engineering", "name": "Alice"},
    "resource-prompt": {"resourceType": "Text", "resourceId": "1"},
}


@pytest.fixture(scope="module", params=["stdio", "streamable_http", "sse"])
async def client(
    request: pytest.FixtureRequest,
    tmp_path_factory: pytest.TempPathFactory,
    npm_server: ServerCommand,
) -> AsyncIterator[AsyncClient]:
    """Run Leaseway with the server behind one of its transports."""
    command = npm_server("mcp-server-everything")
    async with contextlib.AsyncExitStack() as stack:
        if request.param == "stdio":
            server = entry(command, "stdio")
        else:
            mode, path = PATHS[request.param]
            port = free_port()
            await stack.enter_async_context(http_server(*command, mode, port=port, PORT=str(port)))
            server = {"transport": request.param, "url": f"http://127.0.0.1:{port}{path}"}
        folder = tmp_path_factory.mktemp("everything")
        _, client = await stack.enter_async_context(running(folder, {"all": server}))
        yield client


async def test_every_tool_is_listed_and_can_be_called(client: AsyncClient) -> None:
    listed: set[str] = set()

    async def all_listed() -> bool:  # it adds some tools once it has the capabilities of its client
        listed.update(tool.original_name for tool in await client.list_tools(servers=["all"]))
        return listed >= TOOLS.keys() | ASKING.keys()

    await eventually(all_listed)
    assert listed == TOOLS.keys() | ASKING.keys()
    async with client.session("tools") as session:
        for name, use in TOOLS.items():
            result = await session.call_tool(name, use.arguments)
            assert not result.is_error, (name, result.text)
            assert use.shows(result), (name, result.raw)


async def test_tools_that_run_only_as_tasks_are_skipped_with_a_problem(client: AsyncClient) -> None:
    problems = [
        problem for problem in await client.problems() if problem.reason == "TOOL_NEEDS_TASK"
    ]
    assert {problem.subject for problem in problems} == TASK_ONLY.keys()
    for name, arguments in TASK_ONLY.items():
        with pytest.raises(ToolNotFound, match="does not support yet"):
            await client.call_tool(name, arguments)


async def test_every_resource_and_prompt_is_listed_and_can_be_read(client: AsyncClient) -> None:
    resources = await client.list_resources()
    assert len(resources) >= 7
    templates = {
        resource_template.uri_template
        for resource_template in await client.list_resource_templates()
    }
    assert templates == {
        "demo://resource/dynamic/text/{resourceId}",
        "demo://resource/dynamic/blob/{resourceId}",
    }
    assert {prompt.original_name for prompt in await client.list_prompts()} == PROMPTS.keys()
    async with client.session("resources") as session:
        for resource in resources:
            assert (await session.read_resource(resource.uri)).text
        assert "1" in (await session.read_resource("demo://resource/dynamic/text/1")).text
        assert (await session.read_resource("demo://resource/dynamic/blob/2")).blob
        for name, arguments in PROMPTS.items():
            assert (await session.get_prompt(name, arguments)).messages
        await _completes(session)


async def _completes(session: AsyncSession) -> None:
    found = await session.complete("department", "Eng", prompt="completable-prompt")
    assert "Engineering" in found.values


async def test_a_subscriber_gets_the_updates_of_a_resource(client: AsyncClient) -> None:
    uri = "demo://resource/dynamic/text/1"
    async with (
        client.session("subscriber") as session,
        session.subscribe_resource(uri, server="all") as updates,
    ):
        await session.call_tool("toggle-subscriber-updates")
        async with asyncio.timeout(BOUND):
            assert await anext(aiter(updates)) == uri


async def test_handlers_of_the_caller_answer_requests_of_the_server(
    client: AsyncClient,
) -> None:
    messages: list[str] = []

    def elicited(params: dict[str, Any]) -> dict[str, Any]:
        messages.append(str(params["message"]))
        content = {"name": "Ada", "check": True} if "requestedSchema" in params else None
        return {"action": "accept", **({"content": content} if content else {})}

    async def sampled(params: dict[str, Any]) -> dict[str, Any]:
        text = params["messages"][0]["content"]["text"]
        content = {"type": "text", "text": f"Sampled: {text}"}
        return {"role": "assistant", "content": content, "model": "none"}

    async with client.session("asked") as session:
        result = await session.call_tool("trigger-elicitation-request", on_elicitation=elicited)
        assert "Ada" in result.text
        arguments = {"url": "http://127.0.0.1/consent", "message": "Please open it."}
        result = await session.call_tool(
            "trigger-url-elicitation", arguments, on_elicitation=elicited
        )
        assert not result.is_error, result.text
        assert len(messages) == 2
        result = await session.call_tool(
            "trigger-sampling-request", {"prompt": "a haiku"}, on_sampling=sampled
        )
        assert "Sampled: " in result.text
        assert "a haiku" in result.text
        result = await session.call_tool("get-roots-list", roots=["file:///srv/data"])
        assert "file:///srv/data" in result.text


async def test_a_server_request_without_a_handler_is_rejected_by_name(client: AsyncClient) -> None:
    async with client.session("no-handlers") as session:
        for name, arguments in {
            "trigger-elicitation-request": {},
            "trigger-sampling-request": {"prompt": "a haiku"},
        }.items():
            result = await session.call_tool(name, arguments)
            assert result.is_error
            assert ASKING[name] in result.text
