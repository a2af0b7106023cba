"""Parses TOML into a tree with the line of every value.

The standard library's parser reports no positions. They are those of the lines that name a table or
a key; a value inside another one, such as an inline table's, has the position of the value around
it. A line of a text over several lines that looks like one of these can only misplace a message.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from typing import Any, Final

from leaseway.control_plane.config.tree.yaml_tree import (
    MAX_DEPTH,
    MAX_NODES,
    BadText,
    Items,
    Leaf,
    Position,
    Table,
    TableEntry,
    Tree,
)

_PART: Final = r"""(?:[A-Za-z0-9_-]+|"(?:[^"\\]|\\.)*"|'[^']*')"""
_PATH: Final = rf"{_PART}(?:[ \t]*\.[ \t]*{_PART})*"
_HEADER: Final = re.compile(rf"[ \t]*\[\[?[ \t]*({_PATH})[ \t]*\]")
_KEY: Final = re.compile(rf"[ \t]*({_PATH})[ \t]*=")
_PARTS: Final = re.compile(_PART)
_WHOLE_PART: Final = r"""(?:[A-Za-z0-9_-]++|"(?:[^"\\\n]|\\.)*+"|'[^'\n]*+')"""
_TOO_DEEP: Final = re.compile(
    rf"(?:^|[{{,\[])[ \t]*+(?:{_WHOLE_PART}[ \t]*+\.[ \t]*+){{{MAX_DEPTH}}}", re.MULTILINE
)
"""A key with too many dots. The parser's work grows with their square."""
_PLACE: Final = re.compile(r" \(at (?:line (\d+), column (\d+)|end of document)\)")
_NESTS_TOO_DEEP: Final = f"Tables and lists nest deeper than {MAX_DEPTH} levels here."

_Path = tuple[str, ...]


class BadToml(BadText):
    """A text that is not TOML, or exceeds the limits."""


def load_toml(text: str, file: str = "") -> Table:
    """Return the tree of a TOML text; `file` is that of the positions.

    Raises:
        BadToml: It is not TOML, nests too deep, or is too large.
    """
    deep = _TOO_DEEP.search(text)
    if deep is not None:
        at = Position(text.count("\n", 0, deep.start()) + 1, 1, file)
        raise BadToml(at, _NESTS_TOO_DEEP)
    try:
        values = tomllib.loads(text)
    except (ValueError, RecursionError) as error:
        raise _bad(text, file, error) from None
    start = Position(1, 1, file)
    return _Builder(_places(text, file)).table(values, (), start)


class _Builder:
    def __init__(self, places: Mapping[_Path, Position]) -> None:
        self._places = places
        self._nodes = 0

    def table(self, values: Mapping[str, Any], path: _Path, at: Position) -> Table:
        entries: list[TableEntry] = []
        for name, value in values.items():
            below = (*path, name)
            place = self._places.get(below, at)
            entries.append(TableEntry(name, place, self._node(value, below, place)))
        return Table(at, tuple(entries))

    def _node(self, value: Any, path: _Path, at: Position) -> Tree:
        self._nodes += 1
        if len(path) > MAX_DEPTH:
            raise BadToml(at, _NESTS_TOO_DEEP)
        if self._nodes > MAX_NODES:
            raise BadToml(at, f"The file contains more than {MAX_NODES} values.")
        match value:
            case dict():
                return self.table(value, path, at)
            case list():
                return Items(at, tuple(self._node(item, (*path, ""), at) for item in value))
            case bool():
                return Leaf(at, value, str(value).lower())
            case str() | int() | float():
                return Leaf(at, value, str(value))
        return Leaf(at, str(value), str(value))  # a date or time


def _places(text: str, file: str) -> Mapping[_Path, Position]:
    """Return where each table and key is named first, by its path."""
    places: dict[_Path, Position] = {}
    table: _Path = ()
    for number, line in enumerate(text.split("\n"), 1):
        header = _HEADER.match(line)
        found = header or _KEY.match(line)
        if found is None:
            continue
        path = tuple(_unquoted(part) for part in _PARTS.findall(found[1]))
        if header is not None:
            table = path
        else:
            path = (*table, *path)
        at = Position(number, found.start(1) + 1, file)
        for length in range(1, len(path) + 1):
            places.setdefault(path[:length], at)
    return places


def _unquoted(part: str) -> str:
    if part[0] not in "\"'":
        return part
    try:
        return str(tomllib.loads(f"a = {part}")["a"])
    except ValueError:
        return part[1:-1]  # of a line that is no key


def _bad(text: str, file: str, error: Exception) -> BadToml:
    if isinstance(error, RecursionError):
        return BadToml(Position(1, 1, file), "Tables and lists nest too deep.")
    message = str(error)
    found = _PLACE.search(message)
    line, column = text.count("\n") + 1, 1
    if found is not None and found[1]:
        line, column = int(found[1]), int(found[2])
    reason = _PLACE.sub("", message)
    reason = f"{reason[:1].lower()}{reason[1:200]}"
    if "\\" in reason:
        reason += "; write a path with \\ in single quotes"
    return BadToml(Position(line, column, file), f"This is not valid TOML: {reason}.")
