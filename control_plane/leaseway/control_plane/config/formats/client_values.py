"""Shapes in which people write a server's command, variables and headers, as native ones."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from dataclasses import replace
from pathlib import PurePath
from typing import Final

from leaseway.control_plane.config.tree.yaml_tree import Items, Leaf, Table, TableEntry, Tree

_PROGRAM: Final = re.compile(r"[A-Za-z0-9_.+-]+\s")
"""How a command line begins, unlike a path with spaces, such as `/Applications/My App/run`."""
_PAIR: Final = re.compile(r"\s*([A-Za-z0-9_-]+)\s*[=:]\s*(.*)", re.DOTALL)
_NAMES: Final = ("name", "key")
_MAY_BE_EMPTY: Final = frozenset({"args", "cwd", "env", "env_file", "headers"})
_OWN_COMMAND: Final = re.compile(r"leaseway(?:-mcp)?(?:[@=<>~!\[].*)?(?:\.exe)?")
_OF_HOME: Final = re.compile(r"^~(?=/|$)")


def words_of(node: Tree) -> tuple[Leaf, ...] | None:
    """Return the words of a text that is a whole command line; None for anything else."""
    if not isinstance(node, Leaf) or not isinstance(node.value, str):
        return None
    return split(node) if _PROGRAM.match(node.value) else None


def split(node: Leaf) -> tuple[Leaf, ...] | None:
    """Return a text's words as a shell splits them.

    None if that is not clear: a quote does not end, or it has a backslash, as Windows' paths do.
    """
    if "\\" in str(node.value):
        return None
    try:
        words = shlex.split(str(node.value))
    except ValueError:
        return None
    return tuple(Leaf(node.at, word, word) for word in words) or None


def arguments_of(node: Tree | None) -> tuple[Tree, ...] | None:
    """Return the arguments beside a command; None if they are neither a list nor one text."""
    if node is None or (isinstance(node, Leaf) and node.value in (None, "")):
        return ()
    if isinstance(node, Items):
        return node.items
    return split(node) if isinstance(node, Leaf) and isinstance(node.value, str) else None


def stripped(node: Tree) -> Tree:
    """Return a text without the space around it, as it is copied with an address."""
    if not isinstance(node, Leaf) or not isinstance(node.value, str):
        return node
    return replace(node, value=node.value.strip())


def pairs_of(node: Tree) -> Tree:
    """Return a list of `NAME=VALUE` or of `{name, value}` as a mapping; other values unchanged."""
    if not isinstance(node, Items):
        return node
    pairs = [pair for item in node.items for pair in _pair(item)]
    names = {pair.name for pair in pairs}
    return Table(node.at, tuple(pairs)) if len(names) == len(node.items) else node


def _pair(item: Tree) -> Iterator[TableEntry]:
    match item:
        case Leaf(value=str() as text):
            found = _PAIR.fullmatch(text)
            if found is not None:
                yield TableEntry(found[1], item.at, Leaf(item.at, found[2], found[2]))
        case Table():
            members = {entry.name: entry.value for entry in item.entries}
            name = next((members[key] for key in _NAMES if key in members), None)
            if isinstance(name, Leaf) and isinstance(name.value, str) and "value" in members:
                yield TableEntry(name.value, item.at, members["value"])


def below_home(node: Tree) -> Tree:
    """Return a path that begins with `~/` with `${HOME}`; other values unchanged."""
    if not isinstance(node, Leaf) or not isinstance(node.value, str):
        return node
    return replace(node, value=_OF_HOME.sub("${HOME}", node.value, count=1))


def number_of(node: Tree) -> float | None:
    """Return a number, which may be written as a text; None for anything else."""
    value = node.value if isinstance(node, Leaf) else None
    if isinstance(value, str) and re.fullmatch(r"-?\d{1,12}(\.\d{1,6})?", value):
        return float(value)
    if isinstance(value, int | float) and not isinstance(value, bool):
        return float(value)
    return None


def says_nothing(name: str, node: Tree) -> bool:
    """Return whether a key of a server is as good as left out.

    Clients write null for an option that is not set, and their forms an empty text for a field
    that is empty.
    """
    return isinstance(node, Leaf) and (
        node.value is None or (name in _MAY_BE_EMPTY and is_empty(node))
    )


def is_empty(node: Tree) -> bool:
    """Return whether a value is one that clients save for what was not filled in."""
    match node:
        case Leaf():
            return node.value in (None, "")
        case Items():
            return not node.items
        case Table():
            return not node.entries


def is_own_front(entry: TableEntry) -> bool:
    """Return whether an entry runs `leaseway mcp`, directly or through a runner such as uvx."""
    texts = [*_texts(entry.member("command") or entry.member("cmd")), *_texts(entry.member("args"))]
    words = [word for text in texts for word in text.split()]
    for index, word in enumerate(words):
        name = PurePath(word.replace("\\", "/")).name
        is_module = word in ("leaseway.cli", "leaseway.cli.main", "leaseway")
        if is_module or _OWN_COMMAND.fullmatch(name):
            return "mcp" in words[index + 1 :]
    return False


def _texts(node: Tree | None) -> Iterator[str]:
    match node:
        case Leaf(value=str() as text):
            yield text
        case Items():
            for item in node.items:
                yield from _texts(item)
        case Table():
            for entry in node.entries:
                yield from _texts(entry.value)
