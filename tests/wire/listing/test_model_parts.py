"""Parts of input schemas that models' APIs refuse."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from jsonschema_rs import validator_for

from leaseway.wire.listing.model_parts import with_accepted_parts
from leaseway.wire.listing.model_schemas import with_accepted_names
from leaseway.wire.listing.type_choices import as_choice
from leaseway.wire.messages.json_schema import TYPES

A = {"type": "string"}
NULL = {"type": "null"}
VALUES = st.sampled_from([None, True, False, 0, 1, 1.0, 2.5, "", "a", [], [0], {}, {"b": 1}])
EMAIL = r"^(?!\.)[a-z.]+@[a-z]+$"


def of_property(schema: Any) -> dict[str, Any]:
    return {"type": "object", "properties": {"a": schema}}


@pytest.mark.parametrize(
    ("written", "accepted"),
    [
        ({"type": "array"}, {"type": "array", "items": {}}),
        ({"type": "array", "items": True}, {"type": "array", "items": {}}),
        (of_property(True), of_property({})),
        (
            {"type": "array", "items": [A, {"type": "int"}], "additionalItems": A},
            {
                "type": "array",
                "prefixItems": [A, {"type": "integer"}],
                "items": A,
                "additionalItems": A,
            },
        ),
        ({"type": "array", "items": []}, {"type": "array", "items": {}}),
        ({"minimum": 0, "exclusiveMinimum": True}, {"exclusiveMinimum": 0}),
        ({"maximum": 9, "exclusiveMaximum": False}, {"maximum": 9}),
        ({"type": "any"}, {}),
        ({"type": "STRING"}, A),
        ({"type": ["int", "NULL", "integer"]}, {"anyOf": [{"type": "integer"}, {"type": "null"}]}),
        ({"type": ["string", "file"]}, {}),
        ({"type": None, "description": None, "enum": None, "default": None}, {"default": None}),
        ({**A, "required": True, "enum": []}, A),
        ({**A, "examples": "x", "deprecated": "yes", "readOnly": 1, "minLength": -1}, A),
        ({**A, "maxLength": 2.5, "multipleOf": 0, "$recursiveAnchor": True}, A),
        ({**A, "examples": ["x"], "maxLength": 2.0}, {**A, "examples": ["x"], "maxLength": 2.0}),
        ({"required": ["a", "b", "a", 7]}, {"required": ["a", "b"]}),
        ({**A, "pattern": EMAIL, "format": "email"}, {**A, "format": "email"}),
        ({**A, "pattern": "(?P<id>a)"}, A),
        ({**A, "pattern": "^a$"}, {**A, "pattern": "^a$"}),
        (of_property(None), of_property({})),
        ({"anyOf": [A, {"type": "array"}]}, {"anyOf": [A, {"type": "array", "items": {}}]}),
        ({"anyOf": []}, {}),
        ({"$ref": "#/$defs/none", "title": "t"}, {"title": "t"}),
        ({"$ref": "https://json-schema.org/draft/2020-12/schema"}, {}),
        ({"anyOf": [{"$ref": "#"}, {"$ref": "#/a"}]}, {"anyOf": [{"$ref": "#"}, {}]}),
        ({"const": {"type": "any"}}, {"const": {"type": "any"}}),
    ],
)
def test_a_part_is_written_anew_or_left_out(written: Any, accepted: Any) -> None:
    schema = of_property(written)
    assert with_accepted_parts(schema) == of_property(accepted)
    assert with_accepted_names(schema).schema == of_property(accepted)


@pytest.mark.parametrize(
    ("written", "accepted"),
    [
        ({"not": {"pattern": EMAIL}}, {}),
        ({"if": {"pattern": EMAIL}, "then": {"minLength": 5}}, {"then": {"minLength": 5}}),
        ({"oneOf": [{**A, "pattern": EMAIL}, A]}, {"anyOf": [A, A]}),
        ({"oneOf": [{"anyOf": [{"type": "any"}, A]}, A]}, {"anyOf": [{"anyOf": [{}, A]}, A]}),
        ({"anyOf": [A], "oneOf": [{"pattern": EMAIL}]}, {"anyOf": [A]}),
        ({"oneOf": [{**A, "title": 1}, NULL]}, {"oneOf": [A, NULL]}),
        ({"not": {"type": "STRING"}}, {"not": A}),
        ({"contains": {**A, "pattern": EMAIL}, "maxContains": 1}, {"contains": A}),
        ({"maxContains": 1, "contains": {**A, "pattern": EMAIL}}, {"contains": A}),
        ({"contains": A, "maxContains": 1}, {"contains": A, "maxContains": 1}),
        (
            {"not": {"contains": {**A, "pattern": EMAIL}, "maxContains": 1}},
            {},
        ),
        (
            {
                "if": {**of_property({"pattern": EMAIL}), "required": ["a"]},
                "then": {"required": ["b"]},
                "properties": {"b": A},
                "unevaluatedProperties": False,
            },
            {"then": {"required": ["b"]}, "properties": {"b": A}},
        ),
        (
            {"allOf": [{"if": {"pattern": EMAIL}}], "unevaluatedItems": False},
            {"allOf": [{}]},
        ),
        (
            {"properties": {"b": {**A, "pattern": EMAIL}}, "unevaluatedProperties": False},
            {"properties": {"b": A}, "unevaluatedProperties": False},
        ),
    ],
)
def test_what_remains_of_a_part_excludes_no_value(written: Any, accepted: Any) -> None:
    assert with_accepted_parts(of_property(written)) == of_property(accepted)


def test_what_remains_excludes_no_value_through_a_reference() -> None:
    one, other = {"$ref": "#/$defs/one"}, {"$ref": "#/$defs/other"}
    definitions = {"one": {**A, "pattern": EMAIL}, "other": A}
    written = {"$defs": definitions, **of_property({"oneOf": [one, other], "not": one})}
    assert with_accepted_parts(written) == {
        "$defs": {"one": A, "other": A},
        **of_property({"anyOf": [one, other]}),
    }
    assert written["properties"] == {"a": {"oneOf": [one, other], "not": one}}


def test_a_reference_into_what_becomes_any_of_several_leads_nowhere_and_is_left_out() -> None:
    choice = [{"$ref": "#/$defs/one"}, NULL]
    written = {
        "$defs": {"one": {**A, "pattern": EMAIL}},
        "properties": {"a": {"oneOf": choice}, "b": {"$ref": "#/properties/a/oneOf/1"}},
    }
    assert with_accepted_parts(written)["properties"] == {"a": {"anyOf": choice}, "b": {}}


def test_a_schema_written_anew_names_no_older_draft() -> None:
    head = {"$schema": "http://json-schema.org/draft-07/schema#"}
    assert with_accepted_parts({**head, **of_property({"items": [A]})}) == of_property(
        {"prefixItems": [A], "items": {}}
    )
    same = {**head, **of_property({**A, "items": A, "$defs": {"pattern": A}})}
    assert with_accepted_parts(same) is same


def test_a_schema_of_any_depth_is_passed_on() -> None:
    deep: Any = {"type": "any"}
    for _ in range(300):
        deep = of_property(deep)
    assert with_accepted_parts(deep)["type"] == "object"


@pytest.mark.parametrize(
    ("listed", "chosen"),
    [
        ({"type": ["array", "null"]}, {"anyOf": [{"type": "array", "items": {}}, NULL]}),
        (
            {"type": ["null", "array"], "items": A, "maxItems": 3, "description": "d"},
            {"description": "d", "anyOf": [NULL, {"type": "array", "items": A, "maxItems": 3}]},
        ),
        (
            {"type": ["string", "integer"], "format": "x", "minLength": 1, "minimum": 0},
            {
                "anyOf": [
                    {**A, "format": "x", "minLength": 1},
                    {"type": "integer", "format": "x", "minimum": 0},
                ]
            },
        ),
        (
            {"type": ["string", "null"], "enum": ["x", None], "default": None},
            {"default": None, "anyOf": [{**A, "enum": ["x"]}, NULL]},
        ),
        ({"type": ["string", "null"], "enum": ["x"]}, {**A, "enum": ["x"]}),
        ({"type": ["boolean", "integer"], "const": True}, {"type": "boolean", "const": True}),
        ({"type": ["boolean", "number"], "enum": [1, 2.5]}, {"type": "number", "enum": [1, 2.5]}),
        ({"type": ["string"], "title": "t"}, {**A, "title": "t"}),
        (
            {"type": ["object", "null"], "properties": {"b": {"type": ["string", "null"]}}},
            {
                "anyOf": [
                    {"type": "object", "properties": {"b": {"anyOf": [A, NULL]}}},
                    NULL,
                ]
            },
        ),
        (
            {"type": "array", "items": {"type": ["string", "null"]}},
            {"type": "array", "items": {"anyOf": [A, NULL]}},
        ),
        *(
            (same, same)
            for same in (
                {"type": ["string", "null"], "anyOf": [{"minLength": 1}, NULL]},
                {"type": ["string", "null"], "const": 5},
            )
        ),
    ],
)
def test_a_value_of_several_types_is_a_choice(listed: Any, chosen: Any) -> None:
    assert with_accepted_parts(of_property(listed)) == of_property(chosen)


@pytest.mark.parametrize(
    ("listed", "kind"),
    [
        ({"const": "k"}, "string"),
        ({"enum": [True, False]}, "boolean"),
        ({"enum": [1, 2.0]}, "integer"),
        ({"enum": [1, 2.5]}, "number"),
    ],
)
def test_values_of_one_type_are_listed_with_it(listed: dict[str, Any], kind: str) -> None:
    accepted = with_accepted_parts(of_property({"anyOf": [listed, NULL]}))
    assert accepted == of_property({"anyOf": [{**listed, "type": kind}, NULL]})


@pytest.mark.parametrize("listed", [{"enum": ["a", 1]}, {"enum": [True, 1]}, {"const": None}])
def test_values_of_several_types_are_listed_without(listed: dict[str, Any]) -> None:
    schema = of_property(listed)
    assert with_accepted_parts(schema) is schema


def test_a_value_of_several_types_stays_if_a_reference_leads_into_it() -> None:
    listed = {"type": ["array", "null"], "items": A}
    schema = {
        "type": "object",
        "properties": {"a": listed, "b": {"$ref": "#/properties/a/items"}, "c": {"$ref": "#/x"}},
    }
    assert with_accepted_parts(schema)["properties"] == {
        "a": listed,
        "b": {"$ref": "#/properties/a/items"},
        "c": {},
    }


def test_the_root_of_a_schema_keeps_its_types() -> None:
    schema = {"type": ["object", "null"], "properties": {}}
    assert with_accepted_parts(schema) is schema


@given(
    st.fixed_dictionaries(
        {"type": st.lists(st.sampled_from(TYPES), min_size=1, max_size=3, unique=True)},
        optional={
            "enum": st.lists(VALUES, min_size=1, max_size=4),
            "const": VALUES,
            "minimum": st.just(1),
            "minLength": st.just(1),
            "minItems": st.just(1),
            "minProperties": st.just(1),
        },
    ),
    VALUES,
)
def test_a_choice_allows_the_same_values(schema: dict[str, Any], value: Any) -> None:
    chosen = as_choice(schema)
    assert validator_for(chosen).is_valid(value) is validator_for(schema).is_valid(value)
