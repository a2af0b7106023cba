"""Tools from the result of `list_tools`, with schemas from type hints."""

from __future__ import annotations

import enum
import inspect
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import date
from functools import partial
from typing import Annotated, Any, Optional

import pytest
from mcp.server.mcpserver import Context, Image
from mcp.server.mcpserver.exceptions import UnexpectedToolError
from mcp.server.mcpserver.tools import Tool as McpTool

from leaseway.server import BaseMCPServer, Tool, ToolResult, tool
from leaseway.server.definitions import convert_tools

PNG = b"\x89PNG\r\n\x1a\n"


class Shop(BaseMCPServer):
    server_name = "shop"

    @tool
    def order(self, item: str, amount: int = 1, *, gift: bool = False) -> dict[str, int]:
        """Order something."""
        return {"amount": amount}


async def run(function: Callable[[], Any]) -> Any:
    return function()


def tools_of(server: BaseMCPServer, listed: Any = ...) -> list[McpTool]:
    tools = server.list_tools() if listed is ... else listed
    return convert_tools(tools, server.handle_tool, run)


async def call(tool: McpTool, arguments: dict[str, Any]) -> Any:
    return await tool.run(arguments, Context())


async def test_type_hints_become_schemas() -> None:
    (order,) = tools_of(Shop())
    assert order.name == "order"
    assert order.description == "Order something."
    assert order.parameters == {
        "type": "object",
        "properties": {
            "item": {"title": "Item", "type": "string"},
            "amount": {"default": 1, "title": "Amount", "type": "integer"},
            "gift": {"default": False, "title": "Gift", "type": "boolean"},
        },
        "required": ["item"],
        "title": "order",
        "additionalProperties": False,
    }
    assert order.output_schema == {
        "type": "object",
        "additionalProperties": {"type": "integer"},
        "title": "orderDictOutput",
    }
    assert await call(order, {"item": "pen"}) == {"amount": 1}


class Echo(BaseMCPServer):
    server_name = "echo"

    @tool
    def echo(self, value, word: str | None, json: int = 0, **rest: object) -> Any:  # type: ignore[no-untyped-def]
        return value, word, json, rest


async def test_texts_that_look_like_json_stay_texts() -> None:
    (echo,) = tools_of(Echo())
    given = {"value": "[1]", "word": "null", "json": 5, "more": "{}"}
    assert await call(echo, given) == ("[1]", "null", 5, {"more": "{}"})
    assert echo.parameters["properties"]["value"] == {"title": "Value"}


@pytest.mark.parametrize(
    ("returned", "text", "structured"),
    [
        ([[1], [2, 3]], "[[1], [2, 3]]", None),
        ({"a": 1}, '{"a": 1}', {"a": 1}),
        (ToolResult("said", {"a": 1}), "said", {"a": 1}),
        ({"content": [{"type": "text", "text": "own"}], "isError": True}, "own", None),
        (Image(data=b"png", format="png"), "cG5n", None),
        ("ä".encode(), "ä", None),
        (bytearray(PNG), "iVBORw0KGgo=", None),
        ([PNG, "a dot", 5], "iVBORw0KGgo=a dot5", None),
        ([b"a", b"b"], '["a", "b"]', None),
        (date(2026, 1, 2), "2026-01-02", None),
        (None, "", None),
    ],
)
async def test_results_become_text_and_structured_content(
    returned: Any, text: str, structured: Any
) -> None:
    def answer():  # type: ignore[no-untyped-def]
        return returned

    (tool,) = tools_of(Shop(), [answer])
    result = await tool.run({}, Context(), convert_result=True)
    shown = "".join(
        getattr(block, "text", "") or getattr(block, "data", "") for block in result.content
    )
    assert (shown, result.structured_content) == (text, structured)


class Size(enum.Enum):
    SMALL = "small"


class Values(BaseMCPServer):
    server_name = "values"

    @tool
    def day(self) -> date:
        return date(2026, 1, 2)

    @tool
    def picture(self) -> list:  # type: ignore[type-arg]
        return ["a dot", Image(data=b"png", format="png")]

    @tool
    def size(self) -> Size:
        return Size.SMALL


async def test_bytes_that_are_no_text_are_a_resource() -> None:
    def answer() -> bytes:
        return b"\xff\x00"

    (tool,) = tools_of(Shop(), [answer])
    assert tool.output_schema is None
    (block,) = (await tool.run({}, Context(), convert_result=True)).content
    assert (block.resource.blob, block.resource.mime_type) == ("/wA=", "application/octet-stream")


@pytest.mark.parametrize(
    ("hint", "returned", "kinds"),
    [
        (bytes | None, PNG, ["image"]),
        (bytes | None, None, []),
        (Optional[bytearray], PNG, ["image"]),  # noqa: UP045 - the other form of a union
        (bytes | str, b"text", ["text"]),
        (Annotated[bytes, "a picture"], PNG, ["image"]),
        (list[bytes], [PNG, b"\xff"], ["image", "resource"]),
        (list[bytes | str], [PNG, "a dot"], ["image", "text"]),
        (tuple[bytes, ...], (PNG,), ["image"]),
        (Iterable[bytes], [PNG], ["image"]),
        (Sequence[Annotated[memoryview, ""]] | None, [memoryview(PNG)], ["image"]),
        (ToolResult | None, ToolResult("said"), ["text"]),
    ],
)
async def test_a_hint_of_text_or_media_announces_no_data(
    hint: Any, returned: Any, kinds: list[str]
) -> None:
    def answer() -> Any:
        return returned

    answer.__annotations__["return"] = hint
    (tool,) = tools_of(Shop(), [answer])
    result = await tool.run({}, Context(), convert_result=True)
    assert tool.output_schema is None
    assert result.structured_content is None
    assert [block.type for block in result.content] == kinds


@dataclass
class Picture:
    data: bytes


@pytest.mark.parametrize(
    ("hint", "returned", "structured"),
    [
        (Picture, Picture(b"text"), {"data": "text"}),
        (dict[str, bytes], {"data": b"text"}, {"data": "text"}),
        (Any, b"text", {"result": "text"}),
        (list[tuple[str, bytes]], [("a", b"text")], {"result": [["a", "text"]]}),
        (set[bytes], {b"text"}, {"result": ["text"]}),
    ],
)
async def test_bytes_in_data_are_its_text(hint: Any, returned: Any, structured: Any) -> None:
    def answer() -> Any:
        return returned

    answer.__annotations__["return"] = hint
    (tool,) = tools_of(Shop(), [answer])
    result = await tool.run({}, Context(), convert_result=True)
    assert tool.output_schema is not None
    assert result.structured_content == structured


@pytest.mark.parametrize(
    ("hint", "returned"),
    [(Picture, Picture(PNG)), (dict[str, bytes], {"data": PNG}), (Any, PNG), (list, [[PNG]])],
)
async def test_bytes_in_data_that_are_no_text_are_an_error(hint: Any, returned: Any) -> None:
    def answer() -> Any:
        return returned

    answer.__annotations__["return"] = hint
    (tool,) = tools_of(Shop(), [answer])
    with pytest.raises(UnexpectedToolError) as raised:
        await tool.run({}, Context(), convert_result=True)
    assert "return them alone or as items of a list" in str(raised.value.__cause__)


async def test_results_of_hinted_classes_are_plain_text_and_structured() -> None:
    tools = {tool.name: tool for tool in tools_of(Values())}
    results = {
        name: await tool.run({}, Context(), convert_result=True) for name, tool in tools.items()
    }
    assert results["day"].content[0].text == "2026-01-02"
    assert results["day"].structured_content == {"result": "2026-01-02"}
    assert (tools["day"].output_schema or {})["properties"]["result"]["format"] == "date"
    assert results["size"].content[0].text == "small"
    assert results["size"].structured_content == {"result": "small"}
    assert tools["picture"].output_schema is None
    assert [block.type for block in results["picture"].content] == ["text", "image"]


def test_a_class_works_without_a_connection() -> None:
    shop = Shop(config={"a": 1})
    shop.report_progress(1)
    shop.log("info", "dropped")
    assert shop.config == {"a": 1}
    assert shop.order("pen", 2) == {"amount": 2}


def test_an_overridden_tool_is_listed_once() -> None:
    class Bigger(Shop):
        @tool(description="Order more.")
        def order(self, item: str, amount: int = 100, *, gift: bool = False) -> dict[str, int]:
            return {"amount": amount}

    (order,) = tools_of(Bigger())
    assert order.description == "Order more."


@pytest.mark.parametrize(
    ("listed", "message"),
    [
        (None, "returned a NoneType; return a list"),
        ("tools", "returned a str; return a list"),
        ([5], "has a int, which is no tool"),
        ([Tool("a b")], "a tool named 'a b'; a name is"),
        ([Tool("a"), Tool("a")], "a tool named 'a' twice"),
        ([{"name": "a", "input": {}}], "has an invalid tool: .*\n*inputSchema"),
        ([lambda words: words], "a tool named '<lambda>'; a name is"),
        ([partial(max, 1)], "a tool named ''; a name is"),
        ([max], "The tool 'max' cannot be made of its signature"),
    ],
)
def test_an_invalid_list_of_tools_is_an_error(listed: Any, message: str) -> None:
    with pytest.raises(TypeError, match=message):
        tools_of(Shop(), listed)


@pytest.mark.parametrize("name", ["model_config", "model_extra", "model_fields"])
def test_a_parameter_with_a_name_of_the_models_is_an_error_and_no_default(name: str) -> None:
    def odd(**_: str) -> None: ...

    parameter = inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, annotation=str)
    odd.__signature__ = inspect.Signature([parameter])  # type: ignore[attr-defined]
    with pytest.raises(TypeError, match=f"'{name}' of tool 'odd' cannot be an argument"):
        tools_of(Shop(), [odd])


def test_parameters_that_the_package_cannot_tell_apart_are_an_error() -> None:
    def odd(json: str, field_json: str) -> None: ...

    with pytest.raises(TypeError, match="The parameter 'json' of tool 'odd' cannot be"):
        tools_of(Shop(), [odd])


def test_numbers_and_levels_that_no_caller_could_read_are_errors() -> None:
    with pytest.raises(ValueError, match="finite numbers, not nan"):
        Shop().report_progress(float("nan"))
    with pytest.raises(ValueError, match="the level 'WARN' is none of debug, info"):
        Shop().log("WARN", "late")


def test_what_is_no_method_cannot_be_marked() -> None:
    with pytest.raises(TypeError, match="@tool marks methods, and no property"):
        tool(property(len))  # type: ignore[call-overload]


def test_a_type_without_a_json_schema_is_an_error() -> None:
    def odd(name: str, value: Shop) -> None: ...

    with pytest.raises(TypeError, match="The parameter 'value' of tool 'odd' has the type Shop"):
        tools_of(Shop(), [odd])
