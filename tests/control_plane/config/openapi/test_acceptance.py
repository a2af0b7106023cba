"""A converted schema accepts what the document's schema accepts, whatever is lost of it."""

from __future__ import annotations

from typing import Any

import jsonschema_rs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from leaseway.control_plane.config.openapi.objects import Objects
from leaseway.control_plane.config.openapi.references import References
from leaseway.control_plane.config.openapi.schemas import SchemaReader


def read(schema: Any, **schemas: Any) -> dict[str, Any]:
    references = References({"components": {"schemas": schemas}}, lenient=True)
    return SchemaReader(references, Objects(references)).read(schema)


LOOSE = [
    {"type": "string", "pattern": "/^admin/i"},
    {"allOf": [{"required": ["a"]}, {"required": ["b"]}]},
    {"oneOf": [{"type": "object"}, {"minProperties": 1}]},
    {"type": "object", "if": {"required": ["a"]}, "then": {"required": ["b"]}},
    {"properties": {"a": {"type": "string", "minLength": "one"}}, "required": ["a"]},
    {"properties": {"a": {"items": False}}, "required": ["a"]},
    {"type": "object", "additionalProperties": {"$ref": "#/components/schemas/Tree"}},
    {"not": {"not": {"type": "string", "pattern": "/^admin/i"}}},
]


@pytest.mark.parametrize("schema", LOOSE)
def test_what_a_document_allows_is_not_forbidden_by_a_part_that_is_read_in_part(
    schema: dict[str, Any],
) -> None:
    tree = {"type": "object", "properties": {"inner": {"$ref": "#/components/schemas/Tree"}}}
    assert "not" not in read({"not": schema}, Tree=tree)


@pytest.mark.parametrize(
    "schema",
    [
        {"enum": ["admin", "root"]},
        {"type": "string", "pattern": "/^admin/", "description": "No administrators."},
        {"properties": {"a": {"$ref": "#/components/schemas/Leaf"}}, "required": ["a"]},
        {"anyOf": [{"type": "string", "minLength": 1}, {"type": "null"}]},
    ],
)
def test_what_a_document_forbids_stays_forbidden(schema: dict[str, Any]) -> None:
    assert "not" in read({"not": schema}, Leaf={"type": "string", "x-order": 1})


_NAMES = st.sampled_from(["a", "b"])
_VALUES: st.SearchStrategy[Any] = st.recursive(
    st.sampled_from([None, True, 1, "", "a", "ab"]),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(_NAMES, inner, max_size=2),
    max_leaves=4,
)
_KEYWORDS: dict[str, st.SearchStrategy[Any]] = {
    "type": st.sampled_from(["string", "object", "array", "integer", ["null", "string"]]),
    "enum": st.lists(_VALUES, min_size=1, max_size=2),
    "pattern": st.sampled_from(["^a", "b$"]),
    "minLength": st.just(1),
    "required": st.lists(_NAMES, min_size=1, max_size=2, unique=True),
}


def _schemas(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[str, Any]]:
    parts, named = st.lists(inner, min_size=1, max_size=2), st.dictionaries(_NAMES, inner)
    lists = dict.fromkeys(("allOf", "anyOf", "oneOf"), parts)
    ones = dict.fromkeys(("not", "not", "items", "additionalProperties", "if", "then"), inner)
    patterns = st.dictionaries(st.sampled_from(["^a", "/^a/i"]), inner, max_size=1)
    maps = {"properties": named, "patternProperties": patterns}
    return st.fixed_dictionaries({}, optional={**_KEYWORDS, **lists, **ones, **maps})


@given(st.recursive(st.booleans(), _schemas, max_leaves=6), st.lists(_VALUES, max_size=8))
def test_what_a_schema_accepts_is_accepted_by_the_one_that_is_made_of_it(
    schema: Any, values: list[Any]
) -> None:
    original = jsonschema_rs.Draft202012Validator(schema)
    made = jsonschema_rs.Draft202012Validator(read(schema))
    for value in filter(original.is_valid, values):
        assert made.is_valid(value)
