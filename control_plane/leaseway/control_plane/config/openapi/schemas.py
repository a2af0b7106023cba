"""Converts schemas of an OpenAPI document to self-contained JSON Schemas.

References are written out. If a schema refers to itself or is too large, its deeper parts accept
anything: a tool may accept more than the document allows, never less. Defaults become text: what a
server does without a value is no reason to send it one.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from math import isfinite
from typing import Any, Final

from leaseway.control_plane.config.openapi.objects import Objects, describes_part
from leaseway.control_plane.config.openapi.references import (
    MAX_REFERENCES,
    References,
    Steps,
    Unsupported,
    list_of,
    name_in,
    types_of,
)
from leaseway.control_plane.config.openapi.usable import (
    MAX_ENUM,
    usable_pattern,
    with_fitting_values,
)
from leaseway.spec.kinds.http_tools import accepts_null
from leaseway.wire.listing.schema_keywords import is_valid
from leaseway.wire.messages.json_schema import CHOICES, CONDITIONS, LISTS, MEMBERS, PROPERTIES

MAX_SCHEMA: Final = 32 * 1024
"""Characters of one parameter's JSON Schema."""
MAX_SCHEMAS: Final = 128 * 1024
"""Characters of the JSON Schemas of one tool's parameters, all together."""

_BOUNDS: Final = {"minimum": "exclusiveMinimum", "maximum": "exclusiveMaximum"}
"""Each bound, with the keyword that is a flag of it in OpenAPI 3.0 and a bound in JSON Schema."""

_DEPTHS: Final = (24, 8, 6, 5, 4, 3, 2, 1)
_SHALLOW: Final = (2, 1)
_MAX_NODES: Final = 300_000
"""Parts of schemas of one document that are converted; what follows is open below its members."""
_LEAST_NODE: Final = 16
"""Characters that a part of a schema takes at least: what has more of them is too long."""
_MAX_READ_ONLY: Final = 20
_MAX_TEXT: Final = 1_024
_MAX_DEFAULT: Final = 200
"""Characters of a default that a description names."""
_MAX_EXAMPLES: Final = 5

_KEPT: Final = frozenset(
    ("type", "format", "title", "description", "enum", "const", "pattern", "minLength",
     "maxLength", "minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf",
     "minItems", "maxItems", "uniqueItems", "minProperties", "maxProperties", "required",
     "contentEncoding", "contentMediaType", "examples")
)  # fmt: skip
_ONE: Final = ("items", "additionalProperties", "not", "contains", "propertyNames")
_RULES: Final = _KEPT.union(_ONE, LISTS, PROPERTIES)
"""Keywords that are converted; those beside a reference apply together with its target's."""
_CHECKED: Final = _RULES.union(
    CONDITIONS, MEMBERS,
    ("dependencies", "dependentSchemas", "dependentRequired", "minContains", "maxContains"),
).difference(
    ("title", "description", "examples", "format", "contentEncoding", "contentMediaType")
)  # fmt: skip
"""Keywords by which a schema refuses values, converted or not."""


class SchemaReader:
    """Converts schemas of one document to JSON Schemas."""

    def __init__(self, references: References, objects: Objects) -> None:
        self._references = references
        self._objects = objects
        self._referred: dict[tuple[str, bool, bool], dict[str, Any]] = {}
        # Operations share members of a body by identity, which are too many to convert each time.
        self._converted: dict[tuple[int, bool, bool], tuple[Any, dict[str, Any]]] = {}
        self._nodes = _MAX_NODES

    def read(self, schema: Any, *, files: bool = False, xml: bool = False) -> dict[str, Any]:
        """Return a self-contained schema within the size limit.

        Args:
            schema: The schema, as written in the document.
            files: Whether text with a media type and no encoding stands for bytes, as in multipart
                bodies of OpenAPI 3.1.
            xml: Whether what it says of elements and attributes (`xml`) is kept.

        Raises:
            Unsupported: A reference has no target.
        """
        reference = schema.get("$ref") if isinstance(schema, Mapping) and len(schema) == 1 else None
        if not isinstance(reference, str):
            node = id(schema), files, xml
            of_node = self._converted.get(node)
            if of_node is None:  # the schema is kept, so that its id stays its own
                of_node = self._converted[node] = schema, self._convert(schema, files, xml=xml)
            return dict(of_node[1])
        key = reference, files, xml
        known = self._referred.get(key)
        if known is None:
            known = self._referred[key] = self._convert(schema, files, xml=xml)
        return dict(known)

    def cut(
        self, converted: Mapping[str, Any], limit: int, levels: int | None = None
    ) -> dict[str, Any]:
        """Return a converted schema whose deeper parts accept anything.

        Args:
            limit: Characters of its JSON.
            levels: How many objects and lists may stand inside one another; None for any.
        """
        return self._convert(converted, False, limit, levels)

    def _convert(
        self, schema: Any, files: bool, limit: int = MAX_SCHEMA, levels: int | None = None,
        *, xml: bool = False,
    ) -> dict[str, Any]:  # fmt: skip
        for depth in _DEPTHS if self._nodes > 0 else _SHALLOW:
            conversion = _Conversion(
                self._references, self._objects, files, limit // _LEAST_NODE, xml=xml
            )
            converted = conversion.schema(schema, depth, ())
            self._nodes -= conversion.count
            is_short = conversion.is_complete and len(json.dumps(converted)) <= limit
            if is_short and (levels is None or has_levels(converted, levels)):
                return converted
        return {}

    def default_of(self, schema: Any) -> Any:
        """Return a schema's default, or None.

        Raises:
            Unsupported: A reference has no target.
        """
        followed = self._references.follow(schema)
        return followed.get("default") if isinstance(followed, Mapping) else None

    def accepts(self, schema: Any, kind: str) -> bool:
        """Return whether a schema, or one of its alternatives, names a type.

        Raises:
            Unsupported: A reference has no target.
        """
        return self._accepts(schema, kind, Steps())

    def _accepts(self, schema: Any, kind: str, steps: Steps) -> bool:
        schema = self._references.follow(schema)
        if not isinstance(schema, Mapping) or not steps.take():
            return False
        if kind in types_of(schema):
            return True
        if kind == "object" and isinstance(schema.get("properties"), Mapping):
            return True
        inside = steps.inside()
        return any(
            self._accepts(part, kind, inside)
            for key in CHOICES
            for part in list_of(schema.get(key))
        )

    def root_of(self, schema: Any) -> str:
        """Return the name of the root element that a schema describes; empty if it is not told.

        Raises:
            Unsupported: A reference has no target.
        """
        if not isinstance(schema, Mapping):
            return ""
        told = self._references.follow(schema).get("xml")
        name = told.get("name") if isinstance(told, Mapping) else None
        return name if isinstance(name, str) else name_in(str(schema.get("$ref", "")))

    def is_read_only(self, schema: Any) -> bool:
        """Return whether only responses have a member with this schema."""
        return _is_read_only(self._references, schema, Steps(_MAX_READ_ONLY))


def _is_read_only(references: References, schema: Any, steps: Steps) -> bool:
    try:
        schema = references.follow(schema)
    except Unsupported:
        return False  # its conversion says why, unless it is not needed
    if not isinstance(schema, Mapping) or not steps.take():
        return False
    if isinstance(schema.get("readOnly"), bool):
        return schema["readOnly"] is True
    parts = list_of(schema.get("allOf"))
    return any(_is_read_only(references, part, steps) for part in parts)


_NOTES: Final = frozenset(
    ("title", "description", "default", "example", "examples", "deprecated", "readOnly",
     "writeOnly", "nullable", "x-nullable", "externalDocs", "xml", "summary", "$comment",
     "discriminator")
)  # fmt: skip
"""Keywords that may be moved from beside a reference to its target."""


class _Conversion:
    """The conversion of one schema, with a limit of nodes.

    Attributes:
        count: How many nodes it has converted.
    """

    def __init__(
        self, references: References, objects: Objects, files: bool, limit: int, *, xml: bool
    ) -> None:
        self.count = 0
        self._kept = _KEPT | {"xml"} if xml else _KEPT
        self._losses = 0
        self._references = references
        self._objects = objects
        self._files = files
        self._limit = limit

    @property
    def is_complete(self) -> bool:
        return self.count <= self._limit

    def schema(
        self, schema: Any, depth: int, above: tuple[str, ...], *, is_part: bool = False,
        is_wide: bool = False,
    ) -> dict[str, Any]:  # fmt: skip
        """Return a schema down to a depth.

        Args:
            depth: How many levels of parts are kept.
            above: The references that contain it.
            is_part: Whether other schemas describe the same object, so that its members are not
                all there are.
            is_wide: Whether it has what its subtypes add already, or needs none of that.
        """
        if not isinstance(schema, Mapping) or depth <= 0 or not self.is_complete:
            self._losses += schema is not True
            return {}
        self.count += 1
        reference = schema.get("$ref")
        if reference is not None:
            return self._referred(schema, str(reference), depth, above, is_part, is_wide)
        if not is_wide:
            schema = self._with_subtypes(schema)
        converted = {key: value for key, value in schema.items() if key in self._kept}
        _modernize(schema, converted, self._files)
        self._parts(schema, converted, depth - 1, above, is_part)
        if is_part and converted.get("additionalProperties") is False:
            del converted["additionalProperties"]
        converted = with_fitting_values(converted)
        self._losses += _is_looser(schema, converted)
        return _with_null(converted) if _is_nullable(schema) else converted

    def _with_subtypes(self, schema: Mapping[str, Any]) -> Mapping[str, Any]:
        wide = self._objects.with_subtypes(schema)
        self._losses += wide is not schema
        return wide

    def _referred(
        self, schema: Mapping[str, Any], reference: str, depth: int, above: tuple[str, ...],
        is_part: bool, is_wide: bool,
    ) -> dict[str, Any]:  # fmt: skip
        """Return a referred schema, with the keywords that stand beside the reference."""
        notes: dict[str, Any] = {}
        rules: dict[str, Any] = {}
        for key, value in schema.items():
            is_note = key in _NOTES or key not in _RULES
            if key not in ("$ref", "discriminator"):
                (notes if is_note else rules)[key] = value
        if rules:
            # Both apply; a keyword beside the reference does not replace the target's.
            parts = [*list_of(rules.pop("allOf", None)), rules, {"$ref": schema["$ref"]}]
            both = {**notes, "allOf": parts}
            return self.schema(both, depth, above, is_part=is_part, is_wide=is_wide)
        if reference in above or len(above) > MAX_REFERENCES:
            target: Any = {}
        else:
            target = self._references.at(schema["$ref"])
        self._losses += not target
        if isinstance(target, Mapping) and not is_wide:
            target = self._with_subtypes(target)
        merged = {**target, **notes} if isinstance(target, Mapping) else notes
        if not {"anyOf", "oneOf"} & merged.keys():
            merged.pop("discriminator", None)
        # What a further reference leads to is not wide yet.
        is_wide = is_wide or "$ref" not in merged
        above = (*above, reference)
        return self.schema(merged, depth, above, is_part=is_part, is_wide=is_wide)

    def _parts(
        self, schema: Mapping[str, Any], converted: dict[str, Any], depth: int,
        above: tuple[str, ...], is_part: bool,
    ) -> None:  # fmt: skip
        for key in _ONE:
            part = schema.get(key)
            losses = self._losses
            if isinstance(part, Mapping):
                convert = self._others if key == "additionalProperties" else self.schema
                converted[key] = convert(part, depth, above)
            elif isinstance(part, bool) and key == "additionalProperties":
                converted[key] = part
            if key == "not" and key in converted and (not converted[key] or self._losses > losses):
                del converted[key]  # what accepts more would forbid more here
        for key in LISTS:
            given = list_of(schema.get(key))
            alternatives = key != "allOf"
            share = is_part or describes_part(schema, [] if alternatives else given)
            parts = [
                self.schema(part, depth, above, is_part=share, is_wide=not alternatives)
                for part in given
            ]
            if parts and not (key in ("anyOf", "oneOf") and {} in parts):
                if alternatives:
                    self._tell_choices(schema, given, parts)
                converted["anyOf" if key == "oneOf" else key] = parts
        for key in PROPERTIES:
            named = schema.get(key)
            if isinstance(named, Mapping) and named:
                converted[key] = self._named(named, converted, depth, above, key)
        if "required" in converted:
            known = converted.get("properties", {})
            names = [
                name for name in converted["required"] if isinstance(name, str) and name in known
            ]
            converted["required"] = names
            if not names:
                del converted["required"]

    def _others(
        self, schema: Mapping[str, Any], depth: int, above: tuple[str, ...]
    ) -> dict[str, Any]:
        """Return the schema of all other members, which is open if it only calls them objects.

        Generators for Java write `Map<String, Object>` so, whose values may be texts and numbers.
        """
        converted = self.schema(schema, depth, above)
        is_object = "object" in types_of(converted) and {*types_of(converted)} <= {"object", "null"}
        if is_object and _CHECKED.isdisjoint(converted.keys() - {"type"}):
            del converted["type"]
            self._losses += 1
        return converted

    def _tell_choices(
        self, schema: Mapping[str, Any], given: list[Any], parts: list[dict[str, Any]]
    ) -> None:
        """Describe in each converted alternative the value of the member that chooses it."""
        for written, converted in zip(given, parts, strict=True):
            choice = self._objects.choice_of(schema, written)
            if choice is not None:
                member, about = choice
                named = converted.get("properties", {})
                told = dict(named.get(member, {}))
                _describe(told, about, about)
                converted["properties"] = {**named, member: told}

    def _named(
        self, named: Mapping[Any, Any], converted: dict[str, Any], depth: int,
        above: tuple[str, ...], key: str,
    ) -> dict[str, Any]:  # fmt: skip
        """Return the schemas of members by their names, or by the patterns of these."""
        kept: dict[str, Any] = {}
        for name, part in named.items():
            if _is_read_only(self._references, part, Steps(_MAX_READ_ONLY)):
                continue
            used = usable_pattern(str(name)) if key == "patternProperties" else str(name)
            if used is None:
                # Its members are not known, so none may be refused as another one.
                converted.pop("additionalProperties", None)
            else:
                kept[used] = self.schema(part, depth, above)
        return kept


def has_levels(value: object, most: int) -> bool:
    """Return whether at most so many objects and lists stand inside one another."""
    if not isinstance(value, Mapping | list):
        return True
    parts = value.values() if isinstance(value, Mapping) else value
    return most > 0 and all(has_levels(part, most - 1) for part in parts)


def _is_looser(schema: Mapping[str, Any], converted: Mapping[str, Any]) -> bool:
    """Return whether a converted schema may accept what the document's own keywords refuse."""
    for key in _CHECKED.intersection(schema):
        given, kept = schema[key], converted.get(key)
        exclusive = _BOUNDS.get(key, "")
        if key == "oneOf":
            is_looser = len(list_of(given)) > 1  # converted to anyOf
        elif key == "required":
            is_looser = kept != given
        elif key in PROPERTIES:
            is_looser = not isinstance(given, Mapping) or len(given) != len(kept or {})
        elif key in _BOUNDS.values() and isinstance(given, bool):
            is_looser = False  # a flag of a bound, with which it was converted
        elif schema.get(exclusive) is True:
            is_looser = exclusive not in converted
        else:
            is_looser = key not in converted
        if is_looser:
            return True
    return False


def _is_nullable(schema: Mapping[str, Any]) -> bool:
    return schema.get("nullable") is True or schema.get("x-nullable") is True


def _with_null(converted: dict[str, Any]) -> dict[str, Any]:
    """Return a schema that accepts null too, as OpenAPI 3.0 says with `nullable`."""
    kind, values = converted.get("type"), converted.get("enum")
    if isinstance(kind, str) and kind != "null":
        converted["type"] = [kind, "null"]
    elif isinstance(kind, list) and "null" not in kind:
        converted["type"] = [*kind, "null"]
    if isinstance(values, list) and None not in values:
        converted["enum"] = [*values, None]
    if accepts_null(converted):
        return converted
    notes: dict[str, Any] = {
        key: converted.pop(key) for key in ("title", "description") if key in converted
    }
    return {**notes, "anyOf": [converted, {"type": "null"}]}


def _modernize(schema: Mapping[str, Any], converted: dict[str, Any], files: bool) -> None:
    """Convert the keywords in which OpenAPI differs from JSON Schema, and defaults to text."""
    for bound, exclusive in _BOUNDS.items():
        flag = schema.get(exclusive)
        if isinstance(flag, bool):
            converted.pop(exclusive, None)
            if flag and bound in converted:
                converted[exclusive] = converted.pop(bound)
    if schema.get("format") == "binary" or (files and is_file(schema)):
        converted.pop("format", None)
        converted["contentEncoding"] = "base64"
        _describe(converted, "Base64.", "(base64)")
    default = schema.get("default")
    if default is not None:
        text = json.dumps(default, ensure_ascii=False, default=str)
        if len(text) <= _MAX_DEFAULT:
            _describe(converted, f"Default: {text}.", f"Default: {text}.")
    if schema.get("deprecated") is True:
        about = converted.get("description")
        known = about if isinstance(about, str) else ""
        converted["description"] = f"Deprecated. {known}".rstrip()
    if "examples" not in converted and "example" in schema:
        converted["examples"] = [schema["example"]]
    if isinstance(converted.get("examples"), list):
        # Long ones would leave no room for the schema itself.
        converted["examples"] = list(filter(_is_kept, converted["examples"][:_MAX_EXAMPLES]))
    _drop_invalid(converted)


def is_file(schema: Mapping[str, Any]) -> bool:
    """Return whether text of a schema is raw bytes where bytes can be sent."""
    kind = schema.get("contentMediaType")
    types = types_of(schema)
    return (
        isinstance(kind, str)
        and "contentEncoding" not in schema
        and (not types or "string" in types)
        and not is_text(kind)
    )


def is_text(kind: str) -> bool:
    """Return whether content of a media type is sent as text."""
    kind = kind.partition(";")[0].strip().lower()
    return kind.startswith("text/") or kind.endswith(
        ("/json", "+json", "/xml", "+xml", "/yaml", "+yaml", "/x-ndjson", "/javascript")
    )


def _is_kept(example: object) -> bool:
    """Return whether an example is short, and nothing that validators take for another schema."""
    text = json.dumps(example, ensure_ascii=False, default=str)
    return len(text) <= _MAX_TEXT and '"$id"' not in text


def _describe(converted: dict[str, Any], alone: str, added: str) -> None:
    text = converted.get("description")
    has_text = isinstance(text, str) and text
    converted["description"] = f"{text} {added}" if has_text else alone


def _drop_invalid(converted: dict[str, Any]) -> None:
    """Drop keywords with values that JSON Schema does not allow."""
    for key in ("title", "description"):
        if key in converted:
            text = converted[key]
            converted[key] = text[:_MAX_TEXT] if isinstance(text, str) else ""
    if isinstance(converted.get("pattern"), str):
        converted["pattern"] = usable_pattern(converted["pattern"])
    if isinstance(converted.get("type"), list):  # in YAML, null is a type only in quotes
        listed = ("null" if name is None else str(name) for name in converted["type"])
        converted["type"] = list(dict.fromkeys(listed))
    for key in [key for key, value in converted.items() if not _may_be(key, value)]:
        del converted[key]


def _may_be(keyword: str, value: object) -> bool:
    """Return whether a keyword of JSON Schema may have a value, and one that is of use."""
    if keyword in ("enum", "examples", "required"):
        return isinstance(value, list) and 0 < len(value) <= MAX_ENUM
    if keyword == "pattern":
        return isinstance(value, str)
    is_finite = not isinstance(value, float) or isfinite(value)
    return is_finite and is_valid(keyword, value)
