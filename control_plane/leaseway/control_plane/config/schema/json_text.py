"""Turns a tree of an entry into JSON, in which references stay references."""

from __future__ import annotations

import json
from typing import Any, Final

from leaseway.control_plane.config.schema import credentials, fields
from leaseway.control_plane.config.schema.issues import Where, quoted
from leaseway.control_plane.config.schema.tables import entries_of
from leaseway.control_plane.config.schema.values import (
    BadValue,
    text,
    worker_text,
)
from leaseway.control_plane.config.tree.yaml_tree import Items, Leaf, Table, Tree
from leaseway.wire.bounds import KIB

MAX_JSON_TEXT: Final = 64 * KIB
"""Characters of a `config` or `podTemplate` as JSON; a process accepts no variable over 128 KiB."""

_MAX_DEPTH: Final = 16
_MAX_NUMBER: Final = 2**63
_TEXT: Final = text()
_WORKER_TEXT: Final = worker_text()


def json_text(node: Tree, where: Where, *, has_references: bool) -> str:
    """Return a tree as JSON, in which workers replace references if `has_references`.

    Raises:
        BadValue: It is too long, or a value in it is rejected.
    """
    builder = _JsonBuilder(has_references)
    content = builder.value(node, where, 0)
    if builder.is_rejected:
        raise BadValue  # already reported
    # The launch hash covers the text: written otherwise, it would restart servers on an upgrade.
    written = json.dumps(
        content,
        sort_keys=has_references,
        ensure_ascii=not has_references,
        separators=(",", ":"),
    )
    if len(written) <= MAX_JSON_TEXT:
        return written
    raise BadValue(f"{quoted(where.key)} is longer than {MAX_JSON_TEXT} characters as JSON.")


class _JsonBuilder:
    """Turns a tree into a JSON value, and reports each mistake in it."""

    def __init__(self, has_references: bool) -> None:
        self._has_references = has_references
        self.is_rejected = False

    def value(self, node: Tree, where: Where, depth: int) -> Any:
        try:
            if depth > _MAX_DEPTH:
                raise BadValue(f"{quoted(where.key)} is nested deeper than {_MAX_DEPTH}.")
            match node:
                case Table():
                    return self._table(node, where, depth)
                case Items():
                    items = enumerate(node.items)
                    return [
                        self.value(item, where.item(i, item.at), depth + 1) for i, item in items
                    ]
                case Leaf():
                    return self._leaf(node, where)
        except BadValue as error:
            error.report(node, where)
            self.is_rejected = True

    def _table(self, node: Table, where: Where, depth: int) -> Any:
        entries = entries_of(node, where)
        is_reference = len(entries) == 1 and entries[0].name in fields.REFERENCE_KINDS
        if self._has_references and depth and is_reference:
            value = fields.reference.read(node, where)
            return {value.kind: value.text}
        return {
            entry.name: self.value(entry.value, where.child(entry), depth + 1) for entry in entries
        }

    def _leaf(self, node: Leaf, where: Where) -> Any:
        value = node.value
        if isinstance(value, str):
            value = (_WORKER_TEXT if self._has_references else _TEXT).read(node, where)
            name = where.key.rpartition(".")[2]
            kind = credentials.credential_kind(name, value)
            place = fields.INSTEAD if self._has_references else fields.ELSEWHERE
            fields.warn_of_credential(node, where, kind, place)
            return value
        is_wide = isinstance(value, int) and abs(value) > _MAX_NUMBER
        if is_wide or (isinstance(value, float) and not -1e308 < value < 1e308):
            raise BadValue(f"{quoted(where.key)} is not a number that JSON can express.")
        return value
