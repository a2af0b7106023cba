"""The native configuration file: from text to typed specs (DESIGN §2).

A file that is broken as a whole changes nothing; a bad entry refuses that server only. Parsing
never raises: whatever is wrong is an issue with a file, a line and a column. Pure, but not fast
for a large file: a caller with an event loop should parse in a thread.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Final

from leaseway.control_plane.config.issues import (
    IssueLog,
    IssueReason,
    ParsedConfig,
    Where,
    shown,
)
from leaseway.control_plane.config.keys import OPEN_TRANSPORTS, ROOT_KEYS, SERVER_KEYS
from leaseway.control_plane.config.naming import for_server
from leaseway.control_plane.config.positions import (
    START,
    BadYaml,
    Entry,
    Position,
    Table,
    load_tree,
)
from leaseway.control_plane.config.tables import Key, mapping, read_table, unique_entries
from leaseway.control_plane.core.exposure import ADMIN_TOOLSET
from leaseway.wire.bounds import MIB
from leaseway.wire.names import is_valid_name, nearest
from leaseway.wire.spec import TRANSPORTS, InstancePolicy, ServerSpec, Transform, VariantKey

__all__ = ["MAX_CONFIG", "MAX_SERVERS", "parse_native"]

MAX_CONFIG: Final = 4 * MIB
"""Bytes of a configuration file."""

MAX_SERVERS: Final = 2_000

_INSTANCES: Final = "instances."


def parse_native(text: str, path: str) -> ParsedConfig:
    """Parse a native configuration file.

    Args:
        text: The file's content.
        path: Its name, for the issues; it is not opened.
    """
    log = IssueLog(path)
    where = Where(log)
    servers: dict[VariantKey, ServerSpec] = {}
    root = _root(text, where)
    if root is not None:
        entries = unique_entries(root, where, _repeated_root)
        values = read_table(entries, ROOT_KEYS, where, "the file")
        _require_root(entries, where)
        table: Table | None = values.get("servers")
        if table is not None:
            specs = _servers(table, where, _Defaults(log, entries, values))
            servers = {spec.key: spec for spec in specs}
    if log.broken:
        return ParsedConfig({}, frozenset(), log.issues(), broken=True, places=log.places)
    return ParsedConfig(servers, frozenset(log.failed), log.issues(), False, log.places)


def _root(text: str, where: Where) -> Table | None:
    if len(text) > MAX_CONFIG or len(text.encode(errors="replace")) > MAX_CONFIG:
        message = f"The file is larger than {MAX_CONFIG // MIB} MiB."
        where.fatal(START, IssueReason.TOO_LARGE, message)
        return None
    try:
        tree = load_tree(text)
    except BadYaml as error:
        where.fatal(error.at, IssueReason.BAD_YAML, error.message)
        return None
    if isinstance(tree, Table):
        return tree
    at = START if tree is None else tree.at
    message = "The file must be a mapping that begins with 'version: 1'."
    reason = IssueReason.UNSUPPORTED_VERSION if tree is None else IssueReason.WRONG_TYPE
    where.fatal(at, reason, message)
    return None


def _require_root(entries: Sequence[Entry], where: Where) -> None:
    present = {entry.name for entry in entries}
    for name, message in (
        ("version", "'version' is missing; write 'version: 1'."),
        ("servers", "'servers' is missing; write 'servers: {}' for none."),
    ):
        if name not in present:
            where.log.broken = True
            where.missing(START, name, message)


def _repeated_root(where: Where, entry: Entry, first: Position) -> None:
    message = f"{shown(entry.name)} is set twice, first on line {first.line}; remove one."
    where.child(entry.name, entry.value.at).fatal(entry.at, IssueReason.DUPLICATE_KEY, message)


def _repeated_server(where: Where, entry: Entry, first: Position) -> None:
    message = (
        f"The server {shown(entry.name)} is defined twice, first on line {first.line};"
        " rename or remove one."
    )
    where.child(entry.name, entry.value.at).fatal(entry.at, IssueReason.DUPLICATE_SERVER, message)


class _Defaults:
    """What `defaults:` says: its transforms serve the servers that have no `transform`.

    Where it was refused, those servers are refused too: they must not change their tools' names
    because of a typing error. A misspelt `defaults` counts as refused.
    """

    def __init__(self, log: IssueLog, entries: Sequence[Entry], values: dict[str, Any]) -> None:
        unknown = [entry.name for entry in entries if entry.name not in ROOT_KEYS]
        misspelt = any(nearest(name, ROOT_KEYS, 1) == ["defaults"] for name in unknown)
        refused = any(
            issue.severity == "error" and re.match(r"defaults\b", issue.key)
            for issue in log.issues()
        )
        self.refused = misspelt or refused
        defaults: dict[str, Any] = values.get("defaults", {})
        self.transforms: tuple[Transform, ...] = defaults.get("transforms", ())


def _servers(table: Table, where: Where, defaults: _Defaults) -> list[ServerSpec]:
    where = where.child("servers", table.at)
    entries = unique_entries(table, where, _repeated_server)
    if len(entries) > MAX_SERVERS:
        message = f"The file has {len(entries)} servers; {MAX_SERVERS} are allowed."
        where.fatal(table.at, IssueReason.TOO_LARGE, message)
        return []
    specs = (_server(entry, where, defaults) for entry in entries)
    return [spec for spec in specs if spec is not None]


def _server(entry: Entry, servers: Where, defaults: _Defaults) -> ServerSpec | None:
    server_id = entry.name
    child = servers.child(server_id, entry.value.at)
    where = replace(child, server_id=server_id)
    _check_id(entry, where)
    table = mapping(entry.value, where)
    if table is None:
        return None
    entries = unique_entries(table, where)
    transport = _transport_of(entries)
    where = replace(where, transport=transport)
    known = [each for each in entries if each.name in SERVER_KEYS]
    judged = known if transport in OPEN_TRANSPORTS else entries
    values = read_table(judged, SERVER_KEYS, where, "a server")
    _check_keys(entry, {each.name: each for each in known}, where)
    if values.pop("enabled", True) is False:
        where.log.failed.discard(server_id)
        return None
    if defaults.refused and not any(each.name == "transform" for each in known):
        message = (
            f"The server {shown(server_id)} has no 'transform' of its own, and 'defaults' has an"
            " error; mend 'defaults' first."
        )
        where.error(entry.at, IssueReason.DEFAULTS_REFUSED, message)
    _check_together(entry, values, where)
    if server_id in where.log.failed:
        return None
    return _spec(server_id, values, defaults)


def _spec(server_id: str, values: dict[str, Any], defaults: _Defaults) -> ServerSpec:
    transforms = values.pop("transforms", defaults.transforms)
    instances = {
        name.removeprefix(_INSTANCES): values.pop(name)
        for name in list(values)
        if name.startswith(_INSTANCES)
    }
    return ServerSpec(
        key=VariantKey(server_id),
        instances=InstancePolicy(**instances),
        transforms=for_server(transforms, server_id),
        **values,
    )


def _check_id(entry: Entry, where: Where) -> None:
    if entry.name == ADMIN_TOOLSET:
        message = f"The server id '{ADMIN_TOOLSET}' is reserved; choose another."
    elif not is_valid_name(entry.name):
        message = (
            f"The server id {shown(entry.name)} is not valid: write 1 to 64 characters of a-z,"
            " A-Z, 0-9, '_' and '-'."
        )
    else:
        return
    where.error(entry.at, IssueReason.INVALID_SERVER_ID, message)


def _transport_of(entries: Sequence[Entry]) -> str | None:
    for entry in entries:
        if entry.name == "transport":
            name = getattr(entry.value, "value", None)
            return name if name in TRANSPORTS else None
    return None


def _check_keys(server: Entry, present: dict[str, Entry], where: Where) -> None:
    transport = where.transport
    if "transport" not in present:
        where.missing(server.at, "transport", _missing(server.name, "transport", TRANSPORTS))
    if transport is None or transport in OPEN_TRANSPORTS:
        return
    for key in SERVER_KEYS.values():
        entry = present.get(key.name)
        if entry is None and transport in key.required_by:
            text = f"The server {shown(server.name)} needs {key.name!r} for '{transport}'."
            where.missing(server.at, key.name, text)
        elif entry is not None and key.transports and transport not in key.transports:
            place = where.child(key.name, entry.value.at)
            message = _misplaced(key, transport)
            place.error(entry.at, IssueReason.KEY_NOT_FOR_TRANSPORT, message)


def _check_together(server: Entry, values: dict[str, Any], where: Where) -> None:
    warm, most = values.get("instances.warm", 0), values.get("instances.max_instances")
    place = replace(where, key=f"{where.key}.warm")
    at = where.log.places.get(place.key, server.at)
    if most is not None and warm > most:
        message = f"'warm' is {warm}, above 'max_instances', which is {most}."
        place.error(at, IssueReason.BAD_VALUE, message)
    elif warm and values.get("truely_stateless"):
        message = "'warm' has no effect: a server with 'truely-stateless: true' is never leased."
        place.warning(at, IssueReason.KEY_WITHOUT_EFFECT, message)


def _missing(server_id: str, name: str, known: Sequence[str]) -> str:
    return f"The server {shown(server_id)} needs '{name}'; it is one of {', '.join(known)}."


def _misplaced(key: Key, transport: str) -> str:
    wanted = " or ".join(f"'{each}'" for each in sorted(key.transports or ()))
    return f"'{key.name}' is not for the transport '{transport}', only for {wanted}; remove it."
