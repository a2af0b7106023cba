"""Results that do not fit the output schema of their tool."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from leaseway.data_plane.core.tools.structured import MAX_CHECKED, StructuredCheck

SCHEMA = {
    "type": "object",
    "properties": {
        "id": {"type": "integer"},
        "price": {"type": "number"},
        "made": {"type": "string", "format": "date-time"},
        "tags": {"type": "array", "items": {"properties": {"name": {"type": "string"}}}},
    },
    "required": ["id"],
}
TEXT = {"type": "text", "text": "one"}


def check(schema: object = SCHEMA) -> StructuredCheck:
    return StructuredCheck(json.dumps({"name": "get", "outputSchema": schema}).encode())


def fitted(result: dict[str, Any], schema: object = SCHEMA) -> tuple[dict[str, Any], str]:
    payload, why = check(schema).fitted(json.dumps(result).encode())
    return json.loads(payload), why


@pytest.mark.parametrize(
    "result",
    [
        {"content": [], "structuredContent": {"id": 1, "made": "2026-01-01T00:00:00Z"}},
        {"content": [TEXT], "structuredContent": {"id": 1, "other": None}, "_meta": {"a": 1}},
        {"resultType": "input_required", "inputRequests": {}},
        {"task": {"taskId": "1", "status": "working"}},
    ],
)
def test_what_fits_keeps_its_bytes(result: dict[str, Any]) -> None:
    payload = json.dumps(result, indent=1).encode()
    assert check().fitted(payload) == (payload, "")


def test_the_structured_content_of_an_error_is_checked_if_it_has_any() -> None:
    error = {"content": [TEXT], "structuredContent": {"error": "x"}, "isError": True}
    payload, why = check().fitted(json.dumps(error).encode(), is_error=True)
    assert json.loads(payload)["_meta"]["leaseway/unfit"] == why
    without = json.dumps({"content": [TEXT], "isError": True}).encode()
    assert check().fitted(without, is_error=True) == (without, "")


def test_nulls_of_optional_properties_are_left_out() -> None:
    given = {"id": 1, "price": None, "tags": [{"name": None, "other": None}]}
    result, why = fitted({"content": [TEXT], "structuredContent": given})
    assert (result["structuredContent"], why) == ({"id": 1, "tags": [{"other": None}]}, "")
    assert result["content"] == [TEXT]


@pytest.mark.parametrize("absent", [{}, {"structuredContent": None}])
def test_structured_content_is_taken_from_a_text_that_is_it(absent: dict[str, Any]) -> None:
    said = {"type": "text", "text": '{"id": 1}', "annotations": {"priority": 1}}
    result, why = fitted({"content": [said], **absent})
    assert (result, why) == ({"content": [said], "structuredContent": {"id": 1}}, "")


@pytest.mark.parametrize(
    ("result", "why"),
    [
        ({"content": [TEXT]}, "it has no structured content"),
        ({"content": [TEXT, {**TEXT, "text": '{"id": 1}'}]}, "it has no structured content"),
        ({"content": [], "structuredContent": [1]}, '$: the value is not of type "object"'),
        (
            {"content": [], "structuredContent": {"id": None}},
            '$.id: the value is not of type "integer"',
        ),
        (
            {"content": [], "structuredContent": {"id": 1, "made": "2026-01-01T00:00:00"}},
            '$.made: the value is not a "date-time"',
        ),
    ],
)
def test_what_does_not_fit_says_so_and_keeps_all_that_it_has(
    result: dict[str, Any], why: str
) -> None:
    assert fitted({**result, "_meta": {"a": 1}}) == (
        {**result, "_meta": {"a": 1, "leaseway/unfit": why}},
        why,
    )


def test_results_may_be_of_any_type_that_the_schema_has() -> None:
    assert fitted({"content": [], "structuredContent": None}, {"type": "null"})[1] == ""
    assert fitted({"content": [], "structuredContent": [1]}, {"type": "array"})[1] == ""
    assert fitted({"content": [{**TEXT, "text": "[1]"}]}, {"type": "array"})[1] == ""


@pytest.mark.parametrize("schema", [{"$ref": "https://example.com/a"}, {"type": 1}, 7])
def test_a_schema_that_cannot_be_used_says_nothing_of_results(schema: object) -> None:
    assert fitted({"content": [TEXT]}, schema) == ({"content": [TEXT]}, "")


@pytest.mark.parametrize(
    "structured",
    [b"[" * 500 + b"]" * 500, b'{"id": 1e999}', b'{"id": "%b"}' % (b"x" * MAX_CHECKED)],
)
def test_what_cannot_be_read_in_little_time_stays_as_it_is(structured: bytes) -> None:
    payload = b'{"content":[],"structuredContent":%b}' % structured
    assert check().fitted(payload) == (payload, "")


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda v: st.lists(v) | st.dictionaries(st.text(), v),
)


@given(st.dictionaries(st.sampled_from(["content", "structuredContent", "_meta", "x"]), JSON))
def test_no_result_loses_anything_but_nulls(result: dict[str, Any]) -> None:
    changed, why = fitted(result)
    for name in result.keys() - {"structuredContent", "_meta"}:
        assert changed[name] == result[name]
    if why:
        assert changed.get("structuredContent") == result.get("structuredContent")
