"""The keys of a configuration file as data, and the JSON Schema that is made from them.

Each key has a name, a reader and a field in the typed model.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import PurePosixPath
from typing import Final

from leaseway.control_plane.config.schema import fields, policy, process_servers
from leaseway.control_plane.config.schema import filters as naming
from leaseway.control_plane.config.schema.auth import auth
from leaseway.control_plane.config.schema.http_api.documents import openapi
from leaseway.control_plane.config.schema.http_api.security import security
from leaseway.control_plane.config.schema.http_api.tools import http_tools
from leaseway.control_plane.config.schema.issues import IssueReason, Where, quoted
from leaseway.control_plane.config.schema.proxy import proxy
from leaseway.control_plane.config.schema.tables import Key, keyed, record, schema_of
from leaseway.control_plane.config.schema.values import (
    BadValue,
    Schema,
    boolean,
    checked,
    choice,
    duration,
    integer,
    list_of,
    number,
    plain_text,
    reader,
    size,
    suggestion,
)
from leaseway.control_plane.config.tree.yaml_tree import Leaf, Table, Tree
from leaseway.spec.http_tools import MAX_RETRIES
from leaseway.spec.model import PROCESSES, TRANSPORTS, Limits, Sandbox
from leaseway.spec.transports import is_known, known_transports
from leaseway.wire.bounds import MAX_SERVERS, MIB
from leaseway.wire.messages.mcp import SESSION_RULES
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
"""Values of `protocol:`."""

_DAY: Final = 86_400.0
_YEAR: Final = 365 * _DAY
_INSTANT: Final = 0.001
_MAX_INSTANCES: Final = 4_096
_MAX_CALLS: Final = 4_096
_MAX_MEMORY: Final = 1024**5
_BASIC, _STRICT = "basic", "strict"

_STDIO: Final = frozenset({"stdio"})
_PYTHON: Final = frozenset({"python"})
_BUILTIN: Final = frozenset({"builtin"})
_NETWORK: Final = frozenset({"streamable_http", "sse", "websocket"})
_HTTP: Final = frozenset({"streamable_http"})
_HTTP_API: Final = frozenset({"http_api"})

NEVER_OPENED: Final = ("transport", "domain_may", "worker_labels")
"""Keys that no server opens to domains. All variants of a server are on the same workers: a worker
without a tenant's own variant would serve the common one to the tenant."""

# Names of transports in other formats.
_TRANSPORT_SYNONYMS: Final[Mapping[str, str]] = {
    "http": "streamable_http",
    "https": "streamable_http",
    "ws": "websocket",
    "wss": "websocket",
    "process": "stdio",
    "command": "stdio",
}


_PLAIN_NAME: Final = plain_text(longest=1_024)


@reader({"type": "string"})
def _transport(node: Tree, where: Where) -> str:
    name = _PLAIN_NAME.read(node, where)
    if not is_known(name):
        near = _TRANSPORT_SYNONYMS.get(name.lower())
        hint = f"did you mean '{near}'?" if near else suggestion(name, known_transports())
        message = f"{quoted(name)} is not a transport: {hint}"
        where.error(node.at, IssueReason.UNSUPPORTED_TRANSPORT, message)
    return name


def _domain_key_fault(text: str) -> str | None:
    key, _, name = text.partition(".")
    is_key = key in SERVER_KEYS and key not in NEVER_OPENED
    if is_key and (not name or key in ("env", "headers")):
        return None
    return (
        "opens keys of this server, such as 'args', or names, such as 'env.NAME';"
        f" {quoted(text)} is neither: {suggestion(key, SERVER_KEYS)}"
    )


_DOMAIN_KEY: Final = checked(plain_text(longest=512, empty=False), _domain_key_fault)


def _writable_fault(path: str) -> str | None:
    if not path.startswith("/") or ".." in PurePosixPath(path).parts:
        return f"must be an absolute path without '..', but is {quoted(path)}."
    if not path.strip("/"):
        return "is the root folder: a sandbox with write access everywhere protects nothing."
    return None


_WRITABLE: Final = checked(plain_text(longest=4_096, empty=False), _writable_fault)


def _enabled_sandbox(
    level: str = _BASIC, network: bool = False, writable_paths: tuple[str, ...] = ()
) -> Sandbox:
    return Sandbox(True, network, writable_paths, strict=level == _STRICT)


_RESTART: Final = record(
    keyed(
        Key("initial", duration(_INSTANT, _DAY)),
        Key("max", duration(_INSTANT, _DAY), "maximum"),
        Key("multiplier", number(1, 100)),
    ),
    Backoff,
    "'restart'",
)

_LIMITS: Final = record(
    keyed(
        Key("memory", size(MIB, _MAX_MEMORY), "memory_bytes"),
        Key("cpu", number(0.01, 1_024), "cpu_cores"),
        Key("open_files", integer(1, 1_048_576)),
        Key("processes", integer(1, 1_048_576)),
    ),
    Limits,
    "'limits'",
)

_SANDBOX: Final = record(
    keyed(
        Key("level", choice(_BASIC, _STRICT)),
        Key("network", boolean),
        Key("writable", list_of(_WRITABLE, 100), "writable_paths"),
    ),
    _enabled_sandbox,
    "'sandbox'",
)


@reader(_RESTART.schema)
def _restart(node: Tree, where: Where) -> Backoff:
    policy = _RESTART.read(node, where)
    if policy.initial <= policy.maximum:
        return policy
    raise BadValue(
        f"{quoted(where.key)} starts at {policy.initial:g} s, above its maximum of"
        f" {policy.maximum:g} s; raise 'max' or lower 'initial'."
    )


@reader({"anyOf": [boolean.schema, {"enum": [_STRICT]}, _SANDBOX.schema]})
def _sandbox(node: Tree, where: Where) -> Sandbox:
    if isinstance(node, Leaf) and isinstance(node.value, bool):
        return Sandbox(enabled=node.value)
    if isinstance(node, Leaf) and node.value == _STRICT:
        return Sandbox(enabled=True, strict=True)
    if isinstance(node, Table):
        return _SANDBOX.read(node, where)
    raise BadValue(
        f"{quoted(where.key)} must be true, false, strict or"
        " {level: …, network: …, writable: […]}.",
        IssueReason.WRONG_TYPE,
    )


SERVER_KEYS: Final = keyed(
    Key("enabled", boolean),
    Key("description", plain_text(longest=4_096)),
    Key(
        "truely-stateless",
        boolean,
        "truely_stateless",
        about="true: all calls share an instance. false: each session leases its own.",
    ),
    Key("transport", _transport, required_by=frozenset(TRANSPORTS)),
    Key("protocol", choice(*PROTOCOLS), transports=PROCESSES | _NETWORK, for_registered=True),
    Key(
        "command",
        fields.command,
        transports=_STDIO,
        for_registered=True,
        required_by=_STDIO,
        instead="image",
    ),
    Key("args", fields.arguments, transports=_STDIO, for_registered=True),
    Key(
        "image",
        process_servers.image,
        transports=_STDIO,
        about="The container image of the server; each instance is a container.",
    ),
    Key(
        "podTemplate",
        process_servers.pod_template,
        "pod_template",
        transports=_STDIO,
        about="On Kubernetes, the PodTemplateSpec that pods are based on.",
    ),
    Key(
        "cwd",
        fields.folder,
        transports=_STDIO,
        about="The folder that the process starts in; private: a fresh one for each instance.",
    ),
    Key("env", fields.environment, transports=PROCESSES, for_registered=True),
    Key(
        "env_file",
        fields.env_file,
        transports=_STDIO,
        about="A file of NAME=VALUE lines on the worker; 'env' overrides it.",
    ),
    # Leaseway enforces these only for processes that it starts itself.
    Key("inherit_env", choice("safe", "all", "none"), transports=PROCESSES),
    Key("limits", _LIMITS, transports=PROCESSES),
    Key("sandbox", _sandbox, transports=PROCESSES),
    Key("url", fields.url, transports=_NETWORK, for_registered=True, required_by=_NETWORK),
    Key("headers", fields.headers, transports=_NETWORK | _HTTP_API, for_registered=True),
    Key(
        "proxy",
        proxy,
        transports=_NETWORK | _HTTP_API,
        about="The forward proxy: its address or its parts; none ignores the environment's.",
    ),
    Key(
        "auth",
        auth,
        transports=_NETWORK | _HTTP_API,
        about="The OAuth grant by which workers obtain the tokens of its requests.",
    ),
    Key("base_url", fields.url, "url", transports=_HTTP_API),
    Key("http_tools", http_tools, transports=_HTTP_API),
    Key(
        "openapi",
        openapi,
        transports=_HTTP_API,
        about="The file or URL of an OpenAPI document; its operations become tools.",
    ),
    Key(
        "security",
        security,
        transports=_HTTP_API,
        about="Credentials of requests; without 'type', for a security scheme of the document.",
    ),
    Key("follow_redirects", boolean, transports=_HTTP_API),
    Key("retries", integer(0, MAX_RETRIES), transports=_HTTP_API),
    Key("sessionId", fields.session_id, "session_id", transports=_HTTP, for_registered=True),
    Key("module", process_servers.module, transports=_PYTHON, required_by=_PYTHON),
    Key(
        "class",
        process_servers.class_name,
        "class_name",
        transports=_PYTHON,
        required_by=_PYTHON,
    ),
    Key("config", process_servers.config, transports=_PYTHON),
    Key("roots", process_servers.roots, "builtin.roots", transports=_BUILTIN),
    Key("commands", process_servers.commands, "builtin.commands", transports=_BUILTIN),
    Key("hosts", process_servers.hosts, "builtin.hosts", transports=_BUILTIN),
    Key("tools", process_servers.tools, required_by=_BUILTIN),
    Key("prompts", naming.prompts),
    Key("resources", naming.resources),
    Key("transform", naming.transforms, "transforms"),
    Key("startup_timeout", duration(_INSTANT, _DAY)),
    Key("call_timeout", duration(_INSTANT, _DAY)),
    Key("max_calls", integer(1, _MAX_CALLS)),
    Key(
        "sessions_from",
        list_of(choice(*SESSION_RULES), len(SESSION_RULES)),
        about="What tells MCP fronts to which session a call belongs, in order.",
    ),
    Key("lease_drain_timeout", duration(0, 7 * _DAY)),
    Key("start", choice("eager", "lazy"), "instances.start"),
    Key("warm", integer(0, _MAX_INSTANCES), "instances.warm"),
    Key("max_instances", integer(1, _MAX_INSTANCES), "instances.max_instances"),
    Key("idle_timeout", duration(_INSTANT, _YEAR), "instances.idle_timeout"),
    Key("max_age", duration(_INSTANT, _YEAR), "instances.max_age"),
    Key("restart", _restart, "instances.restart"),
    Key(
        "worker_labels",
        fields.worker_labels,
        about="Labels that a worker must have to run the server.",
    ),
    Key("risk", policy.risks, "policy.risks"),
    Key("rate_limit", policy.rate, "policy.rate"),
    Key("rules", policy.rules, "policy.rules"),
    Key("permissions", policy.permissions, "policy.permissions"),
    Key(
        "domain_may",
        list_of(_DOMAIN_KEY, 100),
        about="Further keys that domain layers may set; env.NAME allows one variable.",
    ),
)
"""The keys of one server. A field `instances.x` is in its `InstancePolicy`, `policy.x` in its
`ServerPolicy`, and `builtin.x` in its `Builtin`."""


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
    keys["transport"] = {"enum": list(transports)}
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
    then: Schema = {"required": [key.name for key in required if not key.instead]}
    either = [
        {"required": [name]} for key in required if key.instead for name in (key.name, key.instead)
    ]
    then |= {"anyOf": either} if either else {}
    accepted = [key.name for key in keys if key.is_for(transport)]
    then |= {"properties": dict.fromkeys(accepted, True), "additionalProperties": False}
    condition = {"properties": {"transport": {"const": transport}}, "required": ["transport"]}
    return {"if": condition, "then": then}
