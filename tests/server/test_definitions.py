"""Tools from the result of `list_tools`, with schemas from type hints."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from typing import Any

import pytest

from leaseway.server import BaseMCPServer, Tool, ToolResult, tool
from leaseway.server.definitions import ServedTool, tools_by_name


class Shop(BaseMCPServer):
    server_name = "shop"

    @tool
    def order(self, item: str, amount: int = 1, *, gift: bool = False) -> dict[str, int]:
        """Order something."""
        return {"amount": amount}


def tools_of(server: BaseMCPServer) -> dict[str, ServedTool]:
    return tools_by_name(server.list_tools(), server.handle_tool)


def test_type_hints_become_schemas() -> None:
    (order,) = tools_of(Shop()).values()
    assert order.definition.name == "order"
    assert order.definition.description == "Order something."
    assert order.definition.input_schema == {
        "type": "object",
        "properties": {
            "item": {"title": "Item", "type": "string"},
            "amount": {"default": 1, "title": "Amount", "type": "integer"},
            "gift": {"default": False, "title": "Gift", "type": "boolean"},
        },
        "required": ["item"],
        "additionalProperties": False,
    }
    assert order.definition.output_schema == {
        "type": "object",
        "additionalProperties": {"type": "integer"},
        "title": "orderDictOutput",
    }
    assert order.bind({"item": "pen"})() == {"amount": 1}


class Echo(BaseMCPServer):
    server_name = "echo"

    @tool
    def echo(self, value, word: str | None, json: int = 0, **rest: object) -> Any:  # type: ignore[no-untyped-def]
        return value, word, json, rest


def test_texts_that_look_like_json_stay_texts() -> None:
    (echo,) = tools_of(Echo()).values()
    given = {"value": "[1]", "word": "null", "json": 5, "more": "{}"}
    assert echo.bind(given)() == ("[1]", "null", 5, {"more": "{}"})
    assert echo.definition.input_schema["properties"]["value"] == {"title": "Value"}


@pytest.mark.parametrize(
    "returned", [str, int, list[str], object, ToolResult, Iterator[int], str | None]
)
def test_only_a_result_with_fields_has_a_schema(returned: Any) -> None:
    def answer() -> None: ...

    answer.__annotations__["return"] = returned
    (tool,) = tools_by_name([answer], Shop().handle_tool).values()
    assert tool.definition.output_schema is None


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

    (order,) = tools_of(Bigger()).values()
    assert order.definition.description == "Order more."


@pytest.mark.parametrize(
    ("listed", "message"),
    [
        (None, "returned None; return a list"),
        ("tools", "returned a str; return a list"),
        ([5], "has a int, which is no tool"),
        ([Tool("a b")], "a tool named 'a b'; a name is"),
        ([Tool("a"), Tool("a")], "the tool 'a' twice"),
        ([{"name": "a", "input": {}}], "has an invalid tool: .*\n*inputSchema"),
        ([lambda *words: words], "tool named '<lambda>'|'words' of tool"),
    ],
)
def test_an_invalid_list_of_tools_is_an_error(listed: Any, message: str) -> None:
    with pytest.raises(TypeError, match=message):
        tools_by_name(listed, Shop().handle_tool)


@pytest.mark.parametrize("name", ["model_config", "model_extra", "model_fields"])
def test_a_parameter_with_a_name_of_the_models_is_an_error_and_no_default(name: str) -> None:
    def odd(**_: str) -> None: ...

    parameter = inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, annotation=str)
    odd.__signature__ = inspect.Signature([parameter])  # type: ignore[attr-defined]
    with pytest.raises(TypeError, match=f"'{name}' of tool 'odd' cannot be an argument: pydantic"):
        tools_by_name([odd], Shop().handle_tool)


def test_parameters_that_the_package_cannot_tell_apart_are_an_error() -> None:
    def odd(json: str, field_json: str) -> None: ...

    with pytest.raises(TypeError, match="Two parameters of tool 'odd' have names"):
        tools_by_name([odd], Shop().handle_tool)


def test_a_type_without_a_json_schema_is_an_error() -> None:
    def odd(value: Shop) -> None: ...

    with pytest.raises(TypeError, match="the type hints of the tool 'odd' have no JSON Schema"):
        tools_by_name([odd], Shop().handle_tool)
