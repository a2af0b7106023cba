"""JSON-RPC as bytes."""

from __future__ import annotations

import json

import msgspec
import pytest

from leaseway.data_plane.core.calls.call import Callbacks, ToolRequest
from leaseway.data_plane.mcp.protocol.features.handshake import build_era
from leaseway.data_plane.mcp.protocol.messages.codec import (
    encode_call,
    encode_request,
    request_key,
)
from leaseway.data_plane.mcp.protocol.messages.era import LEGACY, params_head
from leaseway.data_plane.mcp.protocol.messages.pending import _mcp_error
from leaseway.data_plane.mcp.protocol.messages.reading import read


def request(arguments: bytes = b"{}", **more: object) -> ToolRequest:
    return ToolRequest("echo", params_head("echo"), arguments, **more)  # type: ignore[arg-type]


def test_a_legacy_call_is_minimal() -> None:
    assert encode_call(7, request(b'{"a":1}'), LEGACY) == (
        b'{"jsonrpc":"2.0","id":7,"method":"tools/call",'
        b'"params":{"name":"echo","arguments":{"a":1}}}\n'
    )


def test_a_call_merges_the_meta_of_era_caller_and_call() -> None:
    era = build_era("2026-07-28")
    call = request(
        meta={"traceparent": "00-x"},
        callbacks=Callbacks(on_progress=lambda *_: None, on_log=lambda *_: None),
    )
    meta = json.loads(encode_call(7, call, era))["params"]["_meta"]
    assert meta["io.modelcontextprotocol/protocolVersion"] == "2026-07-28"
    assert meta["io.modelcontextprotocol/logLevel"] == "info"
    assert (meta["traceparent"], meta["progressToken"]) == ("00-x", 7)


def test_a_tool_name_is_escaped() -> None:
    call = ToolRequest('a"\n', params_head('a"\n'), b"{}")
    line = encode_call(1, call, LEGACY)
    assert line.count(b"\n") == 1
    assert json.loads(line)["params"]["name"] == 'a"\n'


def test_numbers_in_reformatted_arguments_keep_their_spelling() -> None:
    line = encode_call(1, request(b'{\n"n": 1.0,\n"big": 12345678901234567890123}'), LEGACY)
    assert b'{"n":1.0,"big":12345678901234567890123}' in line


def test_a_request_without_params_has_none() -> None:
    assert encode_request(1, "tools/list", None) == (
        b'{"jsonrpc":"2.0","id":1,"method":"tools/list"}\n'
    )


def test_a_result_is_a_slice_of_its_line() -> None:
    result = b'{ "content":[],"n":1.0 , "isError" : true}'
    message = read(b'{"id":1,"jsonrpc":"2.0","result":' + result + b' ,"extra":0}')
    assert message.is_response
    assert bytes(message.result) == result


@pytest.mark.parametrize("line", [b"hello", b"[]", b'{"id":{}}', b'{"method":1}', b'{"a":'])
def test_an_invalid_message_raises(line: bytes) -> None:
    with pytest.raises(msgspec.DecodeError):
        read(line)


@pytest.mark.parametrize(
    ("sent", "key"), [(7, 7), ("7", 7), (7.0, 7), (7.5, None), ("listen-1", "listen-1")]
)
def test_ids_match_as_servers_spell_them(sent: float | str, key: object) -> None:
    assert request_key(sent) == key


def test_an_id_of_thousands_of_digits_is_a_string() -> None:
    assert request_key("9" * 5_000) == "9" * 5_000


def test_an_error_with_data_that_python_cannot_hold_is_still_an_error() -> None:
    huge = msgspec.Raw(b'{"code":7,"message":"m","data":' + b"9" * 5_000 + b"}")
    assert _mcp_error(huge).error.code == 7


@pytest.mark.parametrize(
    ("members", "is_error"),
    [
        ('"result":{},"error":null', False),  # as libraries of JSON-RPC 1 write it
        ('"result":{}', False),
        ('"result":null,"error":{"code":1,"message":"x"}', True),
        ('"error":null', True),
        ('"error":"x"', True),
    ],
)
def test_null_beside_a_result_is_no_error(members: str, is_error: bool) -> None:
    message = read(f'{{"jsonrpc":"2.0","id":1,{members}}}'.encode())
    assert message.is_response
    assert message.has_error is is_error
