"""The tools of leases over those of all."""

from __future__ import annotations

from leaseway.sdk.catalog.lease_tools import LeaseTools, with_lease_tools
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


def lease(*tools: Tool, server: str = "s", absent: tuple[str, ...] = ()) -> LeaseTools:
    return LeaseTools(server, "digest", tools, frozenset(absent))


COMMON = [tool("a"), tool("b"), tool("x", "t")]


def test_a_lease_adds_changes_and_takes_away_tools_of_its_server() -> None:
    changed, new = tool("b", text="Other."), tool("c")
    seen = with_lease_tools(COMMON, [lease(new, changed, absent=("a", "x"))])
    assert seen == [changed, new, COMMON[2]]


def test_a_name_of_all_keeps_its_meaning() -> None:
    assert with_lease_tools(COMMON, [lease(tool("x", original="new"))]) == COMMON


def test_of_two_leases_the_smaller_server_gets_a_name() -> None:
    first, second = tool("new", "s"), tool("new", "t")
    seen = with_lease_tools(COMMON, [lease(second, server="t"), lease(first)])
    assert first in seen
    assert second not in seen


def test_a_renamed_tool_has_its_new_name_only() -> None:
    renamed = tool("other", original="a")
    assert with_lease_tools(COMMON[:1], [lease(renamed)]) == [renamed]
