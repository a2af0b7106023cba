"""The references of an OpenAPI document: brings what they lead to into one document, follows them.

Of a document that is split over files or addresses, only what operations and security schemes need
is read. Each other document stands under its own name in the first, and references lead there; one
that may not or cannot be read is a `Refusal`, which costs only what refers to it. Pure.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import quote, unquote, urldefrag, urljoin

from leaseway.wire.json_pointer import escaped, unescaped

OTHERS: Final = "x-leaseway-documents"
"""The key of the other documents in the first, by address."""
MAX_DOCUMENTS: Final = 2_000
"""Other documents that one document may have."""

_UNNEEDED: Final = frozenset(
    ("responses", "callbacks", "webhooks", "example", "examples", "links", "externalDocs")
)
_NAMED: Final = frozenset(
    ("properties", "patternProperties", "schemas", "definitions", "$defs", "parameters", "paths")
)
"""Keywords whose members have names of the author's choice."""
MAX_REFERENCES: Final = 50
"""References on the way to one part of a document."""
_MAX_REFERENCE: Final = 4_096
"""Characters of a reference; each use of it takes steps by its length."""
_MAX_MISSING: Final = 100
_MAX_STEPS: Final = 500
"""Parts of a schema that one question about it may visit; documents may repeat them without end."""


@dataclass(frozen=True)
class Refusal:
    """Stands for a document that is not there; `reason` is the end of a sentence."""

    reason: str


class NotRead(Exception):
    """A document that may not or cannot be read; the message is the end of a sentence."""


def bundle(document: Any, address: str, read: Callable[[str], Any]) -> None:
    """Add to a document the others that its operations need.

    Args:
        document: The document; modified.
        address: Its own, absolute.
        read: Returns the content of another document by its address. It raises NotRead.
    """
    if isinstance(document, dict):
        _Bundle(document, address, read).run()


def place_of(address: str) -> str:
    """Return the reference to another document in the first one."""
    return f"#/{OTHERS}/{quote(escaped(address), safe='~')}"


def named_schemas(document: Any, place: str = "#") -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yield a document's mappings of schemas by name, with the reference to each.

    Args:
        document: The document; may be anything.
        place: The reference to the document.
    """
    if not isinstance(document, Mapping):
        return
    components = document.get("components")
    schemas = components.get("schemas") if isinstance(components, Mapping) else None
    if isinstance(schemas, Mapping):
        yield f"{place}/components/schemas", schemas
    if isinstance(document.get("definitions"), Mapping):
        yield f"{place}/definitions", document["definitions"]


def shown(reference: str) -> str:
    """Return a reference as messages name it."""
    name, _, pointer = reference.removeprefix(f"#/{OTHERS}/").partition("/")
    if not reference.startswith(f"#/{OTHERS}/"):
        return reference
    return unescaped(unquote(name)) + (f"#/{pointer}" if pointer else "")


class _Bundle:
    def __init__(self, document: dict[str, Any], address: str, read: Callable[[str], Any]) -> None:
        self._document = document
        self._address = address
        self._read = read
        self._others: dict[str, Any] = {}
        self._rewritten: set[int] = set()
        self._visited: set[int] = set()
        self._waiting: list[tuple[Any, str]] = []
        self._has_subtypes = False

    def run(self) -> None:
        self._rewrite(self._document, self._address)
        components = self._document.get("components")
        self._visit(self._document.get("paths"), "paths")
        self._visit(components.get("securitySchemes") if isinstance(components, dict) else None)
        self._visit(self._document.get("securityDefinitions"))
        while self._waiting or self._visit_subtypes():
            node, key = self._waiting.pop()
            if isinstance(node, dict):
                self._walk(node, key)
            else:
                for item in node:
                    self._visit(item)
        if self._others:
            self._document[OTHERS] = self._others

    def _visit(self, node: Any, key: str = "") -> None:
        if isinstance(node, dict | list) and id(node) not in self._visited:
            self._visited.add(id(node))
            self._waiting.append((node, key))

    def _visit_subtypes(self) -> bool:
        """Visit what may extend a schema with a discriminator, which does not refer to it."""
        if self._has_subtypes:
            for document in (self._document, *self._others.values()):
                for _, schemas in named_schemas(document):
                    for schema in schemas.values():
                        if isinstance(schema, dict) and "allOf" in schema:
                            self._visit(schema)
        return bool(self._waiting)

    def _walk(self, node: dict[str, Any], key: str) -> None:
        self._has_subtypes = self._has_subtypes or (key not in _NAMED and "discriminator" in node)
        reference = node.get("$ref")
        if isinstance(reference, str):
            self._follow(reference)
        for name, part in node.items():
            if key in _NAMED or name not in _UNNEEDED:
                self._visit(part, "" if key in _NAMED else str(name))

    def _follow(self, reference: str) -> None:
        """Visit the target of a rewritten reference, and all references on the way to it."""
        node: Any = self._document
        for part in reference.split("/")[1:]:
            name = unescaped(unquote(part))
            if node is self._document and name == OTHERS:
                node = self._others
            elif node is self._others:
                node = self._other(name)
            elif isinstance(node, dict):
                if name not in node and "$ref" in node:
                    self._visit(node)
                    return  # the importer follows it, too, and says what is missing
                node = node.get(name)
            elif isinstance(node, list) and name.isdecimal() and int(name) < len(node):
                node = node[int(name)]
            else:
                return
        self._visit(node)

    def _other(self, address: str) -> Any:
        if address not in self._others:
            try:
                if len(self._others) >= MAX_DOCUMENTS:
                    raise NotRead(f"and more than {MAX_DOCUMENTS} documents are not read")
                content = self._read(address)
                self._rewrite(content, address)
            except NotRead as error:
                content = Refusal(str(error))
            self._others[address] = content
        return self._others[address]

    def _rewrite(self, content: Any, base: str) -> None:
        """Make all references of a document lead into the first one."""
        waiting = [content]
        while waiting:
            node = waiting.pop()
            if not isinstance(node, dict | list) or id(node) in self._rewritten:
                continue
            self._rewritten.add(id(node))
            waiting += node.values() if isinstance(node, dict) else node
            if isinstance(node, dict) and isinstance(node.get("$ref"), str):
                node["$ref"] = self._local(node["$ref"], base)

    def _local(self, reference: str, base: str) -> str:
        reference = reference.encode(errors="replace").decode()  # JSON may hold half a character
        try:
            address, fragment = urldefrag(urljoin(base, reference.strip()))
        except ValueError:
            return reference
        if address == self._address:
            return f"#{fragment}"
        pointer = fragment if fragment.startswith("/") or not fragment else f"/{fragment}"
        return f"{place_of(address)}{pointer}"


class Unsupported(Exception):
    """A part of a document that can't be converted; the message is the end of a sentence."""


class Steps:
    """A limit of the parts of a document that one question about it visits."""

    def __init__(self, limit: int = _MAX_STEPS) -> None:
        self._left = limit

    def take(self) -> bool:
        """Return whether another part may be visited."""
        self._left -= 1
        return self._left >= 0


class References:
    """Resolves the `$ref`s of a document.

    Args:
        document: The document.
        lenient: Whether a reference without a target stands for an empty mapping, so that a schema
            accepts anything there.

    Attributes:
        document: The document.
        missing: Why references that stand for an empty mapping have no target, each once.
    """

    def __init__(self, document: Mapping[str, Any], *, lenient: bool = False) -> None:
        self.missing: dict[str, None] = {}
        self.document = document
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
            if len(self.missing) < _MAX_MISSING:
                self.missing[str(error)] = None
            return {}

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
        missing = f"it refers to {shown(reference)[:256]}, which does not exist"
        node: Any = self.document
        if not reference.startswith("#/") and reference != "#":
            raise Unsupported(missing)
        for part in reference.split("/")[1:]:
            name = unescaped(unquote(part))
            while isinstance(node, Mapping) and name not in node and "$ref" in node:
                node = self._target(node["$ref"], steps)  # such as of all schemas together
            if isinstance(node, Mapping) and name in node:
                node = node[name]
            elif isinstance(node, list) and name.isdecimal() and int(name) < len(node):
                node = node[int(name)]
            else:
                raise Unsupported(missing)
            if isinstance(node, Refusal):
                raise Unsupported(f"it refers to {shown(reference)[:256]}, {node.reason}")
        return node


def types_of(schema: Mapping[str, Any]) -> tuple[str, ...]:
    kind = schema.get("type")
    if isinstance(kind, str):
        return (kind,)
    return tuple(str(name) for name in kind) if isinstance(kind, list) else ()


def list_of(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []
