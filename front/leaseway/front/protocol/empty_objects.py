"""Objects of messages that clients write as `[]`: PHP and Lua have one type for lists and objects.

Pure. What a member contains that only a server understands is not looked into.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final, Literal

import msgspec

is_empty_list: Final = re.compile(rb"\[\s*\]").fullmatch
"""What is written for an empty object."""

_OBJECTS: Final = {
    "message": ("params", "result"),
    "params": ("_meta", "arguments", "context"),
}
"""The members that are objects, by what has them."""
_CAPABILITY_LEVELS: Final = 2
"""Levels below `capabilities` that are objects: each capability, and its options."""


def empty_objects(
    parent: Literal["message", "params"], members: Mapping[str, bytes | msgspec.Raw]
) -> list[str]:
    """Return the names of members that are an empty object, written as a list.

    Args:
        parent: What has the members.
        members: JSON by name.
    """
    names = (name for name in _OBJECTS[parent] if name in members)
    return [name for name in names if is_empty_list(bytes(members[name]))]


def capabilities_in(sent: Any, levels: int = _CAPABILITY_LEVELS) -> Any:
    """Return what a client sent as its capabilities, with an object for each `[]`.

    Args:
        sent: As the client has sent it.
        levels: How many levels below may be objects. What the settings of an extension contain is
            its own.
    """
    if sent == []:
        return {}
    if not levels or not isinstance(sent, dict):
        return sent
    return {name: capabilities_in(value, levels - 1) for name, value in sent.items()}
