"""Parses YAML into a tree with the line and column of every value.

PyYAML parses and composes; this module limits its input, resolves plain scalars as YAML 1.2 does
(`yes`, `on` and dates are text), and keeps positions. Tags never create objects.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Final

import yaml

MAX_DEPTH: Final = 32
"""Nesting limit of mappings and lists."""

MAX_NODES: Final = 250_000
"""Values in one file; each use of an alias counts as if it were written out."""

_TIMES: Final = 4
"""How many times the limits of a file are those of a document that is no configuration."""

_MERGE: Final = "<<"


@dataclass(frozen=True)
class Position:
    """A line and a column, both counted from 1.

    `file` is empty if there is only one file. Comparisons ignore it.
    """

    line: int
    column: int
    file: str = field(default="", compare=False, repr=False)


START: Final = Position(1, 1)


@dataclass(frozen=True)
class Leaf:
    """A scalar: its value, and its text as written."""

    at: Position
    value: str | int | float | bool | None
    text: str


@dataclass(frozen=True)
class Items:
    """A list."""

    at: Position
    items: tuple[Tree, ...]


@dataclass(frozen=True)
class TableEntry:
    """One key of a mapping, as written, with its value."""

    name: str
    at: Position
    value: Tree

    @property
    def members(self) -> tuple[TableEntry, ...]:
        """The entries of the value if it is a mapping, else none."""
        return self.value.entries if isinstance(self.value, Table) else ()

    def member(self, name: str) -> Tree | None:
        """Return the value of a member, or None if there is no such member."""
        return next((member.value for member in self.members if member.name == name), None)

    def with_members(self, members: Iterable[TableEntry]) -> TableEntry:
        """Return the entry of a mapping with other members."""
        assert isinstance(self.value, Table)
        return replace(self, value=Table(self.value.at, tuple(members)))


@dataclass(frozen=True)
class Table:
    """A mapping, in the order of the file, repeated keys included."""

    at: Position
    entries: tuple[TableEntry, ...]


Tree = Leaf | Items | Table


def plain_value(node: Tree) -> Any:
    """Return a tree's value without positions."""
    match node:
        case Leaf():
            return node.value
        case Items():
            return [plain_value(item) for item in node.items]
        case Table():
            return {entry.name: plain_value(entry.value) for entry in node.entries}


class BadText(Exception):
    """A text that can't be parsed; the position of the mistake, and a message."""

    def __init__(self, at: Position, message: str) -> None:
        super().__init__(message)
        self.at = at
        self.message = message


class BadYaml(BadText):
    """A text that is not YAML, or exceeds the limits."""


def load_tree(text: str, file: str = "") -> Tree | None:
    """Return the tree of a YAML text, or None if it contains nothing but comments.

    Raises:
        BadYaml: It is not YAML, contains several documents, nests too deep, or is too large with
            its aliases written out.
    """
    _check_characters(text)
    with _reporting_bad_yaml(text):
        _check_limits(text)
        node = yaml.compose(text, Loader=_Loader)
    return None if node is None else _Converter(file).convert(node, 1)


def load_plain(text: str) -> Any:
    """Return a YAML text's value without positions, for documents that are not configurations.

    The limits are four times as high; each alias counts as one value. Keys `<<` are merged, as most
    readers of such documents do.

    Raises:
        BadYaml: As `load_tree` does; also for a scalar that does not match its tag.
    """
    _check_characters(text)
    with _reporting_bad_yaml(text):
        _check_limits(text, _TIMES)
        loaded = yaml.load(text, Loader=_Loader)  # noqa: S506 - a safe loader's subclass
    if _MERGE in text:
        _merge_all(loaded, _TIMES * MAX_NODES)
    return loaded


def _merge_all(root: Any, limit: int) -> None:
    """Merge what keys `<<` name into their mappings, in place.

    Raises:
        BadYaml: They name more keys than the limit.
    """
    seen: set[int] = set()
    waiting: list[tuple[Any, bool]] = [(root, False)]
    while waiting:
        node, has_merged_parts = waiting.pop()
        if has_merged_parts:
            limit = _merge(node, limit)
        elif isinstance(node, dict | list) and id(node) not in seen:
            seen.add(id(node))
            waiting.append((node, True))
            # In the order of the text: what an alias names stands before it, and is merged by then.
            parts = node.values() if isinstance(node, dict) else node
            waiting += [(part, False) for part in reversed(parts)]


def _merge(node: Any, limit: int) -> int:
    """Merge what the key `<<` of a mapping names, if it has one; return what is left of a limit."""
    given = node.get(_MERGE) if isinstance(node, dict) else None
    sources: list[Any] = given if isinstance(given, list) else [given]
    if not all(isinstance(source, dict) for source in sources):
        return limit
    limit -= sum(len(source) + 1 for source in sources)
    if limit < 0:
        raise BadYaml(START, "Its merge keys ('<<') name too many keys; write some of them out.")
    del node[_MERGE]
    own = dict(node)
    node.clear()
    for source in reversed(sources):  # the first counts, and own keys count over all
        node |= source
    node |= own
    return limit


_TWO_DOCUMENTS: Final = (
    "A second YAML document begins here: keep one, or write each in a file of its own."
)


def _check_characters(text: str) -> None:
    strange = _NOT_YAML.search(text)
    if strange:
        line_start = text.rfind("\n", 0, strange.start()) + 1
        line = text.count("\n", 0, strange.start()) + 1
        at = Position(line, strange.start() - line_start + 1)
        raise BadYaml(at, f"{strange[0]!a} is not allowed in YAML.")


@contextmanager
def _reporting_bad_yaml(text: str) -> Iterator[None]:
    """Raise PyYAML's errors about a text as BadYaml."""
    try:
        yield
    except yaml.MarkedYAMLError as error:
        context = f" ({error.context})" if error.context else ""
        at = _position(error.problem_mark)
        if error.problem == "but found another document":
            raise BadYaml(at, _TWO_DOCUMENTS) from None
        message = f"This is not valid YAML: {error.problem or 'it cannot be read'}{context}"
        raise BadYaml(at, f"{message}{_advice(error.problem, text, at)}.") from None
    except (yaml.YAMLError, ValueError, TypeError) as error:
        raise BadYaml(START, f"This is not valid YAML: {error}.") from None


def _advice(problem: str | None, text: str, at: Position) -> str:
    """Return what to do about the mistakes of people who seldom write YAML."""
    if problem and "unknown escape" in problem:
        return "; write a path with \\ in single quotes"
    line = text.split("\n")[at.line - 1 : at.line]
    if line and line[0].lstrip(" ").startswith("\t"):
        return "; indent with spaces, not tabs"
    found = line[0][at.column - 1 : at.column] if line else ""
    is_reserved = found in ("@", "`", "%") and "cannot start any token" in (problem or "")
    return f"; put a text that begins with {found} in quotes" if is_reserved else ""


# Characters that YAML does not allow, and lone surrogates, which no encoding can express.
_NOT_YAML: Final = re.compile("[^\t\n\r\x20-\x7e\x85\xa0-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")

# libyaml, if PyYAML has it, is ten times as fast, with the same positions.
_Base: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)

_TAG: Final = "tag:yaml.org,2002:"
_NULL, _BOOL, _INT, _FLOAT = (_TAG + name for name in ("null", "bool", "int", "float"))


class _Loader(_Base):  # type: ignore[misc]
    """PyYAML's safe loader with the plain scalars of YAML 1.2's core schema."""

    yaml_implicit_resolvers: ClassVar[dict[str, list[tuple[str, re.Pattern[str]]]]] = {}

    def flatten_mapping(self, node: Any) -> None:
        """Take keys as texts, as JSON does, also those to merge.

        PyYAML would multiply what these name without a limit.
        """
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode):
                key.tag = f"{_TAG}str"

    def construct_plain(self, node: Any) -> str | int | float | bool | None:
        """Return a scalar as configurations have it.

        PyYAML takes numbers with a leading zero for octal ones, and raises KeyError and IndexError
        for some that do not match their tag.
        """
        return _scalar(self.construct_scalar(node), node.tag, _position(node.start_mark))


_FLOATS: Final = (
    r"[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?"
    r"|[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN)"
)
CORE_SCHEMA: Final = tuple(
    (tag, re.compile(rf"(?:{expression})\Z"), first)
    for tag, expression, first in (
        (_NULL, r"~|null|Null|NULL|", ["~", "n", "N", ""]),
        (_BOOL, r"true|True|TRUE|false|False|FALSE", list("tTfF")),
        (_INT, r"[-+]?[0-9]+|0o[0-7]+|0x[0-9a-fA-F]+", list("-+0123456789")),
        (_FLOAT, _FLOATS, list("-+.0123456789")),
    )
)
"""The plain scalars of YAML 1.2 that are no text: tag, expression, and first characters."""

for _tag, _expression, _first in CORE_SCHEMA:
    _Loader.add_implicit_resolver(_tag, _expression, _first)
    _Loader.add_constructor(_tag, _Loader.construct_plain)

# What JSON has for the values of tags that YAML 1.2 has not.
for _kind, _tags in (
    ("str", ("binary", "timestamp")),
    ("map", ("set",)),
    ("seq", ("omap", "pairs")),
):
    for _tag in _tags:
        _Loader.add_constructor(_TAG + _tag, getattr(_Base, f"construct_yaml_{_kind}"))


def _check_limits(text: str, times: int = 1) -> None:
    # The loader recurses, in C without a limit, so check the depth on the flat events first.
    depth = nodes = 0
    for event in yaml.parse(text, Loader=_Loader):
        if isinstance(event, yaml.NodeEvent):
            nodes += 1
            depth += isinstance(event, yaml.CollectionStartEvent)
            _check_node(event.start_mark, depth, nodes, times)
        elif isinstance(event, yaml.CollectionEndEvent):
            depth -= 1


def _check_node(mark: Any, depth: int, nodes: int, times: int = 1) -> None:
    if depth > times * MAX_DEPTH:
        message = f"Mappings and lists nest deeper than {times * MAX_DEPTH} levels here."
        raise BadYaml(_position(mark), message)
    if nodes > times * MAX_NODES:
        message = f"The file contains more than {times * MAX_NODES} values, aliases written out."
        if times > 1:
            message += " Convert it to JSON, in which it may have more."
        raise BadYaml(_position(mark), message)


class _Converter:
    """Converts composed nodes to a tree, and counts them: aliases may multiply them."""

    def __init__(self, file: str) -> None:
        self._file = file
        self._nodes = 0

    def convert(self, node: yaml.Node, depth: int) -> Tree:
        self._nodes += 1
        _check_node(node.start_mark, depth - isinstance(node, yaml.ScalarNode), self._nodes)
        at = _position(node.start_mark, self._file)
        if isinstance(node, yaml.ScalarNode):
            return Leaf(at, _scalar(node.value, node.tag, at), node.value)
        if isinstance(node, yaml.SequenceNode) and node.tag == f"{_TAG}seq":
            return Items(at, tuple(self.convert(item, depth + 1) for item in node.value))
        if isinstance(node, yaml.MappingNode) and node.tag == f"{_TAG}map":
            return Table(at, tuple(self._entries(node, depth)))
        raise BadYaml(at, f"The tag {_tag_name(node.tag)} is not supported; remove it.")

    def _entries(self, node: yaml.MappingNode, depth: int) -> Iterator[TableEntry]:
        for name, value in node.value:
            at = _position(name.start_mark, self._file)
            if not isinstance(name, yaml.ScalarNode):
                raise BadYaml(at, "A key must be plain text, not a list or a mapping.")
            if name.value == _MERGE and not name.style:
                raise BadYaml(at, "Merge keys ('<<') are not supported; write the keys out.")
            yield TableEntry(name.value, at, self.convert(value, depth + 1))


def _scalar(text: str, tag: str, at: Position) -> str | int | float | bool | None:
    try:
        match tag.removeprefix(_TAG):
            case "str":
                return str(text)
            case "int":
                return _integer(text)
            case "float":
                return float(text.lower().replace(".inf", "inf").replace(".nan", "nan"))
            case "bool":
                return {"true": True, "false": False}[text.lower()]
            case "null":
                return None
            case _:
                raise BadYaml(at, f"The tag {_tag_name(tag)} is not supported; remove it.")
    except (ValueError, KeyError):
        raise BadYaml(at, f"This value is not a valid {tag.removeprefix(_TAG)}.") from None


def _integer(text: str) -> int:
    for prefix, base in (("0x", 16), ("0o", 8)):
        if text.startswith(prefix):
            return int(text.removeprefix(prefix), base)
    return int(text)


def _position(mark: Any, file: str = "") -> Position:
    return START if mark is None else Position(mark.line + 1, mark.column + 1, file)


def _tag_name(tag: str) -> str:
    return ascii(tag.replace(_TAG, "!!")[:80])
