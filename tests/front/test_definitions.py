"""Definitions in sorted pages."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.front.tools import make_tool

from leaseway.front.lists import definitions
from leaseway.front.lists.definitions import tool_definition, tool_listing
from leaseway.front.protocol.messages import JsonRpcError


@given(st.sets(st.text("abc_-1", min_size=1, max_size=8)), st.integers(1, 300))
def test_the_pages_hold_each_tool_once_in_order(names: set[str], size: int) -> None:
    listing = tool_listing(make_tool(name) for name in names)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(definitions, "PAGE", size)
        seen: list[str] = []
        cursor: str | None = None
        while True:
            page = json.loads(listing.page(cursor, modern=False))
            seen += [tool["name"] for tool in page["tools"]]
            cursor = page.get("nextCursor")
            if cursor is None:
                break
    assert seen == sorted(names)


def test_the_cursor_of_a_removed_tool_skips_no_other_tool() -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(definitions, "PAGE", 1)
        cursor = json.loads(tool_listing([make_tool("a"), make_tool("b")]).page(None, modern=True))[
            "nextCursor"
        ]
        rest = tool_listing([make_tool("0"), make_tool("b"), make_tool("c")]).page(
            cursor, modern=True
        )
    assert [tool["name"] for tool in json.loads(rest)["tools"]] == ["b"]


def test_an_invalid_cursor_is_rejected() -> None:
    with pytest.raises(JsonRpcError, match="cursor"):
        tool_listing([]).page("§", modern=True)


def test_a_definition_has_the_servers_members_without_those_of_its_connection() -> None:
    tool = make_tool(
        "a",
        title="A",
        annotations={"readOnlyHint": True},
        extra={
            "icons": [],
            "execution": {"taskSupport": "optional"},
            "_meta": {"io.modelcontextprotocol/x": 1, "own": 2},
        },
    )
    assert tool_definition(tool) == {
        "name": "a",
        "title": "A",
        "inputSchema": {"type": "object"},
        "annotations": {"readOnlyHint": True},
        "icons": [],
        "_meta": {"own": 2},
    }
