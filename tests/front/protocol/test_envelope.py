"""The envelope: every line is one message as JSON-RPC and MCP have them, or is refused."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from mcp_types.jsonrpc import (
    ErrorData,
    JSONRPCError,
    JSONRPCMessage,
    JSONRPCNotification,
    JSONRPCRequest,
    JSONRPCResponse,
)

from leaseway.front.protocol.envelope import (
    BATCH_VERSION,
    MODERN_MARK,
    Message,
    Notification,
    Refusal,
    RequestMessage,
    Response,
    is_batch,
    names_version,
    read_batch,
    read_message,
    refuse_long,
)
from leaseway.front.protocol.messages import refusal_message
from leaseway.wire.bounds import MAX_JSON_RPC_BATCH, MAX_VALUES

PLAIN = st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.text(max_size=8)
VALUES = PLAIN | st.lists(PLAIN, max_size=3) | st.dictionaries(st.text(max_size=8), PLAIN)
OBJECTS = st.dictionaries(st.text(max_size=8), VALUES, max_size=3)
IDS = st.integers(-(10**30), 10**30) | st.text()


def sent(message: JSONRPCMessage, indent: int | None) -> bytes:
    return message.model_dump_json(exclude_none=True, indent=indent).encode()


@given(IDS, st.text(), st.none() | OBJECTS, st.sampled_from([None, 1]))
def test_requests_and_notifications_of_the_official_package_are_read_as_sent(
    request_id: int | str, method: str, params: dict[str, Any] | None, indent: int | None
) -> None:
    request = JSONRPCRequest(jsonrpc="2.0", id=request_id, method=method, params=params)
    read = read_message(sent(request, indent))
    assert isinstance(read, RequestMessage)
    assert json.loads(read.id) == request_id
    notification = JSONRPCNotification(jsonrpc="2.0", method=method, params=params)
    told = read_message(sent(notification, indent))
    assert isinstance(told, Notification)
    for message in (read, told):
        assert message.method == method
        assert (json.loads(message.params) if message.params else None) == params


@given(IDS, OBJECTS, st.integers(-(2**31), 2**31), st.text(), st.sampled_from([None, 1]))
def test_responses_of_the_official_package_are_read_as_sent(
    request_id: int | str, result: dict[str, Any], code: int, text: str, indent: int | None
) -> None:
    read = read_message(sent(JSONRPCResponse(jsonrpc="2.0", id=request_id, result=result), indent))
    assert isinstance(read, Response)
    assert (json.loads(read.id), json.loads(read.result)) == (request_id, result)
    data = ErrorData(code=code, message=text, data=result)
    for answered in (request_id, None):
        error = JSONRPCError(jsonrpc="2.0", id=answered, error=data)
        read = read_message(sent(error, indent))
        assert isinstance(read, Response)
        assert (json.loads(read.id) if read.id else None) == answered
        assert json.loads(read.error)["message"] == text


MEMBERS = st.lists(
    st.tuples(
        st.sampled_from(["jsonrpc", "id", "method", "params", "result", "error", "more"]),
        st.sampled_from(
            ['"2.0"', "1", "1.5", '"a"', '"\\ud800"', "null", "{}", "[]", "true", "1e9"]
        )
        | VALUES.map(json.dumps),
    )
)
WRITTEN = MEMBERS.map(
    lambda members: b"{%b}" % ",".join(f'"{name}":{value}' for name, value in members).encode()
)
LINES = st.binary() | WRITTEN
BROKEN = st.tuples(WRITTEN, st.integers(0, 60), st.binary(max_size=2)).map(
    lambda parts: parts[0][: parts[1]] + parts[2] + parts[0][parts[1] :]
)


@given(LINES | BROKEN)
def test_whatever_arrives_is_one_message_or_is_refused_in_valid_json(line: bytes) -> None:
    check(read_message(line))
    if is_batch(line):
        batch = read_batch(line, BATCH_VERSION)
        for message in [batch] if isinstance(batch, Refusal) else batch:
            check(message)


def check(message: Message) -> None:
    """Check that a message can be handled, and that what is refused can be answered."""
    if not isinstance(message, Refusal):
        assert not isinstance(message, RequestMessage) or is_id(json.loads(message.id))
        return
    assert (message.code, message.status) in {(-32700, 400), (-32600, 400), (-32602, 400)}
    answer = json.loads(refusal_message(message))
    assert answer["error"].keys() == {"code", "message"}
    assert answer["id"] is None or is_id(answer["id"])


def is_id(value: object) -> bool:
    return isinstance(value, int | str) and not isinstance(value, bool)


@pytest.mark.parametrize(
    ("line", "code", "request_id"),
    [
        (b"{", -32700, b""),
        (b'{"jsonrpc":"2.0","id":1,"method":"x","more":1}more', -32700, b""),
        (b"[" * 100_000, -32700, b""),
        (b'{"jsonrpc":"2.0","id":1,"method":"\xff"}', -32700, b""),
        (b'{"jsonrpc":"2.0","id":"\xff","method":"ping"}', -32700, b""),
        (b'{"jsonrpc":"2.0","id":"\xff","method":"ping","params":{}}', -32700, b""),
        (b'{"jsonrpc":"2.0","id":1,"method":"x","params":{"a":"\xe9"}}', -32700, b""),
        (rb'{"jsonrpc":"2.0","id":"\ud800","method":"ping"}', -32700, b""),
        (rb'{"jsonrpc":"2.0","id":1,"method":"x","params":{"a":"\ud83d"}}', -32700, b"1"),
        (rb'{"method":"x","params":{"a":"\ude00"},"jsonrpc":"2.0","id":"b"}', -32700, b'"b"'),
        (b'{"jsonrpc":"2.0","id":1,"method":"x","params":{"a":NaN}}', -32700, b"1"),
        (b'{"jsonrpc":"2.0","id":1,"id":2,"method":"x","params":{"a":NaN}}', -32700, b""),
        (b"NaN", -32700, b""),
        (b"[]", -32600, b""),
        (b"7", -32600, b""),
        (b'{"jsonrpc":"2.0"}', -32600, b""),
        (b'{"jsonrpc":"2.0","id":1}', -32600, b"1"),
        (b'{"id":"a","method":"ping"}', -32600, b'"a"'),
        (b'{"jsonrpc":"1.0","id":"a","method":"ping"}', -32600, b'"a"'),
        (b'{"jsonrpc":2.0,"id":"a","method":"ping"}', -32600, b'"a"'),
        (b'{"jsonrpc":"2.0","id":1,"method":7}', -32600, b"1"),
        (b'{"jsonrpc":"2.0","id":1,"method":null,"params":{}}', -32600, b"1"),
        (b'{"jsonrpc":"2.0","id":1,"method":"ping","more":{}}', -32600, b"1"),
        (b'{"jsonrpc":"2.0","id":1,"method":"ping","params":[1]}', -32602, b"1"),
        (b'{"jsonrpc":"2.0","id":null,"method":"ping","params":null}', -32600, b""),
        (b'{"jsonrpc":"2.0","method":"notifications/initialized","params":7}', -32602, b""),
        (b'{"jsonrpc":"2.0","id":1,"method":"ping","result":{}}', -32600, b"1"),
        (b'{"jsonrpc":"2.0","id":1,"id":2,"method":"ping","params":{}}', -32600, b""),
        (rb'{"jsonrpc":"2.0","id":1,"\u0069d":1,"method":"ping","params":{}}', -32600, b""),
        (b'{"jsonrpc":"2.0","id":1,"method":"a","method":"b"}', -32600, b""),
        (b'{"jsonrpc":"2.0","id":"a","method":"b","params":{"c":1},"params":{}}', -32600, b""),
    ],
)
def test_what_is_no_message_is_refused_with_its_id_if_that_is_certain(
    line: bytes, code: int, request_id: bytes
) -> None:
    refused = read_message(line)
    assert isinstance(refused, Refusal)
    assert (refused.code, refused.id, refused.answers) == (code, request_id, b"")


@pytest.mark.parametrize("request_id", ["null", "true", "1.0", "1.5", "1e3", "[]", "{}", "-0.0"])
@pytest.mark.parametrize("params", ["", ',"params":{}'])
def test_the_id_of_a_request_is_a_string_or_an_integer(request_id: str, params: str) -> None:
    members = f'"id":{request_id},"method":"ping"{params}'.encode()
    refused = read_message(b'{"jsonrpc":"2.0",%b}' % members)
    assert isinstance(refused, Refusal)
    assert (refused.code, refused.id) == (-32600, b"")


@pytest.mark.parametrize(
    "members",
    [
        '"id":"s-1","result":{},"error":{"code":1,"message":"x"}',
        '"id":"s-1","result":7',
        '"id":"s-1","result":null',
        '"id":"s-1","method":null,"result":null,"error":null',
        '"id":"s-1","error":7',
        '"id":"s-1","error":{"code":1}',
        '"id":"s-1","error":{"code":1.5,"message":"x"}',
        '"id":"s-1","result":{},"params":{}',
    ],
)
def test_a_refused_response_names_what_it_was_to_answer_and_has_no_id(members: str) -> None:
    refused = read_message(b'{"jsonrpc":"2.0",%b}' % members.encode())
    assert isinstance(refused, Refusal)
    assert (refused.code, refused.id, refused.answers) == (-32600, b"", b'"s-1"')


@pytest.mark.parametrize("members", ['"result":{}', '"id":null,"result":{}', '"id":[],"error":{}'])
def test_a_response_without_an_id_of_a_request_is_refused(members: str) -> None:
    refused = read_message(b'{"jsonrpc":"2.0",%b}' % members.encode())
    assert isinstance(refused, Refusal)
    assert (refused.code, refused.answers) == (-32600, b"")


@pytest.mark.parametrize(
    ("members", "message"),
    [
        ('"id":1,"method":"a","params":null', RequestMessage(b"1", "a")),
        ('"method":"a","params":null,"error":null', Notification("a")),
        ('"id":null,"method":"notifications/a"', Notification("notifications/a")),
        (
            '"id":null,"method":"notifications/a","params":{"b":1}',
            Notification("notifications/a", b'{"b":1}'),
        ),
        (
            '"id":1,"method":"a","params":{"b":null},"result":null,"error":null',
            RequestMessage(b"1", "a", b'{"b":null}'),
        ),
        (
            '"id":1,"method":null,"params":null,"result":{},"error":null',
            Response(b"1", b"{}"),
        ),
        (
            '"id":1,"result":null,"error":{"code":1,"message":""}',
            Response(b"1", error=b'{"code":1,"message":""}'),
        ),
    ],
)
def test_a_member_that_is_null_is_missing(members: str, message: Message) -> None:
    assert read_message(b'{"jsonrpc":"2.0",%b}' % members.encode()) == message


@pytest.mark.parametrize("params", [b"", b',"params":{}'])
def test_a_byte_order_mark_is_no_part_of_a_message(params: bytes) -> None:
    line = b'{"jsonrpc":"2.0","id":1,"method":"ping"%b}' % params
    read = read_message(b"\xef\xbb\xbf" + line)
    assert isinstance(read, RequestMessage)
    assert (read.id, read.method) == (b"1", "ping")


def test_members_stand_in_any_order_with_escapes_and_quotes() -> None:
    line = rb'{ "params":{"a":"\"\\"}, "i\u0064": "\"7\"" ,"method":"a\"b","jsonrpc":"2\u002e0"}'
    read = read_message(line)
    assert read == RequestMessage(rb'"\"7\""', 'a"b', rb'{"a":"\"\\"}')


@pytest.mark.parametrize(
    ("params", "expected"),
    [
        (b'{"_meta":{"%b":"2026-07-28"}}' % MODERN_MARK, True),
        (b'{"_meta":{"%b":null}}' % MODERN_MARK, True),
        (b'{"_meta":{"%b":1}}' % MODERN_MARK.replace(b"/", rb"\/"), True),
        (rb'{"_met\u0061":{"%b":1}}' % MODERN_MARK.replace(b"i", rb"\u0069"), True),
        (b'{"arguments":{"query":"%b"}}' % MODERN_MARK, False),
        (b'{"arguments":{"_meta":{"%b":"2026-07-28"}}}' % MODERN_MARK, False),
        (b'{"_meta":{"key":"%b"}}' % MODERN_MARK, False),
        (b'{"_meta":"%b"}' % MODERN_MARK, False),
        (rb'{"arguments":{"text":"\n"}}', False),
        (b"{}", False),
    ],
)
def test_the_version_is_found_where_it_stands_however_it_is_written(
    params: bytes, expected: bool
) -> None:
    assert names_version(RequestMessage(b"1", "tools/call", params)) is expected


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        (b"[]", "1 to"),
        (b"[%b]" % b",".join([b"{}"] * (MAX_JSON_RPC_BATCH + 1)), "1 to"),
        (b"[%b]" % b",".join([b"[]"] * MAX_VALUES), "values"),
        (b'["\xff"]', "UTF-8"),
    ],
)
def test_a_batch_that_cannot_be_read_is_refused_as_a_whole(line: bytes, problem: str) -> None:
    refused = read_batch(line, BATCH_VERSION)
    assert isinstance(refused, Refusal)
    assert problem in refused.text


def test_an_answer_with_half_of_a_character_ends_its_request() -> None:
    refused = read_message(rb'{"jsonrpc":"2.0","id":"q1","result":{"text":"\ud83d"}}')
    assert isinstance(refused, Refusal)
    assert (refused.id, refused.answers) == (b"", b'"q1"')


@pytest.mark.parametrize(
    ("head", "tail", "request_id"),
    [
        (b'{"jsonrpc":"2.0","id":7,"method":"x","params":{"a":"', b'xx"}}', b"7"),
        (b'{"id": "a", "jsonrpc": "2.0", "method": "x", "params"', b'x"}}', b'"a"'),
        (b'{"method":"x","params":{"a":"', b'xx"},"jsonrpc":"2.0","id":7}', b"7"),
        (b'{"method":"x","params":{"a":"', b'xx"},"id":"b","jsonrpc":"2.0"}', b'"b"'),
        (b'{"method":"x","params":{"id":7,"a":"', b'xx"}}', b""),
        (b'{"method":"x","params":{"a":"', b'xx","id":7}}', b""),
        (b'{"jsonrpc":"2.0","id":7,"result":{"a":"', b'xx"}}', b""),
        (b'{"result":{"a":"', b'xx"},"jsonrpc":"2.0","id":7}', b""),
    ],
)
def test_a_long_message_is_refused_with_the_id_of_its_request(
    head: bytes, tail: bytes, request_id: bytes
) -> None:
    refused = refuse_long(head, tail, 100)
    assert (refused.id, refused.answers) == (request_id, b"")
    assert json.loads(refusal_message(refused))["error"]["message"].endswith("at most 100 bytes.")


@pytest.mark.parametrize("written", ["[]", "[ \n]"])
def test_an_empty_object_may_be_written_as_php_writes_it(written: str) -> None:
    request = f'{{"jsonrpc":"2.0","id":1,"method":"tools/list","params":{written}}}'
    assert read_message(request.encode()) == RequestMessage(b"1", "tools/list", b"{}")
    notification = f'{{"jsonrpc":"2.0","method":"notifications/initialized","params":{written}}}'
    assert read_message(notification.encode()) == Notification("notifications/initialized", b"{}")
    response = f'{{"jsonrpc":"2.0","id":"a","result":{written}}}'
    assert read_message(response.encode()) == Response(b'"a"', b"{}")
