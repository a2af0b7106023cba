"""Parses the definitions of tools, prompts and resources; cached, not repeated per request."""

from __future__ import annotations

import json
from collections.abc import Container
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

_KNOWN = ("name", "title", "description", "inputSchema", "outputSchema", "annotations")
_OF_PROMPTS = ("name", "title", "description", "arguments")
_OF_RESOURCES = ("uri", "uriTemplate", "name", "title", "description", "mimeType")


@dataclass(frozen=True)
class ToolDefinition:
    """A tool's definition; JSON members stay JSON as UTF-8, empty if absent."""

    title: str
    description: str
    input_schema: bytes
    output_schema: bytes
    annotations: bytes
    extra: bytes
    idempotent: bool
    read_only: bool


@dataclass(frozen=True)
class PromptDefinition:
    """A prompt's definition, likewise; `arguments` is a JSON array."""

    title: str
    description: str
    arguments: bytes
    extra: bytes


@dataclass(frozen=True)
class ResourceDefinition:
    """The definition of a resource or resource template, likewise."""

    name: str
    title: str
    description: str
    mime_type: str
    extra: bytes


@lru_cache(maxsize=20_000)
def parse_definition(definition: bytes) -> ToolDefinition:
    """Parse a tool's definition; members of a wrong type count as absent."""
    raw = json.loads(definition)
    annotations = _object(raw, "annotations")
    return ToolDefinition(
        title=_text(raw, "title"),
        description=_text(raw, "description"),
        input_schema=_dump(_object(raw, "inputSchema") or {"type": "object"}),
        output_schema=_dump(_object(raw, "outputSchema")),
        annotations=_dump(annotations),
        extra=_extra(raw, _KNOWN),
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
    return isinstance(raw, dict) and _object(raw, "execution").get("taskSupport") == "required"


@lru_cache(maxsize=20_000)
def parse_prompt(definition: bytes) -> PromptDefinition:
    raw = json.loads(definition)
    arguments = raw.get("arguments")
    return PromptDefinition(
        title=_text(raw, "title"),
        description=_text(raw, "description"),
        arguments=_dump(arguments if isinstance(arguments, list) else []),
        extra=_extra(raw, _OF_PROMPTS),
    )


@lru_cache(maxsize=20_000)
def parse_resource(definition: bytes) -> ResourceDefinition:
    raw = json.loads(definition)
    return ResourceDefinition(
        name=_text(raw, "name"),
        title=_text(raw, "title"),
        description=_text(raw, "description"),
        mime_type=_text(raw, "mimeType"),
        extra=_extra(raw, _OF_RESOURCES),
    )


def _extra(raw: dict[str, Any], known: Container[str]) -> bytes:
    return _dump({key: value for key, value in raw.items() if key not in known})


def _text(raw: dict[str, Any], member: str) -> str:
    value = raw.get(member)
    # JSON may contain half of a surrogate pair, which cannot be encoded.
    return value.encode("utf-8", "replace").decode() if isinstance(value, str) else ""


def _object(raw: dict[str, Any], member: str) -> dict[str, Any]:
    value = raw.get(member)
    return value if isinstance(value, dict) else {}


def _dump(value: dict[str, Any] | list[Any]) -> bytes:
    if not value:
        return b""
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    return text.encode("utf-8", "replace")
