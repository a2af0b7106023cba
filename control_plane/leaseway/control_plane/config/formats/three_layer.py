"""Three-layer YAML (`schema: mcp-config-v5`): a system file, and domain files that inherit it.

`config` and `override` are a server's parameters; `override` replaces them by name. They become
the `config` of a Python class, and variables of the environment of any other server, in capitals
(`collection` becomes `COLLECTION`).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Final

from leaseway.control_plane.config.layers.document import (
    CONFIG_OF_CLASS,
    Document,
    DocumentReader,
    Implied,
    is_implied,
    repeated_root,
    server_entries,
    transport_entry,
    whitelist,
)
from leaseway.control_plane.config.schema.issues import IssueReason, Where, quoted
from leaseway.control_plane.config.schema.keys import ROOT_KEYS
from leaseway.control_plane.config.schema.tables import Key, keyed, read_table, unique_entries
from leaseway.control_plane.config.schema.values import (
    BadValue,
    choice,
    kind_of,
    plain_text,
    reader,
)
from leaseway.control_plane.config.tree.yaml_tree import START, Leaf, Table, TableEntry, Tree
from leaseway.spec.kinds.process import ProcessPart
from leaseway.spec.kinds.python import PythonPart
from leaseway.spec.kinds.remote import RemotePart

SCHEMA: Final = "mcp-config-v5"

_PARAMETERS: Final = ("config", "override")
"""A server's parameters, in whatever order the file has them; later ones count."""
_OF_CLASSES: Final = PythonPart.implied_by
_TRANSPORTS: Final = RemotePart.synonyms
_TYPE: Final = choice("custom", "external")
_NOT_IN_A_NAME: Final = re.compile(r"[^A-Za-z0-9_]")


@reader({"const": "1.0"})
def _version(node: Tree, where: Where) -> str:
    if isinstance(node, Leaf) and node.text == "1.0":
        return node.text
    message = 'The version of a three-layer file must be "1.0"; write \'version: "1.0"\'.'
    where.fatal(node.at, IssueReason.UNSUPPORTED_VERSION, message)
    raise BadValue  # already reported


_ROOT: Final = keyed(
    Key("version", _version),
    Key("schema", choice(SCHEMA)),
    Key("inherit", plain_text(longest=4_096, empty=False)),
    ROOT_KEYS["servers"],
)


def read_three_layer(implied: Implied = "always") -> DocumentReader:
    """Return a reader of a system file (`always`), or of an incomplete one that overlays it."""
    partial = implied != "always"

    def read(root: Table, where: Where) -> Document | None:
        entries = unique_entries(root, where, repeated_root)
        values = read_table(entries, _ROOT, where, "a three-layer file")
        at = {entry.name: entry.at for entry in entries}
        if "version" not in at and not partial:
            where.log.broken = True
            where.missing(START, "version", "'version' is missing; write 'version: \"1.0\"'.")
        if "servers" not in at:
            where.log.broken = True
            where.missing(START, "servers", "'servers' is missing; write 'servers: {}' for none.")
        table: Table | None = values.get("servers")
        if table is None:
            return None
        place = where.at_key("servers", table.at)
        servers = [_server(entry, place, implied) for entry in server_entries(table, place)]
        return Document(
            "three-layer",
            "servers",
            table.at,
            tuple(servers),
            inherit=values.get("inherit", ""),
        )

    return read


def _server(entry: TableEntry, servers: Where, implied: Implied) -> TableEntry:
    where = replace(servers.child(entry), server_id=entry.name)
    if not isinstance(entry.value, Table):
        return entry
    entries = unique_entries(entry.value, where)
    names = {entry.name for entry in entries}
    runs = bool(names & {*ProcessPart.implied_by, *RemotePart.implied_by})
    is_class = bool(names & {*_OF_CLASSES, "type"}) and not runs
    native = [made for entry in entries for made in _native(entry, where, is_class)]
    if is_class and implied != "never":
        at = next(entry.at for entry in entries if entry.name in (*_OF_CLASSES, "type"))
        native = [entry for entry in native if entry.name != "transport"]
        native.append(transport_entry(PythonPart.transports[0], at))
    elif "transport" not in names and is_implied(implied, names):
        native.append(transport_entry(ProcessPart.transports[0], entry.at))
    parameters = [entry for name in _PARAMETERS for entry in entries if entry.name == name]
    if parameters and is_class:
        native.append(_class_config(parameters, "config"))
    elif parameters:
        native = _with_parameters(native, parameters, where)
        if implied != "always" and not runs:  # the server below may be a class
            native.append(_class_config(parameters, CONFIG_OF_CLASS))
    return entry.with_members(native)


def _class_config(parameters: Sequence[TableEntry], name: str) -> TableEntry:
    """Return a class's configuration from its parameters, of which later ones count."""
    bad = next(
        (parameter for parameter in parameters if not isinstance(parameter.value, Table)), None
    )
    if bad is not None:
        return replace(bad, name=name)  # the reader of the key reports it
    merged: dict[str, TableEntry] = {}
    for parameter in parameters:
        merged.update((member.name, member) for member in parameter.members)
    return replace(parameters[0], name=name).with_members(merged.values())


def _native(entry: TableEntry, where: Where, is_class: bool) -> Iterator[TableEntry]:
    place = where.child(entry)
    node = entry.value
    match entry.name:
        case "type":
            _TYPE(node, place)
        case "module" | "class" if is_class:
            yield entry
        case "module" | "class" | "config" | "override":
            return
        case "tools" | "prompts" | "resources":
            yield whitelist(entry)
        case "transport" if isinstance(node, Leaf) and node.value in _TRANSPORTS:
            yield replace(entry, value=replace(node, value=_TRANSPORTS[str(node.value)]))
        case _:
            yield entry


def _with_parameters(
    native: Sequence[TableEntry], parameters: Sequence[TableEntry], where: Where
) -> list[TableEntry]:
    # `env` overrides `override`, which overrides `config`.
    variables: dict[str, TableEntry] = {}
    for parameter in parameters:
        variables.update(
            (made.name, made) for made in _variables(parameter, where.child(parameter))
        )
    given = next((entry for entry in native if entry.name == "env"), None)
    if given is not None and not isinstance(given.value, Table):
        return list(native)
    own = given.members if given is not None else ()
    kept = [
        variable
        for name, variable in variables.items()
        if name not in {entry.name for entry in own}
    ]
    if not kept:
        return list(native)
    head = parameters[0]
    env = TableEntry("env", given.at if given else head.at, Table(head.value.at, (*own, *kept)))
    return [*(entry for entry in native if entry is not given), env]


def _variables(parameters: TableEntry, where: Where) -> Iterator[TableEntry]:
    if not isinstance(parameters.value, Table):
        message = f"{quoted(where.key)} must be a mapping, but it is {kind_of(parameters.value)}."
        where.error(parameters.value.at, IssueReason.WRONG_TYPE, message)
        return
    for entry in unique_entries(parameters.value, where):
        place = where.child(entry)
        node = entry.value
        if not isinstance(node, Leaf) or node.value is None:
            message = (
                f"{quoted(place.key)} must be text, a number, true or false: it becomes a variable"
                f" of the server's environment, but it is {kind_of(node)}."
            )
            place.error(node.at, IssueReason.WRONG_TYPE, message)
            continue
        name = _NOT_IN_A_NAME.sub("_", entry.name).upper()
        text = node.value if isinstance(node.value, str) else node.text
        yield TableEntry(name, entry.at, replace(node, value=text))
