"""Converts schemas of an OpenAPI document to self-contained JSON Schemas.

References are written out. If a schema refers to itself or is too large, its deeper parts accept
anything: a tool may accept more than the document allows, never less.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final
from urllib.parse import unquote

MAX_SCHEMA: Final = 32 * 1024
"""Characters of one parameter's JSON Schema."""

_DEPTHS: Final = (24, 8, 6, 5, 4, 3, 2, 1)
_MAX_NODES: Final = 4_000
_MAX_REFERENCES: Final = 50
_MAX_TEXT: Final = 1_024
_MAX_ENUM: Final = 500

_KEPT: Final = frozenset(
    ("type", "format", "title", "description", "default", "enum", "const", "pattern", "minLength",
     "maxLength", "minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf",
     "minItems", "maxItems", "uniqueItems", "minProperties", "maxProperties", "required",
     "contentEncoding", "contentMediaType", "examples")
)  # fmt: skip
_ONE: Final = ("items", "additionalProperties", "not", "contains", "propertyNames")
_MANY: Final = ("allOf", "anyOf", "oneOf", "prefixItems")
_NAMED: Final = ("properties", "patternProperties")


class Unsupported(Exception):
    """A part of a document that can't be converted; the message is the end of a sentence."""


class References:
    """Resolves the `$ref`s of a document."""

    def __init__(self, document: Mapping[str, Any]) -> None:
        self._document = document

    def follow(self, node: Any) -> Any:
        """Return a node, or the target of its reference.

        Raises:
            Unsupported: The target is in another document, missing, or part of a cycle.
        """
        for _ in range(_MAX_REFERENCES):
            if not isinstance(node, Mapping) or "$ref" not in node:
                return node
            node = self.at(node["$ref"])
        raise Unsupported("its references form a cycle")

    def at(self, reference: object) -> Any:
        """Return the target of a reference.

        Raises:
            Unsupported: The target is in another document, or missing.
        """
        if not isinstance(reference, str):
            raise Unsupported("it has a $ref that is not text")
        if not reference.startswith("#"):
            raise Unsupported(f"it refers to another document ({reference[:128]})")
        node: Any = self._document
        for part in reference[1:].split("/")[1:]:
            name = unquote(part).replace("~1", "/").replace("~0", "~")
            if isinstance(node, Mapping) and name in node:
                node = node[name]
            elif isinstance(node, list) and name.isdecimal() and int(name) < len(node):
                node = node[int(name)]
            else:
                raise Unsupported(f"it refers to {reference[:128]}, which does not exist")
        return node


class SchemaReader:
    """Converts schemas of one document to JSON Schemas."""

    def __init__(self, references: References) -> None:
        self._references = references

    def read(self, schema: Any) -> dict[str, Any]:
        """Return a self-contained schema within the size limit.

        Raises:
            Unsupported: A reference has no target.
        """
        for depth in _DEPTHS:
            converted = _Conversion(self._references).schema(schema, depth, ())
            if len(json.dumps(converted)) <= MAX_SCHEMA:
                return converted
        return {}

    def object_of(self, schema: Any) -> Mapping[str, Any] | None:
        """Return a schema's `properties` and `required`, or None if it has other rules.

        Objects in `allOf` are merged.

        Raises:
            Unsupported: A reference has no target.
        """
        return self._object_of(schema, 0)

    def _object_of(self, schema: Any, depth: int) -> Mapping[str, Any] | None:
        schema = self._references.follow(schema)
        if not isinstance(schema, Mapping) or depth > _MAX_REFERENCES:
            return None
        if any(key in schema for key in ("oneOf", "anyOf", "not", "patternProperties")):
            return None
        if "object" not in _types(schema) and not ("properties" in schema or "allOf" in schema):
            return None
        if isinstance(schema.get("additionalProperties"), Mapping):
            return None
        properties: dict[str, Any] = {}
        required: list[str] = []
        for part in (*_list(schema.get("allOf")), schema):
            if part is not schema:
                read = self._object_of(part, depth + 1)
                if read is None:
                    return None
            else:
                read = part
            named = read.get("properties")
            properties.update(named if isinstance(named, Mapping) else {})
            required += [name for name in _list(read.get("required")) if isinstance(name, str)]
        return {"properties": properties, "required": required} if properties else None


class _Conversion:
    """The conversion of one schema, with a limit of nodes."""

    def __init__(self, references: References) -> None:
        self._references = references
        self._nodes = _MAX_NODES

    def schema(self, schema: Any, depth: int, above: tuple[str, ...]) -> dict[str, Any]:
        """Return a schema down to a depth; `above` are the references that contain it."""
        self._nodes -= 1
        if not isinstance(schema, Mapping) or depth <= 0 or self._nodes < 0:
            return {}
        reference = schema.get("$ref")
        if reference is not None:
            if str(reference) in above or len(above) > _MAX_REFERENCES:
                return {}
            target = self._references.at(reference)
            beside = {key: value for key, value in schema.items() if key != "$ref"}
            merged = {**target, **beside} if isinstance(target, Mapping) else beside
            return self.schema(merged, depth, (*above, str(reference)))
        converted = {key: value for key, value in schema.items() if key in _KEPT}
        _modernize(schema, converted)
        self._parts(schema, converted, depth - 1, above)
        return converted

    def _parts(
        self,
        schema: Mapping[str, Any],
        converted: dict[str, Any],
        depth: int,
        above: tuple[str, ...],
    ) -> None:
        for key in _ONE:
            part = schema.get(key)
            if isinstance(part, Mapping):
                converted[key] = self.schema(part, depth, above)
            elif isinstance(part, bool) and key == "additionalProperties":
                converted[key] = part
        if "not" in converted and not converted["not"]:
            del converted["not"]  # it was cut, and an empty one would forbid everything
        for key in _MANY:
            parts = [self.schema(part, depth, above) for part in _list(schema.get(key))]
            if parts and not (key in ("anyOf", "oneOf") and {} in parts):
                converted["anyOf" if key == "oneOf" else key] = parts
        for key in _NAMED:
            named = schema.get(key)
            if isinstance(named, Mapping) and named:
                converted[key] = {
                    str(name): self.schema(part, depth, above)
                    for name, part in named.items()
                    if not (isinstance(part, Mapping) and part.get("readOnly") is True)
                }
        if "required" in converted:
            known = converted.get("properties", {})
            names = [
                name for name in converted["required"] if isinstance(name, str) and name in known
            ]
            converted["required"] = names
            if not names:
                del converted["required"]


def _modernize(schema: Mapping[str, Any], converted: dict[str, Any]) -> None:
    """Convert the keywords in which OpenAPI 3.0 differs from JSON Schema."""
    for bound, exclusive in (("minimum", "exclusiveMinimum"), ("maximum", "exclusiveMaximum")):
        flag = schema.get(exclusive)
        if isinstance(flag, bool):
            converted.pop(exclusive, None)
            if flag and bound in converted:
                converted[exclusive] = converted.pop(bound)
    if schema.get("nullable") is True:
        if isinstance(converted.get("type"), str):
            converted["type"] = [converted["type"], "null"]
        if isinstance(converted.get("enum"), list) and None not in converted["enum"]:
            converted["enum"] = [*converted["enum"], None]
    if schema.get("format") == "binary":
        del converted["format"]
        converted["contentEncoding"] = "base64"
        text = schema.get("description")
        converted["description"] = (
            f"{text} (base64)" if isinstance(text, str) and text else "Base64."
        )
    if "examples" not in converted and "example" in schema:
        converted["examples"] = [schema["example"]]
    _drop_invalid(converted)


def _drop_invalid(converted: dict[str, Any]) -> None:
    """Drop keywords with values that JSON Schema does not allow."""
    for key in ("title", "description"):
        if key in converted:
            text = converted[key]
            converted[key] = text[:_MAX_TEXT] if isinstance(text, str) else ""
    for key in ("minLength", "maxLength", "minItems", "maxItems", "minProperties", "maxProperties"):
        value = converted.get(key)
        if key in converted and (
            not isinstance(value, int) or isinstance(value, bool) or value < 0
        ):
            del converted[key]
    for key in ("enum", "examples", "required"):
        value = converted.get(key)
        if key in converted and (
            not isinstance(value, list) or not value or len(value) > _MAX_ENUM
        ):
            del converted[key]
    if not isinstance(converted.get("pattern", ""), str):
        del converted["pattern"]
    names = _types(converted)
    if "type" in converted and not (names and all(name in _TYPES for name in names)):
        del converted["type"]


_TYPES: Final = frozenset(("string", "number", "integer", "boolean", "array", "object", "null"))


def _types(schema: Mapping[str, Any]) -> tuple[str, ...]:
    kind = schema.get("type")
    if isinstance(kind, str):
        return (kind,)
    return tuple(str(each) for each in kind) if isinstance(kind, list) else ()


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []
