"""Tools from the result of `list_tools`, with schemas from type hints."""

from __future__ import annotations

from typing import Any

import pytest

from leaseway.server import BaseMCPServer, Tool, tool
from leaseway.server.definitions import tools_by_name


class Shop(BaseMCPServer):
    server_name = "shop"

    @tool
    def order(self, item: str, amount: int = 1, *, gift: bool = False) -> dict[str, int]:
        """Order something."""
        return {"amount": amount}


def test_type_hints_become_a_schema() -> None:
    (order,) = tools_by_name(Shop().list_tools()).values()
    assert order.name == "order"
    assert order.description == "Order something."
    assert order.input_schema == {
        "type": "object",
        "properties": {
            "item": {"title": "Item", "type": "string"},
            "amount": {"default": 1, "title": "Amount", "type": "integer"},
            "gift": {"default": False, "title": "Gift", "type": "boolean"},
        },
        "required": ["item"],
        "additionalProperties": False,
    }
    assert order.output_schema is None
    assert order.function is not None
    assert order.function({"item": "pen"}) == {"amount": 1}


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

    (order,) = tools_by_name(Bigger().list_tools()).values()
    assert order.description == "Order more."


@pytest.mark.parametrize(
    ("listed", "message"),
    [
        (None, "returned None; return a list"),
        ("tools", "returned a str; return a list"),
        ([5], "has a int, which is no tool"),
        ([Tool("a b")], "a tool named 'a b'; a name is"),
        ([Tool("a"), Tool("a")], "the tool 'a' twice"),
        ([{"name": "a", "input": {}}], "the unknown key 'input'"),
        ([{"description": "a"}], "no 'name'"),
        ([lambda *words: words], "tool named '<lambda>'|'words' of tool"),
    ],
)
def test_an_invalid_list_of_tools_is_an_error(listed: Any, message: str) -> None:
    with pytest.raises(TypeError, match=message):
        tools_by_name(listed)


def test_a_type_without_a_json_schema_is_an_error() -> None:
    def odd(value: Shop) -> None: ...

    with pytest.raises(TypeError, match="the tool 'odd' has a type that JSON can't hold"):
        tools_by_name([odd])
