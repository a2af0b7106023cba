"""One server's entry: from its keys, in the native spelling, to a typed spec (DESIGN §2).

Every format ends up here: what other clients write is put into native keys first, and layers are
merged key by key before an entry is read.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from difflib import get_close_matches
from typing import Any, Final

from leaseway.control_plane.config.schema.filters import for_server
from leaseway.control_plane.config.schema.http_api.documents import OpenApi
from leaseway.control_plane.config.schema.http_api.security import wired
from leaseway.control_plane.config.schema.images import check_image
from leaseway.control_plane.config.schema.issues import IssueLog, IssueReason, Where, shown
from leaseway.control_plane.config.schema.keys import ROOT_KEYS, SERVER_KEYS
from leaseway.control_plane.config.schema.process_servers import check_builtin, switched_on
from leaseway.control_plane.config.schema.tables import Key, mapping, read_table, unique_entries
from leaseway.control_plane.config.tree.yaml_tree import START, Entry, Position
from leaseway.spec.http_tools import sets, without
from leaseway.spec.model import (
    Builtin,
    Credential,
    InstancePolicy,
    ServerSpec,
    Transform,
    VariantKey,
)
from leaseway.spec.name_filters import NO_FILTER
from leaseway.spec.policy import NO_POLICY, ServerPolicy
from leaseway.spec.transports import is_known, known_transports
from leaseway.wire.messages.admin import ADMIN_TOOLSET
from leaseway.wire.names import is_valid_name

_MISSPELT: Final = 0.7
"""How much a key of the root is like `defaults` that was meant to be it."""

_INSTANCES: Final = "instances."
_POLICY: Final = "policy."
_BUILTIN: Final = "builtin."


@dataclass(frozen=True)
class Defaults:
    """What `defaults:` says: its transforms serve the servers that have no `transform`.

    Where it was refused, those servers are refused too: they must not change their tools' names
    because of a typing error. A misspelt `defaults` counts as refused.
    """

    transforms: tuple[Transform, ...] = ()
    refused: bool = False
    given: bool = False
    at: Position = START


NO_DEFAULTS: Final = Defaults()


def read_defaults(log: IssueLog, entries: Sequence[Entry], values: dict[str, Any]) -> Defaults:
    """Return a file's defaults, from its root's entries and what was read of them."""
    unknown = [entry.name for entry in entries if entry.name not in ROOT_KEYS]
    misspelt = any(get_close_matches(name, ["defaults"], 1, _MISSPELT) for name in unknown)
    refused = any(
        issue.severity == "error" and re.match(r"defaults\b", issue.key) for issue in log.issues()
    )
    defaults: dict[str, Any] = values.get("defaults", {})
    at = next((entry.at for entry in entries if entry.name == "defaults"), None)
    given = misspelt or at is not None
    return Defaults(defaults.get("transforms", ()), misspelt or refused, given, at or START)


def read_entry(entry: Entry, servers: Where, defaults: Defaults) -> ServerSpec | None:
    """Return a server's spec; None where it is disabled, or refused and so in `log.failed`.

    Args:
        entry: The server's id and its keys.
        servers: The place that the entry is in.
        defaults: What the file says for every server.
    """
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
    judged = [each for each in entries if not _is_misplaced(each.name, transport)]
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
    check_image(entry, values, where)
    _check_http_tools(entry, values, where)
    if transport == "builtin" and "tools" in values:
        written = {each.name for each in known}
        check_builtin(entry, _switched_on(dict(values)), written, where)
    values.pop("domain_may", None)  # the layers' business
    if server_id in where.log.failed:
        return None
    return _spec(server_id, values, defaults)


def _spec(server_id: str, values: dict[str, Any], defaults: Defaults) -> ServerSpec:
    transforms = values.pop("transforms", defaults.transforms)
    policy = _taken(values, _POLICY)
    return ServerSpec(
        key=VariantKey(server_id),
        policy=ServerPolicy(**policy) if policy else NO_POLICY,
        instances=InstancePolicy(**_taken(values, _INSTANCES)),
        builtin=_switched_on(values),
        transforms=for_server(transforms, server_id),
        **values,
    )


def _switched_on(values: dict[str, Any]) -> Builtin:
    given = Builtin(**_taken(values, _BUILTIN))
    if values.get("transport") != "builtin":
        return given
    return switched_on(values.get("tools", NO_FILTER), given)


def _taken(values: dict[str, Any], prefix: str) -> dict[str, Any]:
    """Take the values out whose fields begin with a prefix, without it."""
    names = [name for name in values if name.startswith(prefix)]
    return {name.removeprefix(prefix): values.pop(name) for name in names}


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
            return name if is_known(name) else None
    return None


def _check_keys(server: Entry, present: dict[str, Entry], where: Where) -> None:
    transport = where.transport
    if "transport" not in present:
        where.missing(server.at, "transport", _no_transport(server.name, present))
    if transport is None:
        return
    for key in SERVER_KEYS.values():
        entry = present.get(key.name)
        if entry is None and transport in key.required_by and key.instead not in present:
            either = f"{key.name!r} or {key.instead!r}" if key.instead else f"{key.name!r}"
            text = f"The server {shown(server.name)} needs {either} for '{transport}'."
            where.missing(server.at, key.name, text)
        elif entry is not None and _is_misplaced(key.name, transport):
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


def _check_http_tools(server: Entry, values: dict[str, Any], where: Where) -> None:
    """Put the tools of a document under those written out, and report what is lacking."""
    document: OpenApi | None = values.pop("openapi", None)
    if where.transport != "http_api" or server.name in where.log.failed:
        return
    tools = {tool.name: tool for tool in values.get("http_tools", ())}
    headers = {name.lower(): "headers" for name in values.get("headers", {})}
    schemes = document.imported.schemes if document is not None else None
    given = values.get("security", {})
    values["security"] = credentials = wired(given, schemes, where)
    for name, credential in credentials.items():
        _check_credential(name, credential, headers, where)
    headers |= {one.header.lower(): "security" for one in credentials.values() if one.header}
    query = {one.name for one in credentials.values() if one.kind == "query"}
    at = where.log.places.get(f"{where.key}.http_tools", server.at)
    for tool in tools.values():
        for each in tool.parameters:
            if sets(each, headers, query):
                by = headers.get(each.sent_as.lower(), "security")
                message = (
                    f"The tool {shown(tool.name)} has the {each.position} parameter"
                    f" {shown(each.sent_as)}, which {by!r} sets already."
                )
                place = replace(where, key=f"{where.key}.http_tools")
                place.error(at, IssueReason.BAD_HTTP_TOOL, message)
    if document is not None:
        imported = document.imported
        values.setdefault("url", imported.base_url)
        written = [without(tool, headers, query) for tool in imported.tools]
        tools = {tool.name: tool for tool in written} | tools
        if not given:
            _warn_of_credentials(document, headers, where)
    if not tools:
        message = f"The server {shown(server.name)} needs 'http_tools' or 'openapi'."
        where.missing(server.at, "http_tools", message)
    if not values.get("url"):
        text = " the document names no absolute address" if document is not None else ""
        message = f"The server {shown(server.name)} needs 'base_url'{':' if text else ''}{text}."
        where.missing(server.at, "base_url", message)
    values["http_tools"] = tuple(tools.values())


def _check_credential(
    name: str, credential: Credential, headers: Collection[str], where: Where
) -> None:
    if credential.header.lower() not in headers:
        return
    place = replace(where, key=f"{where.key}.security.{name}")
    message = (
        f"{shown(name)} sets the header {shown(credential.header)}, which 'headers' sets, too."
    )
    at = where.log.places.get(place.key, where.log.places[where.key])
    place.error(at, IssueReason.BAD_VALUE, message)


def _warn_of_credentials(document: OpenApi, headers: Collection[str], where: Where) -> None:
    """Say which credentials a document asks for, once for each thing that they set."""
    told: set[str] = set()
    for name, scheme in document.imported.schemes.items():
        if scheme.target in told or scheme.target.removeprefix("header ") in headers:
            continue
        told.add(scheme.target)
        message = (
            f"The document says that requests may need its security scheme {shown(name)}"
            f" ({scheme.example}); give it a value under 'security' if yours do."
        )
        place = replace(where, key=f"{where.key}.openapi")
        place.warning(document.at, IssueReason.CREDENTIAL_MISSING, message)


def _missing(server_id: str, name: str, known: Sequence[str]) -> str:
    return f"The server {shown(server_id)} needs '{name}'; it is one of {', '.join(known)}."


def _no_transport(server_id: str, present: Mapping[str, Entry]) -> str:
    text = _missing(server_id, "transport", known_transports())
    if "command" in present:
        return f"{text} With 'command', write 'transport: stdio'."
    if "url" not in present:
        return text
    url = str(getattr(present["url"].value, "value", ""))
    likely = "websocket" if url.startswith(("ws://", "wss://")) else "streamable_http"
    return f"{text} With this 'url', write 'transport: {likely}'."


def _is_misplaced(name: str, transport: str | None) -> bool:
    """Return whether a key is none of a transport's, so that its value is not judged either."""
    key = SERVER_KEYS.get(name)
    if key is None or transport is None:
        return False
    return not key.is_for(transport)


def _misplaced(key: Key, transport: str) -> str:
    wanted = " or ".join(f"'{each}'" for each in sorted(key.transports or ()))
    return f"'{key.name}' is not for the transport '{transport}', only for {wanted}; remove it."
