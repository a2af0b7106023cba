"""Clients see what servers show to them."""

from __future__ import annotations

import json
from typing import Any

import pytest
from tests.front.tools import make_tool

from leaseway.front.lists import seen
from leaseway.front.lists.definitions import (
    PagedListing,
    prompt_listing,
    resource_listing,
    template_listing,
    tool_listing,
)
from leaseway.front.lists.seen import SeenLists
from leaseway.front.lists.ui_resources import items_for_client
from leaseway.sdk import Prompt, Resource, ResourceTemplate

TOOLS = tool_listing(
    [make_tool("a", original_name="own_a"), make_tool("b"), make_tool("c", server_id="t")]
)
TEXTS: dict[str, Any] = {"title": "", "description": "", "extra": {}, "shared": False}


def prompt(name: str) -> Prompt:
    return Prompt(name=f"s_{name}", server_id="s", original_name=name, arguments=(), **TEXTS)


def resource(uri: str, server: str = "s") -> Resource:
    return Resource(uri=uri, server_id=server, name=uri, mime_type="", **TEXTS)


def template(uri: str) -> ResourceTemplate:
    return ResourceTemplate(uri_template=uri, server_id="s", name=uri, mime_type="", **TEXTS)


def names(listing: PagedListing[Any], member: str = "name") -> list[str]:
    """Return the names that a page lists."""
    page = json.loads(listing.page(None, modern=True))
    return [item[member] for item in page[listing.member]]


def test_a_client_does_not_see_what_a_server_does_not_show_to_it() -> None:
    lists = SeenLists()
    assert lists.visible("tools", TOOLS, b"one") is TOOLS
    assert lists.learn("s", b"one", {"tools": ["own_a", "c"]}) == ["tools"]
    assert not lists.learn("s", b"one", {"tools": ["c", "own_a"], "prompts": None})
    assert names(lists.visible("tools", TOOLS, b"one")) == ["b", "c"]
    assert lists.visible("tools", TOOLS, b"one") is lists.visible("tools", TOOLS, b"one")
    assert names(lists.visible("tools", TOOLS, b"other")) == ["a", "b", "c"]
    assert lists.learn("s", b"one", {"tools": ["b"]}) == ["tools"]
    assert names(lists.visible("tools", TOOLS, b"one")) == ["a", "c"]
    assert lists.learn("s", b"one", {"tools": []}) == ["tools"]
    assert names(lists.visible("tools", TOOLS, b"one")) == ["a", "b", "c"]


def test_prompts_are_left_out_by_the_names_of_their_server() -> None:
    lists = SeenLists()
    prompts = prompt_listing([prompt("a"), prompt("b")])
    assert lists.learn("s", b"one", {"tools": [], "prompts": ["a"]}) == ["prompts"]
    assert names(lists.visible("prompts", prompts, b"one")) == ["s_b"]
    assert lists.visible("tools", TOOLS, b"one") is TOOLS


@pytest.mark.parametrize("scope", ["", "s"])
def test_resources_and_templates_are_left_out_by_the_uris_of_their_server(scope: str) -> None:
    lists = SeenLists()
    items = [resource("ui://a"), resource("ui://b"), resource("file:///a"), resource("x://a", "t")]
    templates = [template("ui://{a}"), template("ui://{b}")]
    if not scope:
        items, templates = items_for_client(items), items_for_client(templates)
    absent = {"resources": ["ui://a", "file:///a", "x://a"], "templates": ["ui://{b}"]}
    assert lists.learn("s", b"one", absent) == ["resources", "templates"]
    for kind, listing, member, left in (
        ("resources", resource_listing(items), "uri", [items[1].uri, "x://a"]),
        ("templates", template_listing(templates), "uriTemplate", [templates[0].uri_template]),
    ):
        assert names(lists.visible(kind, listing, b"one", scope), member) == left


def test_what_is_known_of_a_server_ends_with_a_change_of_its_list() -> None:
    lists = SeenLists()
    prompts = prompt_listing([prompt("a"), prompt("b")])
    lists.learn("s", b"one", {"tools": ["b"], "prompts": ["a"]})
    lists.learn("t", b"one", {"tools": ["c"]})
    lists.forget("tools", {"s"})
    assert names(lists.visible("tools", TOOLS, b"one")) == ["a", "b"]
    assert names(lists.visible("prompts", prompts, b"one")) == ["s_b"]


def test_what_is_remembered_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(seen, "_MAX_CLIENTS", 2)
    monkeypatch.setattr(seen, "_MAX_SERVERS", 1)
    lists = SeenLists()
    for client in (b"one", b"two", b"three"):
        lists.learn("s", client, {"tools": ["b"]})
        lists.learn("t", client, {"tools": ["c"]})
    assert lists.visible("tools", TOOLS, b"one") is TOOLS
    assert names(lists.visible("tools", TOOLS, b"three")) == ["a", "b"]
