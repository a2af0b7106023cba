"""The optional members of definitions: those of another type are dropped. Pure."""

from __future__ import annotations

import datetime
import re
from collections.abc import Callable, Mapping
from typing import Any, Final

Members = dict[str, Any]
Reader = Callable[[Any], Any]
"""Returns a member's value as MCP has it; `ABSENT` for none."""

ABSENT: Final = object()
_ROLES: Final = ("user", "assistant")
_MAX_NAMED: Final = 10

_is_time: Final = re.compile(
    r"\d{4}-\d\d-\d\dT\d\d:\d\d(?::\d\d(?:\.\d+)?)?(?:Z|[+-]\d\d:\d\d)"
).fullmatch


class Changes:
    """What was changed in one definition, for operators.

    Attributes:
        any: Whether anything was changed, also what operators need not know.
    """

    def __init__(self) -> None:
        self._texts: dict[str, None] = {}
        self.any = False

    def add(self, text: str) -> None:
        self._texts[text] = None
        self.any = True

    def dropped(self, path: str, value: Any) -> None:
        """Record that a member was dropped because its value has the wrong type."""
        self.add(f"{path} is {_describe(value)}")

    def __str__(self) -> str:
        texts = [*self._texts]
        more = len(texts) - _MAX_NAMED
        return ", ".join(texts[:_MAX_NAMED]) + (f" and {more} more" if more > 0 else "")


def _describe(value: Any) -> str:
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "a boolean"
    if isinstance(value, str):
        return "a text that MCP does not have there"
    if isinstance(value, dict):
        return "an object"
    return "a list" if isinstance(value, list) else "a number"


def text(value: Any) -> Any:
    return value if isinstance(value, str) else ABSENT


def boolean(value: Any) -> Any:
    return value if isinstance(value, bool) else ABSENT


def mapping(value: Any) -> Any:
    return value if isinstance(value, dict) else ABSENT


def size(value: Any) -> Any:
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    return value if isinstance(value, int) and not isinstance(value, bool) else ABSENT


def texts(value: Any) -> Any:
    return (
        value
        if isinstance(value, list) and all(isinstance(text, str) for text in value)
        else ABSENT
    )


def one_of(*allowed: str) -> Reader:
    """Return the reader of a member with these values."""

    def read(value: Any) -> Any:
        return value if isinstance(value, str) and value in allowed else ABSENT

    return read


def _audience(value: Any) -> Any:
    return value if texts(value) is not ABSENT and all(role in _ROLES for role in value) else ABSENT


def _priority(value: Any) -> Any:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return value if is_number and 0 <= value <= 1 else ABSENT


def _time(value: Any) -> Any:
    if not isinstance(value, str) or not value.isascii() or not _is_time(value):
        return ABSENT
    if value[11:13] == "24":  # newer Pythons accept it
        return ABSENT
    try:
        datetime.datetime.fromisoformat(value)
    except ValueError:
        return ABSENT
    return value


_ICON: Final[Mapping[str, Reader]] = {
    "src": text,
    "mimeType": text,
    "sizes": texts,
    "theme": one_of("light", "dark"),
}
_ANNOTATIONS: Final[Mapping[str, Reader]] = {
    "audience": _audience,
    "priority": _priority,
    "lastModified": _time,
}
_HINTS: Final[Mapping[str, Reader]] = {
    "title": text,
    "readOnlyHint": boolean,
    "destructiveHint": boolean,
    "idempotentHint": boolean,
    "openWorldHint": boolean,
}
_EXECUTION: Final[Mapping[str, Reader]] = {
    "taskSupport": one_of("required", "optional", "forbidden")
}
_ARGUMENT: Final[Mapping[str, Reader]] = {
    "name": text,
    "title": text,
    "description": text,
    "required": boolean,
}
_COMMON: Final[Mapping[str, Reader]] = {"title": text, "description": text, "_meta": mapping}
TOOL: Final = _COMMON
PROMPT: Final = _COMMON
RESOURCE: Final[Mapping[str, Reader]] = {**_COMMON, "name": text, "mimeType": text, "size": size}
TEMPLATE: Final[Mapping[str, Reader]] = {**_COMMON, "name": text, "mimeType": text}


def read_members(
    members: Members, readers: Mapping[str, Reader], changes: Changes, path: str = ""
) -> None:
    """Drop members of the wrong type, in place."""
    for name, read in readers.items():
        if name in members:
            value = read(members[name])
            if value is ABSENT:
                changes.dropped(path + name, members.pop(name))
            elif value is not members[name]:
                members[name] = value
                changes.any = True


def read_icons(members: Members, changes: Changes) -> None:
    """Drop icons that are invalid, in place."""
    _read_list(members, "icons", _ICON, "src", changes)


def read_arguments(members: Members, changes: Changes) -> None:
    """Drop arguments of a prompt that are invalid, in place."""
    _read_list(members, "arguments", _ARGUMENT, "name", changes)


def read_hints(members: Members, changes: Changes) -> None:
    """Drop invalid annotations and task settings of a tool, in place."""
    _read_object(members, "annotations", _HINTS, changes)
    _read_object(members, "execution", _EXECUTION, changes)


def read_annotations(members: Members, changes: Changes) -> None:
    """Drop invalid annotations of a resource or template, in place."""
    _read_object(members, "annotations", _ANNOTATIONS, changes)


def _read_object(
    members: Members, name: str, readers: Mapping[str, Reader], changes: Changes
) -> None:
    if name not in members:
        return
    if isinstance(members[name], dict):
        read_members(members[name], readers, changes, f"{name}.")
    else:
        changes.dropped(name, members.pop(name))


def _is_named(value: Any) -> bool:
    return isinstance(value, str) and value != ""


def _read_list(
    members: Members, name: str, readers: Mapping[str, Reader], key: str, changes: Changes
) -> None:
    if name not in members:
        return
    items = members[name]
    if not isinstance(items, list):
        changes.dropped(name, members.pop(name))
        return
    kept = [item for item in items if isinstance(item, dict) and _is_named(item.get(key))]
    if len(kept) < len(items):
        changes.add(f"one of its {name} has no '{key}'")
        members[name] = kept
    for item in kept:
        read_members(item, readers, changes, f"{name}.")
