"""What messages contain; relayed members stay unparsed."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from leaseway.front.protocol.envelope import Notification, RequestMessage
from leaseway.front.protocol.messages import (
    CallParams,
    JsonRpcError,
    PromptParams,
    error_message,
    modern_client,
    object_params,
    parse_params,
    read_cancellation,
)

PLAIN = st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.text(max_size=20)
VALUES = PLAIN | st.lists(PLAIN, max_size=4) | st.dictionaries(st.text(), PLAIN, max_size=4)


@given(st.dictionaries(st.text(), VALUES, max_size=4))
def test_arguments_are_relayed_unchanged(arguments: dict[str, Any]) -> None:
    message = call({"name": "x", "arguments": arguments})
    assert json.loads(parse_params(message, CallParams).arguments_json()) == arguments


def call(params: Any) -> RequestMessage:
    """Return a call of a tool."""
    return RequestMessage(b"1", "tools/call", json.dumps(params).encode())


@pytest.mark.parametrize(("text", "arguments"), [("", {}), ('{"a": [1]}', {"a": [1]})])
def test_arguments_that_are_a_text_with_an_object_are_read(
    text: str, arguments: dict[str, Any]
) -> None:
    message = call({"name": "x", "arguments": text})
    assert json.loads(parse_params(message, CallParams).arguments_json()) == arguments


def test_arguments_in_a_text_are_relayed_unread() -> None:
    """Their values are not bounded here: built, they would hold up the event loop."""
    params = parse_params(call({"name": "x", "arguments": ' {"a": [1E2, 0]} '}), CallParams)
    assert params.arguments_json() == b'{"a": [1E2, 0]}'


@pytest.mark.parametrize("arguments", ["7", '"text"', "[1]", '"[1]"', '"{"', '"{\\"a\\": NaN}"'])
def test_arguments_that_are_no_object_are_rejected(arguments: str) -> None:
    message = call({"name": "x", "arguments": json.loads(arguments)})
    with pytest.raises(JsonRpcError, match="one JSON object"):
        parse_params(message, CallParams).arguments_json()


@pytest.mark.parametrize("kind", [CallParams, PromptParams])
def test_members_that_are_objects_may_be_written_as_php_writes_empty_ones(
    kind: type[CallParams | PromptParams],
) -> None:
    params = parse_params(call({"name": "x", "arguments": [], "_meta": []}), kind)
    assert params.meta == {}
    read = params.arguments if isinstance(params, PromptParams) else params.arguments_json()
    assert read in ({}, b"{}")


def test_what_stands_beside_an_empty_object_of_php_is_relayed_unchanged() -> None:
    sent = (
        b'{"name":"x","_meta":[],"arguments":{"a":[],"b":123456789012345678901234567890,"c":1.0}}'
    )
    params = parse_params(RequestMessage(b"1", "tools/call", sent), CallParams)
    assert params.arguments_json() == b'{"a":[],"b":123456789012345678901234567890,"c":1.0}'


@pytest.mark.parametrize("params", [{"_meta": [1], "name": "x"}, {"_meta": [], "name": []}])
def test_lists_in_place_of_other_values_are_rejected(params: dict[str, Any]) -> None:
    with pytest.raises(JsonRpcError, match="tools/call are wrong"):
        parse_params(call(params), CallParams)


def test_params_of_the_wrong_shape_are_rejected() -> None:
    message = call({"name": 7})
    with pytest.raises(JsonRpcError, match=r"tools/call are wrong.*name"):
        parse_params(message, CallParams)


def test_an_error_without_an_id_has_a_null_id_and_for_modern_clients_none() -> None:
    assert "id" not in json.loads(error_message(b"", JsonRpcError(-32700, "x"), modern=True))
    error = json.loads(error_message(b"", JsonRpcError(-32700, "no JSON", {"a": 1})))
    assert error["id"] is None
    assert error["error"] == {"code": -32700, "message": "no JSON", "data": {"a": 1}}


@pytest.mark.parametrize(
    ("params", "expected"),
    [
        ('{"requestId":"a-1"}', (b'"a-1"', "")),
        ('{"requestId":7,"reason":"bored"}', (b"7", "bored")),
        ('{"requestId":7,"reason":"%s"}' % ("x" * 300), (b"7", "x" * 256)),
        ('{"requestId":7,"reason":7}', (b"", "")),
        ("{}", (b"", "")),
        ("[]", (b"", "")),
    ],
)
def test_a_cancellation_has_the_id_as_json_and_a_bounded_reason(
    params: str, expected: tuple[bytes, str]
) -> None:
    message = Notification("notifications/cancelled", params.encode())
    assert read_cancellation(message) == expected


@pytest.mark.parametrize("read", [lambda m: parse_params(m, CallParams), modern_client])
def test_params_of_too_many_values_are_refused_before_they_are_decoded(read: Any) -> None:
    many = {"_meta": {"a": [{}] * 60_000}, "name": "x"}
    message = call(many)
    with pytest.raises(JsonRpcError, match="100000 values"):
        read(message)
    assert object_params(message) is None
