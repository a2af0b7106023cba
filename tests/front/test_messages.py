"""JSON-RPC messages, whose relayed members stay unparsed."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from leaseway.front.messages import (
    CallParams,
    JsonRpcError,
    error_message,
    modern_client,
    object_params,
    parse_message,
    parse_params,
    read_cancellation,
    result_message,
)

PLAIN = st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.text(max_size=20)
VALUES = PLAIN | st.lists(PLAIN, max_size=4) | st.dictionaries(st.text(), PLAIN, max_size=4)


@given(st.text() | st.integers(-(2**53), 2**53), st.dictionaries(st.text(), VALUES, max_size=4))
def test_ids_and_arguments_are_relayed_unchanged(
    request_id: str | int, arguments: dict[str, Any]
) -> None:
    sent = {
        "id": request_id,
        "method": "tools/call",
        "params": {"name": "x", "arguments": arguments},
    }
    message = parse_message(json.dumps({"jsonrpc": "2.0", **sent}))
    assert json.loads(message.request_id) == request_id
    assert json.loads(parse_params(message, CallParams).arguments_json()) == arguments
    answer = json.loads(result_message(message.request_id, b'{"content":[]}'))
    assert answer == {"jsonrpc": "2.0", "id": request_id, "result": {"content": []}}


@pytest.mark.parametrize(
    ("line", "code"),
    [
        (b"{", -32700),
        (b"[]", -32600),
        (b'{"jsonrpc":"2.0","id":null,"method":"ping"}', -32600),
        (b'{"jsonrpc":"2.0","id":{},"method":"ping"}', -32600),
        (b'{"jsonrpc":"2.0","id":1,"method":7}', -32600),
        (b'{"jsonrpc":"2.0","id":1,"method":' + b"[" * 100_000, -32600),
        (b'{"jsonrpc":"2.0","id":1,"method":"\xff"}', -32700),
    ],
)
def test_an_invalid_message_is_rejected(line: bytes, code: int) -> None:
    with pytest.raises(JsonRpcError) as refused:
        parse_message(line)
    assert refused.value.code == code


@pytest.mark.parametrize("version", [b"", b'"jsonrpc":"1.0",', b'"jsonrpc":2.0,'])
def test_a_message_of_another_version_of_json_rpc_is_refused_with_its_id(version: bytes) -> None:
    with pytest.raises(JsonRpcError, match="jsonrpc") as refused:
        parse_message(b'{%b"id":"a","method":"ping"}' % version)
    assert (refused.value.code, refused.value.request_id) == (-32600, b'"a"')


@pytest.mark.parametrize("arguments", ["7", '"text"', "[]"])
def test_arguments_that_are_no_object_are_rejected(arguments: str) -> None:
    message = parse_message(
        '{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"x","arguments":'
        + arguments
        + "}}"
    )
    with pytest.raises(JsonRpcError, match="one JSON object"):
        parse_params(message, CallParams).arguments_json()


def test_params_of_the_wrong_shape_are_rejected() -> None:
    message = parse_message('{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":7}}')
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
    line = '{"jsonrpc":"2.0","method":"notifications/cancelled","params":' + params + "}"
    assert read_cancellation(parse_message(line)) == expected


@pytest.mark.parametrize("read", [lambda m: parse_params(m, CallParams), modern_client])
def test_params_of_too_many_values_are_refused_before_they_are_decoded(read: Any) -> None:
    many = {"_meta": {"a": [{}] * 60_000}, "name": "x"}
    message = parse_message(
        json.dumps({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": many})
    )
    with pytest.raises(JsonRpcError, match="100000 values"):
        read(message)
    assert object_params(message) is None
