"""Texts of HTTP, whatever their bytes and whatever charset they name."""

from __future__ import annotations

import encodings
import pkgutil

import pytest
from hypothesis import given
from hypothesis import strategies as st

from leaseway.wire.messages.charsets import is_charset, text_of_body, text_of_header

CODECS = [module.name for module in pkgutil.iter_modules(encodings.__path__)]
POLISH = b'<?xml version="1.0" encoding="ISO-8859-2"?><a>\xb1</a>'


@pytest.mark.parametrize(
    ("charset", "body", "text"),
    [
        ("latin-1", b"caf\xe9", "café"),
        ("Windows-1252", b"\x80 5", "€ 5"),
        ("koi8-u", "Київ".encode("koi8-u"), "Київ"),
        ("utf-16", "ö".encode("utf-16"), "ö"),
        ("utf-16le", "ö".encode("utf-16-le"), "ö"),
        ("utf-8", b"\xef\xbb\xbf\xc3\xb6", "ö"),
        ("utf-8", b"caf\xe9", "caf\ufffd"),
        ("us-ascii", b"\xc3\xb6", "ö"),
        ("", b"\xc3\xb6", "ö"),
        ("", b"caf\xe9", "café"),
        ("", "ö".encode("utf-16"), "ö"),
        ("", b"\xc3\xb6 and \xf0\x9f", "ö and \ufffd"),
        ("", POLISH, POLISH.decode("iso-8859-2")),
        ("", b"<html><META charset=shift_jis><p>\x93\xfa", "<html><META charset=shift_jis><p>日"),
        ("nonsense", b"\xc3\xb6", "ö"),
    ],
)
def test_a_text_is_read_by_its_charset_or_its_bytes(charset: str, body: bytes, text: str) -> None:
    assert text_of_body(body, charset) == text


@pytest.mark.parametrize(
    "name",
    [*CODECS, "\udce9", "é", "x" * 10_000, "utf-8\0", "../../os", ""],
    ids=lambda name: ascii(name)[:20],
)
def test_any_name_of_a_charset_gives_a_text(name: str) -> None:
    assert isinstance(text_of_body(b"a-b\\n\xff\xfe\xe9", name), str)


@pytest.mark.parametrize("name", ["punycode", "idna", "undefined", "unicode_escape", "binary"])
def test_a_codec_that_is_no_charset_is_not_used(name: str) -> None:
    assert not is_charset(name)
    assert text_of_body(b"a-b\\n", name) == "a-b\\n"


@given(st.binary(max_size=64))
def test_any_bytes_of_a_header_give_a_text_that_can_be_sent(content: bytes) -> None:
    text = text_of_header(content.decode("utf-8", "surrogateescape"))
    assert text.encode() == content or text.encode("latin-1") == content
