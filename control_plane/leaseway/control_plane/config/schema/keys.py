"""The keys of a configuration file as data, and the JSON Schema that is made from them.

Each key has a name, a reader and a field in the typed model.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import KW_ONLY, dataclass, replace
from typing import Any, Final

from leaseway.control_plane.config.schema import fields, policy
from leaseway.control_plane.config.schema import filters as naming
from leaseway.control_plane.config.schema.auth import auth
from leaseway.control_plane.config.schema.issues import IssueReason, Where, quoted
from leaseway.control_plane.config.schema.kinds.packages import load_readers
from leaseway.control_plane.config.schema.kinds.table import READERS as READERS_OF_KINDS
from leaseway.control_plane.config.schema.kinds.table import TOOLS
from leaseway.control_plane.config.schema.proxy import proxy
from leaseway.control_plane.config.schema.tables import Key, keyed, record, record_of, schema_of
from leaseway.control_plane.config.schema.values import (
    BadValue,
    Reader,
    Schema,
    checked,
    list_of,
    plain_text,
    reader,
    reader_of,
    suggestion,
)
from leaseway.control_plane.config.tree.yaml_tree import Leaf, Table, Tree
from leaseway.spec import keys as declarations
from leaseway.spec.filters.names import NameFilter
from leaseway.spec.keys import keys_of
from leaseway.spec.kinds.registered import RegisteredPart
from leaseway.spec.kinds.table import BUILT_IN, OF_PACKAGES, PARTS, TRANSPORTS
from leaseway.spec.kinds.transports import is_known, is_registered, known_transports
from leaseway.spec.model import RESTART_KEYS, Controls, Exposure, Launch, Naming, Part
from leaseway.wire.bounds import MAX_SERVERS
from leaseway.wire.timing.backoff import Backoff

_SYNONYMS: Final[Mapping[str, str]] = {
    synonym: transport for kind in BUILT_IN for synonym, transport in kind.synonyms.items()
}


_OF_PACKAGES: Final = load_readers(
    OF_PACKAGES.parts, {key.name for kind in BUILT_IN for key in keys_of(kind)}
)

UNUSABLE: Final[Mapping[str, str]] = {**OF_PACKAGES.faults, **_OF_PACKAGES.faults}
"""Why kinds of packages cannot be used here: a sentence by the value of `transport:`."""

_LISTED: Final = "{transports}"
_TOOLS_FIELD: Final = "tools"
_ENABLING: Final = frozenset(
    transport for kind in PARTS if kind.enables_tools for transport in kind.transports
)
"""The transports of servers whose tools are off without `tools`."""

_PLAIN_NAME: Final = plain_text(longest=1_024)


@reader({"type": "string"})
def _transport(node: Tree, where: Where) -> str:
    name = _PLAIN_NAME.read(node, where)
    if name in UNUSABLE:
        message = f"The transport {quoted(name)} cannot be used: {UNUSABLE[name]}"
        where.error(node.at, IssueReason.UNSUPPORTED_TRANSPORT, message)
    elif not is_known(name):
        near = _SYNONYMS.get(name.lower())
        hint = f"did you mean '{near}'?" if near else suggestion(name, known_transports())
        message = f"{quoted(name)} is not a transport: {hint}"
        where.error(node.at, IssueReason.UNSUPPORTED_TRANSPORT, message)
    return name


def _domain_key_fault(text: str) -> str | None:
    key, _, name = text.partition(".")
    may = SERVER_KEYS[key].declared.domain if key in SERVER_KEYS else "never_set"
    if may == "set_known_names" or (may != "never_set" and not name):
        return None
    return (
        "opens keys of this server, such as 'args', or names, such as 'env.NAME';"
        f" {quoted(text)} is neither: {suggestion(key, SERVER_KEYS)}"
    )


_DOMAIN_KEY: Final = checked(plain_text(longest=512, empty=False), _domain_key_fault)


_RESTART: Final = record_of(RESTART_KEYS, Backoff, "'restart'")


@reader(_RESTART.schema)
def _restart(node: Tree, where: Where) -> Backoff:
    policy = _RESTART.read(node, where)
    if policy.initial <= policy.maximum:
        return policy
    raise BadValue(
        f"{quoted(where.key)} starts at {policy.initial:g} s, above its maximum of"
        f" {policy.maximum:g} s; raise 'max' or lower 'initial'."
    )


@dataclass(frozen=True)
class ServerKey(Key):
    """One key of a server's entry, with its reader.

    Attributes:
        declared: What the spec declares of it.
        transports: The built-in transports that accept it, or None for every transport.
        for_registered: Whether transports that other packages register accept it, too.
        restarts: Whether its change needs new instances.
    """

    _: KW_ONLY
    declared: declarations.Key
    transports: frozenset[str] | None = None
    for_registered: bool = False
    restarts: bool = False

    @property
    def required_by(self) -> frozenset[str]:
        """The transports that do not work without it."""
        if self.declared.required:
            return frozenset(TRANSPORTS) if self.transports is None else self.transports
        return _ENABLING if self.declared.path == _TOOLS_FIELD else frozenset()

    def is_for(self, transport: str) -> bool:
        if self.transports is None or transport in self.transports:
            return True
        return self.for_registered and is_registered(transport)


@reader({"anyOf": [naming.tools.schema, *(own.schema for own in TOOLS.values())]})
def _tools(node: Tree, where: Where) -> NameFilter:
    return TOOLS.get(where.transport or "", naming.tools).read(node, where)


READERS: Final[Mapping[str, Reader[Any]]] = {
    **_OF_PACKAGES.readers,
    **READERS_OF_KINDS,
    "tools": _tools,
    "transport": _transport,
    "domain_may": list_of(_DOMAIN_KEY, 100),
    "prompts": naming.prompts,
    "resources": naming.resources,
    "transform": naming.transforms,
    "restart": _restart,
    "worker_labels": fields.worker_labels,
    "risk": policy.risks,
    "rate_limit": policy.rate,
    "quota": policy.quota,
    "rules": policy.rules,
    "permissions": policy.permissions,
    "command": fields.command,
    "args": fields.arguments,
    "cwd": fields.folder,
    "env": fields.environment,
    "env_file": fields.env_file,
    "url": fields.url,
    "base_url": fields.url,
    "headers": fields.headers,
    "proxy": proxy,
    "auth": auth,
    "sessionId": fields.session_id,
}
"""The readers of keys that no shape describes."""


def _server_keys() -> Iterator[ServerKey]:
    """Yield the keys that every server accepts, then those of the kinds."""
    for settings in (Controls, Launch, Naming, Exposure):
        for found in keys_of(settings):
            yield _server_key(found, restarts=settings is Launch)
    of_kinds: dict[str, declarations.Key] = {}
    transports: dict[str, set[str]] = {}
    for kind in PARTS:
        if any(name in UNUSABLE for name in kind.transports):
            continue
        for found in _of_kind(kind):
            of_kinds[found.name] = found
            accepting = found.only or kind.transports
            transports.setdefault(found.name, set()).update(accepting)
    for_registered = {found.name for found in _of_kind(RegisteredPart)}
    for name, found in of_kinds.items():
        yield _server_key(
            found,
            transports=frozenset(transports[name]),
            for_registered=name in for_registered,
            restarts=True,
        )


def _of_kind(kind: type[Part]) -> tuple[declarations.Key, ...]:
    return (*keys_of(kind), *kind.entry_keys)


def _server_key(declared: declarations.Key, **more: Any) -> ServerKey:
    if _LISTED in declared.about:
        about = declared.about.replace(_LISTED, ", ".join(f"`{name}`" for name in TRANSPORTS))
        declared = replace(declared, about=about)
    read = reader_of(declared.shape, READERS.get(declared.name))
    path = declared.path or declared.name
    return ServerKey(
        declared.name, read, path, about=declared.description, declared=declared, **more
    )


SERVER_KEYS: Final[Mapping[str, ServerKey]] = {key.name: key for key in _server_keys()}
"""The keys of one server. A field such as `instances.x` is in a group of settings of the spec, here
in its `InstancePolicy`."""

FILTERS: Final = tuple(
    key.name for key in SERVER_KEYS.values() if isinstance(key.declared.value, NameFilter)
)
"""The keys whose values filter names; domains can only narrow them."""


def is_by_name(key: str) -> bool:
    """Return whether layers merge a key's mapping name by name, rather than replace it."""
    return key in SERVER_KEYS and SERVER_KEYS[key].declared.by_name


@reader({"const": 1, "type": "integer"})
def _version(node: Tree, where: Where) -> int:
    value = node.value if isinstance(node, Leaf) else None
    if value == 1 and isinstance(value, int) and not isinstance(value, bool):
        return value
    found = quoted(node.text) if isinstance(node, Leaf) else "that"
    message = f"The version {found} is not supported: write version: 1 (a number)."
    where.fatal(node.at, IssueReason.UNSUPPORTED_VERSION, message)
    raise BadValue  # already reported


@reader({"type": "object", "maxProperties": MAX_SERVERS})
def _servers(node: Tree, where: Where) -> Table:
    if isinstance(node, Table):
        return node
    message = "'servers' must be a mapping of server ids; write 'servers: {}' for none."
    where.fatal(node.at, IssueReason.WRONG_TYPE, message)
    raise BadValue  # already reported


ROOT_KEYS: Final = keyed(
    Key("version", _version),
    Key(
        "defaults",
        record(keyed(Key("transform", naming.transforms, "transforms")), dict, "'defaults'"),
        "defaults",
    ),
    Key("servers", _servers),
    Key("tenants", policy.tenants),
)
"""The keys of the file; SERVER_KEYS are those of the mappings below `servers`."""


def native_schema() -> Schema:
    """Return the JSON Schema (draft 2020-12) of the native configuration file.

    Editors complete and check with it. It covers single keys and keys for one transport, but not
    rules across values (a `warm` above `max_instances`). Its transports are those built in and
    those registered in this environment.
    """
    transports = known_transports()
    root = schema_of(ROOT_KEYS, required=("version", "servers"))
    root["properties"]["servers"] |= {
        "propertyNames": {"pattern": "^[a-zA-Z0-9_-]{1,64}$", "not": {"const": "mcp_admin"}},
        "additionalProperties": {"$ref": "#/$defs/server"},
    }
    keys = {name: key.schema for name, key in SERVER_KEYS.items()}
    keys["transport"] = {**keys["transport"], "enum": list(transports)}
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "Leaseway: servers",
        **root,
        "$defs": {
            "server": {
                "type": "object",
                "properties": keys,
                "required": ["transport"],
                "allOf": [_for_transport(name) for name in transports],
            }
        },
    }


def _for_transport(transport: str) -> Schema:
    """Return the rule of the keys that one transport requires and accepts."""
    keys = SERVER_KEYS.values()
    required = [key for key in keys if transport in key.required_by]
    then: Schema = {"required": [key.name for key in required if not key.declared.instead]}
    either = [
        {"required": [name]}
        for key in required
        if key.declared.instead
        for name in (key.name, key.declared.instead)
    ]
    then |= {"anyOf": either} if either else {}
    accepted = [key.name for key in keys if key.is_for(transport)]
    then |= {"properties": dict.fromkeys(accepted, True), "additionalProperties": False}
    condition = {"properties": {"transport": {"const": transport}}, "required": ["transport"]}
    return {"if": condition, "then": then}
