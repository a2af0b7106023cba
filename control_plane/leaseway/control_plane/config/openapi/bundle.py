"""Brings the parts of a document that is split over files or addresses into one document. Pure.

Only what operations and security schemes need is read. Each other document stands under its own
name in the first, and references lead there; one that may not or cannot be read is a `Refusal`,
which costs only what refers to it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import quote, unquote, urldefrag, urljoin

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


def shown(reference: str) -> str:
    """Return a reference as messages name it."""
    name, _, pointer = reference.removeprefix(f"#/{OTHERS}/").partition("/")
    if not reference.startswith(f"#/{OTHERS}/"):
        return reference
    return _unescaped(name) + (f"#/{pointer}" if pointer else "")


class _Bundle:
    def __init__(self, document: dict[str, Any], address: str, read: Callable[[str], Any]) -> None:
        self._document = document
        self._address = address
        self._read = read
        self._others: dict[str, Any] = {}
        self._rewritten: set[int] = set()
        self._visited: set[int] = set()
        self._waiting: list[tuple[Any, str]] = []

    def run(self) -> None:
        self._rewrite(self._document, self._address)
        components = self._document.get("components")
        self._visit(self._document.get("paths"), "paths")
        self._visit(components.get("securitySchemes") if isinstance(components, dict) else None)
        self._visit(self._document.get("securityDefinitions"))
        while self._waiting:
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

    def _walk(self, node: dict[str, Any], key: str) -> None:
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
            name = _unescaped(part)
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
        escaped = quote(address.replace("~", "~0").replace("/", "~1"), safe="~")
        pointer = fragment if fragment.startswith("/") or not fragment else f"/{fragment}"
        return f"#/{OTHERS}/{escaped}{pointer}"


def _unescaped(part: str) -> str:
    return unquote(part).replace("~1", "/").replace("~0", "~")
