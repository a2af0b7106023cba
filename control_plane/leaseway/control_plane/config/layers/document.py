"""The common form of configuration files: servers' entries in native keys, with positions."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from typing import Final, Literal

from leaseway.control_plane.config.layers.denials import DeniedTools
from leaseway.control_plane.config.schema.entries import NO_DEFAULTS, Defaults
from leaseway.control_plane.config.schema.issues import IssueReason, Where, quoted
from leaseway.control_plane.config.schema.policy import Tenants
from leaseway.control_plane.config.schema.tables import unique_entries
from leaseway.control_plane.config.tree.files import load_file
from leaseway.control_plane.config.tree.json_tree import BadJson
from leaseway.control_plane.config.tree.toml_tree import BadToml
from leaseway.control_plane.config.tree.yaml_tree import (
    START,
    BadText,
    Items,
    Leaf,
    Position,
    Table,
    TableEntry,
)
from leaseway.wire.bounds import MAX_CONFIG, MAX_SERVERS, MIB

CONFIG_OF_CLASS: Final = "config, if a class"
"""In an overlaying entry: the `config` if the server turns out to be a Python class."""

LayerKind = Literal["global", "native", "system", "kubernetes", "domain", "session"]
"""The kind of a layer: `native` is a file alone, `global` lies below one, and `kubernetes` is a
resource that declares a server, above the files that declare servers."""


@dataclass(frozen=True)
class Layer:
    """One file of a configuration, with its content; `tenant` is that of a domain.

    If `bare` is true and the file's format has no prefixes, its tools get no prefix.
    """

    kind: LayerKind
    path: str
    text: str
    tenant: str = ""
    bare: bool = False


@dataclass(frozen=True)
class Document:
    """One file's servers in native keys, with positions. Every format's reader makes one.

    Attributes:
        form: The format's name for people, such as `native`.
        root: The dotted path of the key that contains the servers.
        at: The position of its value.
        servers: The ids with their keys, in native spelling.
        tenants: The file's grants; None grants everything to everyone.
        inherit: The system file that the file was written for, or empty.
        implied: The defaults of a format that cannot state any.
        denied: Tools that it denies on servers of other files, too.
        only: The only servers of any file that it lets run, or None for all.
    """

    form: str
    root: str
    at: Position = START
    servers: tuple[TableEntry, ...] = ()
    defaults: Defaults = NO_DEFAULTS
    tenants: Tenants | None = None
    inherit: str = ""
    implied: Defaults = NO_DEFAULTS
    denied: tuple[DeniedTools, ...] = ()
    only: frozenset[str] | None = None


DocumentReader = Callable[[Table, Where], Document | None]
"""Returns the document of a file's root; None, after a fatal issue, if it is unusable."""

Implied = Literal["always", "if_it_runs", "never"]
"""When an entry without `transport` implies one: not always if it overlays other layers."""


def is_implied(implied: Implied, names: Collection[str]) -> bool:
    """Return whether an entry with these keys, and no `transport`, implies one."""
    return implied == "always" or (
        implied == "if_it_runs" and ("command" in names or "url" in names)
    )


def transport_entry(name: str, at: Position) -> TableEntry:
    return TableEntry("transport", at, Leaf(at, name, name))


def whitelist(entry: TableEntry) -> TableEntry:
    """Return a filter that is written as a list of names as one with a whitelist.

    An empty list becomes a filter that no name passes; an empty whitelist would let all pass.
    """
    if not isinstance(entry.value, Items):
        return entry
    at = entry.value.at
    if not entry.value.items:
        every = Items(at, (Leaf(at, "*", "*"),))
        return replace(entry, value=Table(at, (TableEntry("blacklist", entry.at, every),)))
    return replace(entry, value=Table(at, (TableEntry("whitelist", entry.at, entry.value),)))


def read_root(text: str, where: Where, file: str = "") -> Table | None:
    """Return a file's mapping, or report why there is none."""
    if len(text) > MAX_CONFIG or len(text.encode(errors="replace")) > MAX_CONFIG:
        message = f"The file is larger than {MAX_CONFIG // MIB} MiB."
        where.fatal(START, IssueReason.TOO_LARGE, message)
        return None
    try:
        tree = load_file(text, file)
    except BadText as error:
        where.fatal(error.at, _reason(error), error.message)
        return None
    if isinstance(tree, Table):
        return tree
    at = START if tree is None else tree.at
    message = "The file must be a mapping that begins with 'version: 1'."
    reason = IssueReason.UNSUPPORTED_VERSION if tree is None else IssueReason.WRONG_TYPE
    where.fatal(at, reason, message)
    return None


def _reason(error: BadText) -> IssueReason:
    match error:
        case BadJson():
            return IssueReason.BAD_JSON
        case BadToml():
            return IssueReason.BAD_TOML
        case _:
            return IssueReason.BAD_YAML


def server_entries(table: Table, where: Where) -> Sequence[TableEntry]:
    """Return the entries of the servers, each id once; a repeated id is fatal."""
    entries = unique_entries(table, where, _repeated_server)
    if len(entries) > MAX_SERVERS:
        message = f"The file has {len(entries)} servers; {MAX_SERVERS} are allowed."
        where.fatal(table.at, IssueReason.TOO_LARGE, message)
        return []
    return entries


def repeated_root(where: Where, entry: TableEntry, first: Position) -> None:
    message = f"{quoted(entry.name)} is set twice, first on line {first.line}; remove one."
    where.child(entry).fatal(entry.at, IssueReason.DUPLICATE_KEY, message)


def _repeated_server(where: Where, entry: TableEntry, first: Position) -> None:
    message = (
        f"The server {quoted(entry.name)} is defined twice, first on line {first.line};"
        " rename or remove one."
    )
    where.child(entry).fatal(entry.at, IssueReason.DUPLICATE_SERVER, message)
