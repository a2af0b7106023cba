"""What is inside a tool's definition: parsed once for each definition, not for each request."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

__all__ = ["ToolDefinition", "parse_definition"]

_KNOWN = ("name", "title", "description", "inputSchema", "outputSchema", "annotations")


@dataclass(frozen=True)
class ToolDefinition:
    """A tool as its server describes it; JSON members stay JSON, as UTF-8, empty for none."""

    title: str
    description: str
    input_schema: bytes
    output_schema: bytes
    annotations: bytes
    extra: bytes
    idempotent: bool
    read_only: bool


@lru_cache(maxsize=20_000)
def parse_definition(definition: bytes) -> ToolDefinition:
    """Return what callers want to know of a definition; members of a wrong type count as absent."""
    raw = json.loads(definition)
    annotations = _object(raw, "annotations")
    extra = {key: value for key, value in raw.items() if key not in _KNOWN}
    return ToolDefinition(
        title=_text(raw, "title"),
        description=_text(raw, "description"),
        input_schema=_dump(_object(raw, "inputSchema") or {"type": "object"}),
        output_schema=_dump(_object(raw, "outputSchema")),
        annotations=_dump(annotations),
        extra=_dump(extra),
        idempotent=annotations.get("idempotentHint") is True,
        read_only=annotations.get("readOnlyHint") is True,
    )


def _text(raw: dict[str, Any], member: str) -> str:
    value = raw.get(member)
    return value if isinstance(value, str) else ""


def _object(raw: dict[str, Any], member: str) -> dict[str, Any]:
    value = raw.get(member)
    return value if isinstance(value, dict) else {}


def _dump(value: dict[str, Any]) -> bytes:
    if not value:
        return b""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()
