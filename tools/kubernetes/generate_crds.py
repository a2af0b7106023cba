"""Write the custom resource definitions from the native file's JSON Schema.

A structural schema can express less than JSON Schema: the fields of a value that may be a string or
an object are left unchecked (the control plane checks them), a number or string becomes
int-or-string, and relations between keys become CEL rules.

    python tools/kubernetes/generate_crds.py [FOLDER]
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final

import yaml

from leaseway.control_plane.config.schema.keys import SERVER_KEYS, ServerKey, native_schema
from leaseway.spec.keys import Flag
from leaseway.spec.kinds.table import TRANSPORTS

Schema = dict[str, Any]

GROUP: Final = "leaseway.dev"
VERSION: Final = "v1alpha1"
FOLDER: Final = Path(__file__).parents[2] / "deploy/chart/leaseway/crds"

_KEPT: Final = (
    *("description", "type", "pattern", "minLength", "maxLength"),
    *("minimum", "maximum", "minItems", "maxItems", "enum"),
)
_MAX_TEXT: Final = 65_536
_ANYTHING: Final[Schema] = {"x-kubernetes-preserve-unknown-fields": True}


def structural(schema: Mapping[str, Any]) -> Schema:
    """Convert a JSON Schema to a structural schema; what it cannot express is left unchecked."""
    options = schema.get("anyOf")
    if options is not None:
        return _choice(schema, options)
    result: Schema = {key: schema[key] for key in _KEPT if key in schema}
    if "(?" in result.get("pattern", ""):
        del result["pattern"]  # the API's regular expressions have no lookaround
    if "enum" in result:
        result.setdefault("type", "string")
    kind = result.get("type")
    if kind == "object":
        return result | _fields(schema)
    if kind == "array":
        return result | {
            "items": structural(schema["items"]),
            "maxItems": result.get("maxItems", 1000),
        }
    if kind == "string" and "enum" not in result:
        return {"maxLength": _MAX_TEXT} | result
    return result if kind in ("string", "boolean", "integer", "number") else dict(_ANYTHING)


def _fields(schema: Mapping[str, Any]) -> Schema:
    extra = schema.get("additionalProperties")
    if isinstance(extra, Mapping):
        return {"additionalProperties": structural(extra)}
    properties = {name: structural(part) for name, part in schema.get("properties", {}).items()}
    if not properties:
        return dict(_ANYTHING)
    required = {"required": schema["required"]} if schema.get("required") else {}
    # The API drops other fields, unless the schema keeps them.
    kept = _ANYTHING if extra is True else {}
    return {"properties": properties, **required, **kept}


def _choice(schema: Mapping[str, Any], options: Iterable[Mapping[str, Any]]) -> Schema:
    options = list(options)
    about = {"description": schema["description"]} if "description" in schema else {}
    kinds = [option.get("type") for option in options]
    if set(kinds) == {"integer", "string"}:
        return about | {"x-kubernetes-int-or-string": True} | _text_rules(options)
    if set(kinds) == {"number", "string"}:  # a fraction of a second is written as a string
        return about | {"x-kubernetes-int-or-string": True} | _text_rules(options)
    if all(
        kind == "object" and "properties" in option
        for kind, option in zip(kinds, options, strict=True)
    ):
        merged = {name: part for option in options for name, part in option["properties"].items()}
        fields = {name: structural(part) for name, part in merged.items()}
        return about | {
            "type": "object",
            "properties": fields,
            "minProperties": 1,
            "maxProperties": 1,
        }
    return about | _ANYTHING


def _text_rules(options: Iterable[Mapping[str, Any]]) -> Schema:
    text = next(option for option in options if option.get("type") == "string")
    return {"pattern": text["pattern"]} if "pattern" in text else {}


def _server_schema() -> Schema:
    server = native_schema()["$defs"]["server"]
    fields = {name: structural(part) for name, part in server["properties"].items()}
    del fields["transport"]["enum"]  # workers may have registered others
    fields["transport"] |= {"minLength": 1, "maxLength": 64}
    for key in SERVER_KEYS.values():
        if _has_default(key):
            fields[key.name] = fields[key.name] | {"default": key.declared.value}
    return {
        "description": "An entry below `servers:` of the native configuration file.",
        "type": "object",
        "properties": fields,
        "required": ["transport"],
        "x-kubernetes-validations": list(_rules(fields)),
    }


def _rules(fields: Mapping[str, Schema]) -> Iterable[Schema]:
    for key in SERVER_KEYS.values():
        if key.name == "transport" or not _has_cel_type(fields.get(key.name, _ANYTHING)):
            continue
        has = f"has(self.{_cel_name(key.name)})"
        for transport in sorted(key.required_by):
            rule, needs = f"self.transport != '{transport}' || {has}", f"'{key.name}'"
            if instead := key.declared.instead:
                rule += f" || has(self.{_cel_name(instead)})"
                needs += f" or '{instead}'"
            yield {"rule": rule, "message": f"'{transport}' needs {needs}"}
        foreign = [name for name in sorted(TRANSPORTS) if not key.is_for(name)]
        if foreign:
            listed = ", ".join(f"'{name}'" for name in foreign)
            rule = f"!(self.transport in [{listed}]) || !{has}"
            yield {"rule": rule, "message": f"'{key.name}' is not for {', '.join(foreign)}"}


def _has_default(key: ServerKey) -> bool:
    """Return whether resources show a key that nobody wrote: a flag that every server has."""
    return isinstance(key.declared.shape, Flag) and key.transports is None


def _has_cel_type(schema: Mapping[str, Any]) -> bool:
    """Return whether CEL can access a field: unchecked fields have no type."""
    if "additionalProperties" in schema:
        return _has_cel_type(schema["additionalProperties"])
    return "type" in schema or "x-kubernetes-int-or-string" in schema


def _cel_name(name: str) -> str:
    return name.replace("-", "__dash__")


def _tenant_schema() -> Schema:
    server = native_schema()["$defs"]["server"]
    fields = {
        name: structural(part)
        for name, part in server["properties"].items()
        if SERVER_KEYS[name].declared.domain != "never_set"
    }
    return {
        "description": "A domain layer: a tenant's overrides of servers.",
        "type": "object",
        "properties": {
            "servers": {
                "description": "Overrides by server id; `enabled: false` removes a server.",
                "type": "object",
                "additionalProperties": {"type": "object", "properties": fields},
            }
        },
        "required": ["servers"],
    }


_STATUS: Final[Schema] = {
    "type": "object",
    # What waits for a resource takes one without a status for done.
    "default": {"observedGeneration": -1},
    "properties": {
        "observedGeneration": {"type": "integer", "format": "int64"},
        "tools": {"type": "integer", "minimum": 0},
        "leases": {"type": "integer", "minimum": 0},
        "instances": {"type": "integer", "minimum": 0},
        "servers": {"type": "integer", "minimum": 0},
        "conditions": {
            "type": "array",
            "maxItems": 8,
            "x-kubernetes-list-type": "map",
            "x-kubernetes-list-map-keys": ["type"],
            "items": {
                "type": "object",
                "required": ["type", "status", "lastTransitionTime", "reason", "message"],
                "properties": {
                    "type": {"type": "string", "maxLength": 316},
                    "status": {"type": "string", "enum": ["True", "False", "Unknown"]},
                    "observedGeneration": {"type": "integer", "format": "int64", "minimum": 0},
                    "lastTransitionTime": {"type": "string", "format": "date-time"},
                    "reason": {"type": "string", "minLength": 1, "maxLength": 1024},
                    "message": {"type": "string", "maxLength": 32768},
                },
            },
        },
    },
}
_NAME_RULE: Final[Schema] = {
    "rule": "self.metadata.name.size() <= 64 && !self.metadata.name.contains('.')",
    "message": "the name is an id: at most 64 characters of a-z, 0-9 and '-'",
}


def _condition(kind: str) -> str:
    return f'.status.conditions[?(@.type=="{kind}")]'


def _column(name: str, path: str, kind: str = "string", **more: Any) -> Schema:
    return {"name": name, "type": kind, "jsonPath": path, **more}


def _definition(kind: str, plural: str, short: str, spec: Schema, columns: list[Schema]) -> Schema:
    schema = {
        "type": "object",
        "required": ["spec"],
        "properties": {
            "apiVersion": {"type": "string"},
            "kind": {"type": "string"},
            "metadata": {"type": "object"},
            "spec": spec,
            "status": _STATUS,
        },
        "x-kubernetes-validations": [_NAME_RULE],
    }
    version = {
        "name": VERSION,
        "served": True,
        "storage": True,
        "subresources": {"status": {}},
        "additionalPrinterColumns": columns,
        "schema": {"openAPIV3Schema": schema},
    }
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{plural}.{GROUP}"},
        "spec": {
            "group": GROUP,
            "scope": "Namespaced",
            "names": {
                "kind": kind,
                "listKind": f"{kind}List",
                "plural": plural,
                "singular": kind.lower(),
                "shortNames": [short],
                "categories": ["leaseway"],
            },
            "versions": [version],
        },
    }


_AGE: Final = _column("Age", ".metadata.creationTimestamp", "date")


def definitions() -> dict[str, Schema]:
    """Return the definitions by file name."""
    server = _definition(
        "MCPServer",
        "mcpservers",
        "mcps",
        _server_schema(),
        [
            _column("Transport", ".spec.transport"),
            _column("Accepted", f"{_condition('Accepted')}.status"),
            _column("Ready", f"{_condition('Ready')}.status"),
            _column("Tools", ".status.tools", "integer"),
            _column("Leases", ".status.leases", "integer"),
            _column("Instances", ".status.instances", "integer"),
            _column("Problem", f"{_condition('Degraded')}.message", priority=1),
            _AGE,
        ],
    )
    tenant = _definition(
        "MCPTenant",
        "mcptenants",
        "mcpt",
        _tenant_schema(),
        [
            _column("Accepted", f"{_condition('Accepted')}.status"),
            _column("Servers", ".status.servers", "integer"),
            _column("Leases", ".status.leases", "integer"),
            _column("Problem", f"{_condition('Degraded')}.message", priority=1),
            _AGE,
        ],
    )
    return {"mcpservers.yaml": server, "mcptenants.yaml": tenant}


class _Plain(yaml.SafeDumper):
    def ignore_aliases(self, data: Any) -> bool:
        """Write aliased values in full, so that people can read the file."""
        return True


def text(definition: Schema) -> str:
    """Return the content of a definition's file."""
    content = yaml.dump(definition, Dumper=_Plain, sort_keys=False, width=100)
    return f"# Generated by tools/kubernetes/generate_crds.py (`make generate`).\n{content}"


def main() -> None:
    """Write the definitions into the chart's folder, or the given one."""
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else FOLDER
    folder.mkdir(parents=True, exist_ok=True)
    for name, definition in definitions().items():
        (folder / name).write_text(text(definition))


if __name__ == "__main__":
    main()
