"""What servers answer to greetings besides MCP."""

from __future__ import annotations

from typing import Any

import pytest
from mcp_types import DiscoverResult, InitializeResult

from leaseway.data_plane.core.definitions.greeting import correct_discovery, correct_greeting

INFO = {"name": "s", "version": "1"}


def greeting(**members: Any) -> dict[str, Any]:
    answer = {"protocolVersion": "2025-06-18", "capabilities": {"tools": {}}, "serverInfo": INFO}
    return {name: value for name, value in {**answer, **members}.items() if value is not ...}


@pytest.mark.parametrize(
    ("answer", "capabilities", "words"),
    [
        (greeting(capabilities=...), {}, "it has no capabilities"),
        (greeting(capabilities=None), {}, "capabilities is null"),
        (greeting(capabilities=[]), {}, "capabilities is a list"),
        (greeting(capabilities={"tools": []}), {"tools": {}}, "capabilities.tools is a list"),
        (greeting(capabilities={"tools": True}), {"tools": {}}, "capabilities.tools is a boolean"),
        (greeting(capabilities={"logging": False}), {}, "capabilities.logging is a boolean"),
        (
            greeting(capabilities={"tools": {"listChanged": "true"}}),
            {"tools": {}},
            "capabilities.tools.listChanged is a text that MCP does not have there",
        ),
        (
            greeting(capabilities={"experimental": {"a": True, "b": {}}, "tasks": 1}),
            {"experimental": {"b": {}}},
            "capabilities.tasks is a number, capabilities.experimental.a is a boolean",
        ),
    ],
)
def test_capabilities_of_another_type_are_read_as_they_are_meant(
    answer: dict[str, Any], capabilities: dict[str, Any], words: str
) -> None:
    assert correct_greeting(answer) == words
    read = InitializeResult.model_validate(answer).capabilities
    assert read.model_dump(by_alias=True, exclude_none=True) == capabilities


@pytest.mark.parametrize(
    ("info", "name", "version", "words"),
    [
        (..., "", "", "it has no serverInfo, serverInfo.name is no text"),
        ("me", "", "", "serverInfo is a text that MCP does not have there"),
        ({"name": "s"}, "s", "", "serverInfo.version is no text"),
        ({"name": "s", "version": 1.5}, "s", "1.5", "serverInfo.version is no text"),
        ({**INFO, "icons": [{"src": None}]}, "s", "1", "one of its icons has no 'src'"),
    ],
)
def test_a_server_without_a_name_or_version_has_empty_ones(
    info: Any, name: str, version: str, words: str
) -> None:
    answer = greeting(serverInfo=info)
    assert words in correct_greeting(answer)
    read = InitializeResult.model_validate(answer).server_info
    assert (read.name, read.version) == (name, version)


def test_instructions_that_are_no_text_are_dropped() -> None:
    answer = greeting(instructions=["a", "b"])
    assert correct_greeting(answer) == "instructions is a list"
    assert InitializeResult.model_validate(answer).instructions is None


@pytest.mark.parametrize(
    "answer",
    [
        greeting(),
        greeting(instructions=None, serverInfo={**INFO, "title": None, "icons": None}),
        greeting(capabilities={"tools": None, "prompts": {"listChanged": None}, "x": 1}),
    ],
)
def test_what_official_clients_accept_is_not_reported(answer: dict[str, Any]) -> None:
    assert correct_greeting(answer) == ""
    InitializeResult.model_validate(answer)


def test_the_protocol_version_is_left_to_the_handshake() -> None:
    answer = greeting(protocolVersion=...)
    correct_greeting(answer)
    assert "protocolVersion" not in answer


def test_the_draft_of_the_first_version_is_taken_as_that_one() -> None:
    answer = greeting(protocolVersion="2024-10-07")
    assert correct_greeting(answer) == "protocolVersion is the draft 2024-10-07 of 2024-11-05"
    assert answer["protocolVersion"] == "2024-11-05"


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        ({"capabilities": {"tools": []}}, "capabilities.tools is a list"),
        ({"resultType": None}, "it has no capabilities, resultType is null"),
        (
            {"capabilities": {}, "ttlMs": None, "cacheScope": None},
            "ttlMs is null, cacheScope is null",
        ),
        ({"capabilities": {}, "instructions": 5}, "instructions is a number"),
        ({"capabilities": {"tools": {}}, "resultType": "complete", "ttlMs": 5}, ""),
    ],
)
def test_what_modern_servers_answer_is_read_as_it_is_meant(
    answer: dict[str, Any], words: str
) -> None:
    discovery = {"supportedVersions": ["2026-07-28"], **answer}
    assert correct_discovery(discovery) == words
    DiscoverResult.model_validate(discovery)


@pytest.mark.parametrize("answer", [{}, {"capabilities": []}, {"supportedVersions": None}])
def test_an_answer_without_versions_makes_no_server_modern(answer: dict[str, Any]) -> None:
    before = dict(answer)
    assert correct_discovery(answer) == ""
    assert answer == before
