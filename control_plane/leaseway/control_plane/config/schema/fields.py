"""Readers of a server's own keys: command line, address, environment, headers, names.

Workers resolve the strings of the first four, so they may contain `${NAME}`. Literals that look
like credentials cause a warning that names the key, never the value.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Final, Literal
from urllib.parse import urlsplit

from leaseway.control_plane.config.schema import credentials
from leaseway.control_plane.config.schema.issues import IssueReason, Where, quoted
from leaseway.control_plane.config.schema.tables import by_name, entries_of
from leaseway.control_plane.config.schema.values import (
    MAX_TEXT,
    BadValue,
    Reader,
    Schema,
    checked,
    items_of,
    list_schema,
    plain_text,
    reader,
    suggestion,
    text,
    worker_text,
)
from leaseway.control_plane.config.tree.yaml_tree import Leaf, Table, TableEntry, Tree
from leaseway.spec.kinds.table import part_type
from leaseway.spec.lease_names import PRIVATE, depth_of_names
from leaseway.spec.references import Value
from leaseway.wire.clients.mcp_headers import SESSION_HEADER, is_mcp_header
from leaseway.wire.names import SECRET_NAME, SECRET_NAME_RULE

MAX_ARGUMENTS: Final = 1_000
MAX_VARIABLES: Final = 1_000
MAX_HEADERS: Final = 200
MAX_HEADER: Final = 8_192
MAX_URL: Final = 8_192
MAX_COMMAND: Final = 4_096
MAX_SESSION_ID: Final = 1_024
MAX_LABEL: Final = 128
MAX_LABELS: Final = 32

REFERENCE_KINDS: Final = ("env", "secret", "file")
"""The keys of a mapping that is a reference: `{env: NAME}`."""

_VARIABLE: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,255}")
_VARIABLE_RULE: Final = "letters, digits and '_', no digit first"
_LABEL: Final = re.compile(rf"[A-Za-z0-9._/-]{{1,{MAX_LABEL}}}")
HEADER_NAME: Final = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]{1,128}")
_RESERVED_HEADERS: Final = frozenset({"content-length", "transfer-encoding"})
_PATH: Final = text(longest=MAX_COMMAND, empty=False)


def _shown_text(what: str, *, longest: int = MAX_TEXT, empty: bool = True) -> Reader[str]:
    """Return a reader of text that all users of the machine, or every log, can see."""
    any_text = worker_text(longest=longest, empty=empty)

    @reader(any_text.schema)
    def read(node: Tree, where: Where) -> str:
        if isinstance(node, Table) and any(entry.name in REFERENCE_KINDS for entry in node.entries):
            raise BadValue(
                f"{quoted(where.key)} can't be a reference: {what} would show the value in process"
                " lists and logs. Pass it under 'env' or 'headers'.",
                IssueReason.REFERENCE_NOT_ALLOWED,
            )
        return any_text.read(node, where)

    return read


def _folder_fault(path: str) -> str | None:
    if path == PRIVATE:
        return None
    if path.startswith(("/", "${")) and depth_of_names(path) < len(path.split("/")):
        return None
    return f"must be an absolute path, but is {quoted(path)}."


def _session_id_fault(text: str) -> str | None:
    if all("!" <= character <= "~" for character in text):
        return None
    return "may contain only visible ASCII characters, and no spaces."


command: Final = _shown_text("a command", longest=MAX_COMMAND, empty=False)
"""Reads the program of a stdio server."""

folder: Final = checked(_shown_text("a folder", longest=MAX_COMMAND, empty=False), _folder_fault)
"""Reads the folder that a process starts in; it may contain `${NAME}`."""

env_file: Final = _PATH
"""Reads the path of a file of variables, like that of `{file: PATH}`."""

session_id: Final = checked(worker_text(longest=MAX_SESSION_ID), _session_id_fault)
"""Reads an `Mcp-Session-Id` to join; empty means none."""

INSTEAD: Final = "instead of it"
ELSEWHERE: Final = "under 'env' or 'headers'"
"""Where a reference is possible: in the place of a value, or if that can be none."""

_ARGUMENT: Final = _shown_text("arguments")
_URL: Final = _shown_text("a url", longest=MAX_URL, empty=False)


@reader(list_schema(_ARGUMENT.schema, MAX_ARGUMENTS))
def arguments(node: Tree, where: Where) -> tuple[str, ...]:
    """Read a command's arguments."""
    values: list[str] = []
    for index, item in enumerate(items_of(node, where, MAX_ARGUMENTS)):
        place = where.item(index, item.at)
        value = _ARGUMENT(item, place)
        if value is not None:
            before = values[-1] if values else ""
            warn_of_credential(
                item, place, credentials.credential_in_argument(value, before), ELSEWHERE
            )
            secret = credentials.secret_in_argument(value, before)
            if secret is not None:
                message = (
                    f"{quoted(place.key)} puts {secret} of the worker on the command line, which"
                    " every user of its machine sees. Pass it under 'env', and let the server read"
                    " it there; a variable that only 'env' has stays as it is written."
                )
                place.warning(item.at, IssueReason.SECRET_IN_ARGUMENTS, message)
            values.append(value)
    return tuple(values)


def _label_fault(name: str) -> str | None:
    if _LABEL.fullmatch(name):
        return None
    return f"is not a label: write 1 to {MAX_LABEL} letters, digits, '.', '_', '-' and '/'"


worker_labels: Final = by_name(
    plain_text(longest=MAX_LABEL), MAX_LABELS, _label_fault, what="labels"
)
"""Reads the labels that a worker must have to get the server."""


@reader(_URL.schema)
def url(node: Tree, where: Where) -> str:
    """Read the endpoint of an HTTP server."""
    value = _URL.read(node, where)
    transport = where.transport
    schemes = part_type(transport, ()).schemes(transport) if transport else ()
    fault = _url_fault(value, schemes)
    if fault:
        raise BadValue(f"{quoted(where.key)} {fault}")
    warn_of_credential(node, where, credentials.credential_in_url(value), ELSEWHERE)
    return value


def _name(rule: re.Pattern[str], words: str) -> Reader[str]:
    def fault(name: str) -> str | None:
        return None if rule.fullmatch(name) else f"must be a name of {words}, not a value."

    return checked(text(longest=256, empty=False), fault, pattern=rule.pattern)


_REFERENCES: Final[Mapping[Literal["env", "secret", "file"], Reader[str]]] = {
    "env": _name(_VARIABLE, _VARIABLE_RULE),
    "secret": _name(SECRET_NAME, SECRET_NAME_RULE),
    "file": _PATH,
}


def _only(kind: str, schema: Schema) -> Schema:
    return {
        "type": "object",
        "properties": {kind: schema},
        "additionalProperties": False,
        "required": [kind],
    }


def value_schema(longest: int) -> Schema:
    """Return the schema of a text, or a reference, that is resolved on the worker."""
    return {
        "description": "Resolved on the worker; strings may contain ${NAME} and ${NAME:-default}.",
        "anyOf": [
            text(longest=longest).schema,
            *(_only(kind, read.schema) for kind, read in _REFERENCES.items()),
        ],
    }


def worker_value(
    longest: int,
    fault_of: Callable[[str], str | None] | None = None,
    *,
    empty: bool = False,
    kind_of: Callable[[str], str | None] | None = None,
) -> Reader[Value]:
    """Return a reader of a text, or a reference, that is resolved on the worker.

    Args:
        fault_of: Returns what is wrong with a text, as `checked` wants it.
        kind_of: Returns which kind of credential a text looks like, to warn of it.
    """
    literal = worker_text(longest=longest, empty=empty)
    if fault_of:
        literal = checked(literal, fault_of)

    @reader(value_schema(longest))
    def read(node: Tree, where: Where) -> Value:
        if isinstance(node, Table):
            return reference.read(node, where)
        value = literal.read(node, where)
        warn_of_credential(node, where, kind_of(value) if kind_of else None)
        return Value("literal", value)

    return read


def _variable_fault(name: str) -> str | None:
    if _VARIABLE.fullmatch(name):
        return None
    return f"is not the name of a variable: write {_VARIABLE_RULE}"


def _header_fault(name: str) -> str | None:
    lower = name.lower()
    if not HEADER_NAME.fullmatch(name):
        return "is not the name of a header: write letters, digits and '-'"
    if lower in _RESERVED_HEADERS or is_mcp_header(name):
        advice = "; use the key 'sessionId'" if lower == SESSION_HEADER.lower() else ""
        return f"is set by Leaseway itself{advice}"
    return None


def _line_fault(text: str) -> str | None:
    if any(character in text for character in "\r\n"):
        return "contains a line break, which no header may."
    return None


def warn_of_named(entry: TableEntry, where: Where) -> None:
    """Report a text that looks, beside its name, like a credential."""
    if isinstance(entry.value, Leaf):
        kind = credentials.credential_kind(entry.name, str(entry.value.value))
        warn_of_credential(entry.value, where, kind)


@reader({"anyOf": [_only(kind, read.schema) for kind, read in _REFERENCES.items()]})
def reference(node: Tree, where: Where) -> Value:
    """Read exactly one of `{env: NAME}`, `{secret: NAME}` and `{file: PATH}`."""
    entries = entries_of(node, where)
    if len(entries) != 1:
        raise BadValue(
            f"{quoted(where.key)} must be text or exactly one of {{env: NAME}}, {{secret: NAME}}"
            f" and {{file: PATH}}; it has {len(entries)} keys.",
            IssueReason.WRONG_TYPE,
        )
    (entry,) = entries
    place = where.child(entry)
    kind = next((kind for kind in _REFERENCES if kind == entry.name), None)
    if kind is None:
        hint = suggestion(entry.name, REFERENCE_KINDS)
        message = f"{quoted(entry.name)} under {quoted(where.key)} is not a reference: {hint}"
        place.error(entry.at, IssueReason.UNKNOWN_KEY, message)
        raise BadValue  # already reported
    name = _REFERENCES[kind](entry.value, place)
    if name is None:
        raise BadValue  # already reported
    return Value(kind, name)


environment: Final = by_name(
    worker_value(MAX_TEXT, empty=True), MAX_VARIABLES, _variable_fault, accepted=warn_of_named
)
"""Reads the variables of a stdio server."""

_HEADERS: Final = by_name(
    worker_value(MAX_HEADER, _line_fault, empty=True),
    MAX_HEADERS,
    _header_fault,
    accepted=warn_of_named,
)


@reader(_HEADERS.schema)
def headers(node: Tree, where: Where) -> Mapping[str, Value]:
    """Read the HTTP headers of a server; their names differ by more than case."""
    values = _HEADERS.read(node, where)
    names: set[str] = set()
    for name in values:
        if name.lower() in names:
            place, at = where.find(name, node.at)
            fault = "is set twice; headers differ by more than case."
            message = f"{quoted(name)} under {quoted(where.key)} {fault}"
            place.error(at, IssueReason.BAD_VALUE, message)
        names.add(name.lower())
    return values


def _url_fault(url: str, schemes: tuple[str, ...]) -> str | None:
    example = f"{schemes[0] if schemes else 'http'}://127.0.0.1:3000/mcp"
    # Any digit makes a valid host, port and path, so the rest can be checked.
    filled = credentials.with_defaults(url, unset="1")
    if any(character <= " " or character == "\x7f" for character in filled):
        return "contains a space or a control character."
    try:
        parts = urlsplit(filled)
        host, _ = parts.hostname, parts.port
    except ValueError:
        return f"is not a valid URL; write, for example, {example}."
    if "@" in parts.netloc:
        return "contains credentials, which logs would show; pass them under 'headers'."
    if not schemes:
        return None
    if parts.scheme not in schemes:
        if url.startswith("${"):
            return None  # the worker fills in scheme and host
        found = f"not with {quoted(parts.scheme)}" if parts.scheme else "but has no scheme"
        return f"must begin with {' or '.join(f'{scheme}://' for scheme in schemes)}, {found}."
    return None if host else f"names no host; write, for example, {example}."


def warn_of_credential(node: Tree, where: Where, kind: str | None, place: str = INSTEAD) -> None:
    """Report a literal that looks like a credential of some kind, unless the kind is None.

    Args:
        place: Where a reference is possible.
    """
    if kind is None or not isinstance(node, Leaf):
        return
    message = (
        f"{quoted(where.key)} contains what looks like {kind}. Keep it out of the file: use"
        f" {{env: NAME}} or {{secret: NAME}} {place}."
    )
    report = where.error if where.log.forbids_credentials(node.at) else where.warning
    report(node.at, IssueReason.LITERAL_CREDENTIAL, message)
