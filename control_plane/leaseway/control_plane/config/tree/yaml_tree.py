"""Parses YAML into a tree with the line and column of every value.

PyYAML parses and composes; this module limits its input, resolves plain scalars as YAML 1.2 does
(`yes`, `on` and dates are text), and keeps positions. Tags never create objects.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, ClassVar, Final

import yaml

MAX_DEPTH: Final = 32
"""Nesting limit of mappings and lists."""

MAX_NODES: Final = 250_000
"""Values in one file; each use of an alias counts as if it were written out."""


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

    def compose() -> Any:
        loader = _Loader(text)
        try:
            return loader.get_single_node()
        finally:
            loader.dispose()

    node = _parse(text, compose, MAX_NODES)
    return None if node is None else _Converter(file).convert(node, 1)


def load_plain(text: str, limit: int = 4 * MAX_NODES) -> Any:
    """Return a YAML text's value without positions, for documents that are not configurations.

    At most `limit` values are allowed; each alias counts as one.

    Raises:
        BadYaml: As `load_tree` does; also for a scalar that does not match its tag.
    """
    return _parse(text, partial(yaml.load, text, Loader=_Loader), limit)


def _parse(text: str, load: Callable[[], Any], limit: int) -> Any:
    """Return the result of PyYAML, with its errors as BadYaml."""
    strange = _NOT_YAML.search(text)
    if strange:
        line_start = text.rfind("\n", 0, strange.start()) + 1
        line = text.count("\n", 0, strange.start()) + 1
        at = Position(line, strange.start() - line_start + 1)
        raise BadYaml(at, f"{strange[0]!a} is not allowed in YAML.")
    try:
        _check_limits(text, limit)
        return load()
    except yaml.MarkedYAMLError as error:
        context = f" ({error.context})" if error.context else ""
        message = f"This is not valid YAML: {error.problem or 'it cannot be read'}{context}."
        raise BadYaml(_position(error.problem_mark), message) from None
    except (yaml.YAMLError, ValueError, TypeError) as error:
        raise BadYaml(START, f"This is not valid YAML: {error}.") from None


# Characters that YAML does not allow, and lone surrogates, which no encoding can express.
_NOT_YAML: Final = re.compile("[^\t\n\r\x20-\x7e\x85\xa0-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")

# libyaml, if PyYAML has it, is ten times as fast, with the same positions.
_Base: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)

_TAG: Final = "tag:yaml.org,2002:"
_NULL, _BOOL, _INT, _FLOAT = (_TAG + name for name in ("null", "bool", "int", "float"))


class _Loader(_Base):  # type: ignore[misc]
    """PyYAML's safe loader with the plain scalars of YAML 1.2's core schema."""

    yaml_implicit_resolvers: ClassVar[dict[str, list[tuple[str, re.Pattern[str]]]]] = {}


_FLOATS: Final = (
    r"(?:[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?"
    r"|[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN))"
)
for _tag, _expression, _first in (
    (_NULL, r"(?:~|null|Null|NULL|)", ["~", "n", "N", ""]),
    (_BOOL, r"(?:true|True|TRUE|false|False|FALSE)", list("tTfF")),
    (_INT, r"(?:[-+]?[0-9]+|0o[0-7]+|0x[0-9a-fA-F]+)", list("-+0123456789")),
    (_FLOAT, _FLOATS, list("-+.0123456789")),
):
    _Loader.add_implicit_resolver(_tag, re.compile(_expression + r"\Z"), _first)


def _check_limits(text: str, limit: int) -> None:
    # The composer recurses, in C without a limit, so check the depth on the flat events first.
    depth = nodes = 0
    for event in yaml.parse(text, Loader=_Loader):
        if isinstance(event, yaml.NodeEvent):
            nodes += 1
            depth += isinstance(event, yaml.CollectionStartEvent)
            _check_node(event.start_mark, depth, nodes, limit)
        elif isinstance(event, yaml.CollectionEndEvent):
            depth -= 1


def _check_node(mark: Any, depth: int, nodes: int, limit: int = MAX_NODES) -> None:
    if depth > MAX_DEPTH:
        message = f"Mappings and lists nest deeper than {MAX_DEPTH} levels here."
        raise BadYaml(_position(mark), message)
    if nodes > limit:
        message = f"The file contains more than {limit} values, aliases written out."
        raise BadYaml(_position(mark), message)


class _Converter:
    """Converts composed nodes to a tree, and counts them: aliases may multiply them."""

    def __init__(self, file: str) -> None:
        self._file = file
        self._nodes = 0

    def convert(self, node: yaml.Node, depth: int) -> Tree:
        self._nodes += 1
        _check_node(node.start_mark, depth - 1, self._nodes)
        at = _position(node.start_mark, self._file)
        if isinstance(node, yaml.ScalarNode):
            return Leaf(at, _scalar(node, at), node.value)
        if isinstance(node, yaml.SequenceNode) and node.tag == _TAG + "seq":
            return Items(at, tuple(self.convert(item, depth + 1) for item in node.value))
        if isinstance(node, yaml.MappingNode) and node.tag == _TAG + "map":
            return Table(at, tuple(self._entries(node, depth)))
        raise BadYaml(at, f"The tag {_tag_name(node.tag)} is not supported; remove it.")

    def _entries(self, node: yaml.MappingNode, depth: int) -> Iterator[TableEntry]:
        for name, value in node.value:
            at = _position(name.start_mark, self._file)
            if not isinstance(name, yaml.ScalarNode):
                raise BadYaml(at, "A key must be plain text, not a list or a mapping.")
            if name.value == "<<" and not name.style:
                raise BadYaml(at, "Merge keys ('<<') are not supported; write the keys out.")
            yield TableEntry(name.value, at, self.convert(value, depth + 1))


def _scalar(node: yaml.ScalarNode, at: Position) -> str | int | float | bool | None:
    text = node.value
    try:
        match node.tag.removeprefix(_TAG):
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
                raise BadYaml(at, f"The tag {_tag_name(node.tag)} is not supported; remove it.")
    except (ValueError, KeyError):
        raise BadYaml(at, f"This value is not a valid {node.tag.removeprefix(_TAG)}.") from None


def _integer(text: str) -> int:
    for prefix, base in (("0x", 16), ("0o", 8)):
        if text.startswith(prefix):
            return int(text.removeprefix(prefix), base)
    return int(text)


def _position(mark: Any, file: str = "") -> Position:
    return START if mark is None else Position(mark.line + 1, mark.column + 1, file)


def _tag_name(tag: str) -> str:
    return ascii(tag.replace(_TAG, "!!")[:80])
