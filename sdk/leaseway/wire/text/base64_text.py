"""Base64 as servers and people write it: also with the alphabet for URLs, or without padding."""

from __future__ import annotations

import base64
import re
from typing import Final

_UNUSUAL: Final = re.compile(rb"[-_ \t\r\n]")
_FROM_URLS: Final = bytes.maketrans(b"-_", b"+/")
_SEARCHED: Final = 4096
_MAX_PADDING: Final = 3
_WHITE_SPACE: Final = b" \t\r\n"
_MAX_HEADER: Final = 256
_looks: Final = re.compile(rb"[A-Za-z0-9+/\s\\]*={0,2}").fullmatch
"""Also the backslash of escapes in JSON. White space at the end is taken off before: beside `*`,
another one for it would take the square of its length."""
_IMPOSSIBLE: Final = 1
"""Characters of base64 without padding that remain of groups of four in no base64."""


def standard(text: bytes | memoryview) -> bytes | memoryview:
    """Return base64 with the alphabet and the padding of RFC 4648, section 4.

    Line breaks are left out. Other text is returned as it is; a text of the usual form is not
    copied.
    """
    # Of a text with the other alphabet, nearly every 100 characters have one that differs, and of
    # one in lines every 76; some programs end a single line.
    if _UNUSUAL.search(text, 0, _SEARCHED) or _UNUSUAL.search(text, max(0, len(text) - 2)):
        text = bytes(text).translate(_FROM_URLS, _WHITE_SPACE)
    missing = -len(text) % 4
    return bytes(text) + b"=" * missing if 0 < missing < _MAX_PADDING else text


def looks_standard(text: bytes | memoryview) -> bool:
    """Return whether a text seems to be base64 with the usual alphabet, judged by its ends.

    Args:
        text: It may also be what is between the quotes of a text in JSON.
    """
    start, end = bytes(text[:_SEARCHED]), bytes(text[-_SEARCHED:])
    if not (_looks(end.rstrip()) and (len(text) <= _SEARCHED or _looks(start.rstrip()))):
        return False
    length = len(text) - end.count(b"=")
    has_space = any(part.split() != [part] for part in (start, end))
    return has_space or b"\\" in start or length % 4 != _IMPOSSIBLE


def split_data_url(text: bytes | memoryview) -> tuple[str, bytes | memoryview]:
    """Return the MIME type and the base64 of a `data:` URL, or "" and the whole text."""
    start = bytes(text[:_MAX_HEADER])
    if start[:5].lower() != b"data:":
        return "", text
    header, comma, _ = start.partition(b",")
    if not comma or not header.lower().endswith(b";base64"):
        return "", text
    return header[5:].decode(errors="replace"), text[len(header) + 1 :]


def decoded(text: str) -> bytes:
    """Return the bytes of base64, which may have white space in it.

    Raises:
        ValueError: It is no base64.
    """
    return base64.b64decode(standard(text.encode().translate(None, _WHITE_SPACE)), validate=True)
