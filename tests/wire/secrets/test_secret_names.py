"""Which names look like those of credentials, and the forms in which a secret is hidden."""

from __future__ import annotations

import base64
import html
import json
import re
from collections.abc import Callable
from urllib.parse import quote, quote_plus

import pytest
from hypothesis import given
from hypothesis import strategies as st

from leaseway.wire.secrets.redaction import hide, redact
from leaseway.wire.secrets.secret_names import is_secret_variable, secret_forms

_SECRETS = st.text(min_size=8, max_size=40).filter(lambda text: len(text.strip()) == len(text))


def _is_hidden(text: str) -> bool:
    """Return whether a text is hidden, and is not part of the replacement."""
    return not (text.isalpha() or text.isdecimal() or text in "[redacted]")


def _numbered(characters: str, form: str) -> Callable[[str], str]:
    """Return an encoder of JSON that escapes more characters than necessary."""
    numbers = {ord(character): f"\\u{ord(character):04{form}}" for character in characters}
    return lambda text: json.dumps(text).translate(numbers)


@pytest.mark.parametrize(
    "encode",
    [
        str,
        json.dumps,
        repr,
        html.escape,
        quote,
        quote_plus,
        lambda text: quote(text, safe=""),
        lambda text: quote(text, safe="!'()*"),
        lambda text: re.sub("%..", lambda found: found[0].lower(), quote(text, safe="")),
        lambda text: quote(quote(text, safe="")),
        lambda text: json.dumps(text).replace("/", "\\/"),
        lambda text: json.dumps(text, ensure_ascii=False).replace("/", "\\/"),
        _numbered("<>&", "x"),
        _numbered("<>&='", "x"),
        _numbered("<>&'+`", "X"),
        lambda text: html.escape(text).replace("&#x27;", "&#39;"),
        lambda text: text.encode().hex(),
        lambda text: "".join(f"&#{ord(char)};" for char in text),
        lambda text: "".join(f"&#X{ord(char):X};" for char in text),
        lambda text: re.sub("(....)", r"\\u\1", text.encode("utf-16-be").hex()),
        lambda text: "".join(f"\\u{{{ord(char):x}}}" for char in text),
        lambda text: "".join(f"\\x{byte:02x}" for byte in text.encode()),
        lambda text: "".join(f"%{byte:02x}" for byte in text.encode()),
        lambda text: "".join(f"={byte:02X}" for byte in text.encode()),
        lambda text: text.encode().hex(":").upper(),
        lambda text: text.encode().hex(" "),
        lambda text: ", ".join(f"0x{byte:02x}" for byte in text.encode()),
        lambda text: json.dumps(list(text.encode())),
        lambda text: quote("".join(f"&#{ord(char)};" for char in text)),
    ],
)
@given(secret=_SECRETS.filter(_is_hidden))
def test_a_secret_is_hidden_in_each_encoding(encode: Callable[[str], str], secret: str) -> None:
    kept = hide(secret_forms([secret]))
    encoded = encode(secret.encode(errors="replace").decode())
    assert secret not in redact(f"bad value {encoded} given")
    assert encoded not in redact(f"bad value {encoded} given") or encoded == secret == "[redacted]"
    del kept


@given(
    secret=_SECRETS.filter(lambda text: _is_hidden(text) and "&" not in text and "\\" not in text),
    spelled=st.lists(st.sampled_from([str, "&#{};".format, "\\u{{{:x}}}".format]), min_size=40),
)
def test_a_secret_is_hidden_if_some_of_its_characters_are_spelled_otherwise(
    secret: str, spelled: list[Callable[[object], str]]
) -> None:
    kept = hide(secret_forms([secret]))
    encoded = "".join(
        spell(char if spell is str else ord(char))
        for char, spell in zip(secret, spelled, strict=False)
    )
    assert redact(f"bad value <{encoded}> given") == "bad value <[redacted]> given"
    del kept


def test_text_around_a_spelled_secret_stays_as_it_is() -> None:
    kept = hide(secret_forms(["s3cret-value-9d1c"]))
    spelled = "".join(f"&#{ord(char)};" for char in "s3cret-value-9d1c")
    text = f"a%20b &lt;{spelled}&gt; 12:34:56:78 \\u0041"
    assert redact(text) == "a%20b &lt;[redacted]&gt; 12:34:56:78 \\u0041"
    del kept


def test_a_secret_is_hidden_in_base64_with_following_text() -> None:
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
def test_secret_parts_of_a_value_are_hidden(value: str, part: str) -> None:
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
    assert is_secret_variable(name, text) is secret
