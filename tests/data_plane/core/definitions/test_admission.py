"""Definitions are corrected so that official clients read them, with the same meaning."""

from __future__ import annotations

import json
from typing import Any

import pytest

from leaseway.data_plane.core.definitions.admission import (
    Admitted,
    admit,
    correct_prompt,
    correct_resource,
    correct_template,
    correct_tool,
)

OBJECT = {"type": "object"}


def tool(modern: bool = False, **members: Any) -> Admitted:
    sent = {"name": "t", "inputSchema": OBJECT, **members}
    return admit(json.dumps(sent).encode(), "name", correct_tool, modern=modern)


def member(admitted: Admitted, name: str) -> Any:
    return json.loads(admitted.definition).get(name, "absent")


def test_a_definition_that_conforms_keeps_its_bytes() -> None:
    sent = b'{ "name":"t","inputSchema":{"type":"object","required":[]},"x":[1.0,null],"title":""}'
    assert admit(sent, "name", correct_tool, modern=False) == Admitted("t", sent)


@pytest.mark.parametrize("definition", [b"5", b"[]", b"{}", b'{"name":7}', b'{"name":null}'])
def test_what_has_no_name_is_not_changed(definition: bytes) -> None:
    assert admit(definition, "name", correct_tool, modern=False).name is None


@pytest.mark.parametrize(
    ("schema", "corrected"),
    [
        (None, OBJECT),
        (True, OBJECT),
        (False, {"type": "object", "not": {}}),
        ("object", OBJECT),
        ({}, OBJECT),
        ({"type": None}, OBJECT),
        ({"type": ["object", "null"]}, OBJECT),
        ({"type": "string"}, OBJECT),
        ({"$ref": "#/$defs/a", "$defs": {"a": {}}}, None),
        ({"anyOf": [{"required": ["a"]}]}, None),
        ({**OBJECT, "properties": None}, OBJECT),
        ({**OBJECT, "properties": []}, OBJECT),
        ({**OBJECT, "required": None}, OBJECT),
        ({**OBJECT, "required": "a"}, OBJECT),
        ({**OBJECT, "$schema": 7}, OBJECT),
        ({**OBJECT, "required": ["a", 7]}, {**OBJECT, "required": ["a"]}),
        (
            {**OBJECT, "properties": {"a": True, "b": False, "c": None, "d": {"type": "null"}}},
            {**OBJECT, "properties": {"a": {}, "b": {"not": {}}, "c": {}, "d": {"type": "null"}}},
        ),
    ],
)
def test_the_schema_of_arguments_is_an_object_of_described_properties(
    schema: Any, corrected: dict[str, Any] | None
) -> None:
    admitted = tool(inputSchema=schema)
    expected = {"type": "object", **schema} if corrected is None else corrected
    assert member(admitted, "inputSchema") == expected
    assert "inputSchema" in admitted.changes


def test_a_tool_without_a_schema_of_arguments_gets_one() -> None:
    admitted = admit(b'{"name":"t"}', "name", correct_tool, modern=True)
    assert member(admitted, "inputSchema") == OBJECT


ARRAY = {"type": "array", "items": {"type": "string"}}


@pytest.mark.parametrize(
    ("modern", "schema", "corrected"),
    [
        (False, None, "absent"),
        (False, True, "absent"),
        (False, {"type": ["object", "null"]}, OBJECT),
        (False, {"description": "d"}, {**OBJECT, "description": "d"}),
        (True, {"properties": {"a": {}}}, {**OBJECT, "properties": {"a": {}}}),
        (True, {**OBJECT, "required": None}, OBJECT),
        (True, {"$id": "https://x/y", **ARRAY}, ARRAY),
        (True, {"type": "strng"}, {}),
        (True, {**OBJECT, "properties": {"a": {"$ref": "#/$defs/none"}}}, "absent"),
        (True, {"$ref": "https://elsewhere/schema"}, "absent"),
        (True, {"$ref": "#"}, "absent"),
        (
            True,
            {
                "$ref": "#/$defs/a",
                "$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}},
            },
            "absent",
        ),
        (True, {"items": {"$id": "inner"}}, "absent"),
        (True, {"items": {"$anchor": "é"}}, {"items": {}}),
        (True, {"$anchor": "a", "items": {"$anchor": "a"}}, "absent"),
        (True, {"items": {"pattern": "("}}, {"items": {}}),
        (True, {"items": {"pattern": r"(?P<id>a)"}}, {"items": {}}),  # no JavaScript
        (True, {"items": {"pattern": r"^\p{L}$"}}, {"items": {}}),  # no Python
        (True, {"$schema": "http://json-schema.org/draft-04/schema#", **OBJECT}, OBJECT),
        (True, {"$schema": "", **OBJECT}, OBJECT),
        (True, {"$schema": 7, **OBJECT}, OBJECT),
        (
            True,
            {"$schema": "http://json-schema.org/draft/2020-12/schema#", "title": 7},
            {"$schema": "http://json-schema.org/draft/2020-12/schema#"},
        ),
        (
            True,
            {"items": [OBJECT], "additionalItems": False},
            {"prefixItems": [OBJECT], "maxItems": 1},
        ),
        (True, {"items": []}, {}),
        (True, {"minimum": "5", "title": None}, {}),
        (
            True,
            {"items": {"minLength": -1, "required": ["a", "a", 7]}},
            {"items": {"required": ["a"]}},
        ),
        (True, {"anyOf": [7, {"description": None}]}, {"anyOf": [{}, {}]}),
        (
            True,
            {**OBJECT, "properties": {"a": OBJECT, "b": {"properties": {"c": None}}}},
            {**OBJECT, "properties": {"a": OBJECT, "b": {"properties": {"c": {}}}}},
        ),
        (True, {"enum": []}, "absent"),
        (True, {"items": {"nullable": True}}, "absent"),
        (True, {"items": 7}, {}),
    ],
)
def test_a_schema_of_results_is_corrected_or_dropped(
    modern: bool, schema: Any, corrected: Any
) -> None:
    admitted = tool(modern, outputSchema=schema)
    assert member(admitted, "outputSchema") == corrected
    if not (isinstance(schema, dict) and "$id" in schema):  # which operators need not know
        assert "outputSchema" in admitted.changes


@pytest.mark.parametrize(
    "schema",
    [
        ARRAY,
        {"anyOf": [{"type": "null"}, {"$ref": "#/$defs/a~1b"}], "$defs": {"a/b": {"$ref": "#"}}},
        {"items": {"$ref": "#"}, "type": "array"},
        {"$schema": "http://json-schema.org/draft-07/schema#", "items": [{"type": "string"}]},
        {"$ref": "#here", "$defs": {"a": {"$anchor": "here"}}},
        {"properties": {"nullable": {}, "id": {}, "$id": {}, "enum": {}}, **OBJECT},
        {"const": {"$ref": 7, "type": 8}, "examples": [{"type": "x"}]},
    ],
)
def test_a_usable_schema_of_results_stays(schema: Any) -> None:
    admitted = tool(True, outputSchema=schema)
    assert (member(admitted, "outputSchema"), admitted.changes) == (schema, "")


@pytest.mark.parametrize(
    ("sent", "kept"),
    [
        ({"title": None, "description": 7, "_meta": None, "icons": None, "x": None}, {"x": None}),
        ({"annotations": None, "execution": []}, {}),
        (
            {"annotations": {"readOnlyHint": "yes", "idempotentHint": True, "title": 1, "y": 0}},
            {"annotations": {"idempotentHint": True, "y": 0}},
        ),
        ({"execution": {"taskSupport": "always"}}, {"execution": {}}),
        (
            {"icons": [{"src": "a", "sizes": "48x48", "theme": "pink"}, {"src": 1}, 5]},
            {"icons": [{"src": "a"}]},
        ),
    ],
)
def test_invalid_optional_members_of_a_tool_are_dropped(
    sent: dict[str, Any], kept: dict[str, Any]
) -> None:
    admitted = tool(**sent)
    assert json.loads(admitted.definition) == {"name": "t", "inputSchema": OBJECT, **kept}
    assert admitted.changes


def test_the_arguments_of_a_prompt_have_names() -> None:
    arguments = [{"name": "a", "required": "yes", "description": None}, {"name": 5}, "b"]
    sent = json.dumps({"name": "p", "arguments": arguments, "_meta": []}).encode()
    admitted = admit(sent, "name", correct_prompt, modern=False)
    assert json.loads(admitted.definition) == {"name": "p", "arguments": [{"name": "a"}]}
    assert "one of its arguments has no 'name'" in admitted.changes


@pytest.mark.parametrize(
    ("sent", "kept"),
    [
        ({"name": 5, "mimeType": None}, {}),
        ({"size": 5.0}, {"size": 5}),
        ({"size": "5"}, {}),
        ({"annotations": {"priority": 2, "audience": ["model"]}}, {"annotations": {}}),
        ({"annotations": {"lastModified": "yesterday"}}, {"annotations": {}}),
        ({"annotations": {"lastModified": "2025-02-30T00:00:00Z"}}, {"annotations": {}}),
    ],
)
def test_invalid_optional_members_of_a_resource_are_dropped(
    sent: dict[str, Any], kept: dict[str, Any]
) -> None:
    definition = json.dumps({"uri": "a:b", **sent}).encode()
    admitted = admit(definition, "uri", correct_resource, modern=False)
    assert json.loads(admitted.definition) == {"uri": "a:b", **kept}


def test_a_template_is_corrected_like_a_resource() -> None:
    sent = json.dumps({"uriTemplate": "a:{b}", "title": [], "annotations": 1}).encode()
    admitted = admit(sent, "uriTemplate", correct_template, modern=False)
    assert json.loads(admitted.definition) == {"uriTemplate": "a:{b}"}


def test_a_replaced_character_is_reported() -> None:
    admitted = tool(description="caf\ufffd")
    assert member(admitted, "description") == "caf\ufffd"
    assert "U+FFFD" in admitted.changes
