"""The tools in which an instance differs, and their names."""

from __future__ import annotations

import re
from collections.abc import Mapping

import msgspec
import pytest

from leaseway.data_plane.core.tools.own_tools import OWN_LABEL, OwnTools, own_tools
from leaseway.data_plane.core.tools.toolset import CompiledToolset, ExposedTool, compile_toolset
from leaseway.spec.filters.names import NameFilter
from leaseway.spec.model import NameRules, Transform
from leaseway.wire import bounds

RULES = NameRules(NameFilter(blacklist=("secret*",)), (Transform("prefix", "s_"),))


def tool(name: str, *properties: str, **members: object) -> bytes:
    schema = {"type": "object", "properties": {key: {"type": "string"} for key in properties}}
    return msgspec.json.encode({"name": name, "inputSchema": schema, **members})


def listed(*definitions: bytes) -> dict[str, bytes]:
    return {msgspec.json.decode(definition)["name"]: definition for definition in definitions}


def recorded(rules: NameRules | None, *definitions: bytes) -> CompiledToolset:
    names = listed(*definitions)
    exposed = [ExposedTool(name, f"s_{name}") for name in names if not name.startswith("secret")]
    return compile_toolset(definitions, exposed, "", lease_rules=rules)


COMMON = recorded(RULES, tool("a", "x"), tool("b"), tool("secret"))


def differing(instance: Mapping[str, bytes], unoffered: frozenset[str] = frozenset()) -> OwnTools:
    own = own_tools(COMMON, instance, unoffered)
    assert own is not None
    return own


def test_texts_and_order_are_no_difference() -> None:
    same = listed(tool("secret"), tool("b", description="Other words."), tool("a", "x"))
    assert own_tools(COMMON, same) is None


def test_without_rules_nothing_has_a_name() -> None:
    assert own_tools(recorded(None, tool("a")), listed(tool("a"), tool("new"))) is None


def test_what_an_instance_adds_changes_and_takes_away_is_its_own() -> None:
    own = differing(listed(tool("a", "y"), tool("new"), tool("secret_too"), tool("secret")))
    assert (own.changed, own.absent, own.skipped) == (("a", "new"), ("b",), ())
    tools = own.toolset.tools
    assert {name: plan.name for name, plan in tools.items()} == {"a": "s_a", "new": "s_new"}
    assert own.toolset.by_exposed_name.keys() == {"s_a", "s_new"}
    assert (tools["a"].label, tools["new"].label) == ("a", OWN_LABEL)
    arguments = tools["a"].arguments
    assert arguments is not None
    check = arguments.compiled()
    assert check.accepts({"y": "text"})
    assert not check.accepts({"y": 1})


def test_equal_differences_have_one_digest() -> None:
    first, second = (differing(listed(tool("a", "x"), tool("new", key))) for key in ("k", "l"))
    again = differing(listed(tool("new", "k"), tool("a", "x")))
    assert first.digest == again.digest != second.digest


def test_a_filtered_tool_is_a_difference_that_nobody_sees() -> None:
    assert not differing(listed(*COMMON.contract.values(), tool("secret_too"))).digest


def test_plans_are_compiled_once() -> None:
    first = differing(listed(*COMMON.contract.values(), tool("new")))
    second = own_tools(
        COMMON, listed(*COMMON.contract.values(), tool("new"), tool("more")), previous=first.toolset
    )
    assert second is not None
    assert second.toolset.tools["new"] is first.toolset.tools["new"]
    assert second.toolset.tools["a"] is COMMON.tools["a"]


def test_a_tool_that_a_client_is_never_offered_keeps_its_plan() -> None:
    own = differing(listed(tool("a", "x")), unoffered=frozenset({"b"}))
    assert own.absent == ("b",)
    assert "b" in own.toolset.tools


@pytest.mark.parametrize(
    ("definition", "why"),
    [
        (tool("no\tname"), "without control ones"),
        (tool("n" * 257), "1 to 256 characters"),
        (tool("task", execution={"taskSupport": "required"}), "MCP task"),
        (tool("big", description="d" * bounds.MAX_LEASE_TOOL_BYTES), "bytes"),
    ],
)
def test_what_cannot_be_exposed_is_skipped_with_the_reason(definition: bytes, why: str) -> None:
    own = differing(listed(*COMMON.contract.values(), definition))
    (said,) = own.skipped
    assert why in said
    assert len(said) < 300
    assert not own.digest


def test_a_changed_tool_that_cannot_be_exposed_any_more_is_absent() -> None:
    task = tool("a", execution={"taskSupport": "required"})
    own = differing(listed(task, tool("b"), tool("secret")))
    assert (own.changed, own.absent) == ((), ("a",))


def test_a_name_of_the_server_itself_is_kept_by_its_first_tool() -> None:
    rules = NameRules(transforms=(Transform("replace", "_", "."),))
    common = compile_toolset([tool("a.b")], [ExposedTool("a.b", "a_b")], "", lease_rules=rules)
    own = own_tools(common, listed(tool("a.b"), tool("a_b")))
    assert own is not None
    assert "another tool of the server has" in own.skipped[0]


def test_a_name_that_is_none_for_models_is_altered_and_gives_way_to_recorded_ones() -> None:
    new = [tool("查询"), tool("get weather"), tool("get:weather"), tool("b c")]
    common = compile_toolset(
        [tool("b:c")], [ExposedTool("b:c", "b_c")], "", lease_rules=NameRules()
    )
    own = own_tools(common, listed(*common.contract.values(), *new))
    assert own is not None
    assert own.skipped == ()
    names = {name: own.toolset.tools[name].name for name in own.toolset.tools}
    assert names.pop("b:c") == "b_c"
    patterns = {
        "查询": "_",
        "get weather": "get_weather",
        "get:weather": "get_weather",
        "b c": "b_c",
    }
    assert names.keys() == patterns.keys()
    for original, name in names.items():
        assert re.fullmatch(f"{patterns[original]}_[0-9a-f]{{8}}", name)


@pytest.mark.parametrize("name", ["mcp_admin", "mcp_release"])
def test_names_of_leaseway_itself_are_reserved(name: str) -> None:
    common = compile_toolset([], [], "", lease_rules=NameRules())
    own = own_tools(common, listed(tool(name)))
    assert own is not None
    assert "reserved" in own.skipped[0]


def test_a_lease_has_a_bounded_number_of_own_tools() -> None:
    many = [tool(f"t{number}") for number in range(bounds.MAX_LEASE_TOOLS + 1)]
    own = differing(listed(*COMMON.contract.values(), *many))
    assert len(own.changed) == bounds.MAX_LEASE_TOOLS
    assert len(own.skipped) == 1
