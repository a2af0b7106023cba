"""Decodes received messages within limits, which are checked on the encoded bytes.

A message in memory is far larger than its bytes: an empty text takes two bytes on the wire and at
least 16 as an element of a list. So the size and the number of fields are limited before decoding.
Pure.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any, Final

from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import DecodeError

from leaseway.wire import bounds
from leaseway.wire.errors import Fault, Reason

_UNCHECKED: Final = 16 * bounds.KIB
"""Messages up to this size are decoded without counting: their fields take at most 2 MiB."""

_VARINT, _FIXED64, _BYTES, _GROUP_START, _GROUP_END, _FIXED32 = range(6)


@dataclass(frozen=True, slots=True)
class MessageLimit:
    """The limits of a received message.

    Attributes:
        size: Bytes.
        fields: Fields on all levels, also of the elements of lists and maps.
    """

    size: int
    fields: int


DEFAULT_LIMIT: Final = MessageLimit(bounds.MAX_MESSAGE, bounds.MAX_FIELDS)


class MessageDecoder:
    """Decodes the messages of one RPC.

    Args:
        name: The RPC's name, for messages.
        decode: Decodes a message; `FromString` of a message class, whose fields are then counted.
    """

    def __init__(self, name: str, decode: Callable[[bytes], Any], limit: MessageLimit) -> None:
        self._name = name
        self._decode = decode
        self._limit = limit
        self._unchecked = min(limit.size, _UNCHECKED)
        self._type: Descriptor | None = getattr(
            getattr(decode, "__self__", None), "DESCRIPTOR", None
        )

    def __call__(self, content: bytes) -> Any:
        """Return a message.

        Raises:
            Fault: INVALID_REQUEST: it is too large or not valid.
        """
        size = len(content)
        if size > self._unchecked:
            self._check(content, size)
        try:
            return self._decode(content)
        except DecodeError:
            raise Fault(
                Reason.INVALID_REQUEST,
                f"The request of {self._name} is not a valid message. Build it with this release's "
                "protos; texts are UTF-8.",
            ) from None

    def _check(self, content: bytes, size: int) -> None:
        if size > self._limit.size:
            raise Fault(
                Reason.INVALID_REQUEST,
                f"The request of {self._name} has {size} bytes; it may have at most "
                f"{self._limit.size}. Send less in one request.",
            )
        if self._type is None or size < 2 * self._limit.fields:  # a field has at least two bytes
            return
        if count_fields(content, self._type, self._limit.fields) > self._limit.fields:
            raise Fault(
                Reason.INVALID_REQUEST,
                f"The request of {self._name} has more than {self._limit.fields} values. Send "
                "fewer in one request.",
            )


def count_fields(  # noqa: C901 - one loop, without a function call for each field
    content: bytes, message_type: Descriptor, limit: int
) -> int:
    """Count the fields of an encoded message on all levels; stop after more than `limit`.

    Counting ends at the first invalid byte, which the decoder reports.
    """
    count = 0
    parts: list[tuple[int, int, Descriptor]] = [(0, len(content), message_type)]
    try:
        while parts:
            place, end, part_type = parts.pop()
            nested = _nested(part_type)
            while place < end:
                count += 1
                if count > limit:
                    return count
                tag = content[place]
                place += 1
                if tag >= 0x80:
                    tag, place = _varint(content, place - 1)
                kind = tag & 7
                if kind == _BYTES:
                    size = content[place]
                    place += 1
                    if size >= 0x80:
                        size, place = _varint(content, place - 1)
                    child = nested.get(tag >> 3)
                    if child is not None and size:
                        parts.append((place, min(place + size, end), child))
                    place += size
                elif kind == _VARINT:
                    while content[place] >= 0x80:
                        place += 1
                    place += 1
                elif kind == _FIXED64:
                    place += 8
                elif kind == _FIXED32:
                    place += 4
                elif kind not in (_GROUP_START, _GROUP_END):
                    return count
    except (IndexError, ValueError):
        return count
    return count


def _varint(content: bytes, place: int) -> tuple[int, int]:
    """Return an integer and the place after it."""
    value = shift = 0
    while True:
        byte = content[place]
        place += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, place
        shift += 7
        if shift > 63:
            raise ValueError("The integer has more than 64 bits.")


@cache
def _nested(message_type: Descriptor) -> Mapping[int, Descriptor]:
    """Return the fields that contain messages, by number."""
    return {
        field.number: field.message_type
        for field in message_type.fields
        if field.type == FieldDescriptor.TYPE_MESSAGE and field.message_type is not None
    }
