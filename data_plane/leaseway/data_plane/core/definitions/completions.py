"""What a server proposes for an argument, as official clients accept it. Pure.

Clients in JavaScript reject more than 100 values (2025-11-25, server/utilities/completion).
"""

from __future__ import annotations

from typing import Any, Final

import msgspec

from leaseway.data_plane.core.definitions import members as read
from leaseway.wire.bounds import KIB

METHOD: Final = "completion/complete"
_MAX_VALUES: Final = 100
_MAX_SIZE: Final = 256 * KIB
"""Bytes of a result; a longer one stays as it is."""
_OWN: Final = ("values", "total", "hasMore")


def corrected_completion(result: bytes) -> bytes:
    """Return the result of a completion as MCP has it: the same object if it is.

    Args:
        result: A JSON object.
    """
    if len(result) > _MAX_SIZE:
        return result
    members: dict[str, Any] = msgspec.json.decode(result)
    given = members.get("completion", members)
    completion = dict(given) if isinstance(given, dict) else {"values": given}
    values = [text for text in map(_text, _items(completion.get("values"))) if text is not None]
    for name, reader in (("total", read.size), ("hasMore", read.boolean)):
        if name in completion:
            value = reader(completion.pop(name))
            if value is not read.ABSENT:
                completion[name] = value
    if len(values) > _MAX_VALUES:
        completion = {"total": len(values), **completion, "hasMore": True}
    completion["values"] = values[:_MAX_VALUES]
    if completion == members.get("completion"):
        return result
    if given is members:
        completion = {name: completion[name] for name in _OWN if name in completion}
    return msgspec.json.encode({**members, "completion": completion})


def _items(values: Any) -> list[Any]:
    if isinstance(values, list):
        return values
    return [] if values is None else [values]


def _text(value: Any) -> str | None:
    """Return a proposed value; None for what is none."""
    if isinstance(value, dict):
        value = value.get("value")
    if isinstance(value, str):
        return value
    is_plain = isinstance(value, bool | int | float)
    return msgspec.json.encode(value).decode() if is_plain else None
