"""Reader of `openapi`: a document whose operations become a server's tools.

See design.md#configuration.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from leaseway.control_plane.config.openapi.documents import (
    DOCUMENTS,
    DocumentUnavailable,
    is_address,
)
from leaseway.control_plane.config.openapi.operations import Imported, OperationSelection
from leaseway.control_plane.config.openapi.servers import origin
from leaseway.control_plane.config.schema.issues import IssueReason, Where, quoted
from leaseway.control_plane.config.schema.tables import record_of
from leaseway.control_plane.config.schema.values import BadValue, list_of, plain_text, reader
from leaseway.control_plane.config.tree.yaml_tree import Leaf, Position, Tree
from leaseway.spec.kinds.http_api import OPENAPI_KEYS, SELECTION_KEYS
from leaseway.spec.kinds.http_tools import MAX_TOOLS, is_base_url
from leaseway.wire.file_stamp import file_stamp

_MAX_WARNINGS: Final = 20
_MAX_ORIGINS: Final = 100
_SLASHES: Final = len("//")

Origin = tuple[str, str, int | None]
"""Scheme, host and port."""


@dataclass(frozen=True)
class OpenApi:
    """An imported document, and the position of the key that names it.

    `trusted` are the origins of operations' own servers that get the headers and credentials.
    """

    imported: Imported
    at: Position
    trusted: frozenset[Origin] = frozenset()


_SOURCE: Final = plain_text(longest=4_096, empty=False)
_SELECTION: Final = record_of(SELECTION_KEYS, dict[str, tuple[str, ...]], "a choice of operations")


@reader({"type": "string", "pattern": "^https?://[^/]+/?$"})
def _origin(node: Tree, where: Where) -> Origin:
    text = _SOURCE.read(node, where)
    found = origin(text) if is_base_url(text) else None
    if found is None or text.count("/") > _SLASHES + text.endswith("/"):
        raise BadValue(
            f"{quoted(where.key)} is {quoted(text)}; write the scheme and host of a server, as in"
            " https://uploads.example.com."
        )
    return found


_SETTINGS: Final = record_of(
    OPENAPI_KEYS,
    dict[str, Any],
    "'openapi'",
    {
        "include": _SELECTION,
        "exclude": _SELECTION,
        "send_credentials_to": list_of(_origin, _MAX_ORIGINS),
    },
)


@reader({"anyOf": [_SOURCE.schema, _SETTINGS.schema]})
def openapi(node: Tree, where: Where) -> OpenApi:
    """Read the name of a document, and the document."""
    if isinstance(node, Leaf):
        return _load(_SOURCE.read(node, where), OperationSelection(), node, where)
    settings = _SETTINGS.read(node, where)
    choice = {
        f"{which}_{name}": patterns
        for which in ("include", "exclude")
        for name, patterns in settings.get(which, {}).items()
    }
    loaded = _load(settings["source"], OperationSelection(**choice), node, where)
    return replace(loaded, trusted=frozenset(settings.get("send_credentials_to", ())))


def _load(source: str, selection: OperationSelection, node: Tree, where: Where) -> OpenApi:
    if not is_address(source):
        source = str(Path(where.log.file_of(node.at)).parent.absolute() / source)
        # Before it is read: what changes it meanwhile is a change.
        where.log.follow({Path(source): file_stamp(Path(source))})
    try:
        document = DOCUMENTS.load(source, selection)
        where.log.follow(document.files)
    except DocumentUnavailable as error:
        raise BadValue(str(error), IssueReason.OPENAPI_UNREADABLE) from None
    if document.stale:
        message = f"{document.stale} The previous content is used."
        where.warning(node.at, IssueReason.OPENAPI_UNREADABLE, message)
    imported = document.imported
    _warn_of_skipped(imported, node, where)
    if not imported.tools:
        why = "no chosen operation can become one"
        if not imported.skipped:
            is_chosen = selection == OperationSelection()
            why = "the document has no operation" if is_chosen else "no operation fits the patterns"
        raise BadValue(f"{quoted(where.key)} yields no tool: {why}.")
    if len(imported.tools) > MAX_TOOLS:
        raise BadValue(
            f"{quoted(where.key)} yields more than {MAX_TOOLS} tools, which is the limit. Choose"
            " some with 'include' or 'exclude'."
        )
    return OpenApi(imported, node.at)


def _warn_of_skipped(imported: Imported, node: Tree, where: Where) -> None:
    for skipped in imported.skipped[:_MAX_WARNINGS]:
        message = f"The operation {skipped.operation} does not become a tool: {skipped.reason}."
        where.warning(node.at, IssueReason.OPERATION_SKIPPED, message)
    rest = len(imported.skipped) - _MAX_WARNINGS
    if rest > 0:
        message = (
            f"{rest} more operations do not become tools; `leaseway import openapi` lists them."
        )
        where.warning(node.at, IssueReason.OPERATION_SKIPPED, message)
    for note in imported.notes[:_MAX_WARNINGS]:
        where.warning(node.at, IssueReason.OPERATION_IN_PART, note)
    rest = len(imported.notes) - _MAX_WARNINGS
    if rest > 0:
        message = (
            f"{rest} more parts of operations can't be sent; `leaseway import openapi` lists them."
        )
        where.warning(node.at, IssueReason.OPERATION_IN_PART, message)
