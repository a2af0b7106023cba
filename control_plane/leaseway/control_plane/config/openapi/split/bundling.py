"""Brings what an OpenAPI document refers to in other documents into the first one. Pure.

Only what operations and security schemes need is read, and where a schema of theirs has a
discriminator, what the names of schemas lead to: it may be a subtype. Each other document stands
under its own name in the first, and references lead there.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from typing import Any, Final
from urllib.parse import urldefrag, urljoin

from leaseway.control_plane.config.openapi.references import (
    OTHERS,
    SEARCHED,
    Derivations,
    References,
    Refusal,
    Unsupported,
    place_of,
    place_of_schema,
)

MAX_DOCUMENTS: Final = 2_000
"""Other documents that one document may have."""
_MAX_UNSEARCHED: Final = 20
"""Documents that are named because they could not be read to look for subtypes."""

_UNNEEDED: Final = frozenset(
    ("responses", "callbacks", "webhooks", "example", "examples", "links", "externalDocs")
)
_NAMED: Final = frozenset(
    ("properties", "patternProperties", "schemas", "definitions", "$defs", "parameters", "paths")
)
"""Keywords whose members have names of the author's choice."""
_FILES: Final = (".yaml", ".yml", ".json")


class NotRead(Exception):
    """A document that may not or cannot be read; the message is the end of a sentence."""


_Read = Callable[[str], Any]


def bundle(document: Any, address: str, read: _Read, read_optional: _Read | None = None) -> None:
    """Add to a document the others that its operations need.

    Args:
        document: The document; modified.
        address: Its own, absolute.
        read: Returns the content of another document by its address. It raises NotRead.
        read_optional: Likewise, if nothing but subtypes is looked for in it; without it as `read`.
    """
    if isinstance(document, dict):
        _Bundle(document, address, read, read_optional or read).run()


class _Others(dict[str, Any]):
    """The other documents by their addresses: whatever is asked for is there, or is read.

    Args:
        read: Returns a document, or a Refusal.
    """

    def __init__(self, read: Callable[[str], Any]) -> None:
        super().__init__()
        self._read = read

    def __contains__(self, address: object) -> bool:
        return True

    def __missing__(self, address: str) -> Any:
        self[address] = self._read(address)
        return self[address]


class _Bundle:
    def __init__(
        self, document: dict[str, Any], address: str, read: _Read, read_optional: _Read
    ) -> None:
        self._document = document
        self._address = address
        self._read = read
        self._read_optional = read_optional
        self._others = _Others(self._needed)
        self._references = References(document)
        # The document of each of its parts, by their identities.
        self._owners: dict[int, Any] = {}
        self._visited: set[int] = set()
        self._waiting: list[tuple[Any, str]] = []
        # What may extend a visited base does not refer to it from there: all names are looked at.
        self._rewrite(document, address)
        for_names = {**document, OTHERS: _Others(self._looked_into)}
        self._derivations = Derivations(References(for_names).end)
        self._unsearched: list[Refusal] = []
        # A document in which nothing is needed is no reason to read what only its own names need.
        self._documents: list[Any] = [document]
        self._searched = {id(document)}
        self._named = 0
        self._bases: list[Mapping[str, Any]] = []
        self._of_bases: set[int] = set()

    def run(self) -> None:
        self._document[OTHERS] = self._others
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
        self._document[OTHERS] = dict(self._others)
        self._document[SEARCHED] = [*self._documents[1:], *self._unsearched]
        for key in (OTHERS, SEARCHED):
            if not self._document[key]:
                del self._document[key]

    def _visit(self, node: Any, key: str = "") -> None:
        if isinstance(node, dict | list) and id(node) not in self._visited:
            self._visited.add(id(node))
            self._waiting.append((node, key))
            self._search(self._owners.get(id(node), self._document))

    def _search(self, document: Any) -> None:
        """Look for subtypes in a document, too."""
        if id(document) not in self._searched:
            self._searched.add(id(document))
            self._documents.append(document)

    def _visit_subtypes(self) -> bool:
        """Visit what extends the visited schemas with a discriminator; return whether it is new."""
        if not self._bases and not self._of_bases:
            return False
        while self._named < len(self._documents):
            document = self._documents[self._named]
            self._named += 1
            for base, extension in self._derivations.add(document):
                if id(base) in self._of_bases:
                    self._bases.append(extension)
        while self._bases:
            schema = self._bases.pop()
            if id(schema) not in self._of_bases:
                self._of_bases.add(id(schema))
                self._visit(schema)
                self._bases += self._derivations.of(schema)
        return bool(self._waiting)

    def _walk(self, node: dict[str, Any], key: str) -> None:
        reference = node.get("$ref")
        if isinstance(reference, str):
            # The importer follows it, too, and says why it leads nowhere.
            with contextlib.suppress(Unsupported):
                self._visit(self._references.target(reference))
        if key not in _NAMED and "discriminator" in node:
            self._bases.append(node)
            for target in _mapping(node).values():
                self._visit(self._references.mapped(target))
        for name, part in node.items():
            if key in _NAMED or name not in _UNNEEDED:
                self._visit(part, "" if key in _NAMED else str(name))

    def _needed(self, address: str) -> Any:
        """Return a document that operations need."""
        content = self._content(address, self._read)
        if not isinstance(content, Refusal):
            self._search(content)
        return content

    def _looked_into(self, address: str) -> Any:
        """Return a document that names of schemas lead to, which may be those of subtypes."""
        known = self._others.get(address)
        if known is not None:
            return known
        content = self._content(address, self._read_optional)
        if not isinstance(content, Refusal):
            self._others[address] = content
        elif len(self._unsearched) < _MAX_UNSEARCHED:
            self._unsearched.append(Refusal(f"{address[:256]}, {content.reason}"))
        return content

    def _content(self, address: str, read: _Read) -> Any:
        try:
            if len(self._others) >= MAX_DOCUMENTS:
                raise NotRead(f"and more than {MAX_DOCUMENTS} documents are not read")
            content = read(address)
        except NotRead as error:
            return Refusal(str(error))
        self._rewrite(content, address)
        return content

    def _rewrite(self, content: Any, base: str) -> None:
        """Make all references of a document lead into the first one."""
        components = content.get("components") if isinstance(content, dict) else None
        schemas = components.get("schemas") if isinstance(components, dict) else None
        names = schemas if isinstance(schemas, dict) else {}
        waiting = [content]
        while waiting:
            node = waiting.pop()
            if not isinstance(node, dict | list) or id(node) in self._owners:
                continue
            self._owners[id(node)] = content
            waiting += node.values() if isinstance(node, dict) else node
            if isinstance(node, dict) and isinstance(node.get("$ref"), str):
                node["$ref"] = self._local(node["$ref"], base)
            mapping = _mapping(node)
            if mapping and id(mapping) not in self._owners:
                self._owners[id(mapping)] = content
                for value, target in mapping.items():
                    mapping[value] = self._local_target(target, base, names)

    def _local_target(self, target: Any, base: str, names: Mapping[str, Any]) -> Any:
        """Return a target of a mapping, which is a name or a reference, for the first document."""
        if not isinstance(target, str):
            return target
        if target in names:
            return self._local(place_of_schema(target), base)
        is_reference = "/" in target or "#" in target or target.lower().endswith(_FILES)
        return self._local(target, base) if is_reference else target

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


def _mapping(node: Any) -> dict[str, Any]:
    """Return the mapping of a schema's discriminator; empty if it has none."""
    found = node.get("discriminator") if isinstance(node, dict) else None
    # A member may have this name, too: its schema has no name of a property.
    named = isinstance(found, dict) and isinstance(found.get("propertyName"), str)
    mapping = found.get("mapping") if isinstance(found, dict) and named else None
    return mapping if isinstance(mapping, dict) else {}
