"""What the parts of published descriptions must be, or else they would be left out unseen."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from leaseway.control_plane.config.formats.client_forms import find
from leaseway.control_plane.config.formats.tool_rules import folded
from leaseway.control_plane.config.schema.issues import IssueReason, Where, quoted
from leaseway.control_plane.config.tree.yaml_tree import Items, Leaf, Position, Table, Tree

_ARGUMENTS: Final = frozenset({"packagearguments", "runtimearguments"})
_NAMED: Final = frozenset({"environmentvariables", "headers"})
_SAY_SOMETHING: Final = frozenset({"type", "name", "value", "default", "valuehint"})


@dataclass(frozen=True)
class Fault:
    """A value of another shape than a server needs.

    Attributes:
        at: Where it is.
        message: What it must be, as a sentence.
    """

    at: Position
    message: str


def report(faults: Iterable[Fault], where: Where) -> bool:
    """Refuse the file for its faults; return whether there are any."""
    found = list(faults)
    for fault in found:
        where.fatal(fault.at, IssueReason.WRONG_TYPE, fault.message)
    return bool(found)


def faults_of_bundle(root: Table) -> Iterator[Fault]:
    """Yield the faults of a bundle's manifest, of what says how it is started."""
    config = ["server", "mcp_config"]
    for path in (config, [*config, "platform_overrides"], ["user_config"]):
        node, place = find(root, path), path[-1]
        if node is None or _is_null(node):
            continue
        if not isinstance(node, Table):
            yield Fault(node.at, f"{quoted(place)} must be a mapping.")
        elif path != config:
            for entry in node.entries:
                if not isinstance(entry.value, Table):
                    yield Fault(entry.at, f"{quoted(f'{place}.{entry.name}')} must be a mapping.")
                for name in ("required", "sensitive"):
                    switch = entry.member(name)
                    if switch is not None and not _is_null(switch) and not _is_switch(switch):
                        yield Fault(switch.at, f"{quoted(name)} must be true or false.")


def faults_of(way: Tree) -> Iterator[Fault]:
    """Yield the faults of a package or of an address of a `server.json`."""
    for entry in way.entries if isinstance(way, Table) else ():
        key, value = folded(entry.name), entry.value
        shape = _SHAPES.get(key)
        if shape is None or _is_null(value):
            continue
        is_fit, wanted = shape
        if not is_fit(value):
            yield Fault(value.at, f"{quoted(entry.name)} must be {wanted}.")
        elif isinstance(value, Items):
            for item in value.items:
                yield from _faults_of_item(item, key, entry.name)
        elif key == "variables":
            for variable in entry.members:
                yield from _faults_of_item(variable.value, key, entry.name)


def _faults_of_item(item: Tree, key: str, name: str) -> Iterator[Fault]:
    """Yield the faults of an argument, a variable, or a header.

    Some publishers write an argument as a word.
    """
    lacks = ""
    if not isinstance(item, Table):
        lacks = "" if key in _ARGUMENTS and isinstance(item, Leaf) else "must be a mapping"
    elif key in _NAMED or _is(item, "named"):
        lacks = "" if _has_name(item) else "needs a 'name'"
    elif key in _ARGUMENTS and not _SAY_SOMETHING & {folded(entry.name) for entry in item.entries}:
        lacks = "needs a 'type' and a 'value'"
    elif key in _ARGUMENTS and find(item, ["type"]) is not None and not _is(item, "positional"):
        lacks = "needs the 'type' 'named' or 'positional'"
    if lacks:
        yield Fault(item.at, f"Each item of {quoted(name)} {lacks}.")
    yield from faults_of(item)


def _is(item: Tree, kind: str) -> bool:
    found = find(item, ["type"])
    return isinstance(found, Leaf) and found.value == kind


def _has_name(item: Tree) -> bool:
    name = find(item, ["name"])
    return isinstance(name, Leaf) and isinstance(name.value, str) and bool(name.value)


def _is_null(node: Tree) -> bool:
    """Whether a value is as good as left out."""
    return isinstance(node, Leaf) and node.value is None


def _is_text(node: Tree) -> bool:
    return isinstance(node, Leaf) and isinstance(node.value, str)


def _is_switch(node: Tree) -> bool:
    return isinstance(node, Leaf) and isinstance(node.value, bool)


def _is_scalar(node: Tree) -> bool:
    return isinstance(node, Leaf)


def _is_list(node: Tree) -> bool:
    return isinstance(node, Items)


def _is_mapping(node: Tree) -> bool:
    return isinstance(node, Table)


def _is_transport(node: Tree) -> bool:
    kind = find(node, ["type"])
    return kind is not None and _is_text(kind)


_SHAPES: Final[Mapping[str, tuple[Callable[[Tree], bool], str]]] = {
    **dict.fromkeys(
        (
            *("name", "identifier", "version", "url", "type", "transporttype", "format"),
            *("valuehint", "registrytype", "registryname", "runtimehint"),
        ),
        (_is_text, "text"),
    ),
    **dict.fromkeys(("isrequired", "issecret"), (_is_switch, "true or false")),
    **dict.fromkeys(("value", "default"), (_is_scalar, "text")),
    **dict.fromkeys((*_ARGUMENTS, *_NAMED), (_is_list, "a list of mappings")),
    "variables": (_is_mapping, "a mapping of names to mappings"),
    "transport": (_is_transport, "a mapping with a 'type'"),
}
"""By folded key, whether a value is fit for it, and what it must be."""
