"""Equal definitions are one object: each of hundreds of instances lists the same. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping


def shared(listed: Mapping[str, bytes], known: Mapping[str, bytes]) -> dict[str, bytes]:
    """Return definitions by name, with the known object for each that equals it."""
    return {
        name: known[name] if known.get(name) == definition else definition
        for name, definition in listed.items()
    }


def shared_items(listed: Iterable[bytes], known: Iterable[bytes]) -> tuple[bytes, ...]:
    """Return definitions, with the known object for each that equals it."""
    objects = {definition: definition for definition in known}
    return tuple(objects.get(definition, definition) for definition in listed)
