"""Long lists in pages: how much fits into one, and the token that says where the next begins.

A token holds the key of the last item of its page and the name of its listing. A page begins
behind that key, whether the item is still there or not: what comes and goes between two pages
makes none of the others missed or listed twice. Whoever lists keeps nothing meanwhile, so that a
restart between two pages goes unnoticed too.
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final, Protocol, TypeVar

from leaseway.wire import bounds
from leaseway.wire.errors import Fault, Reason

Key = tuple[str, ...]
"""What a listing is ordered by."""

_PAGE_SIZE: Final = bounds.MAX_MESSAGE - 16 * bounds.KIB
"""Bytes of a page's items; the rest of a message is for what is not items."""
_OVERHEAD: Final = 8
_LONGEST_TOKEN: Final = 2 * bounds.MIB
"""Characters: a template of URIs, which is a key, may be nearly as long as a definition."""
_CHECKSUM: Final = 6


class _Message(Protocol):
    def ByteSize(self) -> int: ...  # noqa: N802 - protobuf's name


class PageRequest(Protocol):
    """What each request for a page says."""

    @property
    def page_token(self) -> str:
        """The token of the page before, or an empty one."""

    @property
    def page_size(self) -> int:
        """The most items wanted; 0 for as many as fit."""


S = TypeVar("S")
M = TypeVar("M", bound=_Message)


@dataclass(frozen=True)
class PageStart:
    """Where a page begins.

    Attributes:
        listing: The RPC's name; a token of one listing is none of another.
        after: The key that the page's first item is behind; empty for the first page.
        most: How many items the caller wants at most; 0 for as many as fit.
    """

    listing: str
    after: Key = ()
    most: int = 0


def page_start(listing: str, request: PageRequest) -> PageStart:
    """Return where the page that a request asks for begins.

    Raises:
        Fault: INVALID_REQUEST: its token is none that this listing gives out.
    """
    token = request.page_token
    after = _key_of(listing, token) if token else ()
    if after is None:
        raise Fault(
            Reason.INVALID_REQUEST,
            f"The page_token is none that {listing} gave out. Send the next_page_token of the page"
            " before, unchanged, or none to begin anew.",
        )
    return PageStart(listing, after, request.page_size)


def one_page(
    start: PageStart, sources: Iterable[tuple[Key, S]], message: Callable[[S], M]
) -> tuple[list[M], str]:
    """Return the items of a page, at least one, and the next page's token or an empty one.

    Args:
        start: Where it begins.
        sources: The whole list, ordered by keys of which no two are equal.
        message: Makes an item as it is sent; called for those that the page takes, and one more.
    """
    page: list[M] = []
    size, last = 0, start.after
    for key, source in sources:
        if key <= start.after:
            continue
        if start.most and len(page) == start.most:
            return page, _token_of(start.listing, last)
        item = message(source)
        size += item.ByteSize() + _OVERHEAD
        if page and size > _PAGE_SIZE:
            return page, _token_of(start.listing, last)
        page.append(item)
        last = key
    return page, ""


def fitting(messages: Iterable[M]) -> list[M]:
    """Return the first messages, as many as fit into a page and at least one."""
    taken: list[M] = []
    size = 0
    for message in messages:
        size += message.ByteSize() + _OVERHEAD
        if taken and size > _PAGE_SIZE:
            break
        taken.append(message)
    return taken


def _token_of(listing: str, key: Key) -> str:
    payload = json.dumps([listing, *key], ensure_ascii=False).encode()
    return base64.urlsafe_b64encode(_checksum(payload) + payload).decode()


def _key_of(listing: str, token: str) -> Key | None:
    if len(token) > _LONGEST_TOKEN:
        return None
    try:
        data = base64.b64decode(token.encode("ascii"), altchars=b"-_", validate=True)
    except ValueError:
        return None
    payload = data[_CHECKSUM:]
    if data[:_CHECKSUM] != _checksum(payload):
        return None
    try:
        named, *key = json.loads(payload)
    except (ValueError, TypeError, RecursionError):
        return None
    is_key = named == listing and all(isinstance(part, str) for part in key)
    return tuple(key) if is_key else None


def _checksum(payload: bytes) -> bytes:
    return hashlib.sha256(b"leaseway page " + payload).digest()[:_CHECKSUM]
