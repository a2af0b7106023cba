"""The members of an object that several schemas of an OpenAPI document describe together.

These are the parts of an `allOf`, and the subtypes of a schema with a discriminator: OpenAPI links
them to it only by their own `allOf` and by the `mapping` of the discriminator.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from leaseway.control_plane.config.openapi.references import (
    OTHERS,
    References,
    Steps,
    Unsupported,
    list_of,
    named_schemas,
    place_of,
    types_of,
)
from leaseway.wire.json_pointer import escaped

_MAX_RULES: Final = 20
"""Schemas of one member that are compared with a further one of it."""
_MAX_SUBTYPES: Final = 50
"""Subtypes of one schema whose members are read."""
_MAX_ALL_SUBTYPES: Final = 2_000
"""Subtypes of all schemas of a document that are read."""
_MAX_MEMBERS: Final = 100
"""Members that the subtypes of one schema add; with more of them it takes any."""
_MAX_LISTED: Final = 800
"""Characters of what a description says of subtypes."""

_Rules = dict[str, list[Any]]
"""The schemas of each member, by its name."""


class Objects:
    """Merges the schemas of one document that describe the same object."""

    def __init__(self, references: References) -> None:
        self._references = references
        self._left = _MAX_ALL_SUBTYPES
        self._bases: dict[str, list[str]] | None = None
        # By identity, with the schema, so that its id stays its own.
        self._widened: dict[tuple[int, str], tuple[Any, Mapping[str, Any]]] = {}

    def object_of(self, schema: Any, *, lenient: bool = False) -> Mapping[str, Any] | None:
        """Return a schema's `properties` and `required`, or None if it has other rules.

        Objects in `allOf` and beside a reference are merged, and so are subtypes.

        Args:
            schema: The schema, as written in the document.
            lenient: Whether the members of alternatives are merged too, as optional ones.

        Raises:
            Unsupported: A reference has no target.
        """
        rules: _Rules = {}
        required: list[str] = []
        if not self._merge(schema, rules, required, Steps(), lenient) or not rules:
            return None
        properties = {
            name: parts[0] if len(parts) == 1 else {"allOf": parts} for name, parts in rules.items()
        }
        return {"properties": properties, "required": required}

    def with_subtypes(self, schema: Mapping[str, Any], reference: str = "") -> Mapping[str, Any]:
        """Return a schema that also has the members of its subtypes, as optional ones.

        A schema without a discriminator or subtypes is returned as it is. One with too many
        subtypes takes any member.

        Args:
            schema: The schema.
            reference: What refers to it; empty for one that stands where it is used.

        Raises:
            Unsupported: A reference has no target.
        """
        if "discriminator" not in schema and "allOf" not in schema:
            return schema
        known = self._widened.get((id(schema), reference))
        if known is None:
            known = schema, self._widen(schema, reference)
            self._widened[id(schema), reference] = known
        return known[1]

    def _merge(
        self, schema: Any, properties: _Rules, required: list[str], steps: Steps, lenient: bool,
        *, is_part: bool = False,
    ) -> bool:  # fmt: skip
        """Add the members of a schema; return False if it has rules that members can't express."""
        if not is_part:
            schema = self._followed(schema)
        if not isinstance(schema, Mapping) or not steps.take():
            return False
        types = types_of(schema)
        if types and "object" not in types:
            return False
        if "not" in schema or "patternProperties" in schema:
            return False
        others = schema.get("additionalProperties")
        if (isinstance(others, Mapping) or others is True) and not lenient:
            return False
        named = schema.get("properties")
        parts = [*list_of(schema.get("allOf"))]
        is_part = is_part or describes_part(schema, parts)
        if "$ref" in schema:
            parts.insert(0, self._references.at(schema["$ref"]))
        if not all(
            self._merge(part, properties, required, steps, lenient, is_part=is_part)
            for part in parts
        ):
            return False
        for key in ("anyOf", "oneOf"):
            for part in list_of(schema.get(key)):
                if not lenient:
                    return False
                self._merge(part, properties, [], steps, lenient, is_part=True)
        for name, member in named.items() if isinstance(named, Mapping) else ():
            _add(properties, str(name), member)
        required += [name for name in list_of(schema.get("required")) if isinstance(name, str)]
        return True

    def _followed(self, schema: Any) -> Any:
        """Return a schema, or what it refers to if that has subtypes, with these."""
        if not isinstance(schema, Mapping):
            return schema
        reference = schema.get("$ref")
        if not isinstance(reference, str):
            return self.with_subtypes(schema)
        target = self._references.at(reference)
        if not isinstance(target, Mapping):
            return schema
        wide = self.with_subtypes(target, reference)
        beside = {key: value for key, value in schema.items() if key != "$ref"}
        return schema if wide is target else {"allOf": [wide, beside]} if beside else wide

    def _widen(self, schema: Mapping[str, Any], reference: str) -> Mapping[str, Any]:
        if "anyOf" in schema or "oneOf" in schema or not {"object"}.issuperset(types_of(schema)):
            return schema
        found = self._discriminator(schema, Steps())
        if found is None:
            return schema
        name, mapping = found
        own: _Rules = {}
        self._merge(schema, own, [], Steps(), lenient=True, is_part=True)
        added: _Rules = {}
        listed: list[str] = []
        is_whole = True
        # Of an inherited discriminator only the subtypes of this schema are meant.
        mapped = mapping if "discriminator" in schema else {}
        for child, value in self._subtypes(reference, mapping, mapped):
            self._left -= 1
            if len(listed) >= _MAX_SUBTYPES or self._left < 0:
                is_whole = False
                listed.append("and more")
                break
            rules: _Rules = {}
            self._merge({"$ref": child}, rules, [], Steps(), lenient=True, is_part=True)
            for member, parts in rules.items():
                for part in parts if member not in own else ():
                    _add(added, member, part)
            members = ", ".join(member for member in rules if member not in own)
            listed.append(f"{value}: {members}" if members else value)
        if not listed:
            return schema
        is_whole = is_whole and len(added) <= _MAX_MEMBERS
        wide = {key: value for key, value in schema.items() if key != "discriminator"}
        wide.pop("additionalProperties", None)
        if not is_whole:
            added = {}
            wide["additionalProperties"] = True
        properties = schema.get("properties")
        properties = dict(properties) if isinstance(properties, Mapping) else {}
        properties[name] = _described(properties.get(name), listed, is_declared=name in own)
        for member, parts in added.items():
            properties.setdefault(member, parts[0] if len(parts) == 1 else {"anyOf": parts})
        return {**wide, "properties": properties}

    def _discriminator(self, schema: Any, steps: Steps) -> tuple[str, Mapping[str, Any]] | None:
        """Return the member that tells subtypes apart, and their references by its values."""
        schema = self._references.follow(schema)
        if not isinstance(schema, Mapping) or not steps.take():
            return None
        found = schema.get("discriminator")
        if isinstance(found, str):  # of Swagger 2
            return found, {}
        if isinstance(found, Mapping) and isinstance(found.get("propertyName"), str):
            mapping = found.get("mapping")
            return found["propertyName"], mapping if isinstance(mapping, Mapping) else {}
        for part in list_of(schema.get("allOf")):
            inherited = self._discriminator(part, steps)
            if inherited is not None:
                return inherited
        return None

    def _subtypes(
        self, reference: str, mapping: Mapping[str, Any], mapped: Mapping[str, Any]
    ) -> Iterator[tuple[str, str]]:
        """Yield the references of a schema's subtypes, direct or not, with the value of each.

        Args:
            reference: The schema's own.
            mapping: The names of values for subtypes.
            mapped: Those of them that are subtypes, whether or not they say so themselves.
        """
        values = {self._reference_of(target): str(value) for value, target in mapping.items()}
        waiting = [reference, *map(self._reference_of, mapped.values())]
        seen = {"", *waiting}
        for child in waiting[1:]:
            if child and child != reference:
                yield child, values[child]
        while waiting:
            for child in self._derived().get(waiting.pop(0), ()):
                if child not in seen:
                    seen.add(child)
                    waiting.append(child)
                    yield child, values.get(child) or self._value_of(child)

    def _reference_of(self, target: object) -> str:
        """Return the reference to a schema of a mapping, which may be its name; empty if none."""
        if not isinstance(target, str):
            return ""
        reference = target if target.startswith("#") else f"#/components/schemas/{target}"
        try:
            return reference if isinstance(self._references.target(reference), Mapping) else ""
        except Unsupported:
            return ""

    def _value_of(self, reference: str) -> str:
        own = self._references.at(reference).get("x-ms-discriminator-value")
        return own if isinstance(own, str) else reference.rpartition("/")[2]

    def _derived(self) -> Mapping[str, list[str]]:
        """Return the schemas that extend others, by the references of these."""
        if self._bases is None:
            self._bases = {}
            for own, schema in self._named():
                for part in list_of(schema.get("allOf")):
                    base = part.get("$ref") if isinstance(part, Mapping) else None
                    if isinstance(base, str) and base != own:
                        self._bases.setdefault(base, []).append(own)
        return self._bases

    def _named(self) -> Iterator[tuple[str, Mapping[str, Any]]]:
        """Yield the schemas that have names, with their references."""
        document = self._references.document
        others = document.get(OTHERS)
        named = [("#", document)]
        for address, other in others.items() if isinstance(others, Mapping) else ():
            named.append((place_of(str(address)), other))
        for where, part in named:
            for place, schemas in named_schemas(part, where):
                for name, schema in schemas.items():
                    if isinstance(schema, Mapping):
                        yield f"{place}/{escaped(str(name))}", schema


def describes_part(schema: Mapping[str, Any], parts: list[Any]) -> bool:
    """Return whether each of some schemas describes only a part of an object.

    Args:
        schema: The schema that has them in a list.
        parts: The list.
    """
    return len(parts) > 1 or bool(schema.get("properties"))


def _add(rules: _Rules, name: str, member: Any) -> None:
    known = rules.setdefault(name, [])
    if not any(member is other or member == other for other in known[:_MAX_RULES]):
        known.append(member)


def _described(member: Any, listed: list[str], *, is_declared: bool) -> dict[str, Any]:
    """Return the schema of a discriminator's member, with what its values mean."""
    schema = dict(member) if isinstance(member, Mapping) else {}
    if not is_declared:
        schema["type"] = "string"
    about = schema.get("description")
    text = "; ".join(listed)
    text = f"{text[:_MAX_LISTED]}…" if len(text) > _MAX_LISTED else text
    added = f"Its values and their further members: {text}."
    schema["description"] = f"{about} {added}" if isinstance(about, str) and about else added
    return schema
