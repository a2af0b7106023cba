"""What leases list, over the lists of all."""

from __future__ import annotations

from typing import Any

from leaseway.sdk.catalog.lease_items import LeaseItems, with_lease_items
from leaseway.sdk.catalog.prompts_resources import Resource
from leaseway.sdk.catalog.tools import Tool


def tool(name: str, server: str = "s", original: str = "", text: str = "") -> Tool:
    return Tool(
        name=name,
        server_id=server,
        original_name=original or name,
        title="",
        description=text,
        input_schema={},
        output_schema=None,
        annotations={},
        extra={},
        shared=False,
    )


def lease(*tools: Tool, server: str = "s", absent: tuple[str, ...] = ()) -> LeaseItems[Tool]:
    return LeaseItems(server, "digest", tools, frozenset(absent))


COMMON = [tool("a"), tool("b"), tool("x", "t")]


def test_a_lease_adds_changes_and_takes_away_tools_of_its_server() -> None:
    changed, new = tool("b", text="Other."), tool("c")
    seen = with_lease_items("tools", COMMON, [lease(new, changed, absent=("a", "x"))])
    assert seen == [changed, new, COMMON[2]]


def test_a_name_of_all_keeps_its_meaning() -> None:
    assert with_lease_items("tools", COMMON, [lease(tool("x", original="new"))]) == COMMON


def test_of_two_leases_the_smaller_server_gets_a_name() -> None:
    first, second = tool("new", "s"), tool("new", "t")
    seen = with_lease_items("tools", COMMON, [lease(second, server="t"), lease(first)])
    assert first in seen
    assert second not in seen


def test_a_renamed_tool_has_its_new_name_only() -> None:
    renamed = tool("other", original="a")
    assert with_lease_items("tools", COMMON[:1], [lease(renamed)]) == [renamed]


def test_resources_of_two_servers_may_have_one_uri() -> None:
    def resource(uri: str, server: str, title: str = "") -> Resource:
        members: dict[str, Any] = {
            "name": "",
            "description": "",
            "mime_type": "",
            "extra": {},
            "shared": False,
        }
        return Resource(uri=uri, server_id=server, title=title, **members)

    common = [resource("x:a", "s"), resource("x:a", "t"), resource("x:b", "s")]
    changed, new = resource("x:a", "s", "Changed"), resource("x:new", "s")
    own = LeaseItems("s", "1", (new, changed), frozenset({"x:b"}))
    assert with_lease_items("resources", common, [own]) == [changed, new, common[1]]
