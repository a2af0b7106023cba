"""Tools that can only be called as MCP tasks are skipped, and errors name the reason."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from tests.control_plane.core.builders import START, spec
from tests.control_plane.core.fake_worker import offered

from leaseway.control_plane.core.catalog.kinds import PROMPTS, TOOLS
from leaseway.control_plane.core.catalog.listing import ListedItem, ServerListing
from leaseway.control_plane.core.catalog.prompts_resources import expose_recorded
from leaseway.control_plane.core.catalog.snapshot import NamedTarget
from leaseway.control_plane.core.catalog.subjects import Reader
from leaseway.control_plane.core.denial import Denial
from leaseway.control_plane.core.queries.resolve import find_name
from leaseway.spec.filters.names import NameFilter
from leaseway.wire.errors import Reason
from leaseway.wire.listing.definitions import is_task_only

SPEC = spec("a")


def tool(name: str, **members: Any) -> ListedItem:
    definition = {"name": name, "inputSchema": {"type": "object"}, **members}
    return ListedItem(name, json.dumps(definition).encode())


RESEARCH = tool("research", execution={"taskSupport": "required"})
ECHO = tool("echo")


@pytest.mark.parametrize(
    ("execution", "expected"),
    [
        ({"taskSupport": "required"}, True),
        ({"taskSupport": "optional"}, False),
        ({"taskSupport": "forbidden"}, False),
        ({"taskSupport": ["required"]}, False),
        ({}, False),
        ("required", False),
        (None, False),
    ],
)
def test_only_a_required_task_makes_a_tool_one(execution: Any, expected: bool) -> None:
    assert is_task_only(tool("x", execution=execution).definition) is expected


def test_a_description_does_not_make_a_tool_a_task() -> None:
    assert not is_task_only(tool("x", description='"taskSupport": "required"').definition)
    assert not is_task_only(tool("x", taskSupport="required").definition)


@pytest.mark.parametrize(
    "odd", [b'["taskSupport"]', b'"taskSupport"', b'{"taskSupport"', b'["taskSupport",' * 100_000]
)
def test_an_invalid_definition_is_not_a_task(odd: bytes) -> None:
    assert not is_task_only(odd)


def test_a_tool_that_requires_a_task_is_skipped_with_a_problem() -> None:
    exposure = expose_recorded(SPEC, (RESEARCH, ECHO), TOOLS)
    assert exposure.exposed == (("echo", "a_echo"),)
    (problem,) = exposure.problems
    assert (problem.reason, problem.subject) == ("TOOL_NEEDS_TASK", "research")
    assert problem.message == (
        "Server 'a': tool 'research' is skipped: it can only be called as an MCP task (its"
        " execution.taskSupport is 'required'), which Leaseway does not support yet. Its"
        " server's maintainer can make the task optional."
    )


def test_a_filtered_task_tool_is_no_other_problem() -> None:
    quiet = replace(SPEC, tools=NameFilter((), ("research",)))
    exposure = expose_recorded(quiet, (RESEARCH, ECHO), TOOLS)
    assert exposure.problems == ()


def test_prompts_are_never_tasks() -> None:
    assert expose_recorded(SPEC, (RESEARCH,), PROMPTS).exposed == (("research", "a_research"),)


@pytest.mark.parametrize(
    ("name", "server"), [("a_research", ""), ("a:research", ""), ("research", "a")]
)
def test_the_denial_for_a_task_tool_contains_the_reason(name: str, server: str) -> None:
    state = offered(a=(SPEC, ServerListing((RESEARCH, ECHO))))
    denied = find_name(state, Reader("default"), name, START, server_id=server)
    assert isinstance(denied, Denial)
    assert denied.reason is Reason.TOOL_NOT_FOUND
    assert denied.message.startswith(
        f"Server 'a' has no tool '{name}' to call: it can only be called as an MCP"
    )
    assert isinstance(find_name(state, Reader("default"), "a_echo", START), NamedTarget)


def test_a_filtered_task_tool_does_not_exist() -> None:
    quiet = replace(SPEC, tools=NameFilter((), ("research",)))
    state = offered(a=(quiet, ServerListing((RESEARCH, ECHO))))
    denied = find_name(state, Reader("default"), "a:research", START)
    assert isinstance(denied, Denial)
    assert "task" not in denied.message
