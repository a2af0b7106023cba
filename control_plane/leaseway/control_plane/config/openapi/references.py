"""The references of an OpenAPI document: follows them, and finds what extends a schema by them.

Of a document that is split over files or addresses, each other document stands under its own name
in the first, and references lead there; one that is not there is a `Refusal`, which costs only what
refers to it. Pure.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import quote, unquote

from leaseway.wire.json_pointer import escaped, unescaped

OTHERS: Final = "x-leaseway-documents"
"""The key of the other documents in the first, by address."""

SEARCHED: Final = "x-leaseway-searched-documents"
"""The key of those of them in which subtypes are looked for, too: a list, with a `Refusal` for each
that was not read for that."""

MAX_REFERENCES: Final = 50
"""References on the way to one part of a document."""
_MAX_REFERENCE: Final = 4_096
"""Characters of a reference; each use of it takes steps by its length."""
_MAX_MISSING: Final = 100
_MAX_STEPS: Final = 500
"""Parts of a schema that one question about it may visit; documents may repeat them without end."""
_MAX_DEPTH: Final = 50
"""Parts inside one another that one question may visit; each takes a few frames of the stack."""
_EXTENDING: Final = frozenset(
    ("properties", "required", "additionalProperties", "allOf", "anyOf", "oneOf")
)
"""Keywords beside a reference that make another schema of its target."""
_OF_NO_NAMES: Final = frozenset(
    ("openapi", "swagger", "components", "paths", "get", "post", "put", "patch", "delete",
     "parameters", "$schema", "type", "properties", "items", "enum", *_EXTENDING)
)  # fmt: skip
"""Keys of a document that does not consist of schemas by their names."""


@dataclass(frozen=True)
class Refusal:
    """Stands for a document that is not there; `reason` is the end of a sentence."""

    reason: str


def place_of(address: str) -> str:
    """Return the reference to another document in the first one."""
    return f"#/{OTHERS}/{quote(escaped(address), safe='~')}"


def place_of_schema(name: str) -> str:
    """Return the reference to a schema of a document by its name."""
    return f"#/components/schemas/{quote(escaped(name), safe='~')}"


def shown(reference: str) -> str:
    """Return a reference as messages name it."""
    name, _, pointer = reference.removeprefix(f"#/{OTHERS}/").partition("/")
    if not reference.startswith(f"#/{OTHERS}/"):
        return reference
    return unescaped(unquote(name)) + (f"#/{pointer}" if pointer else "")


def name_in(reference: str) -> str:
    """Return the name of what a reference leads to; empty if it leads to a whole document."""
    return unescaped(unquote(shown(reference).partition("#")[2].rpartition("/")[2]))


class Unsupported(Exception):
    """A part of a document that can't be converted; the message is the end of a sentence."""


class Steps:
    """A limit of the parts of a document that one question about it visits.

    Args:
        limit: The parts, or what is left of them.
        depth: How many of them may stand inside one another.
    """

    def __init__(self, limit: int | Iterator[int] = _MAX_STEPS, depth: int = _MAX_DEPTH) -> None:
        self._left = iter(range(limit)) if isinstance(limit, int) else limit
        self._depth = depth

    def take(self) -> bool:
        """Return whether another part may be visited."""
        return self._depth > 0 and next(self._left, None) is not None

    def inside(self) -> Steps:
        """Return the same limit for what stands inside of a part."""
        return Steps(self._left, self._depth - 1)


class References:
    """Resolves the `$ref`s of a document.

    Args:
        lenient: Whether a reference without a target stands for an empty mapping, so that a schema
            accepts anything there.

    Attributes:
        missing: Why references that stand for an empty mapping have no target, each once.
    """

    def __init__(self, document: Mapping[str, Any], *, lenient: bool = False) -> None:
        self.missing: dict[str, None] = {}
        self.document = document
        self._anchors: dict[int, Mapping[str, Any]] = {}  # by the identity of their document
        self._lenient = lenient

    def follow(self, node: Any) -> Any:
        """Return a node, or the target of its reference with the members that stand beside it.

        Raises:
            Unsupported: The target is in another document, missing, or part of a cycle.
        """
        beside: dict[str, Any] = {}
        for _ in range(MAX_REFERENCES):
            if not isinstance(node, Mapping) or "$ref" not in node:
                return {**node, **beside} if beside and isinstance(node, Mapping) else node
            beside = {**{key: value for key, value in node.items() if key != "$ref"}, **beside}
            node = self.at(node["$ref"])
        raise Unsupported("its references form a cycle")

    def end(self, node: Any) -> Mapping[str, Any] | None:
        """Return the schema that references end at, as it stands in the document, or None.

        A schema that describes more of an object beside its reference is one of its own.
        """
        for _ in range(MAX_REFERENCES):
            if not isinstance(node, Mapping):
                return None
            if "$ref" not in node or not _EXTENDING.isdisjoint(node):
                return node
            try:
                node = self.target(node["$ref"])
            except Unsupported:
                return None
        return None

    def mapped(self, target: object) -> Mapping[str, Any] | None:
        """Return the schema that a discriminator's mapping names by a reference or by its name."""
        return self.end({"$ref": _of_mapping(target)})

    def note_lost(self, target: object) -> None:
        """Note that a discriminator's mapping names what is no schema, or is not there."""
        reference = _of_mapping(target)
        try:
            if not isinstance(self.follow({"$ref": reference}), Mapping):
                self._note(f"it refers to {shown(str(reference))[:256]}, which is no schema")
        except Unsupported as error:
            self._note(str(error))

    def at(self, reference: object) -> Any:
        """Return the target of a reference.

        Raises:
            Unsupported: The target is in another document, or missing.
        """
        try:
            return self.target(reference)
        except Unsupported as error:
            if not self._lenient:
                raise
            self._note(str(error))
            return {}

    def _note(self, reason: str) -> None:
        if len(self.missing) < _MAX_MISSING:
            self.missing[reason] = None

    def target(self, reference: object) -> Any:
        """Return the target of a reference, also of lenient ones only if there is one.

        Raises:
            Unsupported: The target is in another document, or missing.
        """
        return self._target(reference, Steps(MAX_REFERENCES))

    def _target(self, reference: object, steps: Steps) -> Any:
        """Return the target of a reference; `steps` bound the references on the way to it."""
        if not isinstance(reference, str):
            raise Unsupported("it has a $ref that is not text")
        if not steps.take():
            raise Unsupported("its references form a cycle, or lead too far")
        if len(reference) > _MAX_REFERENCE:
            raise Unsupported(f"it has a $ref of more than {_MAX_REFERENCE} characters")
        if not reference.startswith("#"):
            raise Unsupported(
                f"it refers to another document ({reference[:128]}), which is not read"
            )
        node: Any = self.document
        is_pointer = reference.startswith("#/") or reference == "#"
        parts = reference.split("/")[1:] if is_pointer else [reference[1:]]
        root = 2 if parts[:1] == [OTHERS] else 0
        for number, part in enumerate(parts):
            name = unescaped(unquote(part))
            while isinstance(node, Mapping) and name not in node and "$ref" in node:
                node = self._target(node["$ref"], steps)  # such as of all schemas together
            if isinstance(node, Mapping) and name in node:
                node = node[name]
            elif isinstance(node, list) and name.isdecimal() and int(name) < len(node):
                node = node[int(name)]
            elif number == root == len(parts) - 1 and name in self._anchored(node):
                node = self._anchored(node)[name]
            else:
                raise Unsupported(_missing(reference))
            if isinstance(node, Refusal):
                raise Unsupported(f"it refers to {shown(reference)[:256]}, {node.reason}")
        return node

    def _anchored(self, document: Any) -> Mapping[str, Any]:
        """Return what has a name by `$anchor` in a document, by that."""
        found = self._anchors.get(id(document))
        if found is None:
            found = self._anchors[id(document)] = dict(_anchors_in(document))
        return found


def _anchors_in(document: Any) -> Iterator[tuple[str, Any]]:
    waiting, seen = [document], set[int]()
    while waiting:
        node = waiting.pop()
        if not isinstance(node, Mapping | list) or id(node) in seen:
            continue
        seen.add(id(node))
        if isinstance(node, list):
            waiting += node
            continue
        if isinstance(node.get("$anchor"), str):
            yield node["$anchor"], node
        waiting += (part for key, part in node.items() if key != OTHERS)


def _of_mapping(target: object) -> object:
    """Return the reference that is meant by a target of a mapping, which may be a name."""
    is_name = isinstance(target, str) and not target.startswith("#")
    return place_of_schema(str(target)) if is_name else target


def _missing(reference: str) -> str:
    return f"it refers to {shown(reference)[:256]}, which does not exist"


class Derivations:
    """Which schemas extend which others by their `allOf`.

    Args:
        end: Returns the schema that references end at, always the same one, or None.
    """

    # By identity: references to one schema may be written in many ways.
    def __init__(self, end: Callable[[Any], Mapping[str, Any] | None]) -> None:
        self._end = end
        self._names: dict[int, str] = {}
        self._extensions: dict[int, list[Mapping[str, Any]]] = {}
        self._read: set[int] = set()

    def add(self, document: Any) -> list[tuple[Mapping[str, Any], Mapping[str, Any]]]:
        """Add the schemas that have names in a document; return what is new of them.

        Returns:
            Each schema that is extended, with one that extends it.
        """
        found: list[tuple[Mapping[str, Any], Mapping[str, Any]]] = []
        for name, node in self._named(document):
            schema = self._end(node)
            if schema is not None:
                self._names.setdefault(id(schema), name)
                found += self._read_bases(schema)
        return found

    def name_of(self, schema: Mapping[str, Any]) -> str:
        """Return the name of a schema; empty if it has none."""
        return self._names.get(id(schema), "")

    def of(self, schema: Mapping[str, Any]) -> list[Mapping[str, Any]]:
        """Return the schemas that extend one directly."""
        return self._extensions.get(id(schema), [])

    def below(self, *schemas: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
        """Yield all schemas that extend some, directly or not."""
        waiting = list(schemas)
        seen = set(map(id, waiting))
        for schema in waiting:
            for extension in self.of(schema):
                if id(extension) not in seen:
                    seen.add(id(extension))
                    waiting.append(extension)
                    yield extension

    def _read_bases(
        self, schema: Mapping[str, Any]
    ) -> Iterator[tuple[Mapping[str, Any], Mapping[str, Any]]]:
        waiting = [schema]
        while waiting:
            schema = waiting.pop()
            if id(schema) in self._read:
                continue
            self._read.add(id(schema))
            for base in self._bases(schema, Steps()):
                self._extensions.setdefault(id(base), []).append(schema)
                waiting.append(base)
                yield base, schema

    def _bases(self, schema: Mapping[str, Any], steps: Steps) -> Iterator[Mapping[str, Any]]:
        """Yield the schemas that one extends, which may stand in parts of its parts."""
        waiting = [schema]
        while waiting and steps.take():
            inner = waiting.pop(0)
            parts = list_of(inner.get("allOf"))
            if "$ref" in inner:
                parts = [{"$ref": inner["$ref"]}, *parts]
            for part in parts:
                base = self._end(part)
                if base is None or base is schema:
                    continue
                if base is part:
                    waiting.append(base)
                else:
                    yield base

    def _named(self, document: Any) -> Iterator[tuple[str, Any]]:
        """Yield the schemas of a document by their names; each may be a reference."""
        document = self._end(document)
        if document is None:
            return
        components = self._end(document.get("components")) or {}
        given = (components.get("schemas"), *map(document.get, ("definitions", "$defs", "schemas")))
        found = [mapping for mapping in map(self._end, given) if mapping is not None]
        if not found and _OF_NO_NAMES.isdisjoint(document):
            found = [document]
        for mapping in found:
            for name, node in mapping.items():
                yield str(name), node


def types_of(schema: Mapping[str, Any]) -> tuple[str, ...]:
    kind = schema.get("type")
    if isinstance(kind, str):
        return (kind,)
    return tuple(str(name) for name in kind) if isinstance(kind, list) else ()


def list_of(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []
