"""Escapes untrusted text for terminals and text logs. Pure."""

from __future__ import annotations

import re
from typing import Final

_CONTROL: Final = re.compile(
    r"\r(?!\n)|[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]"
)
"""Control characters without tab and line breaks, and marks that change the text direction."""


def visible(text: object) -> str:
    r"""Escape what could control a terminal; line breaks stay.

    Control characters and marks that change the text direction become `\x1b` or `\u202e`. Marks
    that only join letters stay, because scripts and emoji need them.
    """
    return _CONTROL.sub(_escape, str(text))


def escaped_json(text: str) -> str:
    """Escape what could control a terminal in JSON, which keeps its meaning."""
    return _CONTROL.sub(lambda match: f"\\u{ord(match[0]):04x}", text)


def _escape(match: re.Match[str]) -> str:
    code = ord(match[0])
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}"
