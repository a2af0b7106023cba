"""Admits one definition that a server lists, so that every MCP client reads it alike. Pure."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from leaseway.data_plane.core.definitions import members
from leaseway.data_plane.core.definitions.members import Changes, Members
from leaseway.data_plane.core.definitions.schemas import input_schema, output_schema
from leaseway.wire.messages.portable_json import encode, parse

Correct = Callable[[Members, Changes, bool], None]
"""Corrects a definition in place, given whether its server speaks 2026-07-28 or newer."""


@dataclass(frozen=True)
class Admitted:
    """An admitted definition.

    Attributes:
        name: Its name, URI or URI template; None if it has none, so that nothing can request it.
        definition: As the server sent it, unless something had to be changed.
        changes: What was changed, in words; empty if nothing.
    """

    name: str | None
    definition: bytes
    changes: str = ""


def admit(definition: bytes, key: str, correct: Correct, *, modern: bool) -> Admitted:
    """Admit a definition.

    Args:
        definition: As received.
        key: The member that identifies it.
        correct: Corrects definitions of its kind.
        modern: Whether its server speaks 2026-07-28 or newer.

    Raises:
        NotPortable: Not every part of Leaseway, or not every client, could read it.
    """
    value = parse(definition)
    name = value.get(key) if isinstance(value, dict) else None
    if not isinstance(name, str):
        return Admitted(None, definition)
    changes = Changes()
    correct(value, changes, modern)
    if b"\xef\xbf\xbd" in definition or rb"\ufffd" in definition:
        changes.add("a text has U+FFFD: it was not UTF-8, or cut inside a character")
    if not changes.any:
        return Admitted(name, definition)
    return Admitted(name, encode(value), str(changes))


def correct_tool(tool: Members, changes: Changes, modern: bool) -> None:
    """Correct a tool's definition (see `Correct`)."""
    members.read_members(tool, members.TOOL, changes)
    members.read_icons(tool, changes)
    members.read_hints(tool, changes)
    tool["inputSchema"] = input_schema(tool.get("inputSchema"), changes)
    if "outputSchema" in tool:
        schema = output_schema(tool["outputSchema"], changes, modern=modern)
        if schema is None:
            del tool["outputSchema"]
        else:
            tool["outputSchema"] = schema


def correct_prompt(prompt: Members, changes: Changes, _modern: bool) -> None:
    """Correct a prompt's definition (see `Correct`)."""
    members.read_members(prompt, members.PROMPT, changes)
    members.read_icons(prompt, changes)
    members.read_arguments(prompt, changes)


def correct_resource(resource: Members, changes: Changes, _modern: bool) -> None:
    """Correct the definition of a resource (see `Correct`)."""
    members.read_members(resource, members.RESOURCE, changes)
    members.read_icons(resource, changes)
    members.read_annotations(resource, changes)


def correct_template(template: Members, changes: Changes, _modern: bool) -> None:
    """Correct the definition of a template of resources (see `Correct`)."""
    members.read_members(template, members.TEMPLATE, changes)
    members.read_icons(template, changes)
    members.read_annotations(template, changes)
