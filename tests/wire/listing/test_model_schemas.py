"""Input schemas for models: what they still admit, and how arguments find their way back."""

from __future__ import annotations

import json
import re
from typing import Any

import jsonschema_rs
from hypothesis import given
from hypothesis import strategies as st

from leaseway.wire.listing.model_schemas import (
    argument_name,
    with_accepted_names,
    with_plain_root,
)

A, B = {"type": "string"}, {"type": "integer"}
NAMES = st.sampled_from(["a", "b", "c d", "c<d", "名"])
DEFINED = st.sampled_from(
    [A, B, {}, True, {"const": 1}, {"const": "x"}, {"enum": ["x", True]}, {"anyOf": [A, B]}]
)
PARTS = st.recursive(
    st.fixed_dictionaries(
        {},
        optional={
            "properties": st.dictionaries(NAMES, DEFINED, max_size=3),
            "required": st.lists(NAMES, max_size=2, unique=True),
            "additionalProperties": st.booleans(),
            "$ref": st.sampled_from(["#/$defs/x", "#/$defs/missing"]),
            "minProperties": st.integers(0, 2),
        },
    )
    | st.booleans(),
    lambda inner: (
        st.dictionaries(
            st.sampled_from(["allOf", "anyOf", "oneOf"]), st.lists(inner, min_size=1, max_size=3)
        )
        | st.fixed_dictionaries({"not": inner})
    ),
    max_leaves=6,
)
OBJECTS = st.dictionaries(NAMES, st.sampled_from([1, "x", True, None, 2.5]), max_size=3)


@st.composite
def schemas(draw: st.DrawFn) -> dict[str, Any]:
    root = draw(PARTS)
    members = root if isinstance(root, dict) else {}
    target = {"properties": {"a": A}, "required": ["b"]}
    return {**members, "type": "object", "$defs": {"x": target, "missing": {}}}


def admits(schema: dict[str, Any], value: object) -> bool:
    return jsonschema_rs.validator_for(schema).is_valid(value)


def undefined(schema: dict[str, Any]) -> dict[str, Any]:
    """Return a schema that says nothing of the values of its properties."""
    return {**schema, "properties": {name: {} for name in schema.get("properties", {})}}


@given(schemas(), OBJECTS)
def test_arguments_may_be_those_that_the_servers_schema_admits(
    schema: dict[str, Any], value: dict[str, Any]
) -> None:
    before = json.dumps(schema)
    flat, listed = with_plain_root(schema), with_accepted_names(schema)
    assert "properties" in flat
    assert flat.keys().isdisjoint(("allOf", "anyOf", "oneOf", "not", "$ref"))
    assert json.dumps(schema) == before
    for name in with_plain_root(listed.schema).get("properties", {}):
        assert re.fullmatch("[a-zA-Z0-9_.-]{1,64}", name)
    if admits(schema, value):
        assert admits(undefined(flat), value)
        new_names = {name: new for new, name in listed.names.items()}
        renamed = {new_names.get(name, name): member for name, member in value.items()}
        assert admits(undefined(with_plain_root(listed.schema)), renamed)
        assert listed.server_arguments(renamed) == value


def test_branches_become_properties_with_a_hint_what_is_needed() -> None:
    branches = [
        {"properties": {"kind": {"const": "url"}, "url": A}, "required": ["kind", "url"]},
        {"properties": {"kind": {"const": "file"}, "id": B}, "required": ["kind", "id"]},
    ]
    flat = with_plain_root({"type": "object", "description": "Where.", "oneOf": branches})
    assert flat == {
        "type": "object",
        "description": "Where. Pass one of: url; id.",
        "properties": {"kind": {"enum": ["url", "file"]}, "url": A, "id": B},
        "required": ["kind"],
    }


def test_a_schema_behind_a_reference_stands_at_the_root() -> None:
    target = {"type": "object", "properties": {"a": A}, "required": ["a"]}
    flat = with_plain_root(
        {"type": "object", "$ref": "#/definitions/X", "definitions": {"X": target}}
    )
    assert flat == {**target, "definitions": {"X": target}}


def test_a_schema_without_choices_stays_the_same_object() -> None:
    schema = {"type": "object", "properties": {"a": {"anyOf": [A, B]}}, "if": {}, "then": {}}
    assert with_plain_root(schema) is schema
    assert with_accepted_names(schema) == (schema, {})
    assert with_accepted_names(schema).schema is schema


def test_references_in_a_circle_and_branches_without_end_are_given_up() -> None:
    circle = {"type": "object", "properties": {"a": A}, "$ref": "#"}
    wide = {"type": "object", "anyOf": [{"required": ["a"]}] * 1_000}
    assert with_plain_root(circle) == {"type": "object", "properties": {"a": A}}
    assert with_plain_root(wide) == {"type": "object", "properties": {}}


def test_a_tool_without_arguments_says_that_it_has_no_properties() -> None:
    schema = {"type": "object", "additionalProperties": False}
    assert with_plain_root(schema) == {**schema, "properties": {}}


def test_renamed_arguments_are_unique_and_say_their_names() -> None:
    names = ["from<", "from>", "from", "名", "前", "x" * 70, "filter[a]"]
    listed = with_accepted_names({"type": "object", "properties": dict.fromkeys(names, A)})
    assert listed.names == {
        "from_2": "from<",
        "from_3": "from>",
        "argument": "名",
        "argument_2": "前",
        "x" * 64: "x" * 70,
        "filter_a": "filter[a]",
    }
    assert listed.schema["properties"]["filter_a"] == {"title": "filter[a]", **A}
    assert argument_name("[]") == ""
