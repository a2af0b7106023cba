"""Which names look like those of credentials, and the forms in which a secret is hidden."""

from __future__ import annotations

import base64
import html
import json
from collections.abc import Callable
from urllib.parse import quote, quote_plus

import pytest
from hypothesis import given
from hypothesis import strategies as st

from leaseway.wire.secrets.redaction import hide, redact
from leaseway.wire.secrets.secret_names import holds_secret, secret_forms
from leaseway.wire.secrets.secret_shapes import BYTE_MARKS, may_hold_secret

_SECRETS = st.text(min_size=8, max_size=40).filter(lambda text: len(text.strip()) == len(text))


@pytest.mark.parametrize(
    "encode",
    [str, json.dumps, repr, html.escape, quote, quote_plus, lambda text: quote(text, safe="")],
)
@given(secret=_SECRETS.filter(lambda text: not (text.isalpha() or text.isdecimal())))
def test_a_secret_is_hidden_in_each_encoding(encode: Callable[[str], str], secret: str) -> None:
    kept = hide(secret_forms([secret]))
    said = encode(secret.encode(errors="replace").decode())
    assert secret not in redact(f"bad value {said} given")
    assert said not in redact(f"bad value {said} given") or said == secret == "[redacted]"
    del kept


def test_a_secret_is_hidden_in_base64_with_whatever_follows_it() -> None:
    kept = hide(secret_forms(["s3cret-value-9d1c"]))
    encoded = base64.b64encode(b"s3cret-value-9d1c and more").decode()
    assert "[redacted]" in redact(encoded)
    del kept


@pytest.mark.parametrize(
    ("value", "part"),
    [
        ("Bearer tok-12345", "tok-12345"),
        ("postgres://user:pa%40ss-1@host/db", "pa@ss-1"),
        ("postgres://user:pa%40ss-1@host/db", "pa%40ss-1"),
        ("first line\n  second line  \n", "second line"),
    ],
)
def test_what_is_secret_inside_of_a_value_is_hidden_alone(value: str, part: str) -> None:
    assert part in secret_forms([value])


@pytest.mark.parametrize(
    ("name", "text", "secret"),
    [
        ("HOME", "/home/somebody", False),
        ("DB_HOST", "db.internal", False),
        ("DATA_DIR", "/srv/data", False),
        ("MODE", "slow", False),
        ("DATABASE_URL", "postgres://u:p@h/d", True),
        ("AUTH_PATH", "/a", True),
        ("IMPORT", "something", True),
    ],
)
def test_a_variable_is_secret_by_its_name_or_by_default(name: str, text: str, secret: bool) -> None:
    assert holds_secret(name, text) is secret


@given(
    st.lists(
        st.sampled_from([*BYTE_MARKS, b"a", b"-", b"_", b" ", b"gh", b"KEY", b"se", b"tok"]),
        max_size=6,
    ),
    st.integers(0, 3),
)
def test_what_is_worth_a_closer_look_has_a_mark_and_all_else_has_none(
    pieces: list[bytes], cut: int
) -> None:
    text = b"".join(pieces)[cut:]
    assert may_hold_secret(text) == any(mark in text.lower() for mark in BYTE_MARKS)
