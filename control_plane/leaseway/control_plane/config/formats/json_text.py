"""JSON as the YAML that it nearly is: the same characters in the same places.

YAML reads JSON but for tabs between values, escaped surrogate pairs, and the comments that
clients allow in it. All of them are replaced here, so that lines and columns stay what they were.
"""

from __future__ import annotations

import re
from typing import Final

__all__ = ["json_as_yaml"]

_TOKEN: Final = re.compile(r'"(?:[^"\\\n]|\\.)*"|//[^\n]*|/\*.*?\*/|\t', re.DOTALL)
_PAIR: Final = re.compile(r"\\u([dD][89abAB][0-9a-fA-F]{2})\\u([dD][c-fC-F][0-9a-fA-F]{2})")
_NOT_A_BREAK: Final = re.compile(r"[^\n]")


def json_as_yaml(text: str) -> str:
    """Return a JSON text, comments allowed, as YAML with all values in the same places."""
    return _TOKEN.sub(_replaced, text)


def _replaced(token: re.Match[str]) -> str:
    text = token[0]
    if text.startswith('"'):
        return _PAIR.sub(_character, text) if "\\u" in text else text
    return _NOT_A_BREAK.sub(" ", text)


def _character(pair: re.Match[str]) -> str:
    # As long as what it replaces, in an escape that YAML knows.
    units = int(pair[1], 16), int(pair[2], 16)
    code = 0x10000 + ((units[0] - 0xD800) << 10) + (units[1] - 0xDC00)
    return f"\\U{code:08x}"
