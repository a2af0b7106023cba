"""Clients see the tools that servers show to them."""

from __future__ import annotations

import json

import pytest
from tests.front.test_definitions import make_tool

from leaseway.front.lists import seen_tools
from leaseway.front.lists.definitions import PagedListing, tool_listing
from leaseway.front.lists.seen_tools import SeenTools
from leaseway.sdk import Tool

TOOLS = tool_listing(
    [make_tool("a", original_name="own_a"), make_tool("b"), make_tool("c", server_id="t")]
)


def names(listing: PagedListing[Tool]) -> list[str]:
    """Return the names that a page lists."""
    return [tool["name"] for tool in json.loads(listing.page(None, modern=True))["tools"]]


def test_a_client_does_not_see_what_a_server_does_not_show_to_it() -> None:
    seen = SeenTools()
    assert seen.visible(TOOLS, b"one") is TOOLS
    assert seen.learn("s", b"one", ["own_a", "c"])
    assert not seen.learn("s", b"one", ["c", "own_a"])
    assert names(seen.visible(TOOLS, b"one")) == ["b", "c"]
    assert seen.visible(TOOLS, b"one") is seen.visible(TOOLS, b"one")
    assert names(seen.visible(TOOLS, b"other")) == ["a", "b", "c"]
    assert seen.learn("s", b"one", ["b"])
    assert names(seen.visible(TOOLS, b"one")) == ["a", "c"]
    assert seen.learn("s", b"one", [])
    assert names(seen.visible(TOOLS, b"one")) == ["a", "b", "c"]


def test_what_is_known_of_a_server_ends_with_a_change_of_its_tools() -> None:
    seen = SeenTools()
    seen.learn("s", b"one", ["b"])
    seen.learn("t", b"one", ["c"])
    seen.forget({"s"})
    assert names(seen.visible(TOOLS, b"one")) == ["a", "b"]


def test_what_is_remembered_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(seen_tools, "_MAX_CLIENTS", 2)
    monkeypatch.setattr(seen_tools, "_MAX_SERVERS", 1)
    seen = SeenTools()
    for client in (b"one", b"two", b"three"):
        seen.learn("s", client, ["b"])
        seen.learn("t", client, ["c"])
    assert seen.visible(TOOLS, b"one") is TOOLS
    assert names(seen.visible(TOOLS, b"three")) == ["a", "b"]
