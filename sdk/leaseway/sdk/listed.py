"""What lists of tools, prompts and resources have in common."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import Any, TypeVar, overload

__all__ = ["Listed", "json_object"]

ItemT = TypeVar("ItemT")


class Listed(Sequence[ItemT]):
    """Items as they were at one registry version.

    Attributes:
        registry_version: The version that they were read at; it only grows.
        pending: Ids of servers that have no first result yet, so that theirs are missing.
    """

    __slots__ = ("_items", "pending", "registry_version")

    def __init__(
        self, items: Iterable[ItemT], registry_version: int, pending: Iterable[str]
    ) -> None:
        self._items = tuple(items)
        self.registry_version = registry_version
        self.pending = tuple(pending)

    @overload
    def __getitem__(self, index: int) -> ItemT: ...

    @overload
    def __getitem__(self, index: slice) -> Sequence[ItemT]: ...

    def __getitem__(self, index: int | slice) -> ItemT | Sequence[ItemT]:
        return self._items[index]

    def __len__(self) -> int:
        return len(self._items)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({len(self)} at version {self.registry_version})"


def json_object(data: bytes) -> dict[str, Any]:
    """Return an object of the catalog; an empty one for none."""
    value = json.loads(data) if data else {}
    return value if isinstance(value, dict) else {}
