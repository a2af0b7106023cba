"""Readers of the values that keys declare as a shape (`leaseway.spec.keys`)."""

from __future__ import annotations

from typing import Any, assert_never

from leaseway.control_plane.config.schema.values import (
    Reader,
    boolean,
    choice,
    duration,
    integer,
    list_of,
    number,
    plain_text,
    size,
)
from leaseway.spec.keys import (
    Choice,
    Duration,
    Flag,
    ListOf,
    Number,
    OwnReader,
    Shape,
    Size,
    Text,
    Whole,
)


def reader_of(shape: Shape, own: Reader[Any] | None = None) -> Reader[Any]:
    """Return the reader of a shape.

    Args:
        shape: The values that a key accepts.
        own: The reader that is written for the key, if it has one.
    """
    match shape:
        case Flag():
            return boolean
        case Whole(smallest, largest):
            return integer(smallest, largest)
        case Number(least, most):
            return number(least, most)
        case Duration(least, most):
            return duration(least, most)
        case Size(smallest, largest):
            return size(smallest, largest)
        case Choice(words):
            return choice(*words)
        case Text(longest):
            return plain_text(longest=longest)
        case ListOf(item, limit):
            return list_of(reader_of(item), limit)
        case OwnReader():
            assert own is not None, "A key with a reader of its own has none."
            return own
        case _:
            assert_never(shape)
