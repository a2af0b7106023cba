"""The JSON Schema of the native file, made from the tables that the parser reads it by.

Editors complete and check with it. It says what can be said of single keys and of keys for one
transport; patterns across values (a `warm` above `max_instances`) are the parser's alone.
"""

from __future__ import annotations

from leaseway.control_plane.config.schema.keys import ROOT_KEYS, SERVER_KEYS
from leaseway.control_plane.config.schema.tables import schema_of
from leaseway.control_plane.config.schema.values import Schema
from leaseway.spec.transports import known_transports


def native_schema() -> Schema:
    """Return the JSON Schema (draft 2020-12) of the native configuration file.

    Of transports it names those built in and those registered in this environment.
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
