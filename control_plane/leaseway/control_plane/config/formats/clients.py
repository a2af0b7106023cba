"""Files of MCP clients, in each of their forms (`client_forms`).

A server's keys are translated into native ones (`client_servers`), and what the file's root says
about servers is applied to them (`client_roots`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

from leaseway.control_plane.config.formats.client_forms import ClientForm
from leaseway.control_plane.config.formats.client_places import places_of
from leaseway.control_plane.config.formats.client_roots import (
    RootRules,
    in_project,
    report_other_containers,
    root_rules,
)
from leaseway.control_plane.config.formats.client_servers import ClientServer
from leaseway.control_plane.config.formats.tool_rules import (
    NotUnderstood,
    ToolRules,
    report_not_understood,
)
from leaseway.control_plane.config.layers.denials import (
    CLAUDE,
    DeniedTools,
    asked_message,
    denied_of,
    id_of,
)
from leaseway.control_plane.config.layers.document import (
    Document,
    DocumentReader,
    Implied,
    repeated_root,
    server_entries,
)
from leaseway.control_plane.config.schema.entries import NO_DEFAULTS, Defaults
from leaseway.control_plane.config.schema.filters import SERVER_PLACEHOLDER
from leaseway.control_plane.config.schema.issues import IssueReason, Where, quoted
from leaseway.control_plane.config.tree.yaml_tree import (
    Items,
    Leaf,
    Table,
    TableEntry,
    Tree,
)
from leaseway.spec.model import Transform
from leaseway.wire.names import is_valid_name

_NAMED: Final = Defaults((Transform("prefix", f"{SERVER_PLACEHOLDER}_"),))
"""These formats cannot state a transform. Without a prefix, equal tool names of servers would
clash."""

_COMMENTS: Final = ("_", "//", "#", "$")
"""How the name of a comment begins, in JSON, which has none."""


def read_clients(
    form: ClientForm,
    implied: Implied = "always",
    *,
    bare: bool = False,
    folder: Path | None = None,
) -> DocumentReader:
    """Return a reader of the servers of a client's file.

    What the file's root says about servers is applied to them: switches, denied tools.

    Args:
        form: The file's form; a file without its path has no servers.
        implied: When an entry without `transport` implies one.
        bare: Whether tools keep their names, without the server's id as a prefix.
        folder: The folder whose project counts, in a file with projects.
    """
    names = NO_DEFAULTS if bare else _NAMED

    def read(table: Table, where: Where) -> Document | None:
        table = table if folder is None else in_project(table, where, folder)
        report_other_containers(table, form, where)
        node, place = _find(table, form.path, where)
        _report_repeated(table, form.path, where)
        _report_inputs(table, form.path, where)
        rules = root_rules(table)
        never = (DeniedTools(f"mcp__{id_of(name)}", table.at, CLAUDE) for name in rules.never)
        document = Document(
            form.name, form.root, implied=names, denied=(*rules.denied, *never), only=rules.only
        )
        if isinstance(node, Items):
            node = _by_names(node, place)
        if node is not None:
            if not isinstance(node, Table):
                message = f"{quoted(place.key)} must be a mapping or a list of servers."
                place.fatal(node.at, IssueReason.WRONG_TYPE, message)
                return None
            entries: list[TableEntry] = []
            node = _without_comments(node)
            for entry in _with_ids(server_entries(node, place), place):
                server = ClientServer(entry, place, implied, form).native()
                if server is not None:
                    entries.append(server)
            document = replace(document, at=node.at, servers=tuple(entries))
        elif rules.refused is not None:
            where.fatal(rules.refused.at, IssueReason.RESTRICTION_NOT_TAKEN_OVER, _refused(rules))
        elif implied == "always" and _is_misplaced(table, form, where):
            return None
        # A file alone may switch servers that no file declares; these switches are ignored.
        document = _with_switches(document, table, where, implied != "always")
        servers = tuple(_restricted(server, rules, place) for server in document.servers)
        return replace(document, servers=servers)

    return read


def _is_misplaced(table: Table, form: ClientForm, where: Where) -> bool:
    """Report servers that a file without any has elsewhere; return whether there are some."""
    path, at = next(places_of(table), ((), table.at))
    if path:
        name = ".".join(path)
        message = (
            f"The file has no {quoted(form.root)}, but servers under {quoted(name)}, where its"
            f" client does not look for them. Move them to {quoted(form.root)}."
        )
        where.at_key(name, at).fatal(at, IssueReason.UNKNOWN_KEY, message)
    return bool(path)


def _refused(rules: RootRules) -> str:
    assert rules.refused is not None
    return (
        "The file restricts servers in a way that Leaseway can't take over"
        f" ({rules.refused.text}). Write it in native keys of the servers, and remove it here."
    )


def _restricted(server: TableEntry, rules: RootRules, servers: Where) -> TableEntry:
    """Return a server with what its file's root says about it."""
    where = replace(servers.child(server), server_id=server.name)
    if not isinstance(server.value, Table):
        return server
    if rules.refused is not None:
        where.error(rules.refused.at, IssueReason.RESTRICTION_NOT_TAKEN_OVER, _refused(rules))
        return server
    if not rules.allows_server(server.name):
        return _switched(server, Leaf(server.at, False, "false"))
    if {member.name for member in server.members} <= {"enabled"}:
        return server  # a switch of a server of another file, to which `denied` applies there
    whole, patterns, asked = denied_of(rules.denied, server.name)
    if whole:
        return _switched(server, Leaf(server.at, False, "false"))
    if asked is not None:
        where.error(asked.at, IssueReason.RESTRICTION_NOT_TAKEN_OVER, asked_message(asked))
    if not patterns:
        return server
    try:
        own = ToolRules.of_native(server)
        own.denied += patterns
        tools = own.as_entry(patterns[0].at)
    except NotUnderstood as error:
        report_not_understood(error, str(patterns[0].value), where)
        return server
    kept = [member for member in server.members if member.name != "tools"]
    return server.with_members((*kept, tools) if tools is not None else kept)


def _with_switches(document: Document, table: Table, where: Where, is_overlay: bool) -> Document:
    switches = dict(_switches(table, where))
    servers = [_switched(entry, switches.pop(entry.name, None)) for entry in document.servers]
    servers += [
        TableEntry(name, leaf.at, Table(leaf.at, (TableEntry("enabled", leaf.at, leaf),)))
        for name, leaf in switches.items()
        if is_overlay
    ]
    return replace(document, servers=tuple(servers))


def _without_comments(servers: Table) -> Table:
    """Return servers without the texts that people write among them as comments."""
    kept = (
        entry
        for entry in servers.entries
        if not (isinstance(entry.value, Leaf) and entry.name.startswith(_COMMENTS))
    )
    return replace(servers, entries=tuple(kept))


def _by_names(items: Items, where: Where) -> Table:
    """Return a list of servers, as Continue writes them, as a mapping by their names."""
    entries: list[TableEntry] = []
    for index, item in enumerate(items.items):
        members = item.entries if isinstance(item, Table) else ()
        name = next((member.value for member in members if member.name == "name"), None)
        if isinstance(name, Leaf) and isinstance(name.value, str):
            kept = tuple(member for member in members if member.name != "name")
            entries.append(TableEntry(name.value, name.at, Table(item.at, kept)))
            continue
        place = where.item(index, item.at)
        message = (
            f"{quoted(place.key)} is no server: it needs a 'name' as text, and a command or a URL."
            " It is skipped."
        )
        place.error(item.at, IssueReason.MISSING_KEY, message)
    return Table(items.at, tuple(entries))


def _find(table: Table, path: Sequence[str], where: Where) -> tuple[Tree | None, Where]:
    node: Tree | None = table
    for name in path:
        entries = node.entries if isinstance(node, Table) else ()
        node = next((entry.value for entry in entries if entry.name == name), None)
        if node is None:
            return None, where
        where = where.at_key(name, node.at)
    return node, where


def _report_repeated(table: Table, path: Sequence[str], where: Where) -> None:
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


def _report_inputs(table: Table, path: Sequence[str], where: Where) -> None:
    for inputs in (["inputs"], [*path[:-1], "inputs"]):
        node, place = _find(table, inputs, where)
        if node is None or (isinstance(node, Items) and not node.items):
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
        made = entry.name if is_valid_name(entry.name) else id_of(entry.name)
        if is_valid_name(entry.name) or not is_valid_name(made):
            yield entry
            continue
        if made in ids:
            place = replace(servers.child(entry), server_id=entry.name)
            message = (
                f"The server {quoted(entry.name)} would get the id {quoted(made)}, which another"
                " server has. Rename one of them."
            )
            place.error(entry.at, IssueReason.DUPLICATE_SERVER, message)
            continue
        ids.add(made)
        place = replace(servers.at_key(made, entry.value.at), server_id=made)
        message = f"The server {quoted(entry.name)} gets the id {quoted(made)}."
        place.warning(entry.at, IssueReason.SERVER_RENAMED, message)
        yield replace(entry, name=made)


def _switches(table: Table, where: Where) -> Iterator[tuple[str, Leaf]]:
    for key, enabled in (("enabledMcpjsonServers", True), ("disabledMcpjsonServers", False)):
        node, _ = _find(table, [key], where)
        for item in node.items if isinstance(node, Items) else ():
            if isinstance(item, Leaf) and isinstance(item.value, str):
                yield id_of(item.value), replace(item, value=enabled)


def _switched(entry: TableEntry, switch: Leaf | None) -> TableEntry:
    if switch is None or not isinstance(entry.value, Table):
        return entry
    kept = [member for member in entry.members if member.name != "enabled"]
    return entry.with_members((*kept, TableEntry("enabled", switch.at, switch)))
