"""A bounded memory: what is remembered of any number of names, without growing for ever. Pure."""

from __future__ import annotations

from collections import OrderedDict
from typing import TypeVar

KeyT = TypeVar("KeyT")
ValueT = TypeVar("ValueT")


class Newest(OrderedDict[KeyT, ValueT]):
    """A mapping of its newest entries, the newest last; where there is no room, the oldest goes.

    An entry that is set again is the newest. Reading does not change the order. It is an
    `OrderedDict`, which forgets its first entry at once, while a `dict` has to search for it past
    all entries that were removed before.

    Args:
        limit: The number of entries that it has room for, at least 1.
    """

    __slots__ = ("_limit",)

    def __init__(self, limit: int) -> None:
        super().__init__()
        self._limit = limit

    def __setitem__(self, key: KeyT, value: ValueT) -> None:
        super().__setitem__(key, value)
        self.move_to_end(key)
        if len(self) > self._limit:
            self.popitem(last=False)

    def __reduce__(self) -> tuple[object, ...]:
        """Return what a copy is made from; that of an `OrderedDict` would have no limit."""
        return type(self), (self._limit,), None, None, iter(self.items())
