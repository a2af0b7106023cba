"""Names of imported tools: valid, unique, and short enough for a server's transforms."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace
from typing import Final

from leaseway.spec.exposed_names import shortened
from leaseway.spec.kinds.http_tools import HttpTool
from leaseway.wire.names import MAX_NAME

_SHORTEST: Final = 16
_NOT_IN_NAMES: Final = re.compile(r"[^A-Za-z0-9_-]+")


def operation_name(identity: str) -> str:
    """Return the name of an operation, which other operations may have, too."""
    name = _NOT_IN_NAMES.sub("_", identity).strip("_") or "operation"
    return shortened(name, MAX_NAME, identity)


def numbered(tools: Sequence[tuple[tuple[str, str], HttpTool]]) -> tuple[HttpTool, ...]:
    """Return tools in their order, with a number behind each name that an earlier one has.

    Which one is earlier, their operations say, and not their order: a document that is written in
    another order must not give the name of one tool, and what is granted to it, to another.

    Args:
        tools: The tools with the path and the method of their operations.
    """
    taken = {tool.name for _, tool in tools}
    unique: dict[int, str] = {}
    seen: set[str] = set()
    operations = [operation for operation, _ in tools]
    for index in sorted(range(len(tools)), key=operations.__getitem__):
        tool = tools[index][1]
        unique[index] = _free(tool.name, taken) if tool.name in seen else tool.name
        seen.add(tool.name)
        taken.add(unique[index])
    return tuple(replace(tool, name=unique[index]) for index, (_, tool) in enumerate(tools))


def _free(name: str, taken: Collection[str]) -> str:
    unique, number = name, 2
    while unique in taken:
        suffix = f"_{number}"
        unique, number = name[: MAX_NAME - len(suffix)] + suffix, number + 1
    return unique


def leave_room(tools: Iterable[HttpTool], added: int) -> tuple[HttpTool, ...]:
    """Return tools whose names are still valid after a number of characters was added to them."""
    longest = max(_SHORTEST, MAX_NAME - added)
    return tuple(
        replace(tool, name=shortened(tool.name, longest)) if len(tool.name) > longest else tool
        for tool in tools
    )
