"""Tools, prompts and resources as callers list them, made of the definitions of their servers.

What the definition says is parsed once and cached; each list adds what holds for its caller.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from functools import lru_cache
from typing import Any, Final

from leaseway.v1 import catalog_pb2

_CACHED: Final = 20_000
"""Definitions of a kind whose messages are kept."""


def listed_tool(
    name: str,
    original: str,
    server_id: str,
    definition: bytes,
    *,
    shared: bool,
    sessions_from: Iterable[str],
) -> catalog_pb2.Tool:
    """Return a tool.

    Args:
        name: Its exposed name.
        original: Its name at the server.
        definition: The server's definition.
        shared: Whether its server is used without leases.
        sessions_from: How its server tells sessions apart, as configured.
    """
    tool = catalog_pb2.Tool(
        name=name,
        original_name=original,
        server_id=server_id,
        shared=shared,
        sessions_from=sessions_from,
    )
    tool.MergeFrom(_defined_tool(definition))
    return tool


def listed_prompt(
    name: str, original: str, server_id: str, definition: bytes, *, shared: bool
) -> catalog_pb2.Prompt:
    """Return a prompt; its arguments are those of `listed_tool`."""
    prompt = catalog_pb2.Prompt(
        name=name, original_name=original, server_id=server_id, shared=shared
    )
    prompt.MergeFrom(_defined_prompt(definition))
    return prompt


def listed_resource(
    uri: str, server_id: str, definition: bytes, *, is_template: bool, shared: bool
) -> catalog_pb2.Resource:
    """Return a resource, or a template of resources with its URI template."""
    resource = catalog_pb2.Resource(
        uri=uri, is_template=is_template, server_id=server_id, shared=shared
    )
    resource.MergeFrom(_defined_resource(definition))
    return resource


# Objects and lists of a definition are JSON as UTF-8 in its message, empty if absent.


@lru_cache(maxsize=_CACHED)
def _defined_tool(definition: bytes) -> catalog_pb2.Tool:
    raw = _without(definition, "name")
    return catalog_pb2.Tool(
        title=_take_text(raw, "title"),
        description=_take_text(raw, "description"),
        input_schema=_dump(_take(raw, "inputSchema", dict) or {"type": "object"}),
        output_schema=_dump(_take(raw, "outputSchema", dict)),
        annotations=_dump(_take(raw, "annotations", dict)),
        extra=_dump(raw),
    )


@lru_cache(maxsize=_CACHED)
def _defined_prompt(definition: bytes) -> catalog_pb2.Prompt:
    raw = _without(definition, "name")
    return catalog_pb2.Prompt(
        title=_take_text(raw, "title"),
        description=_take_text(raw, "description"),
        arguments=_dump(_take(raw, "arguments", list)),
        extra=_dump(raw),
    )


@lru_cache(maxsize=_CACHED)
def _defined_resource(definition: bytes) -> catalog_pb2.Resource:
    raw = _without(definition, "uri", "uriTemplate")
    return catalog_pb2.Resource(
        name=_take_text(raw, "name"),
        title=_take_text(raw, "title"),
        description=_take_text(raw, "description"),
        mime_type=_take_text(raw, "mimeType"),
        extra=_dump(raw),
    )


def _without(definition: bytes, *identity: str) -> dict[str, Any]:
    """Return the members of a definition that do not identify it.

    Each that is then taken is removed, whatever its type, so that the rest is what has no field.
    """
    raw: dict[str, Any] = json.loads(definition)
    for member in identity:
        raw.pop(member, None)
    return raw


def _take(raw: dict[str, Any], member: str, kind: type[Any]) -> Any:
    """Remove a member and return it; one of another type counts as absent."""
    value = raw.pop(member, None)
    return value if isinstance(value, kind) else None


def _take_text(raw: dict[str, Any], member: str) -> str:
    value = _take(raw, member, str) or ""
    # JSON may contain half of a surrogate pair, which cannot be encoded.
    return value.encode("utf-8", "replace").decode()


def _dump(value: dict[str, Any] | list[Any] | None) -> bytes:
    if not value:
        return b""
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    return text.encode("utf-8", "replace")
