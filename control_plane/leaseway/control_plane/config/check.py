"""The issues of `leaseway check`: the parser's, and references that this machine lacks.

Workers resolve references (design.md#configuration), so a missing one here is only a warning.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

from leaseway.control_plane.config.layers.sources import Source
from leaseway.control_plane.config.loading import load_sources
from leaseway.control_plane.config.schema.issues import ConfigIssue, IssueReason, ParsedConfig
from leaseway.control_plane.config.tree.yaml_tree import START, Position
from leaseway.spec.keys import Need
from leaseway.spec.lease_names import NAMES
from leaseway.spec.model import ServerSpec
from leaseway.spec.references import UnresolvedReference, Value, expand, references
from leaseway.vault.file import read_vault
from leaseway.vault.key import VaultError, find_vault

Which = Callable[[str], str | None]
"""Returns the path of a command's program, or None."""


def check_sources(
    sources: Sequence[Source],
    *,
    environ: Mapping[str, str] | None = None,
    which: Which = shutil.which,
) -> list[ConfigIssue]:
    """Return every issue of a configuration, in the order of its files.

    Args:
        sources: The files; a missing one is an error here.
        environ: The environment for references; this process's if None.
        which: Finds commands; by default on this process's PATH.
    """
    environ = os.environ if environ is None else environ
    parsed = load_sources(sources)
    issues = [_as_checked(issue) for issue in parsed.issues]
    file = str(sources[0].path)
    try:
        secrets = _vault_names(parsed, environ)
    except VaultError as error:
        secrets = {}
        at = file, 1, 1, ""
        issues.append(ConfigIssue(*at, "warning", IssueReason.VAULT_UNREADABLE, str(error)))
    issues += unresolved_here(parsed, file, environ, which, os.path.exists, secrets)
    files = dict.fromkeys(issue.file for issue in issues)
    order = {name: number for number, name in enumerate(files)}
    return sorted(issues, key=lambda issue: (order[issue.file], issue.line, issue.column))


def _as_checked(issue: ConfigIssue) -> ConfigIssue:
    # A running system waits for a missing file; a check expects it to exist.
    if issue.reason != IssueReason.MISSING_CONFIG:
        return issue
    message = f"There is no file {issue.file}."
    return replace(issue, severity="error", reason=IssueReason.UNREADABLE, message=message)


def unresolved_here(
    parsed: ParsedConfig,
    file: str,
    environ: Mapping[str, str],
    which: Which,
    exists: Callable[[str], bool],
    secrets: Container[str] = (),
) -> list[ConfigIssue]:
    """Return a warning for each reference and command that this machine can't resolve.

    A reference that a tenant's variant shares with the common one is reported once. `secrets` are
    the names in the machine's vault.
    """
    issues: list[ConfigIssue] = []
    reported: set[tuple[str, Position, str]] = set()
    for key, spec in parsed.servers.items():
        origins = parsed.origins.get(key, {})
        for name, reason, message in _warnings(spec, environ, which, exists, secrets):
            at = _position(name, origins)
            path = f"servers.{key.server_id}.{name}"
            if (path, at, at.file) in reported:
                continue
            reported.add((path, at, at.file))
            place = at.file or file, at.line, at.column, path
            issues.append(
                ConfigIssue(*place, "warning", reason, message, key.server_id, key.tenant)
            )
    return issues


def _position(path: str, origins: Mapping[str, Position]) -> Position:
    """Return where a key path is in the files: a key may be a reference without a key inside."""
    while path and path not in origins:
        path = path.rpartition(".")[0]
    return origins.get(path, START)


_Warning = tuple[str, IssueReason, str]


def _vault_names(parsed: ParsedConfig, environ: Mapping[str, str]) -> Container[str]:
    """Return the names in this machine's vault, which is read only if a server needs a secret.

    Raises:
        VaultError: The vault cannot be read.
    """
    values = [value for spec in parsed.servers.values() for value in spec.values.values()]
    if all(value.kind != "secret" or value.text in environ for value in values):
        return ()
    return read_vault(find_vault(environ))


def _warnings(
    spec: ServerSpec,
    environ: Mapping[str, str],
    which: Which,
    exists: Callable[[str], bool],
    secrets: Container[str],
) -> Iterator[_Warning]:
    own = {key.removeprefix("env.") for key in spec.values if key.startswith("env.")}
    for key, text in spec.part.texts:
        in_arguments = key.startswith("args[")
        if in_arguments and "env_file" in spec.values:
            continue  # its variables are known only where workers run
        yield from _unset(key, text, own.union(environ) if in_arguments else environ)
    for key, value in spec.values.items():
        if value.kind == "secret" and value.text in secrets:
            continue
        yield from _value(key, value, environ, exists)
    yield from _lacked(spec.part.needs, environ, which, exists)


def _unset(key: str, text: str, environ: Container[str]) -> Iterator[_Warning]:
    for name in dict.fromkeys(name for name, default in references(text) if default is None):
        if name not in environ and name not in NAMES:
            message = (
                f"'{key}' refers to ${{{name}}}, which is not set here; set it where workers run,"
                f" or write ${{{name}:-default}}."
            )
            yield key, IssueReason.UNSET_VARIABLE, message


def _value(
    key: str, value: Value, environ: Mapping[str, str], exists: Callable[[str], bool]
) -> Iterator[_Warning]:
    match value.kind:
        case "literal":
            yield from _unset(key, value.text, environ)
        case "env" if value.text not in environ:
            message = f"'{key}' needs the environment variable {value.text}, which is not set here."
            yield f"{key}.env", IssueReason.UNSET_VARIABLE, message
        case "secret" if value.text not in environ:
            message = (
                f"'{key}' needs the secret {value.text}, which is neither in the environment nor in"
                f" the vault here; run `leaseway vault set {value.text}` where workers run."
            )
            yield f"{key}.secret", IssueReason.UNKNOWN_SECRET, message
        case "file" if not exists(value.text):
            message = f"'{key}' needs the file {value.text}, which does not exist here."
            if value.text.startswith("~") or "${" in value.text:
                message = f"{message[:-1]}; write its full path, without '~' and ${{NAME}}."
            yield f"{key}.file", IssueReason.MISSING_FILE, message


def _lacked(
    needs: Iterable[Need],
    environ: Mapping[str, str],
    which: Which,
    exists: Callable[[str], bool],
) -> Iterator[_Warning]:
    for need in needs:
        if need.kind == "path":
            if not exists(need.text):
                yield need.key, IssueReason.MISSING_FILE, need.without.format(need.text)
            continue
        try:
            program = expand(need.text, environ)
        except UnresolvedReference:
            continue  # reported as an unset variable
        if which(program) is None:
            yield need.key, IssueReason.COMMAND_NOT_FOUND, need.without.format(program)
