"""What MCP clients declare, as servers will see it."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from leaseway.wire.bounds import MAX_CLIENT
from leaseway.wire.clients.mcp_client import McpClient, parse_client
from leaseway.wire.messages.mcp import ELICIT, ELICIT_URL, ROOTS, SAMPLE

JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
)
MEMBERS = ("elicitation", "sampling", "roots", "extensions", "name", "version", "form", "url")
DECLARED = st.dictionaries(st.sampled_from(MEMBERS) | st.text(), JSON) | JSON


def test_only_what_can_be_honoured_is_passed_on() -> None:
    declared = {
        "elicitation": {"form": {"x": "y" * 9999}, "more": {}},
        "sampling": {"tools": {}, "context": None},
        "roots": {"listChanged": True, "more": 1},
        "extensions": {"io.modelcontextprotocol/ui": {"mimeTypes": ["text/html"]}, "bad": 7},
        "experimental": {"a": {}},
        "tasks": {},
    }
    client = McpClient("2025-11-25", declared, {"name": "claude", "version": 7, "icons": []})
    assert client.capabilities == {
        "elicitation": {"form": {}},
        "sampling": {"tools": {}},
        "roots": {"listChanged": True},
        "extensions": {"io.modelcontextprotocol/ui": {"mimeTypes": ["text/html"]}},
    }
    assert client.info == {"name": "claude", "version": ""}
    assert client.answers == (ELICIT, SAMPLE, ROOTS)
    opener = McpClient("2025-11-25", {"elicitation": {"url": {}}})
    assert opener.answers == (ELICIT, ELICIT_URL)


@given(st.text(), DECLARED, DECLARED)
def test_whatever_a_client_declares_is_bounded_and_read_alike_by_workers(
    version: str, capabilities: Any, info: Any
) -> None:
    client = McpClient(version, capabilities, info)
    assert len(client.encoded) <= MAX_CLIENT
    assert parse_client(client.encoded) == client


def test_settings_of_extensions_that_are_too_large_are_left_out() -> None:
    extensions = {"a/b": {"text": "x" * MAX_CLIENT}}
    client = McpClient("2025-11-25", {"roots": {}, "extensions": extensions}, {"name": "x"})
    assert client.capabilities == {"roots": {}}


@pytest.mark.parametrize("encoded", [b"7", b"{", b'{"version":7}', b"{}" + b" " * MAX_CLIENT])
def test_what_is_no_client_is_refused(encoded: bytes) -> None:
    with pytest.raises(ValueError):
        parse_client(encoded)


URL, FORM = {"mode": "url", "url": "https://x"}, {"message": "?"}


@pytest.mark.parametrize(
    ("declared", "method", "params", "lacking"),
    [
        ({"elicitation": {}}, ELICIT, FORM, ""),
        ({"elicitation": {}}, ELICIT, URL, "elicitation.url"),
        ({"elicitation": {"form": {}}}, ELICIT, URL, "elicitation.url"),
        ({"elicitation": {"url": {}}}, ELICIT, URL, ""),
        ({"elicitation": {"url": {}}}, ELICIT, FORM, "elicitation.form"),
        ({"elicitation": {"form": {}}}, ELICIT, {"mode": "voice"}, "elicitation.voice"),
        ({"elicitation": {"later": {}}}, ELICIT, FORM, "elicitation"),
        ({}, ELICIT, FORM, "elicitation"),
        ({"sampling": {}}, SAMPLE, {"messages": []}, ""),
        ({"sampling": {}}, SAMPLE, {"tools": []}, "sampling.tools"),
        ({"sampling": {"tools": {}}}, SAMPLE, {"toolChoice": {}}, ""),
        ({"roots": {}}, ROOTS, {}, ""),
        ({}, ROOTS, {}, "roots"),
    ],
)
def test_a_client_gets_only_requests_that_it_has_declared(
    declared: dict[str, Any], method: str, params: dict[str, Any], lacking: str
) -> None:
    client = McpClient("2026-07-28", declared)
    assert client.lacking(method, json.dumps(params).encode()) == lacking
