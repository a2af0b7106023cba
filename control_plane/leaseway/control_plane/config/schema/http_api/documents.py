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
from leaseway.control_plane.config.schema.tables import (
    Key,
    keyed,
    mapping,
    read_table,
    record,
    schema_of,
    unique_entries,
)
from leaseway.control_plane.config.schema.values import list_of, plain_text, takes
from leaseway.control_plane.config.tree.yaml_tree import Leaf, Position, Tree
from leaseway.spec.http_tools import MAX_TOOLS

_MOST_PATTERNS: Final = 1_000
_MOST_WARNINGS: Final = 20


@dataclass(frozen=True)
class OpenApi:
    """A document that a server takes tools from.

    Attributes:
        imported: What it has.
        at: Where the key's value is.
    """

    imported: Imported
    at: Position


_SOURCE: Final = plain_text(longest=4_096, empty=False)
_PATTERNS: Final = list_of(plain_text(longest=1_024, empty=False), _MOST_PATTERNS)
_CHOICE: Final = record(
    keyed(*(Key(name, _PATTERNS, name) for name in ("operations", "tags", "paths"))),
    dict[str, tuple[str, ...]],
    "a choice of operations",
)
_KEYS: Final = keyed(
    Key("source", _SOURCE, "source"),
    Key("include", _CHOICE, "include"),
    Key("exclude", _CHOICE, "exclude"),
)


@takes({"anyOf": [_SOURCE.schema, schema_of(_KEYS, required=("source",))]})
def openapi(node: Tree, where: Where) -> OpenApi | None:
    """Read which document a server's tools come from, and the document."""
    values: Mapping[str, Any] | None = None
    if isinstance(node, Leaf):
        values = {"source": _SOURCE(node, where)}
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
