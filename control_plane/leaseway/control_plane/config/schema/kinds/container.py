"""Keys of servers that are images, in containers and pods."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from leaseway.control_plane.config.schema.issues import IssueReason, Where, quoted
from leaseway.control_plane.config.schema.json_text import json_text
from leaseway.control_plane.config.schema.tables import entries_of, warn_of_key
from leaseway.control_plane.config.schema.values import (
    BadValue,
    Reader,
    checked,
    reader,
    suggestion,
    worker_text,
)
from leaseway.control_plane.config.tree.yaml_tree import TableEntry, Tree
from leaseway.spec.kinds.container import MAX_IMAGE, image_fault
from leaseway.spec.model import Transform

_TEMPLATE_KEYS: Final = ("metadata", "spec")


def _image_fault(name: str) -> str | None:
    return None if "${" in name else image_fault(name)


image: Final = checked(worker_text(longest=MAX_IMAGE, empty=False), _image_fault)
"""Reads the image of a stdio server; it may contain `${NAME}`."""


@reader({"type": "object"})
def pod_template(node: Tree, where: Where) -> str:
    """Read a PodTemplateSpec as JSON; the Kubernetes API checks its `spec`."""
    unknown = [member for member in entries_of(node, where) if member.name not in _TEMPLATE_KEYS]
    for member in unknown:
        hint = suggestion(member.name, _TEMPLATE_KEYS)
        message = f"{quoted(member.name)} is not a key of a pod template: {hint}"
        where.child(member).error(member.at, IssueReason.UNKNOWN_KEY, message)
    if unknown:
        raise BadValue  # already reported
    return json_text(node, where, has_references=False)


def complete(
    server: TableEntry, values: dict[str, Any], _: Sequence[Transform], where: Where
) -> None:
    """Warn of keys that have no effect with an image, or without one."""
    if "image" in values and "inherit_env" in values:
        message = (
            "'inherit_env' has no effect with 'image': a container gets the variables of 'env'"
            " and those of the image."
        )
        warn_of_key("inherit_env", server, where, message)
    if "pod_template" in values and "image" not in values:
        message = "'podTemplate' has no effect without 'image', which says what its pods run."
        warn_of_key("podTemplate", server, where, message)


READERS: Final[Mapping[str, Reader[Any]]] = {"image": image, "podTemplate": pod_template}
"""The readers of its keys that no shape describes."""
