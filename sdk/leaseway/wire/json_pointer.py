"""JSON pointers (RFC 6901): how they name a member, and what they lead to. Pure."""

from __future__ import annotations

from typing import Any, Final
from urllib.parse import unquote

_MAX_DIGITS: Final = 9
"""Digits of a place in a list; no list has more items."""


def escaped(name: str) -> str:
    """Return the step of a pointer that leads to a member with a name."""
    return name.replace("~", "~0").replace("/", "~1")


def unescaped(step: str) -> str:
    """Return the name of the member that a step of a pointer leads to."""
    return step.replace("~1", "/").replace("~0", "~")


def at_pointer(document: Any, pointer: str) -> Any:
    """Return a part of a document; None if there is none.

    Args:
        document: JSON values.
        pointer: Such as `/a/0`; an empty one is the whole document.
    """
    first, *steps = pointer.split("/")
    if first:
        return None
    found = document
    for step in steps:
        part = unescaped(step)
        if isinstance(found, dict):
            found = found.get(part)
        elif isinstance(found, list) and _is_place(part, found):
            found = found[int(part)]
        else:
            return None
    return found


def at_fragment(document: Any, reference: object) -> Any:
    """Return what a reference such as `#/$defs/a` leads to in its own document, or None."""
    if not isinstance(reference, str) or not reference.startswith("#"):
        return None
    return at_pointer(document, unquote(reference[1:]))


def _is_place(part: str, items: list[Any]) -> bool:
    return part.isdecimal() and len(part) <= _MAX_DIGITS and int(part) < len(items)
