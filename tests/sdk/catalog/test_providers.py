"""Conversion of tools to the formats of model providers."""

from __future__ import annotations

from copy import deepcopy
from dataclasses import replace
from typing import Any

import pytest

from leaseway.sdk import Tool, project_tools
from leaseway.sdk.catalog.providers import describe_refusal, named_tools

SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {"zone": {"anyOf": [{"type": "string"}, {"type": "null"}], "default": None}},
    "patternProperties": {"^x-": {"type": "integer"}},
    "additionalProperties": False,
    "$defs": {"far": {"const": 1, "type": "integer"}},
}
TOOL = Tool(
    name="time_now",
    server_id="time",
    original_name="now",
    title="Time",
    description="Tells the time.",
    input_schema=SCHEMA,
    output_schema=None,
    annotations={"readOnlyHint": True},
    extra={},
    shared=True,
)
PROVIDERS = ["anthropic", "gemini", "openai", "openai-responses"]


def named(name: str, **changes: Any) -> Tool:
    return replace(TOOL, name=name, **changes)


def test_each_provider_has_its_format() -> None:
    common = {"name": "time_now", "description": "Tells the time."}
    function = {**common, "parameters": SCHEMA}
    assert {provider: project_tools(provider, [TOOL]) for provider in PROVIDERS} == {
        "anthropic": ([{**common, "input_schema": SCHEMA}], []),
        "gemini": ([{**common, "parametersJsonSchema": SCHEMA}], []),
        "openai": ([{"type": "function", "function": function}], []),
        "openai-responses": ([{"type": "function", **function, "strict": False}], []),
    }


def test_providers_that_refuse_choices_at_the_root_get_none() -> None:
    choice = {"type": "object", "oneOf": [SCHEMA, {"properties": {"other": {}}}]}
    tool = named("choice", input_schema=choice)
    flat = project_tools("anthropic", [tool])[0][0]["input_schema"]
    assert flat == {"type": "object", "properties": {**SCHEMA["properties"], "other": {}}}
    assert project_tools("openai", [tool])[0][0]["function"]["parameters"] == flat
    assert project_tools("gemini", [tool])[0][0]["parametersJsonSchema"] == choice


def test_a_tool_is_left_out_whose_argument_has_a_name_that_the_provider_refuses() -> None:
    odd = named("odd", input_schema={"type": "object", "properties": {"since>": {}}})
    tools, (problem,) = project_tools("anthropic", [odd, TOOL])
    assert tools == [TOOL.to_anthropic()]
    assert (problem.tool, problem.reason) == ("odd", "ARGUMENT_REFUSED")
    assert "'since>'" in problem.message
    assert len(project_tools("openai", [odd, TOOL])[0]) == 2


@pytest.mark.parametrize("provider", PROVIDERS)
def test_a_projection_is_repeatable_and_shares_nothing_with_its_tools(provider: str) -> None:
    tools = [TOOL, named("b"), named("a")]
    before = deepcopy(tools)
    first, problems = project_tools(provider, tools)
    again, _ = project_tools(provider, iter(tools))
    assert first == again
    assert problems == []

    def spoil(value: Any) -> None:
        if isinstance(value, dict):
            for inner in list(value.values()):
                spoil(inner)
            value.clear()

    for definition in first:
        spoil(definition)
    assert tools == before
    assert project_tools(provider, tools)[0] == again


def test_an_unknown_provider_is_an_error_that_names_the_known_ones() -> None:
    with pytest.raises(ValueError, match=r"'opnai'.*'anthropic', 'gemini', 'openai', 'openai-r"):
        project_tools("opnai", [])


@pytest.mark.parametrize(
    "schema", [{}, {"type": "string"}, {"type": ["object", "null"]}, {"anyOf": [SCHEMA]}]
)
def test_a_tool_without_an_object_schema_is_left_out_with_a_problem(schema: dict[str, Any]) -> None:
    odd = named("odd", input_schema=schema)
    tools, problems = project_tools("openai", [odd, TOOL])
    assert tools == [TOOL.to_openai()]
    (problem,) = problems
    assert (problem.provider, problem.tool, problem.reason) == (
        "openai",
        "odd",
        "SCHEMA_NOT_OBJECT",
    )
    assert "'odd' of server 'time'" in problem.message


@pytest.mark.parametrize(
    ("provider", "name", "fits"),
    [
        ("openai", "9-lives", True),
        ("openai", "a" * 64, True),
        ("openai", "a" * 65, False),
        ("openai", "a.b", False),
        ("anthropic", "a b", False),
        ("anthropic", "", False),
        ("openai", "name\n", False),
        ("gemini", "_x", True),
        ("gemini", "a.b", True),
        ("gemini", "9-lives", False),
    ],
)
def test_a_name_that_breaks_the_providers_rule_is_left_out(
    provider: str, name: str, fits: bool
) -> None:
    tools, problems = project_tools(provider, [named(name)])
    assert len(tools) == (1 if fits else 0)
    assert [problem.reason for problem in problems] == ([] if fits else ["NAME_REFUSED"])


def test_the_second_tool_of_a_name_is_left_out() -> None:
    tools, problems = project_tools("anthropic", [TOOL, named("time_now", description="Other.")])
    assert tools == [TOOL.to_anthropic()]
    assert [problem.reason for problem in problems] == ["NAME_TAKEN"]


def test_openai_gets_128_tools_and_each_further_one_is_named() -> None:
    many = [named(f"t{number:03}") for number in range(131)]
    tools, problems = project_tools("openai", many)
    assert [tool["function"]["name"] for tool in tools] == [tool.name for tool in many[:128]]
    assert [(problem.tool, problem.reason) for problem in problems] == [
        (name, "TOO_MANY_TOOLS") for name in ("t128", "t129", "t130")
    ]
    assert len(project_tools("anthropic", many)[0]) == 131


def test_omitted_tools_do_not_count_towards_the_limit() -> None:
    many = [named("odd", input_schema={}), *(named(f"t{number}") for number in range(128))]
    tools, problems = project_tools("openai", many)
    assert len(tools) == 128
    assert [problem.tool for problem in problems] == ["odd"]


OFFERED = [named("time_now"), named("time_now_utc"), named("page_open", server_id="web")]


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("Invalid schema for function 'time_now': nope", ["time_now"]),
        ("tools.2.custom.input_schema: JSON schema is invalid", ["page_open"]),
        ("tools[1].function.parameters: no; tools[0] too", ["time_now", "time_now_utc"]),
        ("tools.9.custom: unknown", []),
        ("the model is overloaded", []),
    ],
)
def test_named_tools_finds_the_tools_in_a_providers_error(text: str, names: list[str]) -> None:
    assert [tool.name for tool in named_tools(text, OFFERED)] == names


def test_a_refusal_names_provider_session_tool_and_error() -> None:
    refusal = describe_refusal("openai", "Invalid\n schema of page_open", None, OFFERED, "chat-7")
    assert refusal.server_id == "web"
    assert refusal.subject == "openai:page_open"
    for part in ("'openai'", "'chat-7'", "'page_open'", "Invalid schema of page_open"):
        assert part in refusal.message


def test_a_refusal_of_tools_of_two_servers_is_about_neither() -> None:
    refusal = describe_refusal("anthropic", "tools.0 and tools.2", None, OFFERED, "")
    assert refusal.server_id == ""
    assert "tools 'time_now', 'page_open'" in refusal.message


def test_a_tool_that_the_caller_names_is_not_searched_for() -> None:
    by_tool = describe_refusal("openai", "time_now", OFFERED[2], OFFERED, "")
    by_name = describe_refusal("openai", "time_now", "page_open", OFFERED, "")
    assert by_tool == by_name
    assert by_tool.subject == "openai:page_open"
    assert describe_refusal("openai", "x", "elsewhere", (), "").server_id == ""


def test_a_long_refusal_is_cut() -> None:
    refusal = describe_refusal("openai", "x" * 10_000, None, (), "")
    assert len(refusal.message) < 2_300


@pytest.mark.parametrize("provider", PROVIDERS)
def test_offered_tools_may_be_the_providers_definitions(provider: str) -> None:
    sent, _ = project_tools(provider, OFFERED)
    refusal = describe_refusal(provider, "Bad schema of page_open", None, sent, "")
    assert refusal.subject == f"{provider}:page_open"
    assert describe_refusal(provider, "x", sent[0], sent, "").subject == f"{provider}:time_now"
    assert describe_refusal(provider, "x", "page_open", sent, "").server_id == ""


def test_invalid_parameters_of_a_refusal_are_named() -> None:
    with pytest.raises(ValueError, match="'opnai' is not a supported provider"):
        describe_refusal("opnai", "x", None, (), "")
    with pytest.raises(TypeError, match="error_text is a str, not NoneType"):
        describe_refusal("openai", None, None, (), "")  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="one is of type int"):
        describe_refusal("openai", "x", None, [1], "")  # type: ignore[list-item]
    with pytest.raises(TypeError, match="has no name"):
        describe_refusal("openai", "x", None, [{}], "")


def test_only_tools_can_be_projected() -> None:
    with pytest.raises(
        TypeError, match="tools are Tools, as list_tools returns them; one is of type int"
    ):
        project_tools("openai", [1])  # type: ignore[list-item]
