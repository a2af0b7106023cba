"""Keys of servers that are processes of the worker: what holds a process."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import PurePosixPath
from typing import Any, Final

from leaseway.control_plane.config.schema.issues import IssueReason, Where, quoted
from leaseway.control_plane.config.schema.tables import record_of
from leaseway.control_plane.config.schema.values import (
    BadValue,
    Reader,
    boolean,
    checked,
    list_of,
    plain_text,
    reader,
)
from leaseway.control_plane.config.tree.yaml_tree import Leaf, Table, Tree
from leaseway.spec.keys import keys_of
from leaseway.spec.kinds.confinement import STRICT, Limits, Sandbox


def _writable_fault(path: str) -> str | None:
    if not path.startswith("/") or ".." in PurePosixPath(path).parts:
        return f"must be an absolute path without '..', but is {quoted(path)}."
    if not path.strip("/"):
        return "is the root folder: a sandbox with write access everywhere protects nothing."
    return None


_WRITABLE: Final = checked(plain_text(longest=4_096, empty=False), _writable_fault)


def _enabled_sandbox(strict: str = "", **given: Any) -> Sandbox:
    return Sandbox(enabled=True, strict=strict == STRICT, **given)


limits: Final = record_of(keys_of(Limits), Limits, "'limits'")
"""Reads the limits of one instance's processes."""

_SANDBOX: Final = record_of(
    keys_of(Sandbox), _enabled_sandbox, "'sandbox'", {"writable": list_of(_WRITABLE, 100)}
)


@reader({"anyOf": [boolean.schema, {"enum": [STRICT]}, _SANDBOX.schema]})
def sandbox(node: Tree, where: Where) -> Sandbox:
    """Read what holds a process: a level, or its parts."""
    if isinstance(node, Leaf) and isinstance(node.value, bool):
        return Sandbox(enabled=node.value)
    if isinstance(node, Leaf) and node.value == STRICT:
        return Sandbox(enabled=True, strict=True)
    if isinstance(node, Table):
        return _SANDBOX.read(node, where)
    raise BadValue(
        f"{quoted(where.key)} must be true, false, strict or"
        " {level: …, network: …, writable: […]}.",
        IssueReason.WRONG_TYPE,
    )


READERS: Final[Mapping[str, Reader[Any]]] = {"limits": limits, "sandbox": sandbox}
"""The readers of its keys that no shape describes."""
