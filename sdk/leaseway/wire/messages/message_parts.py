"""Sync messages too long for one gRPC message, cut into parts and put together (DESIGN §8).

Both ends use it: a serialized `SyncRequest` or `SyncResponse` above 1 MiB travels as parts, each
in a message of its own, in order and with nothing between them. Pure.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from leaseway.v1 import sync_pb2
from leaseway.wire.bounds import MAX_MESSAGE, MIB

MAX_SYNC_MESSAGE: Final = 256 * MIB
"""The longest message that parts may add up to, in bytes."""


class OversizeMessage(Exception):
    """The parts of one message add up to more than the bound."""


def split(message: bytes) -> Iterator[sync_pb2.Part]:
    """Cut a serialized message into parts of at most 1 MiB; only the last has no `more`."""
    view = memoryview(message)
    last = max(len(view) - 1, 0) // MAX_MESSAGE
    for index in range(last + 1):
        data = view[index * MAX_MESSAGE : (index + 1) * MAX_MESSAGE]
        yield sync_pb2.Part(data=bytes(data), more=index < last)


class Joiner:
    """Puts the parts of one stream together again.

    Args:
        limit: The most bytes of one message.
    """

    def __init__(self, limit: int = MAX_SYNC_MESSAGE) -> None:
        self._limit = limit
        self._data = bytearray()

    def add(self, part: sync_pb2.Part) -> bytes | None:
        """Receive the next part; return the whole message with its last one, else None.

        Raises:
            OversizeMessage: The message exceeds the bound; what came of it is forgotten.
        """
        if len(self._data) + len(part.data) > self._limit:
            self._data = bytearray()
            raise OversizeMessage(
                f"A Sync message in parts exceeds {self._limit} bytes; end the stream and join "
                "again, or serve fewer tools from this control plane."
            )
        self._data += part.data
        if part.more:
            return None
        whole, self._data = bytes(self._data), bytearray()
        return whole
