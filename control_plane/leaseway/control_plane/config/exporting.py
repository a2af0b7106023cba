"""A file of any format as a native one, or as resources, with comments on what is left out."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Any, Final

import yaml

from leaseway.control_plane.config.formats.detection import parse_text, read_document
from leaseway.control_plane.config.kubernetes.resources import GROUP, VERSION
from leaseway.control_plane.config.layers.document import Document
from leaseway.control_plane.config.schema.issues import ConfigIssue, ParsedConfig
from leaseway.control_plane.config.tree.yaml_tree import TableEntry, plain_value
from leaseway.spec.model import Transform

_RESOURCE_NAME: Final = re.compile(r"[a-z0-9]([a-z0-9-]{0,62}[a-z0-9])?")


def native_text(text: str, path: str, *, bare: bool = False) -> tuple[str, ParsedConfig]:
    """Return a configuration file's content as a native file, and what was found in it.

    A server whose entry has an error is there as a comment. A broken file gives an empty text.

    Args:
        text: The file's content.
        path: Its name, for the issues and the format; it is not opened.
        bare: Whether tools get no prefix where the format cannot state one.
    """
    parsed, document, lines = _begin(text, path, bare)
    if document is None:
        return "", parsed
    lines.append("version: 1")
    steps = _steps(document)
    if steps:
        lines += _block({"defaults": {"transform": steps}})
    live = [entry for entry in document.servers if entry.name not in parsed.rejected]
    lines.append("servers:" if live else "servers: {}")
    for entry in document.servers:
        about = [issue for issue in parsed.issues if issue.server_id == entry.name]
        lines += [f"  {line}" for line in _server(entry, about, entry.name in parsed.rejected)]
    return "\n".join(lines) + "\n", parsed


def kubernetes_text(text: str, path: str, *, bare: bool = False) -> tuple[str, ParsedConfig]:
    """Return a configuration file's servers as MCPServer resources, and what was found in it.

    A server whose entry has an error, or whose id is no name of a resource, is a comment.

    Args:
        text: The file's content.
        path: Its name, for the issues and the format; it is not opened.
        bare: Whether tools get no prefix where the format cannot state one.
    """
    parsed, document, lines = _begin(text, path, bare)
    if document is None:
        return "", parsed
    steps = _steps(document)
    for entry in document.servers:
        spec = plain_value(entry.value)
        if steps and isinstance(spec, dict):
            spec.setdefault("transform", steps)
        head = {"apiVersion": f"{GROUP}/{VERSION}", "kind": "MCPServer"}
        block = _block({**head, "metadata": {"name": entry.name}, "spec": spec})
        about = _comments(issue for issue in parsed.issues if issue.server_id == entry.name)
        named = _RESOURCE_NAME.fullmatch(entry.name) is not None
        if not named:
            about.append(
                f"# error, line {entry.at.line}: The id {entry.name!r} is no name of a resource:"
                " use a-z, 0-9 and '-'."
            )
        if not named or entry.name in parsed.rejected:
            block = [f"# {line}" for line in block]
        lines += ["---", *about, *block]
    return "\n".join(lines) + "\n", parsed


def _begin(text: str, path: str, bare: bool) -> tuple[ParsedConfig, Document | None, list[str]]:
    """Return what a file holds, None where it is broken, and the first lines of what it becomes."""
    parsed = parse_text(text, path, bare=bare)
    document = read_document(text, path, bare=bare)
    if parsed.broken or document is None:
        return parsed, None, []
    lines = [f"# Taken over from {ascii(path)[1:-1]} ({document.form})."]
    lines += _comments(issue for issue in parsed.issues if issue.server_id is None)
    return parsed, document, lines


def _server(entry: TableEntry, issues: Sequence[ConfigIssue], rejected: bool) -> list[str]:
    block = _block({entry.name: plain_value(entry.value)})
    if rejected:
        block = [f"# {line}" for line in block]
    return [*_comments(issues), *block]


def _comments(issues: Iterable[ConfigIssue]) -> list[str]:
    return [f"# {issue.severity}, line {issue.line}: {issue.message}" for issue in issues]


def _block(content: dict[str, Any]) -> list[str]:
    return yaml.safe_dump(content, sort_keys=False, allow_unicode=True, width=100).splitlines()


def _steps(document: Document) -> list[dict[str, Any]]:
    """Return what is done to names of servers that do not say it."""
    defaults = document.defaults if document.defaults.given else document.implied
    return [_step(step) for step in defaults.transforms]


def _step(step: Transform) -> dict[str, Any]:
    if step.kind == "prefix" and step.remove:
        return {"prefix": {"remove": step.remove, "add": step.add}}
    return {step.kind: step.add}
