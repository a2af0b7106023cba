"""Splits sync messages that are too long for one gRPC message, and joins them (design.md#sync).

A serialized `SyncRequest` or `SyncResponse` above 1 MiB is sent as parts, each in its own message,
in order and with nothing between them. Pure.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from leaseway.v1 import sync_pb2
from leaseway.wire.bounds import MAX_MESSAGE, MIB

MAX_SYNC_MESSAGE: Final = 256 * MIB
"""Maximum length of a joined message in bytes."""


class OversizeMessage(Exception):
    """The parts of one message exceed the limit."""


def split(message: bytes) -> Iterator[sync_pb2.Part]:
    """Split a serialized message into parts of at most 1 MiB; all but the last have `more`."""
    view = memoryview(message)
    last = max(len(view) - 1, 0) // MAX_MESSAGE
    for index in range(last + 1):
        data = view[index * MAX_MESSAGE : (index + 1) * MAX_MESSAGE]
        yield sync_pb2.Part(data=bytes(data), more=index < last)


class Joiner:
    """Joins the parts of one stream.

    Args:
        limit: Maximum length of a message in bytes.
    """

    def __init__(self, limit: int = MAX_SYNC_MESSAGE) -> None:
        self._limit = limit
        self._data = bytearray()

    def add(self, part: sync_pb2.Part) -> bytes | None:
        """Add the next part; return the whole message after its last part, else None.

        Raises:
            OversizeMessage: The message exceeds the limit; its parts are dropped.
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
