"""Compilation of toolsets, and comparison with an instance's list."""

import json

import pytest

from leaseway.data_plane.core.tools.toolset import (
    CompiledToolset,
    ExposedTool,
    compile_toolset,
    describe_differences,
    differing_tools,
)
from leaseway.wire.errors import Fault, Reason


def tool(name: str, **members: object) -> bytes:
    return json.dumps({"name": name, **members}).encode()


def compiled(*tools: bytes, previous: CompiledToolset | None = None) -> CompiledToolset:
    exposed = [
        ExposedTool(json.loads(tool)["name"], "x_" + json.loads(tool)["name"]) for tool in tools
    ]
    return compile_toolset(tools, exposed, "2025-11-25", previous)


def test_only_exposed_tools_can_be_found() -> None:
    toolset = compile_toolset(
        [tool("read"), tool("write"), tool("list")],
        [ExposedTool("read", "fs_read"), ExposedTool("write", "fs_write", skipped=True)],
        "2025-11-25",
    )
    assert set(toolset.tools) == {"read", "write"}
    assert set(toolset.by_exposed_name) == {"fs_read"}, "the other name is another server's"
    assert toolset.find("fs", "write").original_name == "write"
    assert set(toolset.contract) == {"read", "write", "list"}
    with pytest.raises(Fault) as refusal:
        toolset.find("fs", "list")
    assert refusal.value.reason is Reason.TOOL_NOT_FOUND


def test_a_server_was_listed_if_it_has_tools_or_a_protocol_version() -> None:
    assert CompiledToolset().listed is None
    assert compile_toolset([], [], "2025-11-25").listed == {}
    of_an_api = compile_toolset([tool("get")], [], "")
    assert of_an_api.listed == {"get": tool("get")}


def test_an_unknown_tool_names_the_nearest() -> None:
    with pytest.raises(Fault, match="Did you mean read_file") as refusal:
        compiled(tool("read_file"), tool("zap")).find("fs", "read_fil")
    assert refusal.value.metadata["nearest"] == "read_file"


def test_annotations_mark_idempotent_and_read_only_tools() -> None:
    toolset = compiled(
        tool("a", annotations={"idempotentHint": True}),
        tool("b", annotations={"readOnlyHint": True}),
        tool("c", annotations={"readOnlyHint": "yes"}),
        tool("d", annotations="nonsense"),
    )
    flags = {name: (plan.idempotent, plan.read_only) for name, plan in toolset.tools.items()}
    assert flags == {
        "a": (True, False),
        "b": (False, True),
        "c": (False, False),
        "d": (False, False),
    }


def test_a_schema_that_does_not_compile_passes_unvalidated_and_is_a_problem() -> None:
    toolset = compiled(tool("bad", inputSchema={"type": 7}), tool("good", inputSchema={}))
    assert toolset.tools["bad"].arguments is None
    assert toolset.tools["good"].arguments is not None
    (problem,) = toolset.schema_problems
    assert "bad" in problem


def test_a_schema_is_compiled_for_the_first_call_and_a_large_one_must_be_prepared() -> None:
    large = {"properties": {f"p{n}": {"type": "string", "minLength": 1} for n in range(100)}}
    toolset = compiled(
        tool("small", inputSchema={"required": ["x"]}),
        tool("large", inputSchema=large),
        tool("output", inputSchema={}, outputSchema=large),
    )
    plans = toolset.tools
    waiting = {name: plan.must_be_prepared for name, plan in plans.items()}
    assert waiting == {"small": False, "large": True, "output": True}
    checks = [plan.arguments for plan in plans.values() if plan.arguments is not None]
    assert [check.check for check in checks] == [None] * 3, "hundreds of them take much memory"
    for plan in plans.values():
        plan.prepare()
    assert None not in [check.check for check in checks]
    assert not any(plan.must_be_prepared for plan in plans.values())


def test_unchanged_tools_reuse_their_compiled_plans() -> None:
    before = compiled(tool("same", inputSchema={}), tool("other", inputSchema={}))
    after = compiled(tool("same", inputSchema={}), tool("other", title="new"), previous=before)
    assert after.tools["same"] is before.tools["same"]
    assert after.tools["other"] is not before.tools["other"]
    assert after.contract["same"] is before.contract["same"], "its bytes are in memory once"


@pytest.mark.parametrize("recorded", [b"{", b"[]", b'{"title": "nameless"}', b'{"name": 7}'])
def test_a_definition_without_a_name_is_refused(recorded: bytes) -> None:
    with pytest.raises(ValueError, match="definition"):
        compile_toolset([recorded], [], "")


def test_an_exposed_tool_must_have_been_recorded() -> None:
    with pytest.raises(ValueError, match="ghost"):
        compile_toolset([tool("a")], [ExposedTool("ghost", "ghost")], "")


def test_missing_and_different_tools_differ_and_equal_ones_do_not() -> None:
    toolset = compiled(tool("same", title="t"), tool("changed", inputSchema={}), tool("gone"))
    listed = {
        "same": b'{ "title": "pid 7", "name": "same", "_meta": {"n": 1} }',
        "changed": tool("changed", inputSchema={"required": ["x"]}),
        "extra": tool("extra"),
    }
    differing = differing_tools(toolset, listed)
    assert differing == {"changed", "gone"}
    assert (
        describe_differences(differing, listed) == "changed (defined differently), gone (missing)"
    )
