"""Readers of a server's own keys: command line, address, environment, headers, names.

The strings of the first four are resolved on workers, so they may hold `${NAME}`; literals that
look like credentials are warned about by key, never by value.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Final
from urllib.parse import urlsplit

from leaseway.control_plane.config.schema import credentials
from leaseway.control_plane.config.schema.issues import IssueReason, Where, shown
from leaseway.control_plane.config.schema.tables import mapping, unique_entries
from leaseway.control_plane.config.schema.values import (
    MAX_TEXT,
    Schema,
    check_references,
    kind_of,
    list_schema,
    plain_text,
    suggestion,
    takes,
    text_of,
    text_schema,
)
from leaseway.control_plane.config.tree.yaml_tree import Entry, Items, Leaf, Table, Tree
from leaseway.spec.model import TRANSPORTS, Value
from leaseway.spec.references import references
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

_KINDS: Final = ("env", "secret", "file")
_SCHEMES: Final = ("http", "https")
_VARIABLE: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,255}")
_LABEL: Final = re.compile(rf"[A-Za-z0-9._/-]{{1,{MAX_LABEL}}}")
HEADER_NAME: Final = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]{1,128}")
_OWN_HEADERS: Final = frozenset(
    {"content-length", "transfer-encoding", "mcp-protocol-version", "mcp-session-id"}
)


@takes(text_schema(longest=MAX_COMMAND, empty=False))
def command(node: Tree, where: Where) -> str | None:
    """Read the program of a stdio server."""
    if _wired(node, where, "a command"):
        return None
    text = text_of(node, where, longest=MAX_COMMAND, empty=False)
    check_references(node, where)
    return text


@takes(list_schema(text_schema(), MAX_ARGUMENTS))
def arguments(node: Tree, where: Where) -> tuple[str, ...] | None:
    """Read a command's arguments."""
    if not isinstance(node, Items):
        message = f"{shown(where.key)} must be a list of text, but it is {kind_of(node)}."
        where.error(node.at, IssueReason.WRONG_TYPE, message)
        return None
    if len(node.items) > MAX_ARGUMENTS:
        message = f"{shown(where.key)} has {len(node.items)} items; {MAX_ARGUMENTS} are allowed."
        where.error(node.at, IssueReason.BAD_VALUE, message)
        return None
    read: list[str] = []
    for index, item in enumerate(node.items):
        place = where.item(index, item.at)
        text = None if _wired(item, place, "arguments") else text_of(item, place)
        if text is not None:
            check_references(item, place)
            before = read[-1] if read else ""
            warn_of_credential(item, place, credentials.credential_in_argument(text, before))
            _warn_of_shown_secret(item, place, credentials.secret_in_argument(text, before))
            read.append(text)
    return tuple(read)


def _warn_of_shown_secret(node: Tree, where: Where, name: str | None) -> None:
    if name is not None:
        where.warning(
            node.at,
            IssueReason.SECRET_IN_ARGUMENTS,
            f"{shown(where.key)} puts {name} on the command line, which every user of the worker's "
            "machine sees. Give it to the server under 'env', and let it read it there.",
        )


@takes(text_schema(longest=MAX_COMMAND, empty=False))
def folder(node: Tree, where: Where) -> str | None:
    """Read the folder that a process starts in; it may hold `${NAME}`."""
    if _wired(node, where, "a folder"):
        return None
    text = text_of(node, where, longest=MAX_COMMAND, empty=False)
    if text is None:
        return None
    check_references(node, where)
    if text.startswith(("/", "${")):
        return text
    message = f"{shown(where.key)} must be an absolute path, but is {shown(text)}."
    where.error(node.at, IssueReason.BAD_VALUE, message)
    return None


@takes(text_schema(longest=MAX_COMMAND, empty=False))
def env_file(node: Tree, where: Where) -> str | None:
    """Read the path of a file of variables, as that of `{file: PATH}`."""
    return text_of(node, where, longest=MAX_COMMAND, empty=False)


@takes(
    {
        "type": "object",
        "maxProperties": MAX_LABELS,
        "additionalProperties": text_schema(longest=MAX_LABEL),
    }
)
def worker_labels(node: Tree, where: Where) -> dict[str, str] | None:
    """Read the labels that a worker must have to be given the server."""
    table = mapping(node, where)
    if table is None:
        return None
    if len(table.entries) > MAX_LABELS:
        message = f"{shown(where.key)} has {len(table.entries)} labels; {MAX_LABELS} are allowed."
        where.error(node.at, IssueReason.BAD_VALUE, message)
        return None
    read_value = plain_text(longest=MAX_LABEL)
    found: dict[str, str] = {}
    for entry in unique_entries(table, where):
        place = where.child(entry.name, entry.value.at)
        if not _LABEL.fullmatch(entry.name):
            message = (
                f"{shown(entry.name)} is no label: write 1 to {MAX_LABEL} letters, digits, '.',"
                " '_', '-' and '/'."
            )
            place.error(entry.at, IssueReason.BAD_VALUE, message)
            continue
        value = read_value(entry.value, place)
        if value is not None:
            found[entry.name] = value
    return found


@takes(text_schema(longest=MAX_URL, empty=False))
def url(node: Tree, where: Where) -> str | None:
    """Read the endpoint of an HTTP server."""
    if _wired(node, where, "a url"):
        return None
    text = text_of(node, where, longest=MAX_URL, empty=False)
    if text is None:
        return None
    check_references(node, where)
    fault = _url_fault(text, _schemes(where.transport))
    if fault:
        where.error(node.at, IssueReason.BAD_VALUE, f"{shown(where.key)} {fault}")
        return None
    warn_of_credential(node, where, credentials.credential_in_url(text))
    return text


@takes(text_schema(longest=MAX_SESSION_ID))
def session_id(node: Tree, where: Where) -> str | None:
    """Read an `Mcp-Session-Id` to join; empty means none."""
    text = text_of(node, where, longest=MAX_SESSION_ID)
    if text is None:
        return None
    check_references(node, where)
    if all("!" <= character <= "~" for character in text):
        return text
    message = f"{shown(where.key)} may hold visible ASCII characters only, and no spaces."
    where.error(node.at, IssueReason.BAD_VALUE, message)
    return None


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
        "description": "Resolved on the worker; a text may hold ${NAME} and ${NAME:-default}.",
        "anyOf": [
            text_schema(longest=longest),
            _only("env", {"type": "string", "pattern": f"^{_VARIABLE.pattern}$"}),
            _only("secret", {"type": "string", "pattern": f"^{SECRET_NAME.pattern}$"}),
            _only("file", text_schema(longest=MAX_COMMAND, empty=False)),
        ],
    }


def _values_schema(longest: int, most: int) -> Schema:
    value = value_schema(longest)
    return {"type": "object", "maxProperties": most, "additionalProperties": value}


@takes(_values_schema(MAX_TEXT, MAX_VARIABLES))
def environment(node: Tree, where: Where) -> Mapping[str, Value] | None:
    """Read the variables of a stdio server."""

    def fault(name: str) -> str | None:
        if _VARIABLE.fullmatch(name):
            return None
        return "is no name of a variable: write letters, digits and '_', no digit first"

    return _values(node, where, MAX_VARIABLES, MAX_TEXT, fault)


@takes(_values_schema(MAX_HEADER, MAX_HEADERS))
def headers(node: Tree, where: Where) -> Mapping[str, Value] | None:
    """Read the HTTP headers of a server; their names differ by more than case."""
    seen: set[str] = set()

    def fault(name: str) -> str | None:
        lower = name.lower()
        if not HEADER_NAME.fullmatch(name):
            return "is no name of a header: write letters, digits and '-'"
        if lower in _OWN_HEADERS:
            use = "; use the key 'sessionId'" if lower == "mcp-session-id" else ""
            return f"is set by Leaseway itself{use}"
        if lower in seen:
            return "is set twice; headers differ by more than case"
        seen.add(lower)
        return None

    return _values(node, where, MAX_HEADERS, MAX_HEADER, fault, one_line=True)


def _values(
    node: Tree,
    where: Where,
    most: int,
    longest: int,
    fault_of: Callable[[str], str | None],
    *,
    one_line: bool = False,
) -> Mapping[str, Value] | None:
    if not isinstance(node, Table):
        message = f"{shown(where.key)} must be a mapping, but it is {kind_of(node)}."
        where.error(node.at, IssueReason.WRONG_TYPE, message)
        return None
    entries = unique_entries(node, where)
    if len(entries) > most:
        message = f"{shown(where.key)} has {len(entries)} entries; {most} are allowed."
        where.error(node.at, IssueReason.BAD_VALUE, message)
        return None
    values: dict[str, Value] = {}
    for entry in entries:
        place = where.child(entry.name, entry.value.at)
        fault = fault_of(entry.name)
        if fault:
            message = f"{shown(entry.name)} under {shown(where.key)} {fault}."
            place.error(entry.at, IssueReason.BAD_VALUE, message)
            continue
        value = _value(entry, place, longest, one_line)
        if value is not None:
            values[entry.name] = value
    return values


def _value(entry: Entry, where: Where, longest: int, one_line: bool) -> Value | None:
    node = entry.value
    if isinstance(node, Table):
        return reference(node, where)
    text = text_of(node, where, longest=longest)
    if text is None:
        return None
    if one_line and any(character in text for character in "\r\n"):
        message = f"{shown(where.key)} holds a line break, which no header may."
        where.error(node.at, IssueReason.BAD_VALUE, message)
        return None
    check_references(node, where)
    warn_of_credential(node, where, credentials.credential_kind(entry.name, text))
    return Value("literal", text)


def reference(node: Table, where: Where) -> Value | None:
    """Read exactly one of `{env: NAME}`, `{secret: NAME}` and `{file: PATH}`."""
    entries = unique_entries(node, where)
    if len(entries) != 1:
        message = (
            f"{shown(where.key)} must be text or exactly one of {{env: NAME}}, {{secret: NAME}}"
            f" and {{file: PATH}}; it has {len(entries)} keys."
        )
        where.error(node.at, IssueReason.WRONG_TYPE, message)
        return None
    (entry,) = entries
    place = where.child(entry.name, entry.value.at)
    match entry.name:
        case "env":
            name = _name(entry.value, place, _VARIABLE, "letters, digits and '_', no digit first")
            return None if name is None else Value("env", name)
        case "secret":
            name = _name(entry.value, place, SECRET_NAME, SECRET_NAME_RULE)
            return None if name is None else Value("secret", name)
        case "file":
            path = text_of(entry.value, place, longest=MAX_COMMAND, empty=False)
            return None if path is None else Value("file", path)
        case _:
            hint = suggestion(entry.name, _KINDS)
            message = f"{shown(entry.name)} under {shown(where.key)} is no reference: {hint}"
            place.error(entry.at, IssueReason.UNKNOWN_KEY, message)
            return None


def _name(node: Tree, where: Where, rule: re.Pattern[str], words: str) -> str | None:
    text = text_of(node, where, longest=256, empty=False)
    if text is None or rule.fullmatch(text):
        return text
    message = f"{shown(where.key)} must be a name of {words}, not a value."
    where.error(node.at, IssueReason.BAD_VALUE, message)
    return None


def _wired(node: Tree, where: Where, what: str) -> bool:
    # {secret: …} in a place where everyone on the machine, or every log, would show the value.
    if not isinstance(node, Table) or not any(entry.name in _KINDS for entry in node.entries):
        return False
    message = (
        f"{shown(where.key)} can't be a reference: {what} would show the value in process lists"
        " and logs. Pass it under 'env' or 'headers'."
    )
    where.error(node.at, IssueReason.REFERENCE_NOT_ALLOWED, message)
    return True


def _schemes(transport: str | None) -> tuple[str, ...]:
    """Return the schemes of a transport's urls; of one that is not built in, none are known."""
    if transport in TRANSPORTS:
        return ("ws", "wss") if transport == "websocket" else _SCHEMES
    return ()


def _url_fault(text: str, schemes: tuple[str, ...]) -> str | None:
    example = f"{schemes[0] if schemes else 'http'}://127.0.0.1:3000/mcp"
    if any(character <= " " or character == "\x7f" for character in _filled(text)):
        return "holds a space or a control character."
    try:
        parts = urlsplit(_filled(text))
        host, _ = parts.hostname, parts.port
    except ValueError:
        return f"is no valid URL; write, for example, {example}."
    if "@" in parts.netloc:
        return "holds credentials, which logs would show; pass them under 'headers'."
    if not schemes:
        return None
    if parts.scheme not in schemes:
        if text.startswith("${"):
            return None  # scheme and host come with the reference, on the worker
        found = f"not with {shown(parts.scheme)}" if parts.scheme else "but has no scheme"
        return f"must begin with {schemes[0]}:// or {schemes[1]}://, {found}."
    return None if host else f"names no host; write, for example, {example}."


def _filled(text: str) -> str:
    # Any digit makes a valid host, port and path, so the rest can be checked.
    for name, default in references(text):
        written = f"${{{name}}}" if default is None else f"${{{name}:-{default}}}"
        text = text.replace(written, default or "1")
    return text


def warn_of_credential(node: Tree, where: Where, kind: str | None) -> None:
    """Report a literal that looks like a credential of some kind; None is not reported."""
    if kind is None or not isinstance(node, Leaf):
        return
    message = (
        f"{shown(where.key)} holds what looks like {kind}. Keep it out of the file: use"
        " {env: NAME} or {secret: NAME} under 'env' or 'headers'."
    )
    report = where.error if where.log.forbids_credentials(node.at) else where.warning
    report(node.at, IssueReason.LITERAL_CREDENTIAL, message)
