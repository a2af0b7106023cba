"""What a front knows of the own tools of one session."""

from __future__ import annotations

import pytest
from tests.front.test_definitions import make_tool

from leaseway.front.lists.definitions import tool_listing
from leaseway.front.sessions.own_tools import OwnTools
from leaseway.sdk.relay import LeaseTools

COMMON = tool_listing([make_tool("a"), make_tool("b")])
NEW = LeaseTools("s", "1", (make_tool("new"),), frozenset({"a"}))


def test_a_change_is_told_once() -> None:
    own = OwnTools()
    assert not own.learn("s", "")
    assert own.learn("s", "1")
    assert not own.learn("s", "1")
    assert own.learn("t", "1")
    assert own.learn("s", "")


def test_the_end_of_a_lease_leaves_what_is_known_of_the_others() -> None:
    own = OwnTools()
    own.learn("s", "1")
    own.learn("t", "1")
    assert own.forget({"t"})
    assert not own.forget({"t"})
    assert own.learn("t", ""), "its client was listed the tools that are gone now"
    assert own.learn("s", "1")


def test_a_list_is_made_anew_only_if_it_differs() -> None:
    own = OwnTools()
    first = own.over(COMMON, [NEW])
    assert [key for (key,) in first.keys] == ["b", "new"]
    assert first.is_own
    assert own.over(COMMON, [NEW]) is first
    other = LeaseTools("s", "2", (), frozenset())
    assert [key for (key,) in own.over(COMMON, [other]).keys] == ["a", "b"]


@pytest.mark.parametrize("modern", [True, False])
def test_the_lists_of_sessions_share_the_common_definitions(modern: bool) -> None:
    """A session costs what its own tools take, not a copy of all."""
    wrapped = make_tool("c", output_schema={"type": "array"})
    common = tool_listing([make_tool("a"), make_tool("b"), wrapped])
    assert common.older
    changed = make_tool("a", original_name="a", description="Other.")
    own = LeaseTools("s", "1", (changed, make_tool("new")), frozenset())
    made = OwnTools().over(common, [own])
    assert made.encoded[1] is common.encoded[1]
    plain = tool_listing([changed, make_tool("b"), wrapped, make_tool("new")])
    assert made.page(None, modern=modern) == plain.page(None, modern=modern)


def test_a_tool_of_the_session_is_found_by_its_names() -> None:
    own = OwnTools()
    assert own.find("new") is None
    own.over(COMMON, [NEW])
    assert own.find("new") is own.find("s:new") is NEW.tools[0]
    assert own.find("a") is None
