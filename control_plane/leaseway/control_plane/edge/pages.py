"""Long lists in pages: each at most 1 MiB, and at least one item."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, TypeVar

from google.protobuf.message import Message

from leaseway.wire import bounds

__all__ = ["one_page"]

_PAGE_SIZE: Final = bounds.MAX_MESSAGE - 16 * bounds.KIB
"""The rest of a message is for what is not items."""
_OVERHEAD: Final = 8

M = TypeVar("M", bound=Message)


def one_page(items: Iterable[tuple[str, M]]) -> tuple[list[M], str]:
    """Return the items of a page, and the token of its last one where another page follows.

    Args:
        items: What is left of the list, each with its token; made as they are taken.
    """
    page: list[M] = []
    size, last = 0, ""
    for token, item in items:
        size += item.ByteSize() + _OVERHEAD
        if page and size > _PAGE_SIZE:
            return page, last
        page.append(item)
        last = token
    return page, ""
