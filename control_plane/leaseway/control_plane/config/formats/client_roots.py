"""What clients say about servers outside of their entries: switches, denied tools, projects."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from leaseway.control_plane.config.formats.client_forms import (
    CONTAINERS,
    GOOSE,
    ClientForm,
    find,
    holds_extensions,
    is_server,
)
from leaseway.control_plane.config.formats.client_keys import looks_restrictive
from leaseway.control_plane.config.formats.client_places import places_of
from leaseway.control_plane.config.formats.tool_rules import (
    ALLOW,
    DENY,
    DENY_PARTS,
    FILTERS,
    NotUnderstood,
    folded,
    names_in,
)
from leaseway.control_plane.config.layers.denials import CLAUDE, DeniedTools, id_of
from leaseway.control_plane.config.schema.issues import IssueReason, Where, quoted
from leaseway.control_plane.config.tree.yaml_tree import (
    Items,
    Leaf,
    Position,
    Table,
    TableEntry,
    Tree,
)

_OPENCODE: Final = ("{}_",)
_ALL_FORMS: Final = ("mcp__{}__", "mcp_{}_", "{}__", "{}/", "{}.", "{}:", "")
"""How clients write a tool's full name, up to the tool's own; empty: the tool's name alone."""
_ACTIONS: Final = ("allow", "ask", "deny")
"""What opencode does with a call, from the mildest to the strictest."""
_SHOWN: Final = 5
_MAX_NAME: Final = 512


@dataclass(frozen=True)
class RootRules:
    """The restrictions of a file's root.

    Attributes:
        denied: Full names of tools that may not be called, or need a person's approval.
        only: The only servers that may run, or None for all.
        never: Servers that may not run.
        refused: A restriction that is not understood; it refuses every server of the file.
    """

    denied: tuple[DeniedTools, ...] = ()
    only: frozenset[str] | None = None
    never: frozenset[str] = frozenset()
    refused: NotUnderstood | None = None

    def allows_server(self, server_id: str) -> bool:
        is_listed = self.only is None or server_id in {*self.only, *map(id_of, self.only)}
        return is_listed and server_id not in {*self.never, *map(id_of, self.never)}


def root_rules(table: Table) -> RootRules:
    """Read what a file's root restricts, outside of its servers' own entries."""
    denied: list[DeniedTools] = []
    only: frozenset[str] | None = None
    never: set[str] = set()
    try:
        for entry in table.entries:
            denied += _denied_at_root(entry)
            only = _both(only, _only_servers(entry))
            never |= _excluded_servers(entry) or frozenset()
    except NotUnderstood as error:
        return RootRules(refused=error)
    return RootRules(tuple(denied), only, frozenset(never))


def _denied_at_root(entry: TableEntry) -> Iterator[DeniedTools]:
    match folded(entry.name):
        case "permissions":
            yield from _claude_permissions(entry)
        case "permission":
            yield from _opencode_permissions(entry)
        case "tools" if isinstance(entry.value, Table):
            yield from _root_tools(entry)
        case key if key in DENY:
            yield from _full_names(entry.value, _ALL_FORMS)
        case "tools" if isinstance(entry.value, Items):
            return  # `_servers_of_agent`
        case "allowedtools":
            return  # those that Claude Code runs without a question
        case key if key in FILTERS or key in ALLOW:
            raise NotUnderstood(entry.at, "it applies to all servers of the file")


def _only_servers(entry: TableEntry) -> frozenset[str] | None:
    match folded(entry.name):
        case "mcp":
            _reject_unknown(entry, ("allowed", "excluded", "servers", "inputs"))
            if isinstance(entry.value, Leaf) and entry.value.value not in (None, True):
                raise NotUnderstood(entry.at, "it is not a mapping")
            return _names(entry.member("allowed"))
        case "allowmcpservers":
            return _names(entry.value)
        case "tools" if isinstance(entry.value, Items):
            return _servers_of_agent(entry)
        case "allowedmcpservers":
            return _managed(entry)
    return None


def _servers_of_agent(entry: TableEntry) -> frozenset[str] | None:
    """Return the servers that an agent of Amazon Q or Kiro may use: `*`, `@server`."""
    names = _names(entry.value) or frozenset()
    if "*" in names:
        return None
    of_servers = {name.removeprefix("@") for name in names if name.startswith("@")}
    whole = {name for name in of_servers if "/" not in name}
    if not of_servers or not {name.partition("/")[0] for name in of_servers} <= whole:
        raise NotUnderstood(entry.at, "it applies to all servers of the file")
    return frozenset(whole)


def _excluded_servers(entry: TableEntry) -> frozenset[str] | None:
    match folded(entry.name):
        case "mcp":
            return _names(entry.member("excluded"))
        case "excludemcpservers" | "disabledmcpservers":
            return _names(entry.value)
        case "deniedmcpservers":
            return _managed(entry)
        case "disabledmcpjsonservers":
            _names(entry.value)  # what it switches off is switched with the servers
    return None


def _both(one: frozenset[str] | None, other: frozenset[str] | None) -> frozenset[str] | None:
    return other if one is None else one if other is None else one & other


def _names(node: Tree | None) -> frozenset[str] | None:
    """Return a list of servers' names; None for no list, which restricts nothing."""
    if node is None or _value(node) is None:
        return None
    names = [_value(item) for item in node.items] if isinstance(node, Items) else [False]
    if not all(isinstance(name, str) for name in names):
        raise NotUnderstood(node.at, "it is not a list of names")
    return frozenset(str(name) for name in names)


def _value(node: Tree) -> object:
    """Return the value of a leaf; False for a mapping or a list."""
    return node.value if isinstance(node, Leaf) else False


def _reject_unknown(entry: TableEntry, known: Sequence[str]) -> None:
    for member in entry.members:
        is_on = member.name == "enabled" and getattr(member.value, "value", None) is True
        is_known = member.name in known or isinstance(member.value, Table) or is_on
        if not is_known and looks_restrictive(member.name):
            raise NotUnderstood(member.at, f"{quoted(member.name)} has no meaning here")


def _managed(entry: TableEntry) -> frozenset[str] | None:
    """Return the servers that Claude Code's managed settings name."""
    if not isinstance(entry.value, Items):
        return _names(entry.value)
    names: set[str] = set()
    for item in entry.value.items:
        name = find(item, ["serverName"])
        text = _value(name) if name is not None else None
        if not isinstance(text, str) or len(getattr(item, "entries", ())) != 1:
            raise NotUnderstood(item.at, "it names servers by something else than 'serverName'")
        names.add(text)
    return frozenset(names)


def _claude_permissions(entry: TableEntry) -> Iterator[DeniedTools]:
    for member in entry.members:
        if member.name != "deny" and folded(member.name) in DENY | DENY_PARTS:
            raise NotUnderstood(member.at, f"{quoted(member.name)} has no meaning here")
    if not isinstance(entry.value, Table) and _value(entry.value) is not None:
        raise NotUnderstood(entry.at, "it is not a mapping")
    for name, asks in (("deny", False), ("ask", True)):
        node = entry.member(name)
        for text, at in _texts(node) if node is not None else ():
            # Rules of the client's own tools (`Bash(rm *)`, `Read`) name no server.
            if text.startswith(("mcp__", "*")):
                yield _denial(text, at, CLAUDE, asks=asks)
    mode = entry.member("defaultMode")
    if isinstance(mode, Leaf) and mode.value == "dontAsk":
        text = "'defaultMode: dontAsk' denies every tool that 'allow' does not name"
        raise NotUnderstood(mode.at, text)


def _opencode_permissions(entry: TableEntry) -> Iterator[DeniedTools]:
    of_all = TableEntry("*", entry.at, entry.value)
    for member in entry.members if isinstance(entry.value, Table) else (of_all,):
        action = _strictest(member.value)
        if action != "allow":
            yield _denial(member.name, member.at, _OPENCODE, asks=action == "ask")


def _strictest(action: Tree) -> str:
    """Return an action; of one for each pattern of arguments, the strictest of them.

    What is none denies: it may be meant as a restriction.
    """
    if isinstance(action, Table):
        found = [_strictest(entry.value) for entry in action.entries]
        return max(found, key=_ACTIONS.index, default="allow")
    value = _value(action)
    return "allow" if value is None else str(value) if value in _ACTIONS else "deny"


def _root_tools(entry: TableEntry) -> Iterator[DeniedTools]:
    """Yield what `tools` denies: opencode's switches, or Gemini CLI's `exclude`.

    A switch with another value than true counts as off. Gemini CLI's other settings have names
    that no server's tool has.
    """
    for member in entry.members:
        if folded(member.name) in ("exclude", *DENY):
            yield from _full_names(member.value, _ALL_FORMS)
        elif not isinstance(member.value, Leaf) or member.value.value not in (None, True):
            yield _denial(member.name, member.at, _OPENCODE)


def _full_names(node: Tree, forms: tuple[str, ...]) -> Iterator[DeniedTools]:
    for text, at in _texts(node):
        yield _denial(text, at, forms)


def _texts(node: Tree) -> Iterator[tuple[str, Position]]:
    """Yield the names of tools in a list, or a single one."""
    for item in names_in(node):
        value = _value(item)
        if value is None:
            continue
        if not isinstance(value, str):
            raise NotUnderstood(item.at, "it lists something that is not the name of a tool")
        yield value, item.at


def _denial(text: str, at: Position, forms: tuple[str, ...], *, asks: bool = False) -> DeniedTools:
    if len(text) > _MAX_NAME:
        raise NotUnderstood(at, f"a name has at most {_MAX_NAME} characters")
    if "?" in text:  # any one character for opencode; no tool's full name has it
        raise NotUnderstood(at, f"{quoted(text)} is neither a tool's name nor a pattern with '*'")
    return DeniedTools(text, at, forms, asks)


def in_project(table: Table, where: Where, folder: Path) -> Table:
    """Return the root of a `.claude.json` with the servers and switches of a folder's project.

    The other projects' servers are reported, because no one would miss them otherwise.
    """
    projects = find(table, ["projects"])
    if not isinstance(projects, Table):
        return table
    here = {str(folder), *map(str, folder.parents)}
    own = max(
        (entry for entry in projects.entries if entry.name.rstrip("/\\") in here),
        key=lambda entry: len(entry.name),
        default=None,
    )
    _report_other_projects(projects, own, where)
    if own is None:
        return table
    added = {member.name: member for member in own.members if _is_of_project(member.name)}
    return Table(table.at, tuple(_with_projects_keys(table, added)))


def _is_of_project(name: str) -> bool:
    return name == "mcpServers" or (name.endswith("Servers") and folded(name) != "mcpservers")


def _with_projects_keys(table: Table, added: dict[str, TableEntry]) -> Iterator[TableEntry]:
    for entry in table.entries:
        own = added.pop(entry.name, None)
        if own is None:
            yield entry
        elif isinstance(entry.value, Items) and isinstance(own.value, Items):
            items = (*entry.value.items, *own.value.items)
            yield replace(entry, value=replace(entry.value, items=items))
        elif isinstance(entry.value, Table) and isinstance(own.value, Table):
            names = {member.name for member in own.members}
            kept = [member for member in entry.members if member.name not in names]
            yield entry.with_members((*kept, *own.members))
        else:
            yield own
    yield from added.values()


def _has_servers(project: TableEntry) -> bool:
    servers = project.member("mcpServers")
    return isinstance(servers, Table) and bool(servers.entries)


def _report_other_projects(projects: Table, own: TableEntry | None, where: Where) -> None:
    others = [entry for entry in projects.entries if entry is not own and _has_servers(entry)]
    if not others:
        return
    shown = ", ".join(quoted(other.name) for other in others[:_SHOWN])
    more = f" and {len(others) - _SHOWN} more" if len(others) > _SHOWN else ""
    message = (
        f"The file also has servers of other projects ({shown}{more}), which are not used: only"
        " those of the current folder's project are. Start in that folder, or copy them to"
        " 'mcpServers'."
    )
    where.at_key("projects", projects.at).warning(
        others[0].at, IssueReason.KEY_NOT_TAKEN_OVER, message
    )


def report_other_containers(table: Table, form: ClientForm, where: Where) -> None:
    """Report servers that the file keeps under other keys than the one that is read."""
    found: dict[str, Position] = {}
    for other in CONTAINERS:
        node = find(table, other.path)
        if other.path == form.path or not isinstance(node, Table) or not node.entries:
            continue
        if is_server(node) or (other is GOOSE and not holds_extensions(node)):
            continue
        found[other.root] = node.at
    if find(table, form.path) is not None:
        beside = (
            (path, at)
            for path, at in places_of(table)
            if path[:-1] == form.path[:-1] and path != form.path
        )
        found |= {".".join(path): at for path, at in beside if ".".join(path) not in found}
    for name, at in found.items():
        message = (
            f"The file also has entries under {quoted(name)}, which are not used: only those"
            f" under {quoted(form.root)} are. Move them there, or to a file of their own."
        )
        where.at_key(name, at).warning(at, IssueReason.KEY_NOT_TAKEN_OVER, message)
