"""Files of MCP clients, all JSON: `mcpServers`, VS Code's `servers`, Claude's local settings.

A server's keys are translated into native ones. Keys without a meaning here cause a warning,
because the file belongs to the client; if the server cannot run without them, an error.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Final

from leaseway.control_plane.config.layers.document import (
    Document,
    DocumentReader,
    Implied,
    is_implied,
    repeated_root,
    server_entries,
    transport_entry,
    whitelist,
)
from leaseway.control_plane.config.schema.entries import NO_DEFAULTS, Defaults
from leaseway.control_plane.config.schema.filters import SERVER_PLACEHOLDER
from leaseway.control_plane.config.schema.issues import IssueReason, Where, quoted
from leaseway.control_plane.config.schema.keys import SERVER_KEYS
from leaseway.control_plane.config.schema.tables import unique_entries
from leaseway.control_plane.config.tree.yaml_tree import (
    Items,
    Leaf,
    Table,
    TableEntry,
    Tree,
)
from leaseway.spec.model import Transform
from leaseway.wire.names import is_valid_name

_RENAMED: Final[Mapping[str, str]] = {
    "type": "transport",
    "httpUrl": "url",
    "serverUrl": "url",
    "disabled": "enabled",
    "envFile": "env_file",
    "timeout": "call_timeout",
}
_TRANSPORTS: Final[Mapping[str, str]] = {
    "http": "streamable_http",
    "streamable-http": "streamable_http",
    "streamableHttp": "streamable_http",
    "streamablehttp": "streamable_http",
    "ws": "websocket",
    "local": "stdio",
}
_WITH_VARIABLES: Final = frozenset({"command", "args", "env", "url", "headers", "cwd"})
_NO_ID: Final = re.compile(r"[^a-zA-Z0-9_-]+")
_MILLISECONDS: Final = 1_000.0
"""A `timeout` from here on counts milliseconds, as some clients do; a smaller one seconds."""


_VARIABLE: Final = re.compile(r"\$\{([A-Za-z]+)(?::([^}]*))?\}")
_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")

_OF_CLIENTS: Final = frozenset(
    {
        "workspaceFolder",
        "workspaceFolderBasename",
        "workspaceRoot",
        "cwd",
        "file",
        "fileBasename",
        "fileDirname",
        "pathSeparator",
        "config",
        "command",
        "extensionInstallFolder",
    }
)
"""Variables that VS Code and Cursor fill in from the editor's window."""

_PREFIXED: Final = Defaults((Transform("prefix", f"{SERVER_PLACEHOLDER}_"),))
"""These formats cannot state a prefix; without one, equal tool names of servers would clash."""


def read_clients(
    root: str, form: str, implied: Implied = "always", *, bare: bool = False
) -> DocumentReader:
    """Return a reader of the servers under a dotted path, such as `mcpServers`.

    Args:
        root: The path; a file without it has no servers.
        form: The format's name.
        implied: When an entry without `transport` implies one.
        bare: Whether tools keep their names, without the server's id as a prefix.
    """
    names = NO_DEFAULTS if bare else _PREFIXED

    def read(table: Table, where: Where) -> Document | None:
        node, place = _find(table, root.split("."), where)
        _report_repeated(table, root.split("."), where)
        _report_inputs(table, root, where)
        if node is None:
            return Document(form, root, implied=names)
        if not isinstance(node, Table):
            message = f"{quoted(place.key)} must be a mapping of servers."
            place.fatal(node.at, IssueReason.WRONG_TYPE, message)
            return None
        named = _with_ids(server_entries(node, place), place)
        entries = tuple(_server(entry, place, implied) for entry in named)
        return Document(form, root, node.at, entries, implied=names)

    return read


def read_claude_settings(implied: Implied = "always", *, bare: bool = False) -> DocumentReader:
    """Return a reader of `.claude/settings.local.json`: servers, and switches of other servers."""
    read_servers = read_clients("mcpServers", "Claude settings", implied, bare=bare)

    def read(table: Table, where: Where) -> Document | None:
        document = read_servers(table, where)
        # A file alone may switch servers that no file declares; these switches are ignored.
        is_overlay = implied != "always"
        return None if document is None else _with_switches(document, table, where, is_overlay)

    return read


def _with_switches(document: Document, table: Table, where: Where, is_overlay: bool) -> Document:
    switches = dict(_switches(table, where))
    servers = [_switched(entry, switches.pop(entry.name, None)) for entry in document.servers]
    servers += [
        TableEntry(name, leaf.at, Table(leaf.at, (TableEntry("enabled", leaf.at, leaf),)))
        for name, leaf in switches.items()
        if is_overlay
    ]
    return replace(document, servers=tuple(servers))


def _find(table: Table, path: list[str], where: Where) -> tuple[Tree | None, Where]:
    node: Tree | None = table
    for name in path:
        entries = node.entries if isinstance(node, Table) else ()
        node = next((entry.value for entry in entries if entry.name == name), None)
        if node is None:
            return None, where
        where = where.at_key(name, node.at)
    return node, where


def _report_repeated(table: Table, path: list[str], where: Where) -> None:
    """Report a repeated key of the path; other repeated keys are the client's business."""
    node: Tree = table
    for name in path:
        entries = node.entries if isinstance(node, Table) else ()
        found = [entry for entry in entries if entry.name == name]
        if len(found) > 1:
            repeated_root(where, found[1], found[0].at)
        if not found:
            return
        node, where = found[0].value, where.at_key(name, found[0].value.at)


def _report_inputs(table: Table, root: str, where: Where) -> None:
    for path in (["inputs"], [*root.split(".")[:-1], "inputs"]):
        node, place = _find(table, path, where)
        if node is None:
            continue
        names = ", ".join(quoted(name) for name in _input_names(node)) or "none by name"
        message = (
            f"The file has inputs that its client asks a person for ({names}); Leaseway asks"
            " no one. Servers that use them need ${NAME} from the workers' environment instead."
        )
        place.warning(node.at, IssueReason.CLIENT_INPUT, message)
        return


def _input_names(node: Tree) -> Iterator[str]:
    for item in node.items[:20] if isinstance(node, Items) else ():
        for entry in item.entries if isinstance(item, Table) else ():
            if entry.name == "id" and isinstance(entry.value, Leaf):
                yield str(entry.value.text)


def _with_ids(entries: Sequence[TableEntry], servers: Where) -> Iterator[TableEntry]:
    """Yield servers by valid ids; clients also allow spaces, dots and slashes in names."""
    ids = {entry.name for entry in entries}
    for entry in entries:
        made = _id_of(entry.name)
        if is_valid_name(entry.name) or not is_valid_name(made) or made in ids:
            yield entry
            continue
        ids.add(made)
        place = replace(servers.at_key(made, entry.value.at), server_id=made)
        message = f"The server {quoted(entry.name)} gets the id {quoted(made)}."
        place.warning(entry.at, IssueReason.SERVER_RENAMED, message)
        yield replace(entry, name=made)


def _id_of(name: str) -> str:
    return name if is_valid_name(name) else _NO_ID.sub("_", name).strip("_")


def _server(entry: TableEntry, servers: Where, implied: Implied) -> TableEntry:
    where = replace(servers.child(entry), server_id=entry.name)
    if not isinstance(entry.value, Table):
        return entry
    translated: list[TableEntry] = []
    for each in unique_entries(entry.value, where):
        native = _translated(each, where.child(each))
        if native is not None:
            translated.append(native)
    names = {each.name for each in translated}
    if "transport" not in names and is_implied(implied, names):
        translated.append(_implied_transport(entry, translated))
    return entry.with_members(translated)


def _translated(entry: TableEntry, where: Where) -> TableEntry | None:
    name = _RENAMED.get(entry.name, entry.name)
    if name not in SERVER_KEYS or (name in ("cwd", "env_file") and _is_of_client(entry.value)):
        message = (
            f"{quoted(entry.name)} of the server {quoted(where.server_id or '')} is not taken over:"
            f" {_explain_rejection(entry)}."
        )
        where.warning(entry.at, IssueReason.KEY_NOT_TAKEN_OVER, message)
        return None
    return TableEntry(name, entry.at, _value(entry, name, where))


def _explain_rejection(entry: TableEntry) -> str:
    if not _is_of_client(entry.value):
        return "it has no meaning here"
    return "only the client can fill in the variables of its path; write the path itself"


def _value(entry: TableEntry, name: str, where: Where) -> Tree:
    node = entry.value
    if name in _WITH_VARIABLES:
        return _with_native_variables(node, where)
    if name in ("tools", "prompts", "resources"):
        return whitelist(entry).value
    if isinstance(node, Leaf):
        if name == "transport" and isinstance(node.value, str):
            return replace(node, value=_TRANSPORTS.get(node.value, node.value))
        if entry.name == "timeout" and isinstance(node.value, int | float):
            is_long = node.value >= _MILLISECONDS
            return replace(node, value=node.value / _MILLISECONDS) if is_long else node
        if entry.name == "disabled" and isinstance(node.value, bool):
            return replace(node, value=not node.value)
    return node


def _implied_transport(server: TableEntry, keys: list[TableEntry]) -> TableEntry:
    for each in keys:
        if each.name == "command":
            return transport_entry("stdio", each.at)
        if each.name == "url" and isinstance(each.value, Leaf):
            path = str(each.value.value).partition("?")[0].rstrip("/")
            is_sse = path.endswith("/sse")
            return transport_entry("sse" if is_sse else "streamable_http", each.at)
    return transport_entry("stdio", server.at)  # then the missing command is reported


def _switches(table: Table, where: Where) -> Iterator[tuple[str, Leaf]]:
    for key, enabled in (("enabledMcpjsonServers", True), ("disabledMcpjsonServers", False)):
        node, _ = _find(table, [key], where)
        for item in node.items[:1_000] if isinstance(node, Items) else ():
            if isinstance(item, Leaf) and isinstance(item.value, str):
                yield _id_of(item.value), replace(item, value=enabled)


def _switched(entry: TableEntry, switch: Leaf | None) -> TableEntry:
    if switch is None or not isinstance(entry.value, Table):
        return entry
    kept = [each for each in entry.members if each.name != "enabled"]
    return entry.with_members((*kept, TableEntry("enabled", switch.at, switch)))


def _is_of_client(node: Tree) -> bool:
    """Return whether a text holds a variable that only a client can fill in, or an input."""
    if not isinstance(node, Leaf) or not isinstance(node.value, str):
        return False
    names = {match[1] for match in _VARIABLE.finditer(node.value)}
    return bool(names & (_OF_CLIENTS | {"input"}))


def _with_native_variables(node: Tree, where: Where) -> Tree:
    """Return a value with variables as `${NAME}` and numbers as text.

    Inputs and variables that only the client can fill in are reported as errors.
    """
    match node:
        case Leaf(value=str() as text):
            return replace(node, value=_text_with_variables(text, node, where))
        case Leaf(value=int() | float() as number) if not isinstance(number, bool):
            return replace(node, value=node.text)
        case Items():
            items = (
                _with_native_variables(item, where.item(index, item.at))
                for index, item in enumerate(node.items)
            )
            return replace(node, items=tuple(items))
        case Table():
            return replace(node, entries=tuple(_entries_with_variables(node, where)))
    return node


def _entries_with_variables(table: Table, where: Where) -> list[TableEntry]:
    return [
        replace(entry, value=_with_native_variables(entry.value, where.child(entry)))
        for entry in table.entries
        # A null unsets a variable for VS Code; here an unset variable is omitted.
        if not (isinstance(entry.value, Leaf) and entry.value.value is None)
    ]


def _text_with_variables(text: str, node: Leaf, where: Where) -> str:
    def spelling(match: re.Match[str]) -> str:
        name, argument = match[1], match[2]
        if name == "env" and argument and _NAME.fullmatch(argument):
            return f"${{{argument}}}"
        if name == "userHome" and argument is None:
            return "${HOME}"
        if name == "input":
            _report_input(argument or "", node, where)
            return "${INPUT}"  # so that no other mistake is reported for it
        if name in _OF_CLIENTS:
            message = (
                f"{quoted(where.key)} uses {quoted(match[0])}, which only the client of this file"
                " can fill in; write the value itself."
            )
            where.error(node.at, IssueReason.CLIENT_VARIABLE, message)
        return match[0]

    return _VARIABLE.sub(spelling, text)


def _report_input(name: str, node: Leaf, where: Where) -> None:
    message = (
        f"{quoted(where.key)} needs the input {quoted(name)}, which a client asks a person for and"
        " Leaseway asks no one. Set an environment variable where workers run and write"
        " ${NAME} instead."
    )
    where.error(node.at, IssueReason.CLIENT_INPUT, message)
