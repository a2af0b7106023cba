"""What servers take for JSON is read alike by everything behind the reader."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from leaseway.data_plane.mcp.protocol.messages.reading import (
    MAX_DEPTH,
    _decode,
    _glance,
    has_endless_integer,
    read,
    read_body,
    read_repaired,
    repair,
)
from leaseway.data_plane.mcp.protocol.messages.results import SeenResponse

ESCAPES = st.sampled_from(
    [
        r"\ud83d",
        r"\ude00",
        r"\uD83D",
        r"\uDE00",
        r"\\",
        r"\n",
        r"\"",
        r"\u00e9",
        r"\ud55c",
        "u",
        "d",
    ]
)
HALVES = re.compile("[\ud800-\udfff]")
VALUES = st.recursive(
    st.one_of(st.none(), st.floats(), st.text(), st.integers()),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
)


@given(st.lists(ESCAPES, max_size=12))
def test_exactly_the_halves_of_pairs_are_replaced(escapes: Sequence[str]) -> None:
    data = f'{{"a":"{"".join(escapes)}"}}'.encode()
    sent, repaired = json.loads(data)["a"], json.loads(repair(data).data)["a"]
    assert repaired == HALVES.sub("\ufffd", sent)


@given(VALUES)
def test_numbers_that_json_lacks_become_null_and_texts_stay(value: object) -> None:
    data = json.dumps(value).encode()
    expected = json.loads(data, parse_constant=lambda _name: None)
    assert json.loads(repair(data).data) == expected


def test_control_characters_in_strings_are_escaped() -> None:
    [message] = read_repaired(b'{"id":1,\r\n\t"result":{"a":"x\x00\ty\n"}}')
    assert json.loads(bytes(message.result)) == {"a": "x\0\ty\n"}


@pytest.mark.parametrize("mark", [b"\xef\xbb\xbf", b""])
def test_bytes_that_are_not_utf8_become_replacement_characters(mark: bytes) -> None:
    data = mark + b'{"id":1,"result":{"caf\xe9":"\xc3\xa9\xed\xa0\xbd"}}'
    message = read_repaired(data)[0] if mark else read(data)
    assert json.loads(bytes(message.result)) == {"caf\ufffd": "é\ufffd\ufffd\ufffd"}


@pytest.mark.parametrize("levels", [MAX_DEPTH - 2, MAX_DEPTH, 995, 100_000])
def test_what_is_nested_too_deeply_becomes_null_and_its_neighbours_stay(levels: int) -> None:
    nested = b"[" * levels + b'"]",1' + b"]" * levels
    [message] = read_repaired(b'{"id":7,"result":{"a":"x[","b":' + nested + b',"c":{"[":2}}}')
    assert message.id == 7
    result = json.loads(bytes(message.result))
    assert (result["a"], result["c"]) == ("x[", {"[": 2})
    assert message.was_cut is (levels > MAX_DEPTH - 2)


def test_a_batch_is_repaired_like_a_message() -> None:
    assert [message.id for message in read_body(b' [{"id":1},{"id":2}]')] == [1, 2]
    first, second = read_repaired(b'[{"id":1,"result":NaN},{"id":2,"result":[-Infinity]}]')
    assert (bytes(first.result), bytes(second.result)) == (b"null", b"[null]")


@pytest.mark.parametrize(
    ("document", "is_endless"),
    [
        (b'{"a":%b}' % (b"1" * 4301), True),
        (b'{"a":"x","b":[-%b]}' % (b"7" * 6000), True),
        (b'{"a":%b}' % (b"1" * 4300), False),
        (b'{"a":0.%b}' % (b"1" * 9000), False),
        (b'{"a":"%b"}' % (b"1" * 9000), False),
        (b'{"a":"\\", %b ,"}' % (b"1" * 9000), False),
    ],
)
def test_integers_that_few_parsers_read_are_found(document: bytes, is_endless: bool) -> None:
    assert has_endless_integer(document) is is_endless


@pytest.mark.parametrize(
    "data",
    [
        b'"\\' * 100_000,
        b'\\"' * 100_000,
        b'"' + b"\\" * 200_000,
        b'"' + b"\\\\" * 100_000 + b"\\ud83d",
        b"[" * 200_000,
        b"NaN" * 60_000,
    ],
)
def test_repairing_takes_linear_time(data: bytes) -> None:
    started = time.process_time()
    repair(data)
    short = time.process_time() - started
    started = time.process_time()
    repair(data * 4)
    assert time.process_time() - started < 16 * short + 0.5


LARGE = "x" * 10_000
FRAGMENTS = st.lists(
    st.sampled_from(
        [
            *("{", "}", "}", ",", ",", ":", " ", "\n", "[", "]", "1", "01", '"', '"a":"}"', "null"),
            *('"id":7', '"id" : 7', '"id":"7"', '"id":07', '"jsonrpc":"2.0"', '"method":"m"'),
            *('"result":{}', '"result": {"isError":true} ', '"result":{"a":', '"result":[]'),
        ]
    ),
    max_size=9,
)


@given(
    st.sampled_from(["", "{", '{"id":7,', '{"jsonrpc":"2.0","result":{"content":[]}']), FRAGMENTS
)
def test_a_glance_reads_nothing_that_the_decoder_reads_otherwise(
    start: str, fragments: Sequence[str]
) -> None:
    data = (start + "".join(fragments)).encode()
    seen = _glance(data)
    if seen is not None:
        message = _decode(data)
        assert (seen.id, bytes(seen.result)) == (message.id, bytes(message.result))
        assert seen.method is None


@pytest.mark.parametrize(
    "message",
    [
        '{"jsonrpc":"2.0","id":7,"result":%s}',
        '{"jsonrpc": "2.0", "id": 7, "result": %s}\r',
        '{"id":7,"jsonrpc":"2.0","result":%s}',
        '{"id":7,"result":%s}',
        '{"result":%s,"jsonrpc":"2.0","id":7}',
        '{"jsonrpc":"2.0","result":%s,"id":7}',
        '{"result":%s, "id": 7 }',
    ],
)
def test_a_large_result_is_passed_once_however_its_server_orders_a_response(message: str) -> None:
    result = json.dumps({"content": [{"type": "text", "text": LARGE}], "isError": True})
    seen = read((message % result).encode())
    assert isinstance(seen, SeenResponse)
    assert (seen.id, bytes(seen.result).decode()) == (7, result)
    assert seen.look.isError
    assert not seen.look.has_media


MEDIA = {"data": LARGE, "mimeType": "x/y"}


@pytest.mark.parametrize(
    "result",
    [
        {"content": [{"type": "text", "text": ""}, MEDIA | {"type": "image"}]},
        {"content": [MEDIA | {r"ty\u0070e": "audio"}]},
        {"messages": [{"role": "user", "content": MEDIA | {"type": "image"}}]},
    ],
)
def test_a_glance_sees_images_and_sounds(result: object) -> None:
    text = json.dumps(result).replace(r"\\", "\\")  # a name in escapes
    seen = read(b'{"jsonrpc":"2.0","id":7,"result":%b}' % text.encode())
    assert isinstance(seen, SeenResponse)
    assert seen.look.has_media


@pytest.mark.parametrize(
    "message",
    [
        '{"id":7,"result":{"content":["%s"]}}',
        '{"id":7,"result":{"isError":1,"a":"%s"}}',
        '{"id":"7","result":{"a":"%s"}}',
        '{"id":7,"result":{"a":"%s"},"id":8}',
        '{"id":7,"result":{"a":"%s"},"error":null}',
        '{"id":7,"error":{"message":"%s"}}',
        '{"id":7,"method":"m","params":{"a":"%s"}}',
    ],
)
def test_other_large_messages_are_decoded_as_a_whole(message: str) -> None:
    data = (message % LARGE).encode()
    assert type(read(data)) is type(_decode(data))
    assert read(data) == _decode(data)
