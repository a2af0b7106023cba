"""From 2026-07-28 back to 2025-11-25: structured results are objects, and arguments have one form.

Since 2026-07-28 a tool's `outputSchema` may describe any value. Older clients reject the whole list
for it. As in the official TypeScript package, such a value becomes the member `result` of an
object, in the schema and in results. Since then an `inputSchema` may also have choices at its root
(SEP-2106), for which models of older clients reject all tools; these clients see it without. Pure.
"""

from __future__ import annotations

import re
from typing import Any, Final

import msgspec

from leaseway.front.protocol.messages import encode
from leaseway.wire.listing.model_schemas import with_plain_root
from leaseway.wire.messages.json_schema import DATA, MAPS

_MARK: Final = b'"structuredContent"'
_find_other_value: Final = re.compile(rb'"structuredContent"\s*:\s*(?!\{)\S').search
_RESULT: Final = "#/properties/result"

_members: Final = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode


class _Item(msgspec.Struct):
    type: str


_items: Final = msgspec.json.Decoder(list[_Item]).decode
_raw_items: Final = msgspec.json.Decoder(list[msgspec.Raw]).decode


def is_wrapped(output_schema: dict[str, Any] | None) -> bool:
    """Return whether the structured results of a tool become a member of an object."""
    return output_schema is not None and output_schema.get("type") != "object"


def tool(definition: dict[str, Any]) -> dict[str, Any]:
    """Return a tool's definition for older clients; the same object if nothing differs."""
    changed: dict[str, Any] = {}
    taken = definition["inputSchema"]
    flat = with_plain_root(taken)
    if flat is not taken:
        changed["inputSchema"] = flat
    schema = definition.get("outputSchema")
    if isinstance(schema, dict) and is_wrapped(schema):
        changed["outputSchema"] = _wrap(schema)
    return {**definition, **changed} if changed else definition


def tool_result(payload: bytes, *, wrapped: bool) -> bytes:
    """Return a tool's result for older clients; results without structured content as they are.

    Args:
        payload: The result.
        wrapped: Whether the schema of the tool's results is wrapped.
    """
    # `find` is three times as fast as `in`, which first checks whether the mark is a number.
    if payload.find(_MARK) < 0 or not (wrapped or _find_other_value(payload)):
        return payload
    try:
        members = _members(payload)
        structured = bytes(members["structuredContent"])
    except (ValueError, KeyError, RecursionError):  # it is in another object
        return payload
    is_object = structured.startswith(b"{")
    if structured == b"null" and not wrapped:
        del members["structuredContent"]  # servers of older versions mean that there is none
    elif wrapped or not is_object:
        members["structuredContent"] = msgspec.Raw(b'{"result":%b}' % structured)
        if not is_object:
            _add_text(members, structured)
    return encode(members)


def _add_text(members: dict[str, msgspec.Raw], structured: bytes) -> None:
    """Add the structured content as a text if a result has no text: older clients read that."""
    content = members.get("content", msgspec.Raw(b"[]"))
    try:
        if any(item.type == "text" for item in _items(content)):
            return
        items = _raw_items(content)
    except (ValueError, RecursionError):
        return
    text = msgspec.Raw(encode({"type": "text", "text": structured.decode()}))
    members["content"] = msgspec.Raw(encode([*items, text]))


def _wrap(schema: dict[str, Any]) -> dict[str, Any]:
    wrapped: dict[str, Any] = {}
    if isinstance(schema.get("$schema"), str):
        wrapped["$schema"] = schema["$schema"]
    inner = schema if _is_base(schema) else _moved(schema)
    wrapped |= {"type": "object", "properties": {"result": inner}, "required": ["result"]}
    return wrapped


def _is_base(schema: dict[str, Any]) -> bool:
    """Return whether references in a schema are relative to its own `$id`."""
    identifier = schema.get("$id")
    return identifier is not None and not str(identifier).startswith("#")


def _moved(value: Any, *, is_map: bool = False) -> Any:
    """Return a schema whose references are correct one level deeper.

    Args:
        value: A schema, a list of schemas, or another value of a keyword.
        is_map: Whether it is a mapping from names to schemas.
    """
    if isinstance(value, list):
        return [_moved(item) for item in value]
    if not isinstance(value, dict):
        return value
    if is_map:
        return {name: _moved(member) for name, member in value.items()}
    if _is_base(value):
        return value
    moved: dict[str, Any] = {}
    for keyword, part in value.items():
        if keyword in ("$ref", "$dynamicRef") and isinstance(part, str):
            is_pointer = part == "#" or part.startswith("#/")
            moved[keyword] = _RESULT + part[1:] if is_pointer else part
        elif keyword in DATA:
            moved[keyword] = part
        else:
            moved[keyword] = _moved(part, is_map=keyword in MAPS)
    return moved
