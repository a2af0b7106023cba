"""What a configuration file says before it means anything: entries in native keys, with places.

Each format's reader makes one of these; `layers` puts several on top of each other and has the
entries read.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Final, Literal

from leaseway.control_plane.config.schema.entries import NO_DEFAULTS, Defaults
from leaseway.control_plane.config.schema.issues import IssueReason, Where, quoted
from leaseway.control_plane.config.schema.policy import Tenants
from leaseway.control_plane.config.schema.tables import unique_entries
from leaseway.control_plane.config.tree.json_tree import BadJson
from leaseway.control_plane.config.tree.load import load_file
from leaseway.control_plane.config.tree.yaml_tree import START, BadText, Position, Table, TableEntry
from leaseway.wire.bounds import MAX_CONFIG, MAX_SERVERS, MIB

CONFIG_OF_CLASS: Final = "config, if a class"
"""In an entry that goes over another: what it is to be handed in case it is a Python class."""


@dataclass(frozen=True)
class Document:
    """One file's servers.

    Attributes:
        form: The format's name, such as `native`, as people get to read it.
        root: The dotted path of the key that the servers are under.
        at: Where its value is.
        servers: The ids with their keys, in native spelling.
        defaults: What the file says for every server.
        tenants: What it grants to whom; None where it does not say, which grants everything.
        inherit: The system file that the file says it was written for, or empty.
        implied: What holds for its servers where nobody says anything for every server: the file
            has no way to.
    """

    form: str
    root: str
    at: Position = START
    servers: tuple[TableEntry, ...] = ()
    defaults: Defaults = NO_DEFAULTS
    tenants: Tenants | None = None
    inherit: str = ""
    implied: Defaults = NO_DEFAULTS


DocumentReader = Callable[[Table, Where], Document | None]
"""From a file's root to what it says; None, and a fatal issue, where it cannot be used."""

Implied = Literal["always", "if_it_runs", "never"]
"""When an entry that names no transport means one: where others lie below it, not always."""


def is_implied(implied: Implied, names: Collection[str]) -> bool:
    """Return whether an entry with these keys, and no `transport`, means one all the same."""
    return implied == "always" or (
        implied == "if_it_runs" and ("command" in names or "url" in names)
    )


def read_root(text: str, where: Where, file: str = "") -> Table | None:
    """Return a file's mapping, or report why it has none."""
    if len(text) > MAX_CONFIG or len(text.encode(errors="replace")) > MAX_CONFIG:
        message = f"The file is larger than {MAX_CONFIG // MIB} MiB."
        where.fatal(START, IssueReason.TOO_LARGE, message)
        return None
    try:
        tree = load_file(text, file)
    except BadText as error:
        bad = IssueReason.BAD_JSON if isinstance(error, BadJson) else IssueReason.BAD_YAML
        where.fatal(error.at, bad, error.message)
        return None
    if isinstance(tree, Table):
        return tree
    at = START if tree is None else tree.at
    message = "The file must be a mapping that begins with 'version: 1'."
    reason = IssueReason.UNSUPPORTED_VERSION if tree is None else IssueReason.WRONG_TYPE
    where.fatal(at, reason, message)
    return None


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
