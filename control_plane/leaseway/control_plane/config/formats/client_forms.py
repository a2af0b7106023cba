"""The forms of MCP clients' files: where each keeps its servers, and what its values mean."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from leaseway.control_plane.config.formats.client_keys import RENAMED
from leaseway.control_plane.config.tree.yaml_tree import (
    Items,
    Leaf,
    Table,
    TableEntry,
    Tree,
)


@dataclass(frozen=True)
class ClientForm:
    """The form of one client's file, or of several alike.

    Attributes:
        name: Its name for people.
        path: The keys that lead to the servers.
        in_seconds: Whether every `timeout` is in seconds.
        shell_variables: Whether `$NAME` in a text is a variable.
        shell_commands: Whether `$(COMMAND)` in a text is replaced by a command's output.
        own_types: Types of entries that are parts of the client, not servers.
        has_extensions: Whether an entry without a command and a URL is a part of the client.
    """

    name: str
    path: tuple[str, ...]
    in_seconds: bool = False
    shell_variables: bool = False
    shell_commands: bool = False
    own_types: frozenset[str] = frozenset({"sdk"})
    has_extensions: bool = False

    @property
    def root(self) -> str:
        """The dotted path to the servers."""
        return ".".join(self.path)


MCP_SERVERS: Final = ClientForm("mcpServers", ("mcpServers",))
CLAUDE_CODE: Final = replace(MCP_SERVERS, name="Claude Code")
CLAUDE_SETTINGS: Final = replace(MCP_SERVERS, name="Claude settings")
CLINE: Final = replace(MCP_SERVERS, name="Cline", in_seconds=True)
GEMINI: Final = replace(MCP_SERVERS, name="Gemini CLI", shell_variables=True)
VS_CODE: Final = ClientForm("VS Code", ("servers",))
MCP_AND_SERVERS: Final = ClientForm("mcp.servers", ("mcp", "servers"))
ZED: Final = ClientForm("Zed", ("context_servers",), has_extensions=True)
OPENCODE: Final = ClientForm("opencode", ("mcp",))
CRUSH: Final = ClientForm(
    "Crush", ("mcp",), in_seconds=True, shell_variables=True, shell_commands=True
)
CODEX: Final = ClientForm("Codex", ("mcp_servers",), in_seconds=True)
AMP: Final = ClientForm("Amp", ("amp.mcpServers",))
GOOSE: Final = ClientForm(
    "Goose",
    ("extensions",),
    in_seconds=True,
    own_types=frozenset({"builtin", "platform", "frontend", "inlinepython"}),
)

CONTAINERS: Final = (MCP_SERVERS, VS_CODE, MCP_AND_SERVERS, ZED, CODEX, AMP, GOOSE)
"""Forms with a place of their own for servers."""

_CLAUDE_SETTINGS: Final = ("enabledMcpjsonServers", "disabledMcpjsonServers", "permissions")
_OF_CLINE: Final = frozenset({"cline_mcp_settings.json", "mcp_settings.json"})
"""Files of Cline and Roo Code, whose timeouts are seconds, also from 1,000 on."""
_OF_SHELLS: Final = frozenset(
    {"settings.json", "gemini-extension.json", "qwen-extension.json", "mcp-config.json"}
)
"""Files of Gemini CLI and its kin, and of Copilot CLI."""
_CLIENT_FILES: Final = frozenset(
    {".kode.json", ".claude.json", "claude_desktop_config.json", "mcp.json", ".mcp.json"}
)
_GOOSE_TYPES: Final = GOOSE.own_types | {"stdio", "sse", "streamablehttp"}


def find(table: Tree, path: Sequence[str]) -> Tree | None:
    """Return the value at a path of keys, or None."""
    node: Tree | None = table
    for name in path:
        entries = node.entries if isinstance(node, Table) else ()
        node = next((entry.value for entry in entries if entry.name == name), None)
    return node


def form_of(root: Table, name: str, *, json_file: bool) -> ClientForm | None:
    """Return the form of a client's file, by its keys and then by its name.

    Args:
        root: The file's mapping.
        name: The file's name, without its folder.
        json_file: Whether it is JSON, which native files seldom are.

    Returns:
        None for a file that is no client's.
    """
    values = {entry.name: entry.value for entry in root.entries}
    is_settings = json_file and name.startswith("settings")
    if "projects" in values and name == ".claude.json":
        return CLAUDE_CODE
    if is_settings and any(key in values for key in _CLAUDE_SETTINGS):
        return CLAUDE_SETTINGS
    may_be_native = "version" in values if json_file else _is_native(values)
    if "mcpServers" in values and (json_file or not may_be_native):
        return CLINE if name in _OF_CLINE else GEMINI if name in _OF_SHELLS else MCP_SERVERS
    if "inputs" in values or ("servers" in values and json_file and not may_be_native):
        return VS_CODE
    if _is_continue(values):
        return MCP_SERVERS
    if json_file or not (may_be_native or "servers" in values):
        found = _form_by_container(root, values, name, json_file=json_file)
        if found is not None:
            return found
    if json_file and name in _CLIENT_FILES and "servers" not in values:
        return MCP_SERVERS
    return CLAUDE_SETTINGS if is_settings and "servers" not in values else None


def _form_by_container(
    root: Table, values: Mapping[str, Tree], name: str, *, json_file: bool
) -> ClientForm | None:
    listed = find(root, MCP_AND_SERVERS.path)
    if listed is not None and not is_server(listed):
        return MCP_AND_SERVERS
    if json_file and isinstance(values.get("mcp"), Table):
        if name.startswith("opencode."):
            return OPENCODE
        if holds_servers(values["mcp"]):
            return CRUSH if "crush" in name else OPENCODE
    for form in (ZED, CODEX, AMP):
        if form.root in values:
            return form
    return GOOSE if holds_extensions(values.get("extensions")) else None


def holds_servers(node: Tree) -> bool:
    """Return whether a value is a mapping of servers, with one at least."""
    entries = node.entries if isinstance(node, Table) else ()
    return any(is_server(entry.value) for entry in entries)


def is_server(node: Tree) -> bool:
    """Return whether a value is a server: it has a command or a URL, and none of that name."""
    entries = node.entries if isinstance(node, Table) else ()
    return any(
        not isinstance(entry.value, Table) or find(entry.value, ["path"]) is not None  # as Zed's
        for entry in entries
        if RENAMED.get(entry.name, entry.name) in ("command", "url")
    )


def holds_extensions(node: Tree | None) -> bool:
    """Return whether a value has extensions of Goose, by their types."""
    items = node.items if isinstance(node, Items) else ()
    tables = (
        [*items, *(entry.value for entry in node.entries)] if isinstance(node, Table) else items
    )
    kinds = (find(table, ["type"]) for table in tables if isinstance(table, Table))
    return any(
        isinstance(kind, Leaf) and str(kind.value).replace("_", "") in _GOOSE_TYPES
        for kind in kinds
    )


def is_one_server(root: Table) -> bool:
    """Return whether a file is the entry of one server, as people copy it from a page."""
    values = {RENAMED.get(entry.name, entry.name): entry.value for entry in root.entries}
    if any(form.path[0] in values for form in CONTAINERS):
        return False
    return any(isinstance(values.get(key), Leaf) for key in ("command", "url"))


def with_container(root: Table, name: str) -> Table:
    """Return the root of a client's file with its servers below `mcpServers`.

    Some clients also read a file that is only the mapping of servers.
    """
    if name not in _CLIENT_FILES or not holds_servers(root):
        return root
    if not all(isinstance(entry.value, Table) for entry in root.entries):
        return root
    return Table(root.at, (TableEntry(MCP_SERVERS.root, root.at, root),))


def _is_native(values: Mapping[str, Tree]) -> bool:
    version = values.get("version")
    return isinstance(version, Leaf) and isinstance(version.value, int)


def _is_continue(values: Mapping[str, Tree]) -> bool:
    schema = values.get("schema")
    return isinstance(schema, Leaf) and schema.value == "v1"
