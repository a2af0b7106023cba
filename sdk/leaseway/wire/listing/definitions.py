"""What definitions of tools say about calls; see `listed` for what callers get of a definition."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Literal

ListKind = Literal["tools", "prompts", "resources", "templates"]
"""One of the lists of a server."""


@dataclass(frozen=True)
class CallHints:
    """Whether a tool may be called again, as its server says."""

    idempotent: bool
    read_only: bool


@lru_cache(maxsize=20_000)
def call_hints(definition: bytes) -> CallHints:
    """Return the hints of a tool's definition; cached, not parsed per request."""
    return hints_in(json.loads(definition))


def hints_in(tool: dict[str, Any]) -> CallHints:
    """Return the hints of a tool's parsed definition."""
    annotations = object_in(tool, "annotations")
    return CallHints(
        idempotent=annotations.get("idempotentHint") is True,
        read_only=annotations.get("readOnlyHint") is True,
    )


def is_task_only(definition: bytes) -> bool:
    """Return whether a tool can only be called as an MCP task."""
    if b'"taskSupport"' not in definition:  # skips parsing in the usual case
        return False
    try:
        raw = json.loads(definition)
    except (ValueError, RecursionError):  # reported elsewhere
        return False
    return isinstance(raw, dict) and object_in(raw, "execution").get("taskSupport") == "required"


def object_in(raw: dict[str, Any], member: str) -> dict[str, Any]:
    """Return a member that is an object; one of another type counts as absent."""
    value = raw.get(member)
    return value if isinstance(value, dict) else {}
