"""Splits long lists into pages, with tokens for the next page, and reads all pages of a list.

A token holds the key of the last item of its page and the name of its listing. The next page starts
after that key, even if the item was removed: changes between two pages cause no other item to be
missed or repeated. The server keeps no state, so that a restart between two pages has no effect.
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable
from dataclasses import dataclass
from typing import Final, Protocol, TypeVar

from leaseway.wire import bounds
from leaseway.wire.errors import Fault, Reason

SortKey = tuple[str, ...]
"""The sort key of an item."""

_PAGE_SIZE: Final = bounds.MAX_MESSAGE - 16 * bounds.KIB
"""Bytes of a page's items; the rest of a message is for its other fields."""
_OVERHEAD: Final = 8
_MAX_TOKEN: Final = 2 * bounds.MIB
"""Characters: a URI template, which is a key, may be nearly as long as a definition."""
_CHECKSUM: Final = 6


class _Message(Protocol):
    def ByteSize(self) -> int: ...  # noqa: N802 - protobuf's name


class PageRequest(Protocol):
    """The fields of every request for a page."""

    @property
    def page_token(self) -> str:
        """The token from the previous page, or empty for the first."""

    @property
    def page_size(self) -> int:
        """Maximum number of items; 0 for as many as fit."""


class Page(Protocol):
    """One page of a list."""

    @property
    def next_page_token(self) -> str:
        """The token of the next page; empty on the last page."""


S = TypeVar("S")
PageT = TypeVar("PageT", bound=Page)
M = TypeVar("M", bound=_Message)


@dataclass(frozen=True)
class PageStart:
    """The start of a page.

    Attributes:
        listing: The RPC's name; a token is only valid for its own listing.
        after: The key after which the page starts; empty for the first page.
        limit: Maximum number of items; 0 for as many as fit.
    """

    listing: str
    after: SortKey = ()
    limit: int = 0


def page_start(listing: str, request: PageRequest) -> PageStart:
    """Return the start of the requested page.

    Raises:
        Fault: INVALID_REQUEST: the token is not from this listing.
    """
    token = request.page_token
    after = _key_of(listing, token) if token else ()
    if after is None:
        raise Fault(
            Reason.INVALID_REQUEST,
            f"The page_token is not from {listing}. Send the next_page_token of the previous page "
            "unchanged, or none to start again.",
        )
    return PageStart(listing, after, request.page_size)


def one_page(
    start: PageStart, sources: Iterable[tuple[SortKey, S]], message: Callable[[S], M]
) -> tuple[list[M], str]:
    """Return the items of a page, at least one, and the next page's token or an empty one.

    Args:
        sources: The whole list, ordered by unique keys.
        message: Converts an item for sending; called for the page's items and one more.
    """
    page: list[M] = []
    size, last = 0, start.after
    for key, source in sources:
        if key <= start.after:
            continue
        if start.limit and len(page) == start.limit:
            return page, _token_of(start.listing, last)
        item = message(source)
        size += item.ByteSize() + _OVERHEAD
        if page and size > _PAGE_SIZE:
            return page, _token_of(start.listing, last)
        page.append(item)
        last = key
    return page, ""


async def every_page(read: Callable[[str], Awaitable[PageT]]) -> AsyncGenerator[PageT]:
    """Yield the pages of a list.

    Args:
        read: Reads the page of a token; an empty token stands for the first page.
    """
    token = ""
    while True:
        page = await read(token)
        yield page
        token = page.next_page_token
        if not token:
            return


def fitting(messages: Iterable[M]) -> list[M]:
    """Return the first messages, as many as fit into a page, but at least one."""
    page: list[M] = []
    size = 0
    for message in messages:
        size += message.ByteSize() + _OVERHEAD
        if page and size > _PAGE_SIZE:
            break
        page.append(message)
    return page


def _token_of(listing: str, key: SortKey) -> str:
    payload = json.dumps([listing, *key], ensure_ascii=False).encode()
    return base64.urlsafe_b64encode(_checksum(payload) + payload).decode()


def _key_of(listing: str, token: str) -> SortKey | None:
    if len(token) > _MAX_TOKEN:
        return None
    try:
        data = base64.b64decode(token.encode("ascii"), altchars=b"-_", validate=True)
    except ValueError:
        return None
    payload = data[_CHECKSUM:]
    if data[:_CHECKSUM] != _checksum(payload):
        return None
    try:
        name, *key = json.loads(payload)
    except (ValueError, TypeError, RecursionError):
        return None
    is_key = name == listing and all(isinstance(part, str) for part in key)
    return tuple(key) if is_key else None


def _checksum(payload: bytes) -> bytes:
    return hashlib.sha256(b"leaseway page " + payload).digest()[:_CHECKSUM]
