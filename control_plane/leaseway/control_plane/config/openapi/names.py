"""Names of imported tools: valid, unique, and short enough for a server's transforms."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable
from dataclasses import replace
from typing import Final

from leaseway.spec.kinds.http_tools import HttpTool

MAX_NAME: Final = 64
_SHORTEST: Final = 16
_NOT_IN_NAMES: Final = re.compile(r"[^A-Za-z0-9_-]+")


class UniqueNames:
    """Gives each operation a name."""

    def __init__(self) -> None:
        self._taken: set[str] = set()

    def name(self, identity: str) -> str:
        """Return an operation's name, which no other one has."""
        name = _NOT_IN_NAMES.sub("_", identity).strip("_") or "operation"
        name = shortened(name, MAX_NAME, identity)
        unique, number = name, 2
        while unique in self._taken:
            suffix = f"_{number}"
            unique, number = name[: MAX_NAME - len(suffix)] + suffix, number + 1
        return unique

    def take(self, name: str) -> None:
        self._taken.add(name)


def shortened(name: str, longest: int, identity: str = "") -> str:
    """Return a name cut to a length; a digest keeps it unique and the same at each import."""
    if len(name) <= longest:
        return name
    digest = hashlib.sha256((identity or name).encode()).hexdigest()[:8]
    return f"{name[: longest - 9]}_{digest}"


def leave_room(tools: Iterable[HttpTool], added: int) -> tuple[HttpTool, ...]:
    """Return tools whose names are still valid after a number of characters was added to them."""
    longest = max(_SHORTEST, MAX_NAME - added)
    return tuple(
        replace(tool, name=shortened(tool.name, longest)) if len(tool.name) > longest else tool
        for tool in tools
    )
