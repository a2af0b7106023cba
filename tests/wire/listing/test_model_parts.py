"""Parts of input schemas that models' APIs refuse."""

from __future__ import annotations

from typing import Any

import pytest

from leaseway.wire.listing.model_parts import with_accepted_parts
from leaseway.wire.listing.model_schemas import with_accepted_names

A = {"type": "string"}
EMAIL = r"^(?!\.)[a-z.]+@[a-z]+$"


def of_property(schema: Any) -> dict[str, Any]:
    return {"type": "object", "properties": {"a": schema}}


@pytest.mark.parametrize(
    ("written", "accepted"),
    [
        ({"type": "array"}, {"type": "array", "items": {}}),
        ({"type": ["array", "null"]}, {"type": ["array", "null"], "items": {}}),
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
        ({"type": ["int", "NULL", "integer"]}, {"type": ["integer", "null"]}),
        ({"type": ["string", "file"]}, {}),
        ({"type": None, "description": None, "enum": None, "default": None}, {"default": None}),
        ({**A, "required": True, "enum": []}, A),
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
