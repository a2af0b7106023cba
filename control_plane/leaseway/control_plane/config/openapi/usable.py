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
_LITERAL: Final = re.compile(r"/(\^.*|.*\$|[^/]*)/([dgimsuvy]*)", re.DOTALL)
"""A pattern of JavaScript between slashes, with flags."""
_FLAGS_WITHOUT_EFFECT: Final = frozenset("dgu")


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
    literal = _LITERAL.fullmatch(text)
    if literal is not None and not _FLAGS_WITHOUT_EFFECT.issuperset(literal[2]):
        return None
    pattern = text if literal is None else literal[1]
    return pattern if is_pattern(pattern) else None


def _refuse_to_fetch(uri: str) -> Any:
    raise ValueError(f"remote schemas are not fetched: {uri[:_MAX_TEXT]}")
