"""Schemas of an OpenAPI document as JSON Schemas that stand alone.

References are written out; where a schema refers to itself, or is too large to be told whole, what
lies deeper is left open, so that a tool takes more than the document says and never less.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final
from urllib.parse import unquote

MAX_SCHEMA: Final = 32 * 1024
"""Characters of one parameter's JSON Schema."""

_DEPTHS: Final = (24, 8, 6, 5, 4, 3, 2, 1)
_MOST_NODES: Final = 4_000
_MOST_REFERENCES: Final = 50
_LONGEST_TEXT: Final = 1_024
_MOST_ENUM: Final = 500

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
    """A part of a document that cannot be taken over; the message is a sentence's end."""


class References:
    """What a document's `$ref`s lead to.

    Args:
        document: The whole document.
    """

    def __init__(self, document: Mapping[str, Any]) -> None:
        self._document = document

    def follow(self, node: Any) -> Any:
        """Return what a node is, its reference followed as often as it takes.

        Raises:
            Unsupported: The reference leads out of the document, nowhere, or round in a circle.
        """
        for _ in range(_MOST_REFERENCES):
            if not isinstance(node, Mapping) or "$ref" not in node:
                return node
            node = self.at(node["$ref"])
        raise Unsupported("its references go round in a circle")

    def at(self, reference: object) -> Any:
        """Return what stands at a reference.

        Raises:
            Unsupported: It leads out of the document, or nowhere.
        """
        if not isinstance(reference, str):
            raise Unsupported("it has a $ref that is no text")
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
                raise Unsupported(f"it refers to {reference[:128]}, which is not there")
        return node


class SchemaReader:
    """Turns schemas of one document into JSON Schemas.

    Args:
        references: Of the document.
    """

    def __init__(self, references: References) -> None:
        self._references = references

    def read(self, schema: Any) -> dict[str, Any]:
        """Return a schema that stands alone and is small enough.

        Raises:
            Unsupported: It refers to what is not there.
        """
        for depth in _DEPTHS:
            made = _Writing(self._references, depth).schema(schema, depth, ())
            if len(json.dumps(made)) <= MAX_SCHEMA:
                return made
        return {}

    def object_of(self, schema: Any) -> Mapping[str, Any] | None:
        """Return a schema's `properties` and `required`, or None where it is more than these.

        `allOf` of such schemas is one such schema.

        Raises:
            Unsupported: It refers to what is not there.
        """
        return self._object_of(schema, 0)

    def _object_of(self, schema: Any, deep: int) -> Mapping[str, Any] | None:
        schema = self._references.follow(schema)
        if not isinstance(schema, Mapping) or deep > _MOST_REFERENCES:
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
                read = self._object_of(part, deep + 1)
                if read is None:
                    return None
            else:
                read = part
            named = read.get("properties")
            properties.update(named if isinstance(named, Mapping) else {})
            required += [name for name in _list(read.get("required")) if isinstance(name, str)]
        return {"properties": properties, "required": required} if properties else None


class _Writing:
    """One schema being written out, down to a depth."""

    def __init__(self, references: References, depth: int) -> None:
        self._references = references
        self._nodes = _MOST_NODES
        self._depth = depth

    def schema(self, schema: Any, depth: int, above: tuple[str, ...]) -> dict[str, Any]:
        """Return a schema; `above` holds the references that it stands below."""
        self._nodes -= 1
        if not isinstance(schema, Mapping) or depth <= 0 or self._nodes < 0:
            return {}
        reference = schema.get("$ref")
        if reference is not None:
            if str(reference) in above or len(above) > _MOST_REFERENCES:
                return {}
            target = self._references.at(reference)
            beside = {key: value for key, value in schema.items() if key != "$ref"}
            merged = {**target, **beside} if isinstance(target, Mapping) else beside
            return self.schema(merged, depth, (*above, str(reference)))
        made = {key: value for key, value in schema.items() if key in _KEPT}
        _modernize(schema, made)
        self._parts(schema, made, depth - 1, above)
        return made

    def _parts(
        self, schema: Mapping[str, Any], made: dict[str, Any], depth: int, above: tuple[str, ...]
    ) -> None:
        for key in _ONE:
            part = schema.get(key)
            if isinstance(part, Mapping):
                made[key] = self.schema(part, depth, above)
            elif isinstance(part, bool) and key == "additionalProperties":
                made[key] = part
        if "not" in made and not made["not"]:
            del made["not"]  # cut off: to forbid everything would be wrong
        for key in _MANY:
            parts = [self.schema(part, depth, above) for part in _list(schema.get(key))]
            if parts and not (key in ("anyOf", "oneOf") and {} in parts):
                made["anyOf" if key == "oneOf" else key] = parts
        for key in _NAMED:
            named = schema.get(key)
            if isinstance(named, Mapping) and named:
                made[key] = {
                    str(name): self.schema(part, depth, above)
                    for name, part in named.items()
                    if not (isinstance(part, Mapping) and part.get("readOnly") is True)
                }
        if "required" in made:
            known = made.get("properties", {})
            names = [name for name in made["required"] if isinstance(name, str) and name in known]
            made["required"] = names
            if not names:
                del made["required"]


def _modernize(schema: Mapping[str, Any], made: dict[str, Any]) -> None:
    """Write what OpenAPI 3.0 says in its own way as JSON Schema does."""
    for bound, exclusive in (("minimum", "exclusiveMinimum"), ("maximum", "exclusiveMaximum")):
        flag = schema.get(exclusive)
        if isinstance(flag, bool):
            made.pop(exclusive, None)
            if flag and bound in made:
                made[exclusive] = made.pop(bound)
    if schema.get("nullable") is True:
        if isinstance(made.get("type"), str):
            made["type"] = [made["type"], "null"]
        if isinstance(made.get("enum"), list) and None not in made["enum"]:
            made["enum"] = [*made["enum"], None]
    if schema.get("format") == "binary":
        del made["format"]
        made["contentEncoding"] = "base64"
        said = schema.get("description")
        made["description"] = f"{said} (base64)" if isinstance(said, str) and said else "Base64."
    if "examples" not in made and "example" in schema:
        made["examples"] = [schema["example"]]
    _drop_misshapen(made)


def _drop_misshapen(made: dict[str, Any]) -> None:
    """Leave out what has a type that JSON Schema does not know for it."""
    for key in ("title", "description"):
        if key in made:
            text = made[key]
            made[key] = text[:_LONGEST_TEXT] if isinstance(text, str) else ""
    for key in ("minLength", "maxLength", "minItems", "maxItems", "minProperties", "maxProperties"):
        value = made.get(key)
        if key in made and (not isinstance(value, int) or isinstance(value, bool) or value < 0):
            del made[key]
    for key in ("enum", "examples", "required"):
        value = made.get(key)
        if key in made and (not isinstance(value, list) or not value or len(value) > _MOST_ENUM):
            del made[key]
    if not isinstance(made.get("pattern", ""), str):
        del made["pattern"]
    names = _types(made)
    if "type" in made and not (names and all(name in _TYPES for name in names)):
        del made["type"]


_TYPES: Final = frozenset(("string", "number", "integer", "boolean", "array", "object", "null"))


def _types(schema: Mapping[str, Any]) -> tuple[str, ...]:
    kind = schema.get("type")
    if isinstance(kind, str):
        return (kind,)
    return tuple(str(each) for each in kind) if isinstance(kind, list) else ()


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []
