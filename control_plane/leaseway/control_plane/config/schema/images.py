"""Readers of the keys of a stdio server that is an image: the image, its pods' template."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

from leaseway.control_plane.config.schema import credentials, fields
from leaseway.control_plane.config.schema.issues import IssueReason, Where, shown
from leaseway.control_plane.config.schema.tables import mapping, unique_entries
from leaseway.control_plane.config.schema.values import (
    check_references,
    suggestion,
    takes,
    text_of,
    text_schema,
)
from leaseway.control_plane.config.tree.yaml_tree import Entry, Items, Leaf, Table, Tree
from leaseway.spec.images import MAX_IMAGE, image_fault
from leaseway.wire.bounds import KIB

MAX_TEMPLATE: Final = 64 * KIB
"""Characters of a `podTemplate` as JSON."""

_TEMPLATE_KEYS: Final = ("metadata", "spec")


@takes(text_schema(longest=MAX_IMAGE, empty=False))
def image(node: Tree, where: Where) -> str | None:
    """Read the image of a stdio server; it may hold `${NAME}`."""
    text = text_of(node, where, longest=MAX_IMAGE, empty=False)
    if text is None:
        return None
    check_references(node, where)
    fault = None if "${" in text else image_fault(text)
    if fault is None:
        return text
    where.error(node.at, IssueReason.BAD_VALUE, f"{shown(where.key)} {fault}")
    return None


@takes({"type": "object"})
def pod_template(node: Tree, where: Where) -> str | None:
    """Read a PodTemplateSpec as JSON; what is in its `spec` the API of Kubernetes judges."""
    table = mapping(node, where)
    if table is None:
        return None
    unknown = [each for each in unique_entries(table, where) if each.name not in _TEMPLATE_KEYS]
    for each in unknown:
        hint = suggestion(each.name, _TEMPLATE_KEYS)
        message = f"{shown(each.name)} is no key of a pod's template: {hint}"
        where.child(each.name, each.value.at).error(each.at, IssueReason.UNKNOWN_KEY, message)
    if unknown:
        return None
    try:
        text = json.dumps(_plain(table, where), separators=(",", ":"), allow_nan=False)
    except (ValueError, RecursionError):
        message = f"{shown(where.key)} holds a number that JSON cannot hold, or too many levels."
        where.error(node.at, IssueReason.BAD_VALUE, message)
        return None
    if len(text) <= MAX_TEMPLATE:
        return text
    message = f"{shown(where.key)} is longer than {MAX_TEMPLATE} characters as JSON."
    where.error(node.at, IssueReason.BAD_VALUE, message)
    return None


def check_image(server: Entry, values: Mapping[str, Any], where: Where) -> None:
    """Warn of keys that mean nothing with an image, or without one."""
    if "image" in values and "inherit_env" in values:
        message = (
            "'inherit_env' has no effect with 'image': a container gets the variables of 'env'"
            " and those of the image."
        )
        _without_effect(server, "inherit_env", message, where)
    if "pod_template" in values and "image" not in values:
        message = "'podTemplate' has no effect without 'image', which says what its pods run."
        _without_effect(server, "podTemplate", message, where)


def _without_effect(server: Entry, key: str, message: str, where: Where) -> None:
    place = replace(where, key=f"{where.key}.{key}")
    at = where.log.places.get(place.key, server.at)
    place.warning(at, IssueReason.KEY_WITHOUT_EFFECT, message)


def _plain(node: Tree, where: Where) -> Any:
    match node:
        case Leaf():
            if isinstance(node.value, str):
                name = where.key.rpartition(".")[2]
                kind = credentials.credential_kind(name, node.value)
                fields.warn_of_credential(node, where, kind)
            return node.value
        case Items():
            return [_plain(item, where.item(i, item.at)) for i, item in enumerate(node.items)]
        case Table():
            return {
                entry.name: _plain(entry.value, where.child(entry.name, entry.value.at))
                for entry in unique_entries(node, where)
            }
