"""Corrects what a server answers to a greeting, so that its handshake does not fail. Pure.

Many hand-written servers, and PHP, whose empty objects are `[]`, differ from MCP there.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from leaseway.data_plane.core.definitions import members
from leaseway.data_plane.core.definitions.members import Changes, Members, Reader

_DRAFT: Final = "2024-10-07"
_FIRST: Final = "2024-11-05"
_FLAGS: Final[Mapping[str, Mapping[str, Reader]]] = {
    "tools": {"listChanged": members.boolean},
    "prompts": {"listChanged": members.boolean},
    "resources": {"listChanged": members.boolean, "subscribe": members.boolean},
    "logging": {},
    "completions": {},
}
"""What a server may declare, and the members of each."""

_OTHERS: Final[Mapping[str, Reader]] = {
    "experimental": members.mapping,
    "extensions": members.mapping,
    "tasks": members.mapping,
}
_TEXTS: Final[Mapping[str, Reader]] = {"instructions": members.text, "_meta": members.mapping}
_HINTS: Final[Mapping[str, Reader]] = {
    "ttlMs": members.size,
    "cacheScope": members.one_of("public", "private"),
}
_INFO: Final[Mapping[str, Reader]] = {
    "title": members.text,
    "description": members.text,
    "websiteUrl": members.text,
}


def correct_greeting(greeting: Members) -> str:
    """Correct an answer to `initialize` in place; return what was changed, in words, or empty.

    Its protocol version stays as it is: nothing could be said at another one. Only the draft of the
    first one, which official clients in JavaScript accept, too, is taken as that one.
    """
    changes = Changes()
    if greeting.get("protocolVersion") == _DRAFT:
        greeting["protocolVersion"] = _FIRST
        changes.add(f"protocolVersion is the draft {_DRAFT} of {_FIRST}")
    greeting["capabilities"] = _capabilities(_object(greeting, "capabilities", changes), changes)
    greeting["serverInfo"] = _info(_object(greeting, "serverInfo", changes), changes)
    _read_present(greeting, _TEXTS, changes)
    return str(changes)


def correct_discovery(discovery: Members) -> str:
    """Correct an answer to `server/discover` likewise, if it has a list of versions.

    Any other answer stays as it is: a server of the era before gives it to a method it lacks.
    """
    if not isinstance(discovery.get("supportedVersions"), list):
        return ""
    changes = Changes()
    found = _object(discovery, "capabilities", changes)
    discovery["capabilities"] = _capabilities(found, changes)
    if discovery.get("resultType", "") is None:  # another wrong type says that it is not complete
        changes.dropped("resultType", discovery.pop("resultType"))
    members.read_members(discovery, _HINTS, changes)
    _read_present(discovery, _TEXTS, changes)
    return str(changes)


CORRECTIONS: Final[Mapping[str, Callable[[Members], str]]] = {
    "initialize": correct_greeting,
    "server/discover": correct_discovery,
}
"""Corrects the answer to a greeting, by its method."""


def _object(greeting: Members, name: str, changes: Changes) -> Members:
    value = greeting.get(name)
    if isinstance(value, dict):
        return value
    if name in greeting:
        changes.dropped(name, value)
    else:
        changes.add(f"it has no {name}")
    return {}


def _capabilities(found: Members, changes: Changes) -> Members:
    capabilities = {name: value for name, value in found.items() if value is not None}
    for name, readers in _FLAGS.items():
        declared = capabilities.get(name, {})
        if not isinstance(declared, dict):
            changes.dropped(f"capabilities.{name}", capabilities.pop(name))
            if declared is not False:  # it has something to say about it, so it has it
                capabilities[name] = {}
        else:
            _read_present(declared, readers, changes, f"capabilities.{name}.")
    members.read_members(capabilities, _OTHERS, changes, "capabilities.")
    for name in ("experimental", "extensions"):
        settings = capabilities.get(name, {})
        readers = dict.fromkeys([*settings], members.mapping)
        members.read_members(settings, readers, changes, f"capabilities.{name}.")
    return capabilities


def _info(found: Members, changes: Changes) -> Members:
    info = {name: value for name, value in found.items() if value is not None}
    _read_present(info, _INFO, changes, "serverInfo.")
    members.read_icons(info, changes)
    for name in ("name", "version"):
        if not isinstance(value := info.get(name), str):
            changes.add(f"serverInfo.{name} is no text")
            info[name] = str(value) if isinstance(value, int | float) else ""
    return info


def _read_present(
    found: dict[str, Any], readers: Mapping[str, Reader], changes: Changes, path: str = ""
) -> None:
    """Drop members of the wrong type; null is the same as none."""
    present = {name: read for name, read in readers.items() if found.get(name) is not None}
    members.read_members(found, present, changes, path)
