"""From the files of a configuration, as they were found, to what they say together."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Literal

from leaseway.control_plane.config.formats.detection import parse_config
from leaseway.control_plane.config.layers.parse import Layer
from leaseway.control_plane.config.layers.sources import (
    Source,
    files_in,
    tenant_file,
)
from leaseway.control_plane.config.schema.issues import ConfigIssue, IssueReason, ParsedConfig
from leaseway.control_plane.config.tree.read_file import Unreadable, read_config
from leaseway.wire.names import is_valid_name

FileContent = str | Unreadable | None
"""What was found at a path: its text, why it can't be read, or nothing."""


def load_sources(sources: Sequence[Source]) -> ParsedConfig:
    return parse_found({source: look(source.path) for source in _files(sources)})


def look(path: Path) -> FileContent:
    try:
        return read_config(path)
    except FileNotFoundError:
        return None
    except Unreadable as error:
        return error


def parse_found(found: Mapping[Source, FileContent]) -> ParsedConfig:
    """Parse a configuration.

    A file that can't be read, or is broken, refuses all of it. One that is missing says nothing,
    which is a warning.

    Args:
        found: What was found of each file, the lowest layer first; folders are not among them.
    """
    twice = _twice(found)
    unread = [*_unread(found), *(_second_domain(source) for source in twice)]
    layers = [
        Layer(source.kind, str(source.path), content, source.tenant, source.bare)
        for source, content in found.items()
        if isinstance(content, str) and _names_a_tenant(source) and source not in twice
    ]
    parsed = parse_config(layers)
    issues = (*unread, *parsed.issues)
    if parsed.broken or any(isinstance(content, Unreadable) for content in found.values()):
        return ParsedConfig({}, frozenset(), issues, broken=True, places=parsed.places)
    return replace(parsed, issues=issues)


def _files(sources: Iterable[Source]) -> Iterable[Source]:
    for source in sources:
        if source.namespace:
            continue  # only a running control plane asks an API
        if not source.folder:
            yield source
            continue
        try:
            paths = files_in(source.path)
        except OSError:
            paths = []
        yield from (tenant_file(source, path) for path in paths)


def _unread(found: Mapping[Source, FileContent]) -> Iterable[ConfigIssue]:
    for source, content in found.items():
        if isinstance(content, Unreadable) and source.namespace:
            yield _issue(source, "error", IssueReason.UNREADABLE, str(content))
        elif isinstance(content, Unreadable):
            message = f"The file {source.path} can't be read: {content}"
            yield _issue(source, "error", IssueReason.UNREADABLE, message)
        elif content is None and not source.optional and not _stands_in(source, found):
            yield _issue(source, "warning", IssueReason.MISSING_CONFIG, _missing(source))
        elif not _names_a_tenant(source):
            message = (
                f"The name of the file {source.path} is not a valid tenant name: use 1 to 64"
                " characters of a-z, A-Z, 0-9, '_' and '-'. The file is skipped."
            )
            yield _issue(source, "error", IssueReason.BAD_VALUE, message)


def _stands_in(source: Source, found: Mapping[Source, FileContent]) -> bool:
    """Return whether the file of the same name in the user's home is there for one that is not."""
    return source.kind == "native" and any(
        other.kind == "global" and isinstance(content, str) for other, content in found.items()
    )


def _twice(found: Mapping[Source, FileContent]) -> frozenset[Source]:
    """Return the tenants' resources that a file of the same tenant lies beside."""
    files = {source.tenant for source in found if source.tenant and source.resource is None}
    return frozenset(
        source for source in found if source.resource is not None and source.tenant in files
    )


def _second_domain(source: Source) -> ConfigIssue:
    message = (
        f"The tenant '{source.tenant}' has a file among the layers, too; each has one domain. This"
        " resource is left out: remove it, or the file."
    )
    return _issue(source, "error", IssueReason.DUPLICATE_KEY, message)


def _names_a_tenant(source: Source) -> bool:
    return source.kind != "domain" or is_valid_name(source.tenant)


def _missing(source: Source) -> str:
    if source.kind == "domain":
        return (
            f"There is no file {source.path}: the tenant '{source.tenant}' has no overrides and"
            " sees what everyone sees."
        )
    if source.kind == "session":
        return f"There is no file {source.path}: nothing is overridden for this session."
    return (
        f"There is no file {source.path}: no servers are configured. Write one, which is taken when"
        " it comes, or pass --config."
    )


def _issue(
    source: Source, severity: Literal["error", "warning"], reason: IssueReason, message: str
) -> ConfigIssue:
    file = str(source.path)
    return ConfigIssue(file, 1, 1, "", severity, reason, message, tenant=source.tenant)
