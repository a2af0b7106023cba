"""Reads one server's entry, in native keys, into a typed spec (design.md#configuration).

Files of every format are translated into native keys first, and layers are merged key by key.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from difflib import get_close_matches
from typing import Any, Final

from leaseway.control_plane.config.schema.auth import check_auth
from leaseway.control_plane.config.schema.filters import for_server
from leaseway.control_plane.config.schema.issues import IssueLog, IssueReason, Where, quoted
from leaseway.control_plane.config.schema.keys import ROOT_KEYS, SERVER_KEYS, UNUSABLE, ServerKey
from leaseway.control_plane.config.schema.kinds.table import COMPLETE
from leaseway.control_plane.config.schema.lease_names import check_lease_names
from leaseway.control_plane.config.schema.tables import entries_of, read_table
from leaseway.control_plane.config.schema.values import BadValue
from leaseway.control_plane.config.tree.yaml_tree import START, Position, TableEntry
from leaseway.spec.keys import keys_of
from leaseway.spec.kinds.table import OF_PACKAGES, PARTS, server_spec
from leaseway.spec.kinds.transports import is_known, known_transports
from leaseway.spec.model import InstancePolicy, Part, ServerSpec, Transform, VariantKey
from leaseway.spec.policy import NO_POLICY, ServerPolicy
from leaseway.wire.messages.admin import ADMIN_TOOLSET
from leaseway.wire.names import is_valid_name

_MISSPELT: Final = 0.7
"""Similarity from which an unknown key of the root counts as a misspelt `defaults`."""

_INSTANCES: Final = "instances."
_POLICY: Final = "policy."


@dataclass(frozen=True)
class Defaults:
    """The `defaults:` of a file: the transforms of servers that have no `transform`.

    If it is rejected, so are those servers: a typing error must not rename their tools. A misspelt
    `defaults` counts as rejected.
    """

    transforms: tuple[Transform, ...] = ()
    rejected: bool = False
    given: bool = False
    at: Position = START


NO_DEFAULTS: Final = Defaults()


def read_defaults(log: IssueLog, entries: Sequence[TableEntry], values: dict[str, Any]) -> Defaults:
    """Return a file's defaults, from its root's entries and their accepted values."""
    unknown = [entry.name for entry in entries if entry.name not in ROOT_KEYS]
    misspelt = any(get_close_matches(name, ["defaults"], 1, _MISSPELT) for name in unknown)
    rejected = any(
        issue.severity == "error" and re.match(r"defaults\b", issue.key) for issue in log.issues()
    )
    defaults: dict[str, Any] = values.get("defaults", {})
    at = next((entry.at for entry in entries if entry.name == "defaults"), None)
    given = misspelt or at is not None
    return Defaults(defaults.get("transforms", ()), misspelt or rejected, given, at or START)


def read_entry(entry: TableEntry, servers: Where, defaults: Defaults) -> ServerSpec | None:
    """Return a server's spec; None if it is disabled, or rejected and in `log.failed`."""
    server_id = entry.name
    where = replace(servers.child(entry), server_id=server_id)
    _check_id(entry, where)
    try:
        entries = entries_of(entry.value, where)
    except BadValue as error:
        error.report(entry.value, where)
        return None
    transport = _transport_of(entries)
    where = replace(where, transport=transport)
    known = [entry for entry in entries if entry.name in SERVER_KEYS]
    usable = [entry for entry in entries if not _is_misplaced(entry.name, transport)]
    values = read_table(usable, SERVER_KEYS, where, "a server")
    _check_keys(entry, {member.name: member for member in known}, where)
    if values.pop("enabled", True) is False:
        where.log.failed.discard(server_id)
        return None
    if defaults.rejected and not any(member.name == "transform" for member in known):
        message = (
            f"The server {quoted(server_id)} has no 'transform' of its own, and 'defaults' has an"
            " error; fix 'defaults' first."
        )
        where.error(entry.at, IssueReason.DEFAULTS_REFUSED, message)
    _check_warm(entry, values, where)
    check_lease_names(entry, values, where)
    transforms = for_server(values.get("transforms", defaults.transforms), server_id)
    complete = COMPLETE.get(transport or "")
    if complete is not None:
        complete(entry, values, transforms, where)
    check_auth(entry, values, where)
    values.pop("domain_may", None)  # only the layers use it
    if server_id in where.log.failed:
        return None
    if transport not in OF_PACKAGES.parts:
        return _spec(server_id, values, defaults)
    try:
        spec = _spec(server_id, values, defaults)
        faults = _faults(spec)
    except Exception as error:  # noqa: BLE001 - a kind of a package raises what it likes
        faults = [f"Its kind could not check it: {type(error).__name__}."]
    for fault in faults:
        message = f"The server {quoted(server_id)} cannot be used. {fault}"
        where.error(entry.at, IssueReason.BAD_VALUE, message)
    return None if faults else spec


def _faults(spec: ServerSpec) -> list[str]:
    """Return what a package's kind finds wrong with settings together.

    It also asks the part whatever is asked of it later, so that what raises costs this server only.
    """
    part = spec.part
    faults = [str(fault) for fault in part.faults()]
    for _ in (spec.launch_hash, spec.values, spec.lease_names, spec.named_folders):
        pass
    for _ in (tuple(part.texts), tuple(part.needs), tuple(part.enabled_tools)):
        pass
    return faults


def _spec(server_id: str, values: dict[str, Any], defaults: Defaults) -> ServerSpec:
    transforms = values.pop("transforms", defaults.transforms)
    policy = _pop_prefix(values, _POLICY)
    return server_spec(
        VariantKey(server_id),
        policy=ServerPolicy(**policy) if policy else NO_POLICY,
        instances=InstancePolicy(**_pop_prefix(values, _INSTANCES)),
        transforms=for_server(transforms, server_id),
        **values,
    )


def _pop_prefix(values: dict[str, Any], prefix: str) -> dict[str, Any]:
    """Remove the values whose fields have a prefix; return them without it."""
    names = [name for name in values if name.startswith(prefix)]
    return {name.removeprefix(prefix): values.pop(name) for name in names}


def _check_id(entry: TableEntry, where: Where) -> None:
    if entry.name == ADMIN_TOOLSET:
        message = f"The server id '{ADMIN_TOOLSET}' is reserved; choose another."
    elif not is_valid_name(entry.name):
        message = (
            f"The server id {quoted(entry.name)} is not valid: write 1 to 64 characters of a-z,"
            " A-Z, 0-9, '_' and '-'."
        )
    else:
        return
    where.error(entry.at, IssueReason.INVALID_SERVER_ID, message)


def _transport_of(entries: Sequence[TableEntry]) -> str | None:
    for entry in entries:
        if entry.name == "transport":
            name = getattr(entry.value, "value", None)
            return name if is_known(name) and name not in UNUSABLE else None
    return None


def _check_keys(server: TableEntry, present: dict[str, TableEntry], where: Where) -> None:
    transport = where.transport
    if "transport" not in present:
        where.missing(server.at, "transport", _no_transport(server.name, present))
    if transport is None:
        return
    for key in SERVER_KEYS.values():
        entry = present.get(key.name)
        instead = key.declared.instead
        if entry is None and transport in key.required_by and instead not in present:
            either = f"{key.name!r} or {instead!r}" if instead else f"{key.name!r}"
            text = f"The server {quoted(server.name)} needs {either} for '{transport}'."
            where.missing(server.at, key.name, text)
        elif entry is not None and _is_misplaced(key.name, transport):
            place = where.at_key(key.name, entry.value.at)
            message = _misplaced(key, transport)
            place.error(entry.at, IssueReason.KEY_NOT_FOR_TRANSPORT, message)


def _check_warm(server: TableEntry, values: dict[str, Any], where: Where) -> None:
    warm, limit = values.get("instances.warm", 0), values.get("instances.max_instances")
    place, at = where.find("warm", server.at)
    if limit is not None and warm > limit:
        message = f"'warm' is {warm}, above 'max_instances', which is {limit}."
        place.error(at, IssueReason.BAD_VALUE, message)
    elif warm and values.get("truely_stateless"):
        message = "'warm' has no effect: a server with 'truely-stateless: true' is never leased."
        place.warning(at, IssueReason.KEY_WITHOUT_EFFECT, message)


def _no_transport(server_id: str, present: Mapping[str, TableEntry]) -> str:
    known = ", ".join(known_transports())
    text = f"The server {quoted(server_id)} needs 'transport'; it is one of {known}."
    for kind in PARTS:
        required = [key for key in keys_of(kind) if key.required]
        written = {key.instead if key.name not in present else key.name for key in required}
        likely = _likely(kind, present) if written and written <= present.keys() else None
        if likely:
            named = " and ".join(f"'{name}'" for name in sorted(written))
            return f"{text} With this {named}, write 'transport: {likely}'."
    return text


def _likely(kind: type[Part], present: Mapping[str, TableEntry]) -> str | None:
    """Return the transport of a kind that fits the scheme of an address, if there is one."""
    scheme = str(getattr(present["url"].value, "value", "")) if "url" in present else ""
    scheme = scheme.partition("://")[0]
    fitting = [name for name in kind.transports if scheme in (kind.schemes(name) or (scheme,))]
    return next(iter(fitting or kind.transports), None)


def _is_misplaced(name: str, transport: str | None) -> bool:
    """Return whether a transport does not accept a key; then its value is not read, either."""
    key = SERVER_KEYS.get(name)
    if key is None or transport is None:
        return False
    return not key.is_for(transport)


def _misplaced(key: ServerKey, transport: str) -> str:
    wanted = " or ".join(f"'{transport}'" for transport in sorted(key.transports or ()))
    return f"'{key.name}' is not for the transport '{transport}', only for {wanted}; remove it."
