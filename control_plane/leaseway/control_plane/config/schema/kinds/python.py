"""Keys of servers that are Python classes."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

from leaseway.control_plane.config.schema.issues import Where, quoted
from leaseway.control_plane.config.schema.json_text import json_text
from leaseway.control_plane.config.schema.tables import entries_of
from leaseway.control_plane.config.schema.values import (
    Reader,
    checked,
    plain_text,
    reader,
)
from leaseway.control_plane.config.tree.yaml_tree import Tree

_IDENTIFIER: Final = r"[A-Za-z_][A-Za-z0-9_]*"
_MODULE: Final = re.compile(rf"{_IDENTIFIER}(\.{_IDENTIFIER})*")


def _identifier(rule: re.Pattern[str], words: str) -> Reader[str]:
    def fault(name: str) -> str | None:
        return None if rule.fullmatch(name) else f"must be {words}, but is {quoted(name)}."

    return checked(plain_text(longest=1_024, empty=False), fault, pattern=rule.pattern)


module: Final = _identifier(_MODULE, "a module as in an import statement, such as tools.weather")
"""Reads the module of a Python server."""

class_name: Final = _identifier(re.compile(_IDENTIFIER), "the name of a class")
"""Reads its class."""


@reader({"type": "object"})
def config(node: Tree, where: Where) -> str:
    """Read a class's configuration: any mapping, as JSON in which references stay references."""
    entries_of(node, where)
    return json_text(node, where, has_references=True)


READERS: Final[Mapping[str, Reader[Any]]] = {
    "module": module,
    "class": class_name,
    "config": config,
}
"""The readers of its keys that no shape describes."""
