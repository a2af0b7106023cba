"""The JSON Schema of the native file, made from the tables that the parser reads it by.

Editors complete and check with it. It says what can be said of single keys and of keys for one
transport; patterns across values (a `warm` above `max_instances`) are the parser's alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from leaseway.control_plane.config.schema.fields import MAX_LABEL, MAX_LABELS
from leaseway.control_plane.config.schema.filters import MAX_PATTERN, MAX_PATTERNS, MAX_TRANSFORMS
from leaseway.control_plane.config.schema.keys import (
    PROTOCOLS,
    ROOT_KEYS,
    SERVER_KEYS,
)
from leaseway.control_plane.config.schema.process_servers import MAX_ENTRIES
from leaseway.spec.builtin import BUILTIN_TOOLS
from leaseway.spec.http_tools import (
    BODIES,
    MAX_PARAMETERS,
    MAX_RETRIES,
    MAX_TOOLS,
    METHODS,
    POSITIONS,
    STYLES,
)
from leaseway.spec.images import MAX_IMAGE
from leaseway.spec.model import CREDENTIAL_KINDS
from leaseway.spec.policy import RISKS
from leaseway.spec.sizes import SIZE_PATTERN
from leaseway.spec.transports import known_transports
from leaseway.wire.bounds import MAX_SERVERS
from leaseway.wire.names import SECRET_NAME

Schema = dict[str, Any]

_TEXT: Final[Schema] = {"type": "string"}
_SECRET: Final[Schema] = {"type": "string", "pattern": f"^{SECRET_NAME.pattern}$"}
_FLAG: Final[Schema] = {"type": "boolean"}
_DURATION: Final[Schema] = {
    "description": "Seconds, or a text such as 500ms, 30s, 15m, 1h30m.",
    "anyOf": [
        {"type": "number", "minimum": 0},
        {"type": "string", "pattern": r"^(\d{1,12}(\.\d{1,9})?(ms|s|m|h|d))+$"},
    ],
}
_SIZE: Final[Schema] = {
    "description": "Bytes, or a text such as 512MiB or 2GB.",
    "anyOf": [
        {"type": "integer", "minimum": 1},
        {"type": "string", "pattern": f"^{SIZE_PATTERN}$"},
    ],
}
_PATTERNS: Final[Schema] = {
    "type": "array",
    "maxItems": MAX_PATTERNS,
    "items": {"type": "string"},
}
_URI_PATTERNS: Final[Schema] = _PATTERNS | {"items": {"type": "string", "maxLength": MAX_PATTERN}}
_NAME_PART: Final[Schema] = {
    "type": "string",
    "pattern": r"^([a-zA-Z0-9_-]|\{server\})*$",
}


def _object(properties: Mapping[str, Schema], *, required: tuple[str, ...] = ()) -> Schema:
    made: Schema = {
        "type": "object",
        "properties": dict(properties),
        "additionalProperties": False,
    }
    return made | ({"required": list(required)} if required else {})


def _only(name: str, schema: Schema) -> Schema:
    return _object({name: schema}, required=(name,))


def _choice(*names: str) -> Schema:
    return {"enum": list(names)}


def _whole(smallest: int, largest: int) -> Schema:
    return {"type": "integer", "minimum": smallest, "maximum": largest}


_VALUE: Final[Schema] = {
    "description": "Resolved on the worker; a text may hold ${NAME} and ${NAME:-default}.",
    "anyOf": [_TEXT, _only("env", _TEXT), _only("secret", _SECRET), _only("file", _TEXT)],
}
_TEXTS: Final[Schema] = {
    "type": "array",
    "maxItems": MAX_ENTRIES,
    "items": {"type": "string", "minLength": 1},
}
_VALUES: Final[Schema] = {"type": "object", "additionalProperties": _VALUE}
_TRANSFORM: Final[Schema] = {
    "type": "array",
    "maxItems": MAX_TRANSFORMS,
    "items": {
        "anyOf": [
            _only("suffix", _NAME_PART),
            _only(
                "prefix",
                {
                    "anyOf": [
                        _NAME_PART,
                        _object({"remove": _NAME_PART, "add": _NAME_PART}, required=("remove",)),
                    ]
                },
            ),
        ]
    },
}

_PARAMETER: Final[Schema] = {
    "type": "object",
    "description": "Further keys are those of JSON Schema: type, description, default, enum …",
    "properties": {
        "name": {"type": "string", "minLength": 1, "maxLength": 128},
        "position": _choice(*POSITIONS),
        "required": _FLAG,
        "as": {"type": "string", "minLength": 1, "maxLength": 256},
        "style": _choice(*STYLES),
        "whole_body": _FLAG,
        "schema": {"type": "object"},
    },
    "required": ["name"],
}
_HTTP_TOOL: Final[Schema] = _object(
    {
        "name": {"type": "string", "pattern": "^[a-zA-Z0-9_-]{1,64}$"},
        "title": {"type": "string", "maxLength": 256},
        "description": {"type": "string", "maxLength": 8192},
        "method": _choice(*METHODS),
        "endpoint": {"type": "string", "pattern": "^/(?!/)"},
        "parameters": {"type": "array", "maxItems": MAX_PARAMETERS, "items": _PARAMETER},
        "body": _choice(*BODIES),
        "content_type": {"type": "string", "minLength": 1, "maxLength": 256},
        "response_template": _TEXT,
        "template_engine": _choice("go", "jinja2"),
        "timeout": _DURATION,
        "retries": _whole(0, MAX_RETRIES),
        "annotations": {"type": "object", "additionalProperties": _FLAG},
        "security": {"type": "array", "maxItems": 0, "items": _TEXT},
    },
    required=("name", "method", "endpoint"),
)
_OPERATIONS: Final[Schema] = _object(
    {name: {"type": "array", "items": _TEXT} for name in ("operations", "tags", "paths")}
)

_PERMISSIONS: Final[Schema] = _object(
    {
        "read": _FLAG,
        "write": _FLAG,
        "allowed_paths": {"type": "array", "items": _TEXT},
        "denied_paths": {"type": "array", "items": _TEXT},
    }
)
_SERVER: Final[Mapping[str, Schema]] = {
    "enabled": _FLAG,
    "description": {"type": "string", "maxLength": 4096},
    "truely-stateless": _FLAG
    | {"description": "true: calls share an instance. false: each session leases its own."},
    "transport": _TEXT,
    "protocol": _choice(*PROTOCOLS),
    "command": {"type": "string", "minLength": 1},
    "args": {"type": "array", "items": _TEXT},
    "image": {
        "type": "string",
        "minLength": 1,
        "maxLength": MAX_IMAGE,
        "description": "What the server runs as, in a container for each instance.",
    },
    "podTemplate": {
        "type": "object",
        "description": "What its pods have besides, on Kubernetes: a PodTemplateSpec.",
    },
    "worker_labels": {
        "type": "object",
        "description": "Labels that a worker must have to be given the server.",
        "maxProperties": MAX_LABELS,
        "additionalProperties": {"type": "string", "maxLength": MAX_LABEL},
    },
    "domain_may": _TEXTS | {"description": "What domains may set: keys, or names: env.NAME."},
    "cwd": {"type": "string", "minLength": 1, "description": "The folder that it starts in."},
    "env": _VALUES,
    "env_file": {
        "type": "string",
        "minLength": 1,
        "description": "A file of NAME=VALUE lines on the worker; 'env' goes over it.",
    },
    "inherit_env": _choice("safe", "all", "none"),
    "limits": _object(
        {
            "memory": _SIZE,
            "cpu": {"type": "number", "minimum": 0.01},
            "open_files": _whole(1, 1_048_576),
            "processes": _whole(1, 1_048_576),
        }
    ),
    "sandbox": {
        "anyOf": [
            _FLAG,
            _choice("strict"),
            _object(
                {
                    "level": _choice("basic", "strict"),
                    "network": _FLAG,
                    "writable": {"type": "array", "items": _TEXT},
                }
            ),
        ]
    },
    "permissions": _PERMISSIONS,
    "url": {"type": "string", "minLength": 1},
    "headers": _VALUES,
    "base_url": {"type": "string", "minLength": 1},
    "http_tools": {"type": "array", "maxItems": MAX_TOOLS, "items": _HTTP_TOOL},
    "openapi": {
        "description": "A file or an address; its operations become tools.",
        "anyOf": [
            _TEXT,
            _object(
                {"source": _TEXT, "include": _OPERATIONS, "exclude": _OPERATIONS},
                required=("source",),
            ),
        ],
    },
    "security": {
        "description": "What requests carry to say who asks; without 'type', a document's scheme.",
        "type": "object",
        "additionalProperties": {
            "anyOf": [
                _VALUE,
                _object(
                    {"type": _choice(*CREDENTIAL_KINDS), "name": _TEXT, "value": _VALUE},
                    required=("type", "value"),
                ),
            ]
        },
    },
    "follow_redirects": _FLAG,
    "retries": _whole(0, MAX_RETRIES),
    "sessionId": _TEXT,
    "module": {"type": "string", "minLength": 1},
    "class": {"type": "string", "minLength": 1},
    "config": {"type": "object"},
    "roots": _TEXTS,
    "commands": _TEXTS,
    "hosts": _TEXTS,
    "tools": {
        "anyOf": [
            _object({"whitelist": _PATTERNS, "blacklist": _PATTERNS}),
            {
                "description": "The tools that are on, of a builtin server.",
                "type": "array",
                "minItems": 1,
                "items": _choice(*BUILTIN_TOOLS),
            },
        ]
    },
    "prompts": _object({"whitelist": _PATTERNS, "blacklist": _PATTERNS}),
    "resources": _object({"whitelist": _URI_PATTERNS, "blacklist": _URI_PATTERNS}),
    "transform": _TRANSFORM,
    "startup_timeout": _DURATION,
    "call_timeout": _DURATION,
    "max_calls": _whole(1, 4096),
    "lease_drain_timeout": _DURATION,
    "start": _choice("eager", "lazy"),
    "warm": _whole(0, 4096),
    "max_instances": _whole(1, 4096),
    "idle_timeout": _DURATION,
    "max_age": _DURATION,
    "restart": _object(
        {
            "initial": _DURATION,
            "max": _DURATION,
            "multiplier": {"type": "number", "minimum": 1, "maximum": 100},
        }
    ),
}
_RATE: Final[Schema] = {
    "type": "string",
    "pattern": r"^\d{1,9}\s*(/|per)\s*(s|second|m|minute|h|hour|d|day)$",
}
_SERVER_POLICY: Final[Mapping[str, Schema]] = {
    "risk": {"type": "object", "additionalProperties": _choice(*RISKS)},
    "rate_limit": _RATE,
    "rules": {
        "type": "array",
        "items": {
            "anyOf": [
                _TEXT,
                _object({"deny": _TEXT, "tools": _PATTERNS}, required=("deny",)),
            ]
        },
    },
}
_FILTER: Final[Schema] = _object({"whitelist": _PATTERNS, "blacklist": _PATTERNS})


def _granted(**of_each: Schema) -> Schema:
    return {
        "description": "The servers that are granted: their ids, or what is granted of each.",
        "anyOf": [
            {"type": "array", "items": _TEXT},
            {
                "type": "object",
                "additionalProperties": {"anyOf": [{"type": "null"}, _FLAG, _object({**of_each})]},
            },
        ],
    }


_TENANT: Final[Schema] = _object(
    {
        "servers": _granted(tools=_FILTER, permissions=_PERMISSIONS),
        "limits": _object(
            {
                "calls": _RATE,
                "concurrent": _whole(1, 1_000_000_000),
                "leases": _whole(1, 1_000_000_000),
                "artifact_bytes": {"type": ["integer", "string"]},
                "weight": _whole(1, 1000),
            }
        ),
        "agents": {
            "type": "object",
            "additionalProperties": _object({"servers": _granted(tools=_FILTER)}),
        },
        "secrets": _TEXTS
        | {"description": "What references of the tenant's own layer may name: acme_*, a path."},
    }
)
# A transport that the parser knows a new key for may come with keys that no table here describes.
_ANY: Final[Schema] = {}


def native_schema() -> Schema:
    """Return the JSON Schema (draft 2020-12) of the native configuration file.

    Of transports it names those built in and those registered in this environment.
    """
    transports = known_transports()
    known = {**_SERVER, **_SERVER_POLICY}
    properties = {name: known.get(name, _ANY) for name in SERVER_KEYS}
    properties["transport"] = _choice(*transports)
    root = {
        "version": {"const": 1, "type": "integer"},
        "defaults": _object({"transform": _TRANSFORM}),
        "tenants": {"type": "object", "additionalProperties": _TENANT},
        "servers": {
            "type": "object",
            "maxProperties": MAX_SERVERS,
            "propertyNames": {"pattern": "^[a-zA-Z0-9_-]{1,64}$", "not": {"const": "mcp_admin"}},
            "additionalProperties": {"$ref": "#/$defs/server"},
        },
    }
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "Leaseway: servers",
        **_object({name: root[name] for name in ROOT_KEYS}, required=("version", "servers")),
        "$defs": {
            "server": {
                "type": "object",
                "properties": properties,
                "required": ["transport"],
                "allOf": [_for_transport(name) for name in transports],
            }
        },
    }


def _for_transport(transport: str) -> Schema:
    """Say which keys one transport needs and takes."""
    keys = SERVER_KEYS.values()
    needed = [key for key in keys if transport in key.required_by]
    then: Schema = {"required": [key.name for key in needed if not key.instead]}
    either = [
        {"required": [name]} for key in needed if key.instead for name in (key.name, key.instead)
    ]
    then |= {"anyOf": either} if either else {}
    taken = [key.name for key in keys if key.is_for(transport)]
    then |= {"properties": dict.fromkeys(taken, True), "additionalProperties": False}
    chosen = {"properties": {"transport": {"const": transport}}, "required": ["transport"]}
    return {"if": chosen, "then": then}
