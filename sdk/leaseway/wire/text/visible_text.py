"""Escapes untrusted text for terminals and text logs. Pure."""

from __future__ import annotations

import re
import unicodedata
from typing import Final

from leaseway.wire.names import is_text

_CONTROL: Final = re.compile(
    r"\r(?!\n)|[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]"
)
"""Control characters without tab and line breaks, and marks that change the text direction."""

_HIDDEN: Final = frozenset({"Cc", "Cf", "Cn", "Co", "Cs", "Zl", "Zp", "Zs"})
"""Unicode's general categories of characters that show nothing or nothing definite."""
_RIGHT_TO_LEFT: Final = frozenset({"R", "AL", "AN"})
"""Bidirectional classes whose characters change the order in which their neighbours are shown."""
_BLANK: Final = re.compile(
    "[\u034f\u115f\u1160\u17b4\u17b5\u180b-\u180f\u2800\u3164\ufe00-\ufe0f\uffa0"
    "\U000e0100-\U000e01ef]"
)
"""Marks, letters and symbols that are drawn as nothing, which their categories do not tell."""


def visible(text: object) -> str:
    r"""Escape what could control a terminal; line breaks stay.

    Control characters and marks that change the text direction become `\x1b` or `\u202e`. Marks
    that only join letters stay, because scripts and emoji need them.
    """
    return _CONTROL.sub(_escape, str(text))


def encodable(text: str) -> str:
    r"""Return a text that UTF-8 can hold: half of a surrogate pair becomes `\ud800`.

    File names that are not UTF-8 and JSON escapes bring such halves into a Python string.
    """
    return text if is_text(text) else text.encode(errors="backslashreplace").decode()


def escaped_json(text: str) -> str:
    """Escape what could control a terminal in JSON, which keeps its meaning."""
    return _CONTROL.sub(lambda match: f"\\u{ord(match[0]):04x}", text)


def _escape(match: re.Match[str]) -> str:
    code = ord(match[0])
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}"


def unmistakable(text: str) -> str:
    r"""Escape every character that a reader cannot see, or that changes how others are read.

    For texts on which a person decides, such as the arguments of a call that needs approval. What
    remains are visible characters in the order in which a program reads them: no control or format
    characters, no spaces but U+0020, no letters written from right to left (they turn numbers
    beside them around), and marks only upon letters. Escapes are those of JSON (`\u202e`, beyond
    U+FFFF a surrogate pair), so that an escaped JSON document keeps its meaning.
    """
    if text.isascii() and text.isprintable():
        return text
    shown: list[str] = []
    on_letter = False
    for char in text:
        category = unicodedata.category(char)
        is_mark = category[0] == "M"
        hidden = (
            (category in _HIDDEN and char != " ")
            or (is_mark and not on_letter)
            or unicodedata.bidirectional(char) in _RIGHT_TO_LEFT
            or _BLANK.match(char) is not None
        )
        shown.append(_json_escape(char) if hidden else char)
        on_letter = not hidden and (category[0] == "L" or is_mark)
    return "".join(shown)


def _json_escape(char: str) -> str:
    code = ord(char)
    if code < 0x10000:
        return f"\\u{code:04x}"
    high, low = divmod(code - 0x10000, 0x400)
    return f"\\u{0xD800 + high:04x}\\u{0xDC00 + low:04x}"
