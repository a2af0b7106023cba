"""What a front knows of the own lists of one session."""

from __future__ import annotations

from typing import Any

import pytest
from tests.front.tools import make_tool

from leaseway.front.lists.definitions import resource_listing, tool_listing
from leaseway.front.sessions.own_lists import OwnLists, ToldDigests
from leaseway.sdk import Resource, Tool
from leaseway.sdk.relay import LeaseItems

COMMON = tool_listing([make_tool("a"), make_tool("b")])
NEW = LeaseItems("s", "1", (make_tool("new"),), frozenset({"a"}))


def test_a_change_is_told_once() -> None:
    own = OwnLists()
    assert not own.learn("s", ToldDigests(""))
    assert own.learn("s", ToldDigests("1"))
    assert not own.learn("s", ToldDigests("1"))
    assert own.learn("t", ToldDigests("1"))
    assert own.learn("s", ToldDigests(""))


def test_the_end_of_a_lease_leaves_what_is_known_of_the_others() -> None:
    own = OwnLists()
    own.learn("s", ToldDigests("1"))
    own.learn("t", ToldDigests("1"))
    assert own.forget({"t"})
    assert not own.forget({"t"})
    assert own.learn("t", ToldDigests("")), "its client was listed the tools that are gone now"
    assert own.learn("s", ToldDigests("1"))


def test_a_list_is_made_anew_only_if_it_differs() -> None:
    own = OwnLists()
    first = own.over("tools", COMMON, [NEW])
    assert [key for (key,) in first.keys] == ["b", "new"]
    assert first.is_own
    assert own.over("tools", COMMON, [NEW]) is first
    other: LeaseItems[Tool] = LeaseItems("s", "2", (), frozenset())
    assert [key for (key,) in own.over("tools", COMMON, [other]).keys] == ["a", "b"]


@pytest.mark.parametrize("modern", [True, False])
def test_the_lists_of_sessions_share_the_common_definitions(modern: bool) -> None:
    """A session costs what its own tools take, not a copy of all."""
    wrapped = make_tool("c", output_schema={"type": "array"})
    common = tool_listing([make_tool("a"), make_tool("b"), wrapped])
    assert common.older
    changed = make_tool("a", original_name="a", description="Other.")
    own = LeaseItems("s", "1", (changed, make_tool("new")), frozenset())
    made = OwnLists().over("tools", common, [own])
    assert made.encoded[1] is common.encoded[1]
    plain = tool_listing([changed, make_tool("b"), wrapped, make_tool("new")])
    assert made.page(None, modern=modern) == plain.page(None, modern=modern)


def test_a_tool_of_the_session_is_found_by_its_names() -> None:
    own = OwnLists()
    assert own.find("new") is None
    own.over("tools", COMMON, [NEW])
    assert own.find("new") is own.find("s:new") is NEW.items[0]
    assert own.find("a") is None


def test_each_list_is_told_by_its_own_digest() -> None:
    own = OwnLists()
    assert own.learn("s", ToldDigests("1", "2", "3")) == ["tools", "prompts", "resources"]
    assert own.learn("s", ToldDigests("1", "2", "4")) == ["resources"]
    assert own.learn("t", ToldDigests(own_prompts="2")) == ["prompts"]
    assert own.forget({"t"}) == ["tools", "prompts", "resources"]
    assert own.forget(()) == ["prompts"]


def test_the_uris_of_apps_are_those_that_a_client_of_all_servers_knows() -> None:
    def app(uri: str, server: str = "s") -> Resource:
        members: dict[str, Any] = {
            "title": "",
            "description": "",
            "mime_type": "",
            "extra": {},
            "shared": False,
        }
        return Resource(uri=uri, server_id=server, name="app", **members)

    common = resource_listing([app("ui://s/old"), app("ui://t/old", "t")])
    own = LeaseItems("s", "1", (app("ui://new"),), frozenset({"ui://old"}))
    assert list(OwnLists().over("resources", common, [own]).items) == [
        ("ui://s/new",),
        ("ui://t/old",),
    ]
    alone = OwnLists().over("resources", resource_listing([app("ui://old")]), [own], "s")
    assert list(alone.items) == [("ui://new",)]
