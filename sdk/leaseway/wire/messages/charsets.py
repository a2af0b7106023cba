"""Reads texts of HTTP: bodies by the charset that they name or their bytes, and headers. Pure."""

from __future__ import annotations

import re
from codecs import BOM_UTF16_BE, BOM_UTF16_LE
from encodings import normalize_encoding
from encodings.aliases import aliases
from typing import Final

_KNOWN: Final = frozenset((*aliases, *aliases.values(), "koi8_u"))
"""Python has codecs that are no charsets: some are slow, some raise errors of their own, and it
remembers each unknown name that it is asked for. None of these is in its table."""
_ASCII: Final = "ascii"
_NAMED_INSIDE: Final = re.compile(
    rb"""(?:<\?xml[^>]*?encoding|<meta[^>]*?charset)\s*=\s*["']?([\w.:-]{1,40})""", re.IGNORECASE
)
_START: Final = 1024
"""Bytes in which XML and HTML name their charset."""
_UNREADABLE: Final = "\ufffd"


def is_charset(name: str) -> bool:
    """Return whether a text can be in the charset of this name."""
    return normalize_encoding(name).lower() in _KNOWN


def text_of_body(body: bytes, charset: str = "") -> str:
    """Return the text of a body, without a byte order mark; what cannot be read is U+FFFD.

    Args:
        charset: The one that its sender names; empty or unknown if none. Its text is then what its
            byte order mark says, or UTF-8, or what XML or HTML names inside; and if no
            character beyond ASCII is UTF-8, Windows-1252, as browsers read it.
    """
    text = _decoded(body, charset)
    if text is None and body.startswith((BOM_UTF16_LE, BOM_UTF16_BE)):
        text = body.decode("utf-16", "replace")
    if text is None:
        text = body.decode("utf-8", "replace")
        if _UNREADABLE in text and text.replace(_UNREADABLE, "").isascii():
            named = _NAMED_INSIDE.search(body, 0, _START)
            inside = _decoded(body, named[1].decode("ascii", "replace")) if named else None
            text = body.decode("cp1252", "replace") if inside is None else inside
    return text.removeprefix("\ufeff")


def text_of_header(value: str) -> str:
    """Return the value of a header that may have bytes as surrogates, which no JSON may have."""
    if value.isascii():
        return value
    content = value.encode("utf-8", "surrogateescape")
    try:
        return content.decode()
    except UnicodeDecodeError:
        return content.decode("latin-1")


def _decoded(body: bytes, charset: str) -> str | None:
    """Return the text in a charset, or None if it is not known or says too little."""
    name = normalize_encoding(charset).lower()
    if name not in _KNOWN or aliases.get(name, name) == _ASCII:
        return None  # what is named ASCII and is more is as often UTF-8 as not
    try:
        return body.decode(name, "replace")
    except LookupError:  # a codec of bytes, as base64
        return None
