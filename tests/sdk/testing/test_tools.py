"""Functions as tools: schemas, arguments, return values."""

from __future__ import annotations

import asyncio
import enum
import functools
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import pytest
from pydantic import BaseModel, Field
from tests.conftest import BOUND

from leaseway.sdk import (
    ArtifactLost,
    InvalidArguments,
    PermissionDenied,
    ServerError,
    ToolNotFound,
)
from leaseway.sdk.testing import FakeLeaseway, Media, Reply


def test_tools_are_listed_with_the_schema_of_their_parameters(fake: FakeLeaseway) -> None:
    tools = fake.client().list_tools()
    assert [tool.name for tool in tools] == ["add", "desk_open", "desk_read", "echo", "mcp_release"]
    assert tools[0].description == "Add two numbers."
    assert tools[0].input_schema == {
        "type": "object",
        "properties": {
            "a": {"title": "A", "type": "integer"},
            "b": {"title": "B", "type": "integer", "default": 1},
        },
        "required": ["a"],
        "title": "add",
        "additionalProperties": False,
    }
    assert tools[0].shared
    assert not tools[1].shared
    assert list(tools) == fake.tools


@pytest.mark.parametrize(
    ("arguments", "field"),
    [({"a": "one"}, "$.a"), ({}, "$"), ({"a": 1, "c": 2}, "$"), ({"a": 1.5}, "$.a")],
)
def test_arguments_that_violate_the_schema_do_not_reach_the_tool(
    fake: FakeLeaseway, arguments: dict[str, Any], field: str
) -> None:
    with pytest.raises(InvalidArguments) as caught:
        fake.client().call_tool("add", arguments)
    assert [violation.field for violation in caught.value.violations] == [field]
    assert "one" not in str(caught.value.violations)
    assert fake.calls == []


def test_a_tool_with_an_output_schema_is_called(fake: FakeLeaseway) -> None:
    @fake.tool(output_schema={"type": "object", "required": ["sum"]})
    def total() -> dict[str, int]:
        return {"sum": 3}

    assert fake.client().call_tool("total").structured == {"sum": 3}


class Colour(enum.Enum):
    RED = "red"


@dataclass
class Point:
    x: int
    y: int


class Shape(BaseModel):
    name: Annotated[str, Field(min_length=2)]
    at: Point


def test_arguments_are_converted_to_the_types_of_the_parameters(fake: FakeLeaseway) -> None:
    class Local(BaseModel):
        depth: int

    seen: list[Any] = []

    @fake.tool
    def draw(
        shape: Shape, colour: Colour, local: Local, mode: Literal["a", "b"] = "a", **rest: int
    ) -> Point:
        seen.append((shape, colour, local, mode, rest))
        return shape.at

    shape = {"name": "box", "at": {"x": 1, "y": 2}}
    given = {"shape": shape, "colour": "red", "local": {"depth": 3}, "more": 7}
    result = fake.client().call_tool("draw", given)
    box = Shape(name="box", at=Point(1, 2))
    assert seen == [(box, Colour.RED, Local(depth=3), "a", {"more": 7})]
    assert result.structured == {"x": 1, "y": 2}
    with pytest.raises(InvalidArguments) as caught:
        fake.client().call_tool("draw", {**given, "shape": {"name": "b", "at": {"x": 1}}})
    assert sorted(violation.field for violation in caught.value.violations) == [
        "$.shape.at",
        "$.shape.name",
    ]


def test_a_tool_with_its_own_schema_receives_unconverted_arguments(fake: FakeLeaseway) -> None:
    schema = {"type": "object", "properties": {"n": {"type": "integer", "multipleOf": 3}}}

    @fake.tool(
        name="thrice", description="Counts.", schema=schema, annotations={"idempotentHint": True}
    )
    def anything(**arguments: Any) -> str:
        return str(arguments)

    client = fake.client()
    assert client.call_tool("thrice", {"n": 6, "free": [1]}).text == "{'n': 6, 'free': [1]}"
    with pytest.raises(InvalidArguments):
        client.call_tool("thrice", {"n": 7})
    listed = next(tool for tool in fake.tools if tool.name == "thrice")
    assert (listed.input_schema, listed.description) == (schema, "Counts.")


def test_invalid_tools_and_servers_are_rejected_with_a_reason(fake: FakeLeaseway) -> None:
    with pytest.raises(ValueError, match="is no name for a tool"):
        fake.tool(name="a b")(lambda: None)
    with pytest.raises(TypeError, match="'_hidden' of tool 'f'"):
        fake.tool(name="f")(lambda _hidden: None)
    with pytest.raises(TypeError, match="cannot be an argument"):
        fake.tool(name="f")(lambda *many: None)
    with pytest.raises(TypeError, match="'done' of tool 'locked' has the type Callable"):

        @fake.tool
        def locked(done: Callable[[], None]) -> None: ...

    with pytest.raises(ValueError, match="has a tool 'add' already"):
        fake.server("other").tool(name="add")(lambda: None)
    with pytest.raises(ValueError, match="a server 'desk' already"):
        fake.server("desk")
    with pytest.raises(ValueError, match="no id"):
        fake.server("mcp_admin")


@pytest.mark.parametrize(
    ("value", "text", "structured"),
    [
        (None, "", None),
        ("text", "text", None),
        ({"a": [1]}, '{"a": [1]}', {"a": [1]}),
        ([], "[]", {"result": []}),
        (Point(1, 2), '{"x": 1, "y": 2}', {"x": 1, "y": 2}),
        (Reply(["a", {"type": "text", "text": "b"}], structured={"n": 1}), "a\nb", {"n": 1}),
    ],
)
def test_return_values_are_converted_to_results(
    fake: FakeLeaseway, value: Any, text: str, structured: Any
) -> None:
    fake.tool(name="give")(lambda: value)
    result = fake.client().call_tool("give")
    assert (result.text, result.structured, result.is_error) == (text, structured, False)


def test_a_return_value_that_is_not_json_is_an_error(fake: FakeLeaseway) -> None:
    fake.tool(name="give")(lambda: object())
    with pytest.raises(Exception, match="which JSON cannot hold"):
        fake.client().call_tool("give")


def test_an_exception_becomes_an_error_result_and_a_leaseway_error_is_raised(
    fake: FakeLeaseway,
) -> None:
    @fake.tool
    def fail(kind: str) -> Reply:
        if kind == "plain":
            raise KeyError("no such thing")
        if kind == "reply":
            return Reply(["went wrong"], is_error=True)
        raise PermissionDenied("Not you.", metadata={"tool": "fail"})

    client = fake.client()
    assert client.call_tool("fail", {"kind": "plain"}).is_error
    assert "no such thing" in client.call_tool("fail", {"kind": "plain"}).text
    reply = client.call_tool("fail", {"kind": "reply"})
    assert (reply.is_error, reply.text) == (True, "went wrong")
    with pytest.raises(PermissionDenied, match="Not you") as caught:
        client.call_tool("fail", {"kind": "error"})
    assert caught.value.metadata["tool"] == "fail"


async def awaiting_what_was_cancelled() -> str:
    abandoned = asyncio.get_running_loop().create_future()
    abandoned.cancel("nobody wants it")
    return str(await abandoned)


async def interrupting() -> str:
    raise KeyboardInterrupt("pressed")


async def exiting() -> str:
    raise SystemExit("no arguments")


@pytest.mark.parametrize("function", [awaiting_what_was_cancelled, interrupting, exiting])
def test_a_function_that_raises_a_base_exception_fails_only_its_call(
    fake: FakeLeaseway, function: Callable[[], Awaitable[str]]
) -> None:
    fake.tool(name="break")(function)
    fake.prompt(name="break_too")(function)
    client = fake.client()
    assert client.call_tool("break", timeout=BOUND).is_error
    with pytest.raises(ServerError, match="failed"):
        client.get_prompt("break_too", timeout=BOUND)
    assert client.call_tool("break", timeout=BOUND).is_error, "the server still runs"


async def test_media_is_returned_by_reference_unless_inline_media_is_set(
    fake: FakeLeaseway,
) -> None:
    @fake.tool
    def shoot() -> list[Any]:
        return ["here", Media(b"\x89PNG...", "image/png"), Media(b"RIFF", "audio/wav")]

    async with fake.async_client() as client:
        content = (await client.call_tool("shoot")).content
        assert [item["type"] for item in content] == ["text", "image", "audio"]
        assert "data" not in content[1]
        assert (content[1]["mimeType"], content[1]["byteLength"]) == ("image/png", 7)
        assert content[1]["artifact"].startswith("artifacts/mcp/tools/shoot/")
        assert await client.read_artifact(content[1]["artifact"]) == b"\x89PNG..."
        with pytest.raises(ArtifactLost):
            await client.session("another").read_artifact(content[1]["artifact"])
        inline = await client.call_tool("shoot", inline_media=True)
        assert inline.content[1]["data"] == "iVBORy4uLg=="


async def test_instructions_are_told_by_server(fake: FakeLeaseway) -> None:
    fake.server("clock", instructions="Times are UTC.").tool(now)
    fake.server("mute", instructions="It has no tool.")
    told = await asyncio.to_thread(fake.client().instructions)
    assert told == {"clock": "Times are UTC."}
    async with fake.async_client() as client:
        assert await client.instructions() == {"clock": "Times are UTC."}
        assert await client.instructions(["tools"]) == {}
        with pytest.raises(ToolNotFound):
            await client.instructions(["none"])


def now() -> str:
    return "noon"


def test_what_a_plain_decorator_returns_of_an_async_function_is_awaited() -> None:
    def decorated(function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def call(*args: Any, **kwargs: Any) -> Any:
            return function(*args, **kwargs)

        return call

    fake = FakeLeaseway()

    @fake.tool
    @decorated
    async def double(n: int) -> int:
        return 2 * n

    with fake:
        assert fake.client().call_tool("double", {"n": 2}).structured == {"result": 4}
