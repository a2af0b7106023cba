"""A document that `parse` accepts is read alike by every part and every client."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from leaseway.wire.bounds import MAX_NESTING
from leaseway.wire.messages.portable_json import NotPortable, encode, parse

VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
)


@pytest.mark.parametrize(
    ("document", "cause"),
    [
        (b"caf\xe9", "is not JSON in UTF-8"),
        (b'"caf\xe9"', "is not JSON in UTF-8"),
        (b"[1,]", "is not JSON in UTF-8"),
        (b"[NaN]", "contains NaN"),
        (b"[-Infinity]", "contains -Infinity"),
        (b"[1e999]", "beyond the range of a double"),
        (b"[-%b]" % (b"9" * 309), "beyond the range of a double"),
        (b"[%b]" % (b"9" * 4301), "beyond the range of a double"),
        (rb'["\ud83d"]', "half of a surrogate pair"),
        (rb'{"\ude00":1}', "half of a surrogate pair"),
        (b"[" * (MAX_NESTING + 1) + b"]" * (MAX_NESTING + 1), "is nested more than 128 levels"),
        (b"[" * 100_000, "is nested more than 128 levels"),
    ],
)
def test_what_some_parser_rejects_is_not_portable(document: bytes, cause: str) -> None:
    with pytest.raises(NotPortable, match=cause):
        parse(document)


def test_a_document_at_the_limits_is_portable() -> None:
    nested = b"[" * MAX_NESTING + b"]" * MAX_NESTING
    assert json.dumps(parse(nested)).encode() == nested
    assert parse(b"[%b,1.7e308]" % (b"9" * 308)) == [10**308 - 1, 1.7e308]


@given(VALUES)
def test_what_is_encoded_is_portable(value: object) -> None:
    assert parse(encode(value)) == value


def test_halves_of_pairs_are_replaced_when_encoding() -> None:
    assert encode({"\ud83d": "a\ude00"}) == '{"\ufffd":"a\ufffd"}'.encode()
