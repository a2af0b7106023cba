"""A sink in memory: the twin of the real ones, which fails when a test says so."""

from __future__ import annotations

from collections.abc import AsyncIterator

from leaseway.data_plane.audit.sinks.port import (
    ObjectExists,
    ObjectTooLarge,
    SinkError,
    StoredObject,
)
from leaseway.wire.bounds import MIB


class MemorySink:
    """Stores objects in a dictionary.

    Attributes:
        stored: The objects by name.
        is_down: Whether all requests fail.
        loses_replies: How many puts are stored and then fail.
        refused: How many requests have failed.
        largest: Bytes of the largest object that it takes.
    """

    part_size = 4 * MIB

    def __init__(self) -> None:
        self.stored: dict[str, bytes] = {}
        self.is_down = False
        self.loses_replies = 0
        self.refused = 0
        self.largest = MIB << 10

    async def put(self, name: str, content: bytes) -> None:
        self._check()
        if len(content) > self.largest:  # some sinks look at the size before they ask
            raise ObjectTooLarge(f"{name} is too large.")
        if name in self.stored:
            raise ObjectExists(f"{name} exists.")
        self.stored[name] = content
        if self.loses_replies:
            self.loses_replies -= 1
            raise SinkError("The reply was lost.")

    async def get(self, name: str) -> bytes:
        self._check()
        return self.stored[name]

    async def objects(self, below: str = "") -> AsyncIterator[StoredObject]:
        self._check()
        for name, content in list(self.stored.items()):
            if name.startswith(below):
                yield StoredObject(name, len(content))

    async def aclose(self) -> None:
        """Do nothing."""

    def _check(self) -> None:
        if self.is_down:
            self.refused += 1
            raise SinkError("The sink is down.")
