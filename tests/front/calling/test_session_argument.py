"""The argument for the session: which schemas admit it, and how calls and results carry it."""

from __future__ import annotations

import json
from typing import Any

import pytest
from jsonschema_rs import Draft202012Validator, meta

from leaseway.front.calling.session_argument import (
    InvalidSessionArgument,
    announce,
    has_argument,
    take_argument,
    with_argument,
    with_output,
)

TEXT = {"type": "string"}
CLOSED = {"type": "object", "properties": {"a": TEXT}, "additionalProperties": False}
ENTRY = {"type": "object", "properties": {"b": TEXT}, "required": ["b"]}
EXTENDABLE: dict[str, dict[str, Any]] = {
    "no properties": {"type": "object"},
    "open": {"type": "object", "properties": {"a": TEXT}},
    "closed": CLOSED,
    "closed to none": {"type": "object", "additionalProperties": False},
    "typed others": {"type": "object", "additionalProperties": {"type": "integer"}},
    "unevaluated": {"type": "object", "allOf": [ENTRY], "unevaluatedProperties": False},
    "reference": {"type": "object", "$ref": "#/$defs/Closed", "$defs": {"Closed": CLOSED}},
    "references": {
        "type": "object",
        "allOf": [{"$ref": "#/$defs/Closed"}, {"$ref": "#/$defs/Open"}],
        "$defs": {"Closed": {"$ref": "#/$defs/Inner"}, "Inner": CLOSED, "Open": {}},
    },
    "one of closed": {
        "type": "object",
        "oneOf": [CLOSED | {"required": ["a"]}, ENTRY | {"additionalProperties": False}],
    },
    "any of closed": {"type": "object", "anyOf": [CLOSED, False]},
    "branches": {"type": "object", "if": CLOSED, "then": CLOSED, "else": ENTRY},
    "dependent": {
        "type": "object",
        "properties": {"a": TEXT},
        "dependentSchemas": {"a": CLOSED},
        "dependentRequired": {"b": ["a"]},
    },
    "names": {"type": "object", "propertyNames": {"pattern": "^[ab]$"}, "maxProperties": 1},
    "patterns": {
        "type": "object",
        "patternProperties": {"^[ab]$": TEXT},
        "additionalProperties": False,
    },
    "nested": {"type": "object", "properties": {"a": {"properties": {"session": TEXT}}}},
    "at least one": {"type": "object", "minProperties": 1},
    "exactly one": {"type": "object", "minProperties": 1, "maxProperties": 1.0},
    "none": {"maxProperties": 0},
    "not empty": {"type": "object", "not": {"maxProperties": 0}},
    "not many": {"not": {"minProperties": 2, "properties": {"a": TEXT}}},
    "not closed": {"type": "object", "not": CLOSED},
    "not names": {"type": "object", "not": {"propertyNames": {"enum": ["a"]}, "minProperties": 1}},
    "if few": {"if": {"maxProperties": 1}, "then": {"required": ["a"]}, "minProperties": 1},
    "one of counts": {"oneOf": [{"maxProperties": 1}, {"minProperties": 1}]},
    "counts behind a reference": {"$ref": "#/$defs/A", "$defs": {"A": {"minProperties": 1}}},
}
CALLS: tuple[dict[str, Any], ...] = (
    {},
    {"a": "x"},
    {"b": "x"},
    {"a": 1},
    {"b": 1},
    {"c": "x"},
    {"a": "x", "b": "x"},
    {"a": "x", "c": "x"},
)


@pytest.mark.parametrize("schema", EXTENDABLE.values(), ids=EXTENDABLE)
def test_the_session_may_be_passed_and_changes_no_other_call(schema: dict[str, Any]) -> None:
    before = json.dumps(schema)
    extended = with_argument(schema, "session")
    assert extended is not None
    changed, name = extended
    assert name == "session"
    assert json.dumps(schema) == before
    assert changed["properties"]["session"]["type"] == "string"
    assert meta.is_valid(changed)
    plain, extending = Draft202012Validator(schema), Draft202012Validator(changed)
    assert any(map(plain.is_valid, CALLS))
    for call in CALLS:
        assert extending.is_valid(call) == plain.is_valid(call), call
        assert extending.is_valid({**call, "session": "s"}) == plain.is_valid(call), call


TAKEN: dict[str, dict[str, Any]] = {
    "own": {"properties": {"session": TEXT}},
    "required": {"required": ["session"]},
    "behind a reference": {"$ref": "#/$defs/A", "$defs": {"A": {"properties": {"session": {}}}}},
    "in a branch": {"oneOf": [{"properties": {"session": TEXT}}, {"properties": {"a": TEXT}}]},
    "dependent": {"dependentRequired": {"a": ["session"]}},
    "pattern": {"patternProperties": {"^sess": TEXT}},
    "excluded": {"not": {"required": ["session"]}},
    "excluded with others": {"allOf": [{"not": {"anyOf": [{"required": ["a", "session"]}]}}]},
}


@pytest.mark.parametrize("schema", TAKEN.values(), ids=TAKEN)
def test_a_name_that_the_tool_has_is_never_used(schema: dict[str, Any]) -> None:
    extended = with_argument({"type": "object", **schema}, "session")
    assert extended is not None
    assert extended[1] == "leaseway_session"


CYCLE = {"A": {"allOf": [{"$ref": "#/$defs/A"}], "additionalProperties": False}}
CLOSED_TO_ALL: dict[str, dict[str, Any]] = {
    "values": {"enum": [{}, {"a": "x"}]},
    "constant": {"allOf": [{"const": {}}]},
    "any pattern": {"patternProperties": {".*": TEXT}},
    "a pattern that takes long": {"patternProperties": {"^(.*)*(.*)*$": TEXT}},
    "no pattern": {"patternProperties": {"(": TEXT}},
    "elsewhere": {"$ref": "https://example.com/schema.json"},
    "nowhere": {"$ref": "#/$defs/none"},
    "itself": {"$ref": "#/$defs/A", "$defs": CYCLE},
    "dynamic": {"$dynamicRef": "#a"},
    "wide": {"anyOf": [CLOSED] * 300},
    "wrong": {"properties": []},
    "half": {"maxProperties": 1.5},
    "infinite": {"maxProperties": float("inf")},
    "a text": {"minProperties": "1"},
}


@pytest.mark.parametrize("schema", CLOSED_TO_ALL.values(), ids=CLOSED_TO_ALL)
def test_a_schema_that_may_not_admit_it_stays_as_it_is(schema: dict[str, Any]) -> None:
    assert with_argument({"type": "object", **schema}, "session") is None


def test_an_output_schema_admits_the_session_if_it_describes_an_object() -> None:
    extended = with_output(CLOSED, "session")
    assert extended is not None
    assert Draft202012Validator(extended).is_valid({"a": "x", "session": "s"})
    assert with_output({"type": "array"}, "session") is None
    assert with_output({"properties": {"session": TEXT}, "type": "object"}, "session") is None


@pytest.mark.parametrize(
    ("arguments", "rest", "session"),
    [
        (b'{"a":1}', b'{"a":1}', ""),
        (b'{"session":"s","a":{"session":"t"}}', b'{"a":{"session":"t"}}', "s"),
        (b'{"a":{"session":"t"}}', b'{"a":{"session":"t"}}', ""),
        (rb'{"a":1,"\u0073ession":"s"}', b'{"a":1}', "s"),
        (b'{"session":null}', b"{}", ""),
        (b'{"session":""}', b"{}", ""),
        (b'{"session":"s","session":"t"}', b"{}", "t"),
        (b'{"session":', b'{"session":', ""),
    ],
)
def test_the_session_is_taken_off_the_arguments(
    arguments: bytes, rest: bytes, session: str
) -> None:
    assert take_argument(arguments, "session") == (rest, session)


@pytest.mark.parametrize(
    ("arguments", "is_there"),
    [
        (rb'{"\u0073ession":"s"}', True),
        (rb'{"leaseway_session":"a\nb"}', True),
        (rb'{"text":"a\nb \"session\":1"}', False),
        (rb'{"a":{"session":"\n"}}', False),
        (rb'{"text":"\n"', True),
    ],
)
def test_only_a_member_of_its_name_may_be_the_session(arguments: bytes, is_there: bool) -> None:
    assert has_argument(arguments, "session") == is_there


@pytest.mark.parametrize("value", [b"7", b"[]", b"true", b"{}"])
def test_a_session_that_is_no_string_is_refused(value: bytes) -> None:
    with pytest.raises(InvalidSessionArgument, match="session must be"):
        take_argument(b'{"session":%b}' % value, "session")


def test_a_result_says_its_session_in_text_meta_and_structured_content() -> None:
    payload = b'{"content":[],"structuredContent":{"a":1},"_meta":{"x":1}}'
    result = json.loads(announce(payload, "s1", "session", is_structured=True))
    assert result["structuredContent"] == {"a": 1, "session": "s1"}
    assert result["_meta"] == {"x": 1, "leaseway/session": "s1"}
    (text,) = result["content"]
    assert text["text"].startswith("\nSession: s1\n")
    assert (
        "session"
        not in json.loads(announce(payload, "s", "session", is_structured=False))[
            "structuredContent"
        ]
    )


@pytest.mark.parametrize(
    "structured", [b"7", b"[1]", b"null", b'{"session":"its own"}'], ids=bytes.decode
)
def test_other_structured_content_stays_as_it_is(structured: bytes) -> None:
    payload = b'{"content":[],"structuredContent":%b}' % structured
    result = json.loads(announce(payload, "s1", "session", is_structured=True))
    assert result["structuredContent"] == json.loads(structured)


@pytest.mark.parametrize("payload", [b'{"resultType":"input_required"}', b'{"content":7}', b"[]"])
def test_a_result_that_is_not_complete_or_wrong_says_nothing(payload: bytes) -> None:
    assert announce(payload, "s1", "session", is_structured=True) == payload
