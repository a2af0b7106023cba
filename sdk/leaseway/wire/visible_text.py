"""Text that others wrote, made fit for a terminal: what commands print and text logs hold. Pure."""

from __future__ import annotations

import re
from typing import Final

_STEERING: Final = re.compile(
    r"\r(?!\n)|[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]"
)
"""Control characters without tab and line breaks, and those that turn the direction of writing."""


def visible(text: object) -> str:
    r"""Return a text, its lines kept, with what would steer a terminal as an escape.

    Control characters and marks that turn the direction of writing show as `\x1b` or `\u202e`.
    Marks that only join letters stay: scripts and emoji need them.
    """
    return _STEERING.sub(_escape, str(text))


def escaped_json(text: str) -> str:
    """Return JSON that means the same and cannot steer a terminal."""
    return _STEERING.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


def _escape(found: re.Match[str]) -> str:
    code = ord(found[0])
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}"
