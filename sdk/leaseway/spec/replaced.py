"""What a worker resolves and replaces in settings, found by what their keys declare. Pure."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, is_dataclass
from typing import Any, Final

from leaseway.spec.keys import Key, OwnReader, keys_of
from leaseway.spec.references import Value

ITSELF: Final = "value"
"""The key of a mapping that can be written without it, so that its path is the mapping's."""


@dataclass(frozen=True)
class Replaced:
    """What a worker resolves and replaces.

    Attributes:
        values: Values that it resolves, by the path of their key.
        texts: Other texts in which it replaces `${NAME}`, each with the path of its key.
        lease_texts: All texts in which it also fills in the names of a lease.
    """

    values: Mapping[str, Value]
    texts: tuple[tuple[str, str], ...]
    lease_texts: tuple[str, ...]


def replaced_in(settings: object) -> Replaced:
    """Return what a worker resolves and replaces in a part's settings."""
    values: dict[str, Value] = {}
    texts: list[tuple[str, str]] = []
    lease_texts: list[str] = []
    for key in _replaced_keys(settings):
        for path, found in _walk(key.name, key, value_at(settings, key.path)):
            if isinstance(found, Value):
                values[path] = found
                is_text, text = found.kind == "literal", found.text
            else:
                texts.append((path, found))
                is_text, text = True, found
            if is_text and key.replaces == "lease_names":
                lease_texts.append(text)
    return Replaced(values, tuple(texts), tuple(lease_texts))


def value_at(settings: object, path: str) -> Any:
    """Return the value of a key by its path, such as `builtin.roots`; None without one."""
    found: Any = settings
    for name in path.split("."):
        found = found.get(name) if isinstance(found, Mapping) else getattr(found, name)
    return found


def walk_json(node: Any, convert: Callable[[str, Value], Any], path: str = "") -> Any:
    """Return parsed JSON with each text and reference converted by a function of its path.

    A mapping of exactly one key `env`, `secret` or `file` with a text is a reference.
    """
    match node:
        case str():
            return convert(path, Value("literal", node))
        case {"env": str(name)} | {"secret": str(name)} | {"file": str(name)} if len(node) == 1:
            return convert(path, Value(next(iter(node)), name))
        case dict():
            return {key: walk_json(value, convert, f"{path}.{key}") for key, value in node.items()}
        case list():
            return [walk_json(item, convert, f"{path}[{i}]") for i, item in enumerate(node)]
        case _:
            return node


def kept_as(key: Key) -> str:
    """Return what the spec keeps of a key's value; see `OwnReader`."""
    return key.shape.kept if isinstance(key.shape, OwnReader) else "value"


def _replaced_keys(settings: object) -> tuple[Key, ...]:
    """Return the keys in whose values a worker replaces something, or that name its files."""
    kind: Any = type(settings)
    return _keys_replaced_in(kind)


@functools.cache
def _keys_replaced_in(kind: type[Any]) -> tuple[Key, ...]:
    return tuple(
        key for key in keys_of(kind) if key.replaces != "nothing" or kept_as(key) == "file"
    )


def _walk(path: str, key: Key, value: Any) -> Iterator[tuple[str, Value | str]]:
    """Yield the values and texts of a key's value by their paths."""
    match value:
        case None | "":
            return
        case Value():
            yield path, value
        case str() if kept_as(key) == "file":
            yield path, Value("file", value)
        case str() if kept_as(key) == "json":
            found: dict[str, Value] = {}
            walk_json(json.loads(value), found.__setitem__, path)
            yield from found.items()
        case str():
            yield path, value
        case tuple():
            for index, item in enumerate(value):
                yield from _walk(f"{path}[{index}]", key, item)
        case Mapping():
            for name, member in value.items():
                yield from _walk(f"{path}.{name}", key, member)
        case _ if is_dataclass(value):
            for inner in _replaced_keys(value):
                within = path if inner.name == ITSELF else f"{path}.{inner.name}"
                yield from _walk(within, inner, value_at(value, inner.path))
        case _:
            raise TypeError(f"A worker replaces nothing in a {type(value).__name__} ({path}).")
