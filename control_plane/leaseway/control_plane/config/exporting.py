"""Converts a file of any format to a native one or to resources; omissions become comments."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

from leaseway.control_plane.config.formats.detection import parse_text, read_document
from leaseway.control_plane.config.kubernetes.resources import GROUP, VERSION
from leaseway.control_plane.config.layers.document import Document
from leaseway.control_plane.config.schema.issues import ConfigIssue, IssueReason, ParsedConfig
from leaseway.control_plane.config.schema.keys import native_schema
from leaseway.control_plane.config.tree.yaml_tree import START, plain_value
from leaseway.control_plane.config.tree.yaml_writing import yaml_text
from leaseway.spec.model import Transform

_RESOURCE_NAME: Final = re.compile(r"[a-z0-9]([a-z0-9-]{0,62}[a-z0-9])?")


def native_text(text: str, path: str, *, bare: bool = False) -> tuple[str, ParsedConfig]:
    """Return a configuration file's content as a native file, and the parsed configuration.

    A server with an error becomes a comment. A broken file becomes an empty text. The arguments are
    those of `parse_text`.
    """
    parsed, document, lines = _parse(text, path, bare)
    if document is None:
        return "", parsed
    lines.append("version: 1")
    steps = _default_transforms(document)
    if steps:
        lines += _yaml({"defaults": {"transform": steps}})
    has_servers = any(entry.name not in parsed.rejected for entry in document.servers)
    lines.append("servers:" if has_servers else "servers: {}")
    for entry in document.servers:
        block = _yaml({entry.name: plain_value(entry.value)})
        if entry.name in parsed.rejected:
            block = [f"# {line}" for line in block]
        lines += [f"  {line}" for line in (*_comments(parsed, entry.name), *block)]
    return "\n".join(lines) + "\n", parsed


def kubernetes_text(text: str, path: str, *, bare: bool = False) -> tuple[str, ParsedConfig]:
    """Return a file's servers as MCPServer resources, and the parsed configuration.

    A server with an error, or with an id that no resource can have, becomes a comment. The
    arguments are those of `parse_text`.
    """
    parsed, document, lines = _parse(text, path, bare)
    if document is None:
        return "", parsed
    steps = _default_transforms(document)
    schema = native_schema()["$defs"]["server"]
    for entry in document.servers:
        spec = plain_value(entry.value)
        if steps and isinstance(spec, dict):
            spec.setdefault("transform", steps)
        spec = _without_fractions(spec, schema)
        head = {"apiVersion": f"{GROUP}/{VERSION}", "kind": "MCPServer"}
        block = _yaml({**head, "metadata": {"name": entry.name}, "spec": spec})
        comments = _comments(parsed, entry.name)
        has_name = _RESOURCE_NAME.fullmatch(entry.name) is not None
        if not has_name:
            comments.append(
                f"# error, line {entry.at.line}: The id {entry.name!r} can't be the name of a"
                " resource: use a-z, 0-9 and '-'."
            )
        if not has_name or entry.name in parsed.rejected:
            block = [f"# {line}" for line in block]
        lines += ["---", *comments, *block]
    return "\n".join(lines) + "\n", parsed


def _parse(text: str, path: str, bare: bool) -> tuple[ParsedConfig, Document | None, list[str]]:
    """Return a parsed file, its document (None if broken) and the head of the converted file."""
    parsed = parse_text(text, path, bare=bare)
    document = read_document(text, path, bare=bare)
    if parsed.broken or document is None:
        return parsed, None, []
    if document.tenants is not None:
        at = parsed.places.get("tenants", START)
        message = (
            "'tenants' is not converted: without it, every tenant may use every server. Write it,"
            " or MCPTenant resources, by hand."
        )
        issue = ConfigIssue(
            file=path,
            line=at.line,
            column=at.column,
            key="tenants",
            severity="error",
            reason=IssueReason.KEY_NOT_TAKEN_OVER,
            message=message,
        )
        parsed = replace(parsed, issues=(*parsed.issues, issue))
    head = f"# Taken over from {ascii(path)[1:-1]} ({document.form})."
    return parsed, document, [head, *_comments(parsed, None)]


def _comments(parsed: ParsedConfig, server_id: str | None) -> list[str]:
    return [
        f"# {issue.severity}, line {issue.line}: {issue.message}"
        for issue in parsed.issues
        if issue.server_id == server_id
    ]


def _yaml(content: dict[str, Any]) -> list[str]:
    return yaml_text(content).rstrip("\n").split("\n")


def _default_transforms(document: Document) -> list[dict[str, Any]]:
    """Return the transforms of servers without their own, as in a native file."""
    defaults = document.defaults if document.defaults.given else document.implied
    return [_transform(step) for step in defaults.transforms]


def _without_fractions(value: Any, schema: Mapping[str, Any]) -> Any:
    """Return a value of a server with texts for times such as 0.5, which a resource cannot have.

    A field of a resource can be an integer or a text, but not any number or a text.
    """
    if isinstance(value, float):
        kinds = {option.get("type") for option in schema.get("anyOf", ())}
        is_time = kinds == {"number", "string"}
        return f"{value:.9f}".rstrip("0").rstrip(".") + "s" if is_time else value
    if isinstance(value, list):
        return [_without_fractions(item, schema.get("items", {})) for item in value]
    if isinstance(value, dict):
        parts = schema.get("properties", {})
        return {name: _without_fractions(part, parts.get(name, {})) for name, part in value.items()}
    return value


def _transform(step: Transform) -> dict[str, Any]:
    if step.remove:
        return {step.kind: {"remove": step.remove, "add": step.add}}
    return {step.kind: step.add}
