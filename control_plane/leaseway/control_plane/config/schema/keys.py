"""Every key of a configuration file, as data: its name, its reader, its place in the model.

Nothing here decides anything: `native` walks these tables, and whatever describes the file to
people or editors can be made from them.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import PurePosixPath
from typing import Final

from leaseway.control_plane.config.schema import fields, images, policy, process_servers
from leaseway.control_plane.config.schema import filters as naming
from leaseway.control_plane.config.schema.http_api.documents import openapi
from leaseway.control_plane.config.schema.http_api.security import security
from leaseway.control_plane.config.schema.http_api.tools import http_tools
from leaseway.control_plane.config.schema.issues import IssueReason, Where, shown
from leaseway.control_plane.config.schema.tables import Key, keyed, record
from leaseway.control_plane.config.schema.values import (
    boolean,
    choice,
    duration,
    integer,
    list_of,
    number,
    plain_text,
    size,
    suggestion,
    takes,
    text_schema,
)
from leaseway.control_plane.config.tree.yaml_tree import Leaf, Table, Tree
from leaseway.spec.http_tools import MAX_RETRIES
from leaseway.spec.model import PROCESSES, TRANSPORTS, Limits, Sandbox
from leaseway.spec.transports import is_known, known_transports
from leaseway.wire.bounds import MAX_SERVERS, MIB
from leaseway.wire.timing.backoff import Backoff

PROTOCOLS: Final = (
    "auto",
    "legacy",
    "2026-07-28",
    "2025-11-25",
    "2025-06-18",
    "2025-03-26",
    "2024-11-05",
)
"""What `protocol:` may say."""

_DAY: Final = 86_400.0
_YEAR: Final = 365 * _DAY
_INSTANT: Final = 0.001
_MOST_INSTANCES: Final = 4_096
_MOST_CALLS: Final = 4_096
_MOST_MEMORY: Final = 1024**5
_BASIC, _STRICT = "basic", "strict"

_STDIO: Final = frozenset({"stdio"})
_PYTHON: Final = frozenset({"python"})
_BUILTIN: Final = frozenset({"builtin"})
_NETWORK: Final = frozenset({"streamable_http", "sse", "websocket"})
_HTTP: Final = frozenset({"streamable_http"})
_HTTP_API: Final = frozenset({"http_api"})

NEVER_OPENED: Final = ("transport", "domain_may", "worker_labels")
"""Keys that no server opens to domains. All variants of a server are on the same workers: one
that lacked a tenant's own would serve the tenant the common one."""

# What people write for a transport whose name they know from elsewhere.
_TRANSPORT_SYNONYMS: Final[Mapping[str, str]] = {
    "http": "streamable_http",
    "https": "streamable_http",
    "ws": "websocket",
    "wss": "websocket",
    "process": "stdio",
    "command": "stdio",
}


@takes({"type": "string"})
def _transport(node: Tree, where: Where) -> str | None:
    name = plain_text(longest=1_024)(node, where)
    if name is None:
        return None
    if not is_known(name):
        near = _TRANSPORT_SYNONYMS.get(name.lower())
        hint = f"did you mean '{near}'?" if near else suggestion(name, known_transports())
        message = f"{shown(name)} is no transport: {hint}"
        where.error(node.at, IssueReason.UNSUPPORTED_TRANSPORT, message)
    return name


@takes(text_schema(longest=512, empty=False))
def _opened(node: Tree, where: Where) -> str | None:
    """Read what a domain may set: a key, or one name of `env` or `headers`."""
    text = plain_text(longest=512, empty=False)(node, where)
    if text is None:
        return None
    key, _, name = text.partition(".")
    is_key = key in SERVER_KEYS and key not in NEVER_OPENED
    if is_key and (not name or key in ("env", "headers")):
        return text
    message = (
        f"{shown(where.key)} opens keys of this server, such as 'args', or names, such as"
        f" 'env.NAME'; {shown(text)} is none: {suggestion(key, SERVER_KEYS)}"
    )
    where.error(node.at, IssueReason.BAD_VALUE, message)
    return None


@takes(text_schema(longest=4_096, empty=False))
def _writable_path(node: Tree, where: Where) -> str | None:
    path = plain_text(longest=4_096, empty=False)(node, where)
    if path is None:
        return None
    if path.startswith("/") and ".." not in PurePosixPath(path).parts:
        if path.strip("/"):
            return path
        message = f"{shown(where.key)} is the root: a sandbox that may write everywhere is none."
        where.error(node.at, IssueReason.BAD_VALUE, message)
        return None
    message = f"{shown(where.key)} must be an absolute path without '..', but is {shown(path)}."
    where.error(node.at, IssueReason.BAD_VALUE, message)
    return None


def _enabled_sandbox(
    level: str = _BASIC, network: bool = False, writable_paths: tuple[str, ...] = ()
) -> Sandbox:
    return Sandbox(True, network, writable_paths, strict=level == _STRICT)


_RESTART: Final = record(
    keyed(
        Key("initial", duration(_INSTANT, _DAY), "initial"),
        Key("max", duration(_INSTANT, _DAY), "maximum"),
        Key("multiplier", number(1, 100), "multiplier"),
    ),
    Backoff,
    "'restart'",
)

_LIMITS: Final = record(
    keyed(
        Key("memory", size(MIB, _MOST_MEMORY), "memory_bytes"),
        Key("cpu", number(0.01, 1_024), "cpu_cores"),
        Key("open_files", integer(1, 1_048_576), "open_files"),
        Key("processes", integer(1, 1_048_576), "processes"),
    ),
    Limits,
    "'limits'",
)

_SANDBOX: Final = record(
    keyed(
        Key("level", choice(_BASIC, _STRICT), "level"),
        Key("network", boolean, "network"),
        Key("writable", list_of(_writable_path, 100), "writable_paths"),
    ),
    _enabled_sandbox,
    "'sandbox'",
)


@takes(_RESTART.schema)
def _restart(node: Tree, where: Where) -> Backoff | None:
    policy = _RESTART(node, where)
    if policy is None or policy.initial <= policy.maximum:
        return policy
    message = (
        f"{shown(where.key)} starts at {policy.initial:g} s, above its maximum of"
        f" {policy.maximum:g} s; raise 'max' or lower 'initial'."
    )
    where.error(node.at, IssueReason.BAD_VALUE, message)
    return None


@takes({"anyOf": [boolean.schema, {"enum": [_STRICT]}, _SANDBOX.schema]})
def _sandbox(node: Tree, where: Where) -> Sandbox | None:
    if isinstance(node, Leaf) and isinstance(node.value, bool):
        return Sandbox(enabled=node.value)
    if isinstance(node, Leaf) and node.value == _STRICT:
        return Sandbox(enabled=True, strict=True)
    if isinstance(node, Table):
        return _SANDBOX(node, where)
    message = (
        f"{shown(where.key)} must be true, false, strict or"
        " {level: …, network: …, writable: […]}."
    )
    where.error(node.at, IssueReason.WRONG_TYPE, message)
    return None


SERVER_KEYS: Final = keyed(
    Key("enabled", boolean, "enabled"),
    Key("description", plain_text(longest=4_096), "description"),
    Key(
        "truely-stateless",
        boolean,
        "truely_stateless",
        about="true: calls share an instance. false: each session leases its own.",
    ),
    Key("transport", _transport, "transport", required_by=frozenset(TRANSPORTS)),
    Key("protocol", choice(*PROTOCOLS), "protocol", PROCESSES | _NETWORK),
    Key("command", fields.command, "command", _STDIO, required_by=_STDIO, instead="image"),
    Key("args", fields.arguments, "args", _STDIO),
    Key(
        "image",
        images.image,
        "image",
        _STDIO,
        reaches_registered=False,
        about="What the server runs as, in a container for each instance.",
    ),
    Key(
        "podTemplate",
        images.pod_template,
        "pod_template",
        _STDIO,
        reaches_registered=False,
        about="What its pods have besides, on Kubernetes: a PodTemplateSpec.",
    ),
    Key(
        "cwd",
        fields.folder,
        "cwd",
        _STDIO,
        reaches_registered=False,
        about="The folder that it starts in.",
    ),
    Key("env", fields.environment, "env", PROCESSES),
    Key(
        "env_file",
        fields.env_file,
        "env_file",
        _STDIO,
        reaches_registered=False,
        about="A file of NAME=VALUE lines on the worker; 'env' goes over it.",
    ),
    # Leaseway keeps these for processes that it starts itself, and can promise them for no other.
    Key(
        "inherit_env",
        choice("safe", "all", "none"),
        "inherit_env",
        PROCESSES,
        reaches_registered=False,
    ),
    Key("limits", _LIMITS, "limits", PROCESSES, reaches_registered=False),
    Key("sandbox", _sandbox, "sandbox", PROCESSES, reaches_registered=False),
    Key("url", fields.url, "url", _NETWORK, required_by=_NETWORK),
    Key("headers", fields.headers, "headers", _NETWORK | _HTTP_API),
    Key("base_url", fields.url, "url", _HTTP_API, reaches_registered=False),
    Key("http_tools", http_tools, "http_tools", _HTTP_API, reaches_registered=False),
    Key(
        "openapi",
        openapi,
        "openapi",
        _HTTP_API,
        reaches_registered=False,
        about="A file or an address; its operations become tools.",
    ),
    Key(
        "security",
        security,
        "security",
        _HTTP_API,
        reaches_registered=False,
        about="What requests carry to say who asks; without 'type', a document's scheme.",
    ),
    Key("follow_redirects", boolean, "follow_redirects", _HTTP_API, reaches_registered=False),
    Key("retries", integer(0, MAX_RETRIES), "retries", _HTTP_API, reaches_registered=False),
    Key("sessionId", fields.session_id, "session_id", _HTTP),
    Key("module", process_servers.module, "module", _PYTHON, _PYTHON, reaches_registered=False),
    Key("class", process_servers.class_name, "class_name", _PYTHON, _PYTHON, False),
    Key("config", process_servers.config, "config", _PYTHON, reaches_registered=False),
    Key("roots", process_servers.roots, "builtin.roots", _BUILTIN, reaches_registered=False),
    Key("commands", process_servers.commands, "builtin.commands", _BUILTIN, frozenset(), False),
    Key("hosts", process_servers.hosts, "builtin.hosts", _BUILTIN, reaches_registered=False),
    Key("tools", process_servers.tools, "tools", required_by=_BUILTIN),
    Key("prompts", naming.prompts, "prompts"),
    Key("resources", naming.resources, "resources"),
    Key("transform", naming.transforms, "transforms"),
    Key("startup_timeout", duration(_INSTANT, _DAY), "startup_timeout"),
    Key("call_timeout", duration(_INSTANT, _DAY), "call_timeout"),
    Key("max_calls", integer(1, _MOST_CALLS), "max_calls"),
    Key("lease_drain_timeout", duration(0, 7 * _DAY), "lease_drain_timeout"),
    Key("start", choice("eager", "lazy"), "instances.start"),
    Key("warm", integer(0, _MOST_INSTANCES), "instances.warm"),
    Key("max_instances", integer(1, _MOST_INSTANCES), "instances.max_instances"),
    Key("idle_timeout", duration(_INSTANT, _YEAR), "instances.idle_timeout"),
    Key("max_age", duration(_INSTANT, _YEAR), "instances.max_age"),
    Key("restart", _restart, "instances.restart"),
    Key(
        "worker_labels",
        fields.worker_labels,
        "worker_labels",
        about="Labels that a worker must have to be given the server.",
    ),
    Key("risk", policy.risks, "policy.risks"),
    Key("rate_limit", policy.rate, "policy.rate"),
    Key("rules", policy.rules, "policy.rules"),
    Key("permissions", policy.permissions, "policy.permissions"),
    Key(
        "domain_may",
        list_of(_opened, 100),
        "domain_may",
        about="What domains may set: keys, or names: env.NAME.",
    ),
)
"""The keys of one server; a field `instances.x` is one of its `InstancePolicy`,
and `builtin.x` one of its `Builtin`."""


@takes({"const": 1, "type": "integer"})
def _version(node: Tree, where: Where) -> int | None:
    value = node.value if isinstance(node, Leaf) else None
    if value == 1 and isinstance(value, int) and not isinstance(value, bool):
        return value
    found = shown(node.text) if isinstance(node, Leaf) else "that"
    message = f"The version {found} is not supported: write 'version: 1', without quotes."
    where.fatal(node.at, IssueReason.UNSUPPORTED_VERSION, message)
    return None


@takes({"type": "object", "maxProperties": MAX_SERVERS})
def _servers(node: Tree, where: Where) -> Table | None:
    table = node if isinstance(node, Table) else None
    if table is None:
        message = "'servers' must be a mapping of server ids; write 'servers: {}' for none."
        where.fatal(node.at, IssueReason.WRONG_TYPE, message)
    return table


ROOT_KEYS: Final = keyed(
    Key("version", _version, "version"),
    Key(
        "defaults",
        record(keyed(Key("transform", naming.transforms, "transforms")), dict, "'defaults'"),
        "defaults",
    ),
    Key("servers", _servers, "servers"),
    Key("tenants", policy.tenants, "tenants"),
)
"""The keys of the file; what is below `servers` is read by SERVER_KEYS."""
