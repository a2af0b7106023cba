"""Parses the files of a configuration together, from their contents."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from leaseway.control_plane.config.formats.detection import parse_config
from leaseway.control_plane.config.kubernetes.resources import MAX_RESOURCES
from leaseway.control_plane.config.layers.document import Layer
from leaseway.control_plane.config.layers.sources import (
    MAX_TENANTS,
    Source,
    files_in,
    tenant_file,
)
from leaseway.control_plane.config.schema.issues import ConfigIssue, IssueReason, ParsedConfig
from leaseway.control_plane.config.tree.files import Gone, Unreadable, read_config
from leaseway.wire.messages.states import Severity
from leaseway.wire.names import is_valid_name, is_valid_tenant


@dataclass(frozen=True)
class LeftOut:
    """A resource beyond the limit of its kind, which is not read."""


FileContent = str | Unreadable | LeftOut | None
"""A file's text, why it can't be read (`Gone` if it was there before), or None if it is missing."""


def load_sources(sources: Sequence[Source]) -> ParsedConfig:
    """Read and parse a configuration's files; resources of Kubernetes are not read."""
    return parse_contents({source: _read(source.path) for source in _files(sources)})


def _read(path: Path) -> FileContent:
    try:
        return read_config(path)
    except FileNotFoundError:
        return None
    except Unreadable as error:
        return error


def parse_contents(contents: Mapping[Source, FileContent]) -> ParsedConfig:
    """Parse a configuration.

    A file that can't be read, is broken, or is gone, rejects all of it, and so do too many domain
    files, or two of a tenant. One that has been missing from the start is only a warning.

    Args:
        contents: The content of each file, the lowest layer first; without folders.
    """
    duplicates = _duplicate_domains(contents)
    refused = [*_unclear_domains(contents)]
    unread = [
        *refused,
        *_unread(contents),
        *_left_out(contents),
        *(_second_domain(source) for source in duplicates),
    ]
    layers = [
        Layer(
            kind=source.kind,
            path=str(source.path),
            text=content,
            tenant=source.tenant,
            bare=source.bare,
        )
        for source, content in contents.items()
        if isinstance(content, str) and _names_a_tenant(source) and source not in duplicates
    ]
    parsed = parse_config(layers)
    issues = (*unread, *parsed.issues)
    is_unread = any(isinstance(content, Unreadable) for content in contents.values())
    if parsed.broken or refused or is_unread:
        return ParsedConfig({}, frozenset(), issues, broken=True, places=parsed.places)
    return replace(parsed, issues=issues)


def _files(sources: Iterable[Source]) -> Iterable[Source]:
    for source in sources:
        if source.namespace:
            continue  # only a running control plane uses the API
        if not source.folder:
            yield source
            continue
        try:
            paths = files_in(source.path)
        except OSError:
            paths = []
        yield from (tenant_file(source, path) for path in paths)


def _unread(contents: Mapping[Source, FileContent]) -> Iterable[ConfigIssue]:
    for source, content in contents.items():
        if isinstance(content, Unreadable) and source.namespace:
            yield _issue(source, "error", IssueReason.UNREADABLE, str(content))
        elif isinstance(content, Gone):
            yield _issue(source, "error", IssueReason.CONFIG_GONE, _gone(source))
        elif isinstance(content, Unreadable):
            message = f"The file {source.path} can't be read: {content}"
            yield _issue(source, "error", IssueReason.UNREADABLE, message)
        elif content is None and not source.optional and not _has_global(source, contents):
            yield _issue(source, "warning", IssueReason.MISSING_CONFIG, _missing(source))
        elif not _names_a_tenant(source):
            message = (
                f"The name of the file {source.path} is not a valid tenant name: use 1 to 64"
                " characters of a-z, A-Z, 0-9, '_' and '-', and not 'all'. The file is skipped."
            )
            yield _issue(source, "error", IssueReason.BAD_VALUE, message)


def _left_out(contents: Mapping[Source, FileContent]) -> Iterable[ConfigIssue]:
    """Report resources beyond the limit together; the status of each tells it, too."""
    sources = [source for source, content in contents.items() if isinstance(content, LeftOut)]
    for source in sources[:1]:
        message = (
            f"{len(sources)} resources of the kind MCPServer are ignored: only the"
            f" {MAX_RESOURCES} oldest are read. Remove some."
        )
        namespace = replace(source, path=source.path.parent.parent)
        yield _issue(namespace, "error", IssueReason.TOO_LARGE, message)


def _unclear_domains(contents: Mapping[Source, FileContent]) -> Iterable[ConfigIssue]:
    """Report domain files that are too many, or a second one of a tenant.

    None is left out: its tenant would get the common servers, or what only the other one says.
    """
    domains = [source for source in contents if source.kind == "domain" and source.resource is None]
    for source in domains[MAX_TENANTS : MAX_TENANTS + 1]:
        message = (
            f"There are domain files of more than {MAX_TENANTS} tenants, which is the limit. The"
            " configuration stays as it was: remove some."
        )
        yield _issue(source, "error", IssueReason.TOO_LARGE, message)
    first: dict[str, Source] = {}
    for source in domains:
        other = first.setdefault(source.tenant, source)
        if other is not source:
            message = (
                f"The tenant '{source.tenant}' has another domain file, {other.path}. The"
                " configuration stays as it was: remove one of them."
            )
            yield _issue(source, "error", IssueReason.DUPLICATE_KEY, message)


def _has_global(source: Source, contents: Mapping[Source, FileContent]) -> bool:
    """Return whether the file of the same name in the user's home exists."""
    return source.kind == "native" and any(
        other.kind == "global" and isinstance(content, str) for other, content in contents.items()
    )


def _duplicate_domains(contents: Mapping[Source, FileContent]) -> frozenset[Source]:
    """Return the tenants' resources whose tenant also has a domain file."""
    files = {source.tenant for source in contents if source.tenant and source.resource is None}
    return frozenset(
        source for source in contents if source.resource is not None and source.tenant in files
    )


def _second_domain(source: Source) -> ConfigIssue:
    message = (
        f"The tenant '{source.tenant}' has a domain file, too. This resource is ignored: remove it,"
        " or the file."
    )
    return _issue(source, "error", IssueReason.DUPLICATE_KEY, message)


def _names_a_tenant(source: Source) -> bool:
    tenant = source.tenant
    return source.kind != "domain" or (is_valid_name(tenant) and is_valid_tenant(tenant))


def _gone(source: Source) -> str:
    return (
        f"The file {source.path} is gone. The configuration stays as it was until it is back. To"
        " remove what it configured, put a file without entries in its place, such as one with"
        " 'version: 1' and 'servers: {}'."
    )


def _missing(source: Source) -> str:
    if source.kind == "domain":
        return (
            f"There is no file {source.path}: the tenant '{source.tenant}' has no overrides and"
            " gets the common servers."
        )
    if source.kind == "session":
        return f"There is no file {source.path}: nothing is overridden for this session."
    return (
        f"There is no file {source.path}: no servers are configured. Write one, which is loaded"
        " without a restart, or pass --config."
    )


def _issue(source: Source, severity: Severity, reason: IssueReason, message: str) -> ConfigIssue:
    file = str(source.path)
    return ConfigIssue(
        file=file,
        line=1,
        column=1,
        key="",
        severity=severity,
        reason=reason,
        message=message,
        tenant=source.tenant,
    )
