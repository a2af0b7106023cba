"""The members of an object that several schemas of an OpenAPI document describe together.

These are the parts of an `allOf`, and the subtypes of a schema with a discriminator: OpenAPI links
them to it only by their own `allOf` and by the `mapping` of the discriminator.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Literal

from leaseway.control_plane.config.openapi.references import (
    SEARCHED,
    Derivations,
    References,
    Refusal,
    Steps,
    list_of,
    name_in,
    types_of,
)
from leaseway.control_plane.config.openapi.usable import MAX_ENUM

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
_MAX_NESTED: Final = 20
"""Levels of an `allOf` in another one that are searched for bases."""

_MAX_KEPT: Final = 500
"""Schemas whose members are kept for other questions about them."""

_Rules = dict[str, list[Any]]
"""The schemas of each member, by its name."""
_Reading = Literal["exact", "form", "subtype"]
"""What members are read for: an object that must be told by them alone; a form, of which those of
alternatives are told too; or a base, which is told what a subtype adds and forbids less than it."""


@dataclass
class _Found:
    """The members of an object that were found.

    Attributes:
        rules: Their schemas.
        required: The names of those that must be there.
        is_open: Whether the object may have others.
    """

    rules: _Rules = field(default_factory=dict)
    required: list[str] = field(default_factory=list)
    is_open: bool = False


@dataclass(frozen=True)
class _Kin:
    """The subtypes of a schema.

    Attributes:
        member: The member that tells them apart.
        values: Its values for the schema itself.
        lost: Its values for what is not read or not there.
        subtypes: Each with the values that the document gives it; with none it is its own, or the
            subtype's name.
        ids: Their identities, and those of what stands between them and the schema.
    """

    schema: Mapping[str, Any]
    member: str
    values: tuple[str, ...]
    lost: tuple[str, ...]
    subtypes: tuple[tuple[Mapping[str, Any], tuple[str, ...]], ...]
    ids: frozenset[int]


class Objects:
    """Merges the schemas of one document that describe the same object.

    Attributes:
        unsearched: The documents that were not read to look for subtypes, and why.
    """

    def __init__(self, references: References) -> None:
        self.unsearched: list[str] = []
        self._references = references
        self._left = _MAX_ALL_SUBTYPES
        self._known: Derivations | None = None
        # By identity, with the schema, so that its id stays its own.
        self._kin: dict[int, tuple[Any, _Kin | None]] = {}
        self._members: dict[int, tuple[Any, _Found]] = {}
        self._mapped: dict[int, tuple[Any, Mapping[int, list[str]]]] = {}
        self._wide_bases: dict[int, Mapping[str, Any]] = {}
        self._widened: dict[int, tuple[Any, Mapping[str, Any]]] = {}

    def object_of(self, schema: Any, *, lenient: bool = False) -> Mapping[str, Any] | None:
        """Return a schema's `properties` and `required`, or None if it has other rules.

        Objects in `allOf` and beside a reference are merged, and so are subtypes.

        Args:
            schema: The schema, as written in the document.
            lenient: Whether the members of alternatives are merged too, as optional ones.

        Raises:
            Unsupported: A reference has no target.
        """
        found = _Found()
        reading: _Reading = "form" if lenient else "exact"
        if not self._merge(schema, found, Steps(), reading) or found.is_open or not found.rules:
            return None
        properties = {
            name: parts[0] if len(parts) == 1 else {"allOf": parts}
            for name, parts in found.rules.items()
        }
        return {"properties": properties, "required": found.required}

    def with_subtypes(self, schema: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return a schema that also has the members of its subtypes, as optional ones.

        The same holds for the bases in its `allOf`, unless it is itself a subtype of them. A schema
        without subtypes is returned as it is. One with too many subtypes takes any member.

        Args:
            schema: The schema, as it stands in the document.

        Raises:
            Unsupported: A reference has no target.
        """
        if "discriminator" not in schema and "allOf" not in schema:
            return schema
        known = self._widened.get(id(schema))
        if known is not None:
            return known[1]
        kin = self._kin_of(schema)
        wide = schema if kin is None else self._widen(kin)
        wide = self._with_wide_parts(wide, schema, Steps(depth=_MAX_NESTED))
        if wide is not schema:
            self._widened[id(schema)] = schema, wide
        return wide

    def choice_of(self, schema: Mapping[str, Any], part: Any) -> tuple[str, str] | None:
        """Return the member that chooses an alternative, and a sentence with its values for it.

        None if the document does not say it of the alternative, or the alternative itself does.

        Args:
            schema: The schema that has the alternative in its `anyOf` or `oneOf`.
        """
        found = schema.get("discriminator")
        target = self._references.end(part)
        if not isinstance(found, Mapping) or target is None or target is part:
            return None
        member = found.get("propertyName")
        if not isinstance(member, str):
            return None
        name = name_in(str(part.get("$ref")))
        values = self._mapped_by(found).get(id(target)) or ([name] if name else [])
        if not values or self._fixed(self._members_of(target).rules.get(member)):
            return None
        return member, f"Here {' or '.join(map(json.dumps, values))[:_MAX_LISTED]}."

    def _mapped_by(self, discriminator: Mapping[str, Any]) -> Mapping[int, list[str]]:
        """Return the values of a discriminator's mapping by the identity of their schemas."""
        known = self._mapped.get(id(discriminator))
        if known is None:
            values: dict[int, list[str]] = {}
            given = discriminator.get("mapping")
            for value, written in given.items() if isinstance(given, Mapping) else ():
                target = self._references.mapped(written)
                if target is not None:
                    values.setdefault(id(target), []).append(str(value))
            known = self._mapped[id(discriminator)] = discriminator, values
        return known[1]

    def _merge(
        self, schema: Any, found: _Found, steps: Steps, reading: _Reading, *, is_wide: bool = False
    ) -> bool:
        """Add the members of a schema; return False if it has rules that members can't express.

        Args:
            steps: The limit of its parts.
            reading: What they are read for.
            is_wide: Whether it has what its subtypes add already, or needs none of that.
        """
        if not is_wide:
            schema = self._followed(schema)
        if not isinstance(schema, Mapping) or not steps.take():
            return False
        if _excludes_objects(schema):
            return False
        if reading != "subtype" and ("not" in schema or "patternProperties" in schema):
            return False
        others = schema.get("additionalProperties")
        found.is_open |= isinstance(others, Mapping) or others is True
        found.is_open |= "patternProperties" in schema
        inside = steps.inside()
        if "$ref" in schema:
            target = self._references.at(schema["$ref"])
            if not self._merge(target, found, inside, reading, is_wide=is_wide):
                return False
        for part in list_of(schema.get("allOf")):
            if not self._merge(part, found, inside, reading, is_wide=True):
                return False
        alternatives = [*list_of(schema.get("anyOf")), *list_of(schema.get("oneOf"))]
        if alternatives and reading == "exact":
            return False
        for part in alternatives:
            optional = _Found(found.rules)
            is_read = self._merge(part, optional, inside, reading, is_wide=True)
            ended = self._references.end(part)
            is_left_out = not is_read and not (ended and _excludes_objects(ended))
            found.is_open |= optional.is_open or is_left_out
        named = schema.get("properties")
        for name, member in named.items() if isinstance(named, Mapping) else ():
            _add(found.rules, str(name), member)
        required = list_of(schema.get("required"))
        found.required += [name for name in required if isinstance(name, str)]
        return True

    def _followed(self, schema: Any) -> Any:
        """Return a schema, or what it refers to, with subtypes."""
        if not isinstance(schema, Mapping):
            return schema
        reference = schema.get("$ref")
        if not isinstance(reference, str):
            return self.with_subtypes(schema)
        beside = {key: value for key, value in schema.items() if key != "$ref"}
        if beside:
            return self.with_subtypes({"allOf": [{"$ref": reference}, beside]})
        target = self._references.at(reference)
        return self.with_subtypes(target) if isinstance(target, Mapping) else schema

    def _with_wide_parts(
        self, schema: Mapping[str, Any], owner: Mapping[str, Any], steps: Steps
    ) -> Mapping[str, Any]:
        parts = list_of(schema.get("allOf"))
        wide = [self._wide_part(part, owner, steps) for part in parts]
        return schema if _are_same(parts, wide) else {**schema, "allOf": wide}

    def _wide_part(self, part: Any, owner: Mapping[str, Any], steps: Steps) -> Any:
        """Return a part of an `allOf` with the subtypes of a base that it is.

        Args:
            owner: The schema that has it, which has no siblings' members.
            steps: The limit of searched parts, which aliases of YAML may repeat without end.
        """
        if not isinstance(part, Mapping) or not steps.take():
            return part
        base = self._references.end({"$ref": part["$ref"]} if "$ref" in part else part)
        kin = None if base is None else self._kin_of(base)
        if kin is None:
            if "$ref" in part:
                return part
            return self._with_wide_parts(part, owner, steps.inside())
        wide = self._opened_for(kin, owner) if id(owner) in kin.ids else self._widen(kin)
        if wide is kin.schema:
            return part
        beside = {key: value for key, value in part.items() if key != "$ref"}
        return {"allOf": [wide, beside]} if "$ref" in part and beside else wide

    def _widen(self, kin: _Kin) -> Mapping[str, Any]:
        """Return a schema with the members that its subtypes add."""
        known = self._wide_bases.get(id(kin.schema))
        if known is not None:
            return known
        own = self._members_of(kin.schema)
        added = _Found(is_open=bool(kin.lost))
        listed = [" or ".join(kin.values)] if kin.values else []
        values = [*kin.values, *kin.lost, *self._fixed(own.rules.get(kin.member))]
        is_whole = True
        for number, (subtype, told) in enumerate(kin.subtypes):
            self._left -= 1
            if number >= _MAX_SUBTYPES or self._left < 0:
                is_whole = False
                listed.append("and more")
                break
            found = self._members_of(subtype)
            added.is_open |= found.is_open
            for member, parts in found.rules.items():
                for part in parts if member not in own.rules else ():
                    _add(added.rules, member, part)
            of_subtype = self._values_of(subtype, told, found, own, kin.member)
            values += [*of_subtype, *self._fixed(found.rules.get(kin.member))]
            members = ", ".join(member for member in found.rules if member not in own.rules)
            name = " or ".join(map(str, of_subtype))
            listed.append(f"{name}: {members}" if members else name)
        listed += kin.lost
        is_whole = is_whole and len(added.rules) <= _MAX_MEMBERS
        taken = _few(values) if is_whole else None
        opened = self._opened(kin.schema, kin.member, taken, Steps())
        wide = {key: value for key, value in opened.items() if key != "discriminator"}
        if wide.get("additionalProperties") is False:
            del wide["additionalProperties"]
        if added.is_open or not is_whole:
            wide["additionalProperties"] = True
        properties = wide.get("properties")
        properties = dict(properties) if isinstance(properties, Mapping) else {}
        is_declared = kin.member in own.rules
        described = _described(properties.get(kin.member), listed, is_declared=is_declared)
        properties[kin.member] = described
        for member, parts in added.rules.items() if is_whole else ():
            properties.setdefault(member, parts[0] if len(parts) == 1 else {"anyOf": parts})
        wide["properties"] = properties
        self._wide_bases[id(kin.schema)] = wide
        return wide

    def _members_of(self, schema: Mapping[str, Any]) -> _Found:
        """Return the members of a schema alone; those that can't be told leave it open."""
        known = self._members.get(id(schema))
        if known is None:
            found = _Found()
            is_read = self._merge(schema, found, Steps(), "subtype", is_wide=True)
            found.is_open |= not is_read
            if len(self._members) >= _MAX_KEPT:
                self._members.clear()
            known = self._members[id(schema)] = schema, found
        return known[1]

    def _values_of(
        self, subtype: Mapping[str, Any], told: tuple[str, ...], found: _Found, base: _Found,
        member: str,
    ) -> list[Any]:  # fmt: skip
        """Return the values that stand for a subtype with some members."""
        of_base = base.rules.get(member, ())
        own = [rule for rule in found.rules.get(member, ()) if rule not in of_base]
        # The last is the subtype's own, the others are of what stands between it and the base.
        return [*told] or self._fixed(own[-1:]) or [self._derivations.name_of(subtype)]

    def _fixed(self, schemas: Iterable[Any] | None) -> list[Any]:
        """Return the values that some schemas list."""
        found: list[Any] = []
        waiting = list(schemas or ())
        steps = Steps()
        while waiting and steps.take():
            schema = self._references.end(waiting.pop(0)) or {}
            waiting += list_of(schema.get("allOf"))
            found += list_of(schema.get("enum"))
            found += [schema["const"]] if "const" in schema else []
        return found

    def _opened_for(self, kin: _Kin, subtype: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return a base that takes the values for one of its subtypes."""
        if self._opened(kin.schema, kin.member, None, Steps()) is kin.schema:
            return kin.schema
        found = self._members_of(subtype)
        told = next((told for schema, told in kin.subtypes if schema is subtype), ())
        base = self._members_of(kin.schema)
        values = self._values_of(subtype, told, found, base, kin.member)
        values += self._fixed(found.rules.get(kin.member))
        return self._opened(kin.schema, kin.member, _few(values), Steps())

    def _opened(
        self, schema: Mapping[str, Any], member: str, values: list[Any] | None, steps: Steps
    ) -> Mapping[str, Any]:
        """Return a schema whose member takes more values; None stands for all.

        Bases often list themselves alone, though what extends them must pass their schemas too.
        """
        if not steps.take():
            return schema
        changed: dict[str, Any] = {}
        inside = steps.inside()
        properties = schema.get("properties")
        if isinstance(properties, Mapping) and member in properties:
            opened = self._with_values(properties[member], values, inside)
            if opened is not properties[member]:
                changed["properties"] = {**properties, member: opened}
        parts = list_of(schema.get("allOf"))
        opened_parts = [self._opened_part(part, member, values, inside) for part in parts]
        if not _are_same(parts, opened_parts):
            changed["allOf"] = opened_parts
        return {**schema, **changed} if changed else schema

    def _opened_part(self, part: Any, member: str, values: list[Any] | None, steps: Steps) -> Any:
        if not isinstance(part, Mapping):
            return part
        if "$ref" not in part:
            return self._opened(part, member, values, steps)
        target = self._references.end({"$ref": part["$ref"]})
        opened = None if target is None else self._opened(target, member, values, steps)
        if opened is None or opened is target:
            return part
        opened = {key: value for key, value in opened.items() if key != "discriminator"}
        beside = {key: value for key, value in part.items() if key != "$ref"}
        return {"allOf": [opened, self._opened(beside, member, values, steps)]}

    def _with_values(self, member: Any, values: list[Any] | None, steps: Steps) -> Any:
        """Return the schema of a member that takes more values."""
        if not isinstance(member, Mapping) or not steps.take():
            return member
        if "$ref" in member:
            target = self._references.end({"$ref": member["$ref"]})
            opened = self._with_values(target, values, steps.inside())
            beside = {key: value for key, value in member.items() if key != "$ref"}
            return member if opened is target else {**opened, **beside}
        changed: dict[str, Any] = {}
        given = [*list_of(member.get("enum")), *([member["const"]] if "const" in member else ())]
        if given:
            taken = None if values is None else _few([*given, *values])
            if taken is None or len(taken) > len(_few(given) or ()):
                changed = {"const": None, "enum": taken}
        parts, inside = list_of(member.get("allOf")), steps.inside()
        opened_parts = [self._with_values(part, values, inside) for part in parts]
        if not _are_same(parts, opened_parts):
            changed["allOf"] = opened_parts
        if not changed:
            return member
        kept = (key for key in {**member, **changed} if changed.get(key, ()) is not None)
        return {key: changed.get(key, member.get(key)) for key in kept}

    def _kin_of(self, schema: Mapping[str, Any]) -> _Kin | None:
        """Return the subtypes of a schema, or None if it has none."""
        known = self._kin.get(id(schema))
        if known is None:
            known = self._kin[id(schema)] = schema, self._find_kin(schema)
        return known[1]

    def _find_kin(self, schema: Mapping[str, Any]) -> _Kin | None:
        if "anyOf" in schema or "oneOf" in schema or not {"object"}.issuperset(types_of(schema)):
            return None
        found = self._discriminator(schema, Steps())
        if found is None:
            return None
        member, mapping = found
        names: dict[int, list[str]] = {}
        targets: list[Mapping[str, Any]] = []
        lost: list[str] = []
        # Of an inherited discriminator only the subtypes of this schema are meant.
        is_own = "discriminator" in schema
        for value, written in mapping.items():
            target = self._references.mapped(written)
            if target is not None:
                names.setdefault(id(target), []).append(str(value))
                targets.append(target)
            elif is_own:
                self._references.note_lost(written)
                lost.append(str(value))
        listed = list(_different(schema, targets if is_own else []))
        below = list(self._derivations.below(schema, *listed))
        subtypes: list[tuple[Mapping[str, Any], tuple[str, ...]]] = []
        for subtype in (*listed, *below):
            told = names.get(id(subtype)) or _told(subtype)
            if told or self._derivations.name_of(subtype):
                subtypes.append((subtype, tuple(told)))
        if not subtypes and not lost:
            return None
        return _Kin(
            schema=schema,
            member=member,
            values=tuple(names.get(id(schema), ())),
            lost=tuple(lost),
            subtypes=tuple(subtypes),
            ids=frozenset(map(id, (*listed, *below))),
        )

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
            inherited = self._discriminator(part, steps.inside())
            if inherited is not None:
                return inherited
        return None

    @property
    def _derivations(self) -> Derivations:
        if self._known is None:
            self._known = Derivations(self._references.end)
            self._known.add(self._references.document)
            for other in list_of(self._references.document.get(SEARCHED)):
                if isinstance(other, Refusal):
                    self.unsearched.append(other.reason)
                else:
                    self._known.add(other)
        return self._known


def describes_part(schema: Mapping[str, Any], parts: list[Any]) -> bool:
    """Return whether each of some schemas describes only a part of an object.

    Args:
        schema: The schema that has them in a list.
    """
    return len(parts) > 1 or bool(schema.get("properties"))


def _excludes_objects(schema: Mapping[str, Any]) -> bool:
    types = types_of(schema)
    return bool(types) and "object" not in types


def _add(rules: _Rules, name: str, member: Any) -> None:
    known = rules.setdefault(name, [])
    if not any(member is other or member == other for other in known[:_MAX_RULES]):
        known.append(member)


def _few(values: Iterable[Any]) -> list[Any] | None:
    """Return values, each once; or None, for all, if they are too many to list."""
    kept: dict[str, Any] = {}  # by their texts, as some can't be hashed and True equals 1
    for value in values:
        kept.setdefault(repr(value), value)
        if len(kept) > MAX_ENUM:
            return None
    return list(kept.values())


def _are_same(some: list[Any], others: list[Any]) -> bool:
    return all(one is other for one, other in zip(some, others, strict=True))


def _different(
    schema: Mapping[str, Any], others: list[Mapping[str, Any]]
) -> Iterator[Mapping[str, Any]]:
    """Yield the schemas that are not a given one, each once."""
    seen = {id(schema)}
    for other in others:
        if id(other) not in seen:
            seen.add(id(other))
            yield other


def _told(subtype: Mapping[str, Any]) -> list[str]:
    """Return the value that a schema says of itself that it stands for."""
    own = subtype.get("x-ms-discriminator-value")
    return [own] if isinstance(own, str) else []


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
