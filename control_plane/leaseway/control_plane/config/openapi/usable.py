"""What of a JSON Schema of a parameter can be used to check what callers give. Pure."""

from __future__ import annotations

import functools
import json
import re
from typing import Any, Final

import jsonschema_rs

from leaseway.wire.bounds import MAX_PATTERN

_MASK: Final = "the value"
"""Stands for values in messages, which may be secret."""
_MAX_TEXT: Final = 200
_PATTERNS: Final = jsonschema_rs.FancyRegexOptions(
    size_limit=MAX_PATTERN, dfa_size_limit=MAX_PATTERN
)
MAX_ENUM: Final = 500
"""Values of an `enum`; with more of them it takes any."""
_FLAGS: Final = frozenset("dgimsuvy")
"""What JavaScript may have behind the second slash of a pattern."""
_FLAGS_WITHOUT_EFFECT: Final = frozenset("dgu")
_WITHOUT_SLASH: Final = re.compile(r"(?:\\.|\[(?:\\.|[^\]\\])*\]|[^/\\\[])+", re.DOTALL)
"""A pattern in which each slash is escaped or in a class."""


@functools.lru_cache(maxsize=4_096)
def schema_fault(text: str) -> str:
    """Return why a schema, or its default, can't be used; empty if both can. Results are cached.

    Args:
        text: The schema as JSON.

    Returns:
        The end of a sentence about the parameter, such as `has …`.
    """
    schema: dict[str, Any] = json.loads(text)
    try:
        validator = jsonschema_rs.validator_for(schema, retriever=_refuse_to_fetch, mask=_MASK)
    except jsonschema_rs.ValidationError as error:
        where = ".".join(str(part) for part in error.instance_path)
        about = f", at {where[:_MAX_TEXT]!r}" if where else ""
        return f"has no valid JSON Schema{about}: {error.message[:_MAX_TEXT]}"
    except (ValueError, RecursionError, TypeError) as error:
        return f"has no valid JSON Schema: {str(error).partition(chr(10))[0][:_MAX_TEXT]}"
    default = schema.get("default")
    if default is None:
        return ""
    misfit = next(validator.iter_errors(default), None)
    return (
        "" if misfit is None else f"has a 'default' that does not fit: {misfit.message[:_MAX_TEXT]}"
    )


@functools.lru_cache(maxsize=4_096)
def is_pattern(text: str) -> bool:
    """Return whether a text is a regular expression that workers check. Results are cached."""
    try:
        jsonschema_rs.validator_for({"pattern": text}, pattern_options=_PATTERNS)
    except ValueError:
        return False
    return True


def usable_pattern(text: str) -> str | None:
    """Return the pattern that is meant by one of a document; None if it can't be used.

    Some are written between slashes, as in JavaScript, and flags may follow them. What is returned
    matches all texts that the given one matches as it stands.
    """
    before, slash, flags = text.rpartition("/")
    if not slash or not _is_literal(before) or not _FLAGS.issuperset(flags):
        return text if is_pattern(text) else None
    pattern = before.removeprefix("/")
    return pattern if _FLAGS_WITHOUT_EFFECT.issuperset(flags) and is_pattern(pattern) else None


def _is_literal(before: str) -> bool:
    """Return whether a text before a slash is a pattern that the slash closes."""
    if _is_escaped(before):
        return False
    end = before.rstrip(")")
    if end.endswith("$") and not _is_escaped(end[:-1]):
        return True  # no text has a slash after its end
    opened = before[1:] if before.startswith("/") else ""
    if not opened:
        return False
    # No text has a slash before its beginning, and a slash inside would have closed the pattern.
    return opened.lstrip("(?:").startswith("^") or _WITHOUT_SLASH.fullmatch(opened) is not None


def _is_escaped(before: str) -> bool:
    """Return whether a character after a text is escaped by a backslash at its end."""
    return (len(before) - len(before.rstrip("\\"))) % 2 == 1


def _refuse_to_fetch(uri: str) -> Any:
    raise ValueError(f"remote schemas are not fetched: {uri[:_MAX_TEXT]}")
