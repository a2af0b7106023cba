"""The canonical form of values: equal values have equal bytes, in every version that knows them.

A dataclass becomes a mapping of the fields that differ from their defaults, so that a field added
later changes the bytes only of the values that use it. Pure.
"""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Mapping
from dataclasses import MISSING, fields, is_dataclass
from typing import Any, Final

import msgspec

_encode = msgspec.json.Encoder(order="deterministic").encode
_EXACT: Final = 2**53
"""Below it, a float without a fraction is written as an integer, as whichever of the two it is."""


def canonical_bytes(value: object) -> bytes:
    """Return the canonical JSON of a value made of dataclasses, mappings, tuples and scalars."""
    return _encode(_plain(value))


def digest(*parts: bytes) -> str:
    """Return the hash of a sequence of JSON texts."""
    return hashlib.sha256(b"\n".join(parts)).hexdigest()[:32]


def plain_fields(value: object, declared_by: type, *, without: str = "") -> dict[str, Any]:
    """Return the fields that a dataclass declares, of a value of it or of a subclass."""
    return {
        name: _plain(found)
        for name, default in _defaults(declared_by)
        if name != without and (found := getattr(value, name)) != default
    }


def _plain(value: Any) -> Any:
    match value:
        case str() | bool() | int() | None:
            return value
        case float():
            return int(value) if value.is_integer() and abs(value) < _EXACT else value
        case tuple() | list():
            return [_plain(item) for item in value]
        case Mapping():
            return {name: _plain(item) for name, item in value.items()}
        case _ if is_dataclass(value):
            return plain_fields(value, type(value))
        case _:
            raise TypeError(f"A {type(value).__name__} has no canonical form.")


@functools.cache
def _defaults(declared_by: type) -> tuple[tuple[str, Any], ...]:
    return tuple(
        (
            field.name,
            field.default if field.default_factory is MISSING else field.default_factory(),
        )
        for field in fields(declared_by)
    )
