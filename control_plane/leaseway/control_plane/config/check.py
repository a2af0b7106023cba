"""What `leaseway check` says of a file: the parser's issues, and what this machine lacks.

References are resolved on workers (DESIGN §2), so what is missing here is a warning only.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from leaseway.control_plane.config.issues import ConfigIssue, IssueReason, ParsedConfig
from leaseway.control_plane.config.native import parse_native
from leaseway.control_plane.config.positions import START
from leaseway.control_plane.config.reading import Unreadable, read_config
from leaseway.wire.references import UnresolvedReference, expand, references
from leaseway.wire.spec import ServerSpec, Value

__all__ = ["Which", "check_file", "unresolved_here"]

Which = Callable[[str], str | None]
"""From a command to the program that it would start, or None."""


def check_file(
    path: Path, *, environ: Mapping[str, str] | None = None, which: Which = shutil.which
) -> list[ConfigIssue]:
    """Return every issue of a configuration file, in the order of the file.

    Args:
        path: The file.
        environ: The environment that references are looked up in; this process's if None.
        which: How commands are found; on this process's PATH unless told otherwise.
    """
    file = str(path)
    try:
        text = read_config(path)
    except FileNotFoundError:
        return [_unreadable(file, f"There is no file {path}.")]
    except Unreadable as error:
        return [_unreadable(file, f"The file {path} can't be read: {error}")]
    parsed = parse_native(text, file)
    here = unresolved_here(
        parsed, file, os.environ if environ is None else environ, which, os.path.exists
    )
    return sorted([*parsed.issues, *here], key=lambda issue: (issue.line, issue.column))


def unresolved_here(
    parsed: ParsedConfig,
    file: str,
    environ: Mapping[str, str],
    which: Which,
    exists: Callable[[str], bool],
) -> list[ConfigIssue]:
    """Return a warning for each reference and command that this machine can't resolve."""
    issues: list[ConfigIssue] = []
    for spec in parsed.servers.values():
        root = f"servers.{spec.key.server_id}"
        for key, reason, message in _missing(spec, environ, which, exists):
            path = f"{root}.{key}"
            at = parsed.places.get(path, START)
            issues.append(
                ConfigIssue(
                    file, at.line, at.column, path, "warning", reason, message, spec.key.server_id
                )
            )
    return issues


_Missing = tuple[str, IssueReason, str]


def _missing(
    spec: ServerSpec, environ: Mapping[str, str], which: Which, exists: Callable[[str], bool]
) -> Iterator[_Missing]:
    for key, text in _texts(spec):
        yield from _unset(key, text, environ)
    for section, values in (("env", spec.env), ("headers", spec.headers)):
        for name, value in values.items():
            yield from _value(f"{section}.{name}", value, environ, exists)
    if spec.command:
        yield from _command(spec.command, environ, which)


def _texts(spec: ServerSpec) -> Iterator[tuple[str, str]]:
    yield "command", spec.command
    yield "url", spec.url
    yield "sessionId", spec.session_id
    for index, argument in enumerate(spec.args):
        yield f"args[{index}]", argument


def _unset(key: str, text: str, environ: Mapping[str, str]) -> Iterator[_Missing]:
    for name in dict.fromkeys(name for name, default in references(text) if default is None):
        if name not in environ:
            message = (
                f"'{key}' refers to ${{{name}}}, which is not set here; set it where workers run,"
                f" or write ${{{name}:-default}}."
            )
            yield key, IssueReason.UNSET_VARIABLE, message


def _value(
    key: str, value: Value, environ: Mapping[str, str], exists: Callable[[str], bool]
) -> Iterator[_Missing]:
    match value.kind:
        case "literal":
            yield from _unset(key, value.text, environ)
        case "env" if value.text not in environ:
            message = f"'{key}' takes {value.text} from the environment, where it is not set here."
            yield f"{key}.env", IssueReason.UNSET_VARIABLE, message
        case "secret" if value.text not in environ:
            message = f"'{key}' takes the secret {value.text}, which the environment here lacks."
            yield f"{key}.secret", IssueReason.UNKNOWN_SECRET, message
        case "file" if not exists(value.text):
            message = f"'{key}' takes the content of {value.text}, which is not there."
            yield f"{key}.file", IssueReason.MISSING_FILE, message


def _command(command: str, environ: Mapping[str, str], which: Which) -> Iterator[_Missing]:
    try:
        program = expand(command, environ)
    except UnresolvedReference:
        return  # reported as an unset variable
    if which(program) is None:
        message = (
            f"The command '{program}' is not found here; install it where workers run,"
            " or write its full path."
        )
        yield "command", IssueReason.COMMAND_NOT_FOUND, message


def _unreadable(file: str, message: str) -> ConfigIssue:
    return ConfigIssue(file, 1, 1, "", "error", IssueReason.UNREADABLE, message)
