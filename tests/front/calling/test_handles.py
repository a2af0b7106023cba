"""The listing of the two tools for lease handles."""

from __future__ import annotations

import json

import pytest
from tests.front.tools import make_tool

from leaseway.front.calling.conversations import SessionOptions
from leaseway.front.calling.handles import SessionOffer
from leaseway.front.lists.definitions import PagedListing, tool_listing
from leaseway.front.lists.tool_search import search_listing
from leaseway.sdk import Tool

LEASED = tool_listing([make_tool("zoom", shared=False), make_tool("add")])
SHARED = tool_listing([make_tool("add")])
OFFER = SessionOffer(SessionOptions())
THREE = ["call_tool", "describe_tool", "search_tools"]


@pytest.mark.parametrize(
    ("tools", "search", "listed"),
    [
        (LEASED, False, ["add", "lease_acquire", "lease_release", "zoom"]),
        (LEASED, True, sorted([*THREE, "lease_acquire", "lease_release"])),
        (SHARED, False, ["add"]),
        (SHARED, True, THREE),
    ],
)
def test_handle_tools_are_listed_if_any_server_is_leased(
    tools: PagedListing[Tool], search: bool, listed: list[str]
) -> None:
    shown = search_listing() if search else tools
    page = json.loads(OFFER.add_tools(tools, "", shown, False).page(None, modern=True))
    assert sorted(tool["name"] for tool in page["tools"]) == listed


@pytest.mark.parametrize(
    ("rules", "has_session", "is_listed"),
    [
        (("principal",), True, False),
        (("principal",), False, False),
        (("handle", "principal"), True, True),
        (("argument",), True, True),
        (("argument", "mcp-session"), True, False),
        (("argument", "mcp-session"), False, True),
    ],
)
def test_handle_tools_are_listed_if_a_call_can_have_a_handle(
    rules: tuple[str, ...], has_session: bool, is_listed: bool
) -> None:
    tools = tool_listing([make_tool("zoom", shared=False, sessions_from=rules)])
    page = json.loads(OFFER.add_tools(tools, "", tools, has_session).page(None, modern=True))
    assert ("lease_acquire" in {tool["name"] for tool in page["tools"]}) == is_listed


def test_a_servers_own_tool_of_the_same_name_takes_precedence() -> None:
    own = tool_listing([make_tool("lease_acquire", shared=False, description="Rents a flat.")])
    page = json.loads(OFFER.add_tools(own, "", own, False).page(None, modern=True))
    described = {tool["name"]: tool["description"] for tool in page["tools"]}
    assert described["lease_acquire"] == "Rents a flat."
