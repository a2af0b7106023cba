"""Values of any type become a member of an object, in schemas and results."""

from __future__ import annotations

import json
from typing import Any

import jsonschema_rs
import pytest

from leaseway.front.protocol.eras.to_2025_11_25 import is_wrapped, tool, tool_result

ARRAY = {"type": "array", "items": {"type": "string"}}
TOOL: dict[str, Any] = {"name": "t", "inputSchema": {"type": "object", "properties": {}}}
TEXT = [{"type": "text", "text": "hi"}]


def wrapped(schema: dict[str, Any]) -> Any:
    definition = {**TOOL, "outputSchema": schema}
    assert is_wrapped(schema)
    return tool(definition)["outputSchema"]


@pytest.mark.parametrize("schema", [None, {"type": "object"}, {"type": "object", "anyOf": [{}]}])
def test_a_tool_whose_results_are_objects_stays_as_it_is(schema: Any) -> None:
    definition = {**TOOL, "outputSchema": schema} if schema is not None else TOOL
    assert tool(definition) is definition
    assert not is_wrapped(schema)


def test_an_input_schema_has_no_choices_at_its_root() -> None:
    branch = {"properties": {"a": ARRAY}, "required": ["a"]}
    modern = {**TOOL, "inputSchema": {"type": "object", "anyOf": [branch]}}
    assert tool(modern) == {**TOOL, "inputSchema": {"type": "object", **branch}}


@pytest.mark.parametrize("schema", [ARRAY, {"type": "string"}, {"anyOf": [ARRAY]}, {}])
def test_another_schema_becomes_that_of_a_member(schema: dict[str, Any]) -> None:
    assert wrapped(schema) == {
        "type": "object",
        "properties": {"result": schema},
        "required": ["result"],
    }


def test_references_still_find_what_they_name() -> None:
    schema = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "type": "array",
        "items": {"anyOf": [{"$ref": "#/$defs/leaf"}, {"$ref": "#"}]},
        "default": [{"$ref": "#/data"}],
        "$defs": {"leaf": {"const": "leaf"}, "$ref": {"type": "null"}},
    }
    converted = wrapped(schema)
    validator = jsonschema_rs.Draft202012Validator(converted)
    assert converted["$schema"] == schema["$schema"]
    assert converted["properties"]["result"]["default"] == [{"$ref": "#/data"}]
    assert validator.is_valid({"result": ["leaf", ["leaf", []]]})
    assert not validator.is_valid({"result": ["leaf", ["other"]]})


def test_references_to_its_own_id_stay() -> None:
    schema = {**ARRAY, "$id": "https://x/y", "items": {"$ref": "#/$defs/a"}, "$defs": {"a": {}}}
    assert wrapped(schema)["properties"]["result"] == schema
    nested = {"type": "array", "items": {"$id": "https://x/y", "$ref": "#/$defs/a"}}
    assert wrapped(nested)["properties"]["result"] == nested


@pytest.mark.parametrize("value", [["a"], "a", 7, True, [], 0])
@pytest.mark.parametrize("is_wrapped", [True, False])
def test_a_structured_value_becomes_a_member(value: Any, is_wrapped: bool) -> None:
    sent = json.dumps({"content": TEXT, "structuredContent": value, "x": 1.0}).encode()
    assert json.loads(tool_result(sent, wrapped=is_wrapped)) == {
        "content": TEXT,
        "structuredContent": {"result": value},
        "x": 1.0,
    }


def test_an_object_is_wrapped_only_if_its_schema_is() -> None:
    sent = b'{"content":[],"structuredContent" : {"a":1}}'
    assert tool_result(sent, wrapped=False) is sent
    assert json.loads(tool_result(sent, wrapped=True)) == {
        "content": [],
        "structuredContent": {"result": {"a": 1}},
    }


def test_null_is_a_value_only_if_the_schema_is_wrapped() -> None:
    sent = b'{"content":[],"structuredContent":null}'
    assert json.loads(tool_result(sent, wrapped=False)) == {"content": []}
    assert json.loads(tool_result(sent, wrapped=True)) == {
        "content": [{"type": "text", "text": "null"}],
        "structuredContent": {"result": None},
    }


@pytest.mark.parametrize("content", [None, [], [{"type": "image", "data": ""}]])
def test_a_value_without_a_text_is_also_a_text(content: Any) -> None:
    sent = {"structuredContent": ["é"]} | ({} if content is None else {"content": content})
    payload = json.dumps(sent, ensure_ascii=False).encode()
    converted = json.loads(tool_result(payload, wrapped=False))
    assert converted["content"] == [*(content or []), {"type": "text", "text": '["é"]'}]


@pytest.mark.parametrize(
    "payload",
    [
        b'{"content":[{"type":"text","text":"\\"structuredContent\\": []"}]}',
        b'{"content":[],"_meta":{"structuredContent":[]}}',
        b'{"content":[]}',
        b"{",
        b'{"structuredContent":[',
    ],
)
def test_other_results_keep_their_bytes(payload: bytes) -> None:
    assert tool_result(payload, wrapped=False) is payload
