"""What a sink of the audit does. Its twin in memory is `tests/data_plane/audit/memory_sink.py`."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Protocol


class SinkError(Exception):
    """The sink did not do what was asked; the text is a sentence without secrets."""


class ObjectTooLarge(SinkError):
    """The sink takes no object of this size; it may take a smaller one."""


class ObjectExists(SinkError):
    """The sink already has an object with this name."""


@dataclass(frozen=True, slots=True)
class StoredObject:
    """An object of a sink.

    Attributes:
        name: Its name, below the prefix of the sink.
        size: Its size in bytes.
    """

    name: str
    size: int


class Sink(Protocol):
    """Stores objects, and never changes or deletes one."""

    @property
    def part_size(self) -> int:
        """Bytes that an object has at most, unless records that share a hash are longer."""

    async def put(self, name: str, content: bytes) -> None:
        """Store an object durably; when this returns, the sink has acknowledged it.

        Raises:
            ObjectExists: An object has this name; it is unchanged.
            ObjectTooLarge: The sink takes no object of this size.
            SinkError: The sink failed, and may have stored the object.
        """

    async def get(self, name: str) -> bytes:
        """Return an object.

        Raises:
            SinkError: The sink failed, or has no such object.
        """

    def objects(self, below: str = "") -> AsyncIterator[StoredObject]:
        """Yield the objects whose names begin with a folder, or all objects, in any order.

        Raises:
            SinkError: The sink failed.
        """

    async def aclose(self) -> None:
        """Close its connections; the next request opens one again."""
