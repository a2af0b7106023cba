"""Reading a list that comes in pages, to its end."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable
from typing import Protocol, TypeVar

__all__ = ["Page", "every_page"]


class Page(Protocol):
    """A part of a list."""

    @property
    def next_page_token(self) -> str:
        """Where the next page starts; empty on the last."""


PageT = TypeVar("PageT", bound=Page)


async def every_page(read: Callable[[str], Awaitable[PageT]]) -> AsyncGenerator[PageT]:
    """Yield the pages of a list.

    Args:
        read: Reads the page of a token, the first one of an empty token. What bounds the time for
            all of them is its deadline.
    """
    token = ""
    while True:
        page = await read(token)
        yield page
        token = page.next_page_token
        if not token:
            return
