"""Reader of `openapi`: a document whose operations become a server's tools (DESIGN §2)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from leaseway.control_plane.config.openapi.documents import (
    DOCUMENTS,
    DocumentUnavailable,
    is_address,
)
from leaseway.control_plane.config.openapi.operations import Imported, Selection
from leaseway.control_plane.config.schema.issues import IssueReason, Where, shown
from leaseway.control_plane.config.schema.tables import Key, mapping, read_table, unique_entries
from leaseway.control_plane.config.schema.values import list_of, plain_text
from leaseway.control_plane.config.tree.yaml_tree import Leaf, Position, Tree
from leaseway.spec.http_tools import MAX_TOOLS

_MOST_PATTERNS: Final = 1_000
_MOST_WARNINGS: Final = 20
_CHOICES: Final = ("operations", "tags", "paths")


@dataclass(frozen=True)
class OpenApi:
    """A document that a server takes tools from.

    Attributes:
        imported: What it has.
        at: Where the key's value is.
    """

    imported: Imported
    at: Position


def openapi(node: Tree, where: Where) -> OpenApi | None:
    """Read which document a server's tools come from, and the document."""
    values: Mapping[str, Any] | None = None
    if isinstance(node, Leaf):
        source = plain_text(longest=4_096, empty=False)(node, where)
        values = {"source": source}
    else:
        table = mapping(node, where)
        if table is None:
            return None
        entries = unique_entries(table, where)
        values = read_table(entries, _KEYS, where, "'openapi'")
        if not any(each.name == "source" for each in entries):
            where.missing(node.at, "source", "'openapi' needs 'source': a file or an address.")
    if not values.get("source"):
        return None
    choice = {
        f"{which}_{name}": patterns
        for which in ("include", "exclude")
        for name, patterns in values.get(which, {}).items()
    }
    return _load(values["source"], Selection(**choice), node, where)


def _load(source: str, selection: Selection, node: Tree, where: Where) -> OpenApi | None:
    if not is_address(source):
        source = str(Path(where.log.file_of(node.at)).parent.absolute() / source)
        where.log.followed.add(Path(source))
    try:
        document = DOCUMENTS.load(source, selection)
    except DocumentUnavailable as error:
        where.error(node.at, IssueReason.OPENAPI_UNREADABLE, str(error))
        return None
    if document.stale:
        message = f"{document.stale} What was read before is used."
        where.warning(node.at, IssueReason.OPENAPI_UNREADABLE, message)
    imported = document.imported
    _warn_of_skipped(imported, node, where)
    if not imported.tools:
        message = f"{shown(where.key)} gives no tool: no operation that is chosen can be one."
        where.error(node.at, IssueReason.BAD_VALUE, message)
        return None
    if len(imported.tools) > MAX_TOOLS:
        message = (
            f"{shown(where.key)} gives {len(imported.tools)} tools; {MAX_TOOLS} are allowed."
            " Choose some with 'include' or 'exclude'."
        )
        where.error(node.at, IssueReason.BAD_VALUE, message)
        return None
    return OpenApi(imported, node.at)


def _warn_of_skipped(imported: Imported, node: Tree, where: Where) -> None:
    for skipped in imported.skipped[:_MOST_WARNINGS]:
        message = f"The operation {skipped.operation} is no tool: {skipped.why}."
        where.warning(node.at, IssueReason.OPERATION_SKIPPED, message)
    rest = len(imported.skipped) - _MOST_WARNINGS
    if rest > 0:
        message = f"{rest} more operations are no tools; `leaseway import openapi` lists them."
        where.warning(node.at, IssueReason.OPERATION_SKIPPED, message)


def _choice(node: Tree, where: Where) -> dict[str, tuple[str, ...]] | None:
    table = mapping(node, where)
    if table is None:
        return None
    return read_table(unique_entries(table, where), _CHOICE_KEYS, where, "a choice of operations")


_CHOICE_KEYS: Final = {
    name: Key(name, list_of(plain_text(longest=1_024, empty=False), _MOST_PATTERNS), name)
    for name in _CHOICES
}
_KEYS: Final = {
    key.name: key
    for key in (
        Key("source", plain_text(longest=4_096, empty=False), "source"),
        Key("include", _choice, "include"),
        Key("exclude", _choice, "exclude"),
    )
}
