"""Headers that repeat what a request says; the official package reads and writes them alike."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from mcp.shared import inbound

from leaseway.wire.clients.mcp_headers import (
    argument_headers,
    argument_mismatch,
    decode_value,
    encode_value,
    headers_of,
    request_mismatch,
)

NAMES = st.sampled_from(["a", "b"])
TYPES = st.sampled_from(["string", "integer", "boolean", "number", None, ["string"]])
TOKENS = st.sampled_from(["Region", "region", "Zone", "", "not a token", 5])
LEAVES = st.fixed_dictionaries({}, optional={"type": TYPES, "x-mcp-header": TOKENS})
PLACES = ("items", "not", "additionalProperties", "contentSchema", "default", "const", "x-other")
SCHEMAS = st.recursive(
    LEAVES,
    lambda inner: st.one_of(
        st.builds(lambda found: {"properties": found}, st.dictionaries(NAMES, inner)),
        st.builds(lambda place, found: {place: found}, st.sampled_from(PLACES), inner),
        st.builds(lambda found: {"anyOf": found}, st.lists(inner, max_size=2)),
        st.builds(lambda found: {"$defs": found}, st.dictionaries(NAMES, inner)),
    ),
    max_leaves=5,
)
VALUES = st.one_of(
    *(st.none(), st.booleans(), st.integers(-3, 3), st.sampled_from([10**5000, 2.0, 2.5, 1e300])),
    st.text(max_size=3),
    st.lists(st.none(), max_size=1),
)
ARGUMENTS = st.dictionaries(NAMES, VALUES | st.dictionaries(NAMES, VALUES))
HEADERS = ("Mcp-Param-Region", "Mcp-Param-Zone")
SENT = st.sampled_from(["2", "2.0", "2.5", "02", "true", "", "x", "=?base64?eA==?=", "=?base64??="])


def good(kind: str) -> dict[str, Any]:
    """Return a schema whose properties have headers."""
    deep = {"properties": {"b": {"type": kind, "x-mcp-header": "Zone"}}}
    return {"properties": {"a": {"type": kind, "x-mcp-header": "Region"}, "b": deep}}


GOOD = st.sampled_from(["string", "integer", "boolean"]).map(good)


@given(SCHEMAS)
def test_a_schema_is_wrong_if_the_official_package_finds_it_wrong(schema: dict[str, Any]) -> None:
    if inbound.find_invalid_x_mcp_header(schema) is None:
        names = {path: header.name for path, header in argument_headers(schema).items()}
        official = inbound.x_mcp_header_map(schema)
        assert names == {path: f"Mcp-Param-{token}" for path, token in official.items()}
    else:
        with pytest.raises(ValueError, match=r"x-mcp-header|same header"):
            argument_headers(schema)


@given(GOOD, ARGUMENTS)
def test_headers_of_arguments_are_those_of_the_official_package(
    schema: dict[str, Any], arguments: dict[str, Any]
) -> None:
    demanded = argument_headers(schema)
    headers = headers_of(demanded, arguments)
    official = inbound.mcp_param_headers(inbound.x_mcp_header_map(schema), arguments)
    assert headers == official
    assert argument_mismatch(demanded, arguments, headers) == ""


@given(GOOD, ARGUMENTS, st.dictionaries(st.sampled_from(HEADERS), SENT))
def test_headers_are_refused_that_the_official_package_refuses(
    schema: dict[str, Any], arguments: dict[str, Any], headers: dict[str, str]
) -> None:
    problem = argument_mismatch(argument_headers(schema), arguments, headers)
    official = inbound.validate_mcp_param_headers(schema, arguments, headers)
    assert bool(problem) == (official is not None)


@given(st.text(max_size=8) | st.from_regex(r"=\?base64\?[AQ=]{0,4}\?="))
def test_values_are_encoded_and_decoded_as_by_the_official_package(text: str) -> None:
    assert encode_value(text) == inbound.encode_header_value(text)
    assert decode_value(encode_value(text)) == text
    assert decode_value(text) == inbound.decode_header_value(text)


@pytest.mark.parametrize(
    ("headers", "wrong"),
    [
        ({"mcp-method": "tools/call", "mcp-name": "=?base64?dMOkdGln?="}, ""),
        ({"mcp-name": "tätig"}, "mcp-method"),
        ({"mcp-method": "tools/list", "mcp-name": "tätig"}, "mcp-method"),
        ({"mcp-method": "tools/call"}, "mcp-name"),
        ({"mcp-method": "tools/call", "mcp-name": "=?base64?dMOkdGln"}, "mcp-name"),
    ],
)
def test_a_call_repeats_its_method_and_its_name(headers: dict[str, str], wrong: str) -> None:
    problem = request_mismatch("tools/call", {"name": "tätig"}, headers)
    assert bool(problem) == bool(wrong)
    assert wrong in problem
