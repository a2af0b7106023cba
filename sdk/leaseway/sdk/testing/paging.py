"""The pages in which a fake lists."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from leaseway.wire.errors import Fault
from leaseway.wire.pages import Key, one_page, page_start
from leaseway.wire.status import abort


async def page_of(
    listing: str, items: Iterable[tuple[Key, Any]], request: Any, context: Any
) -> tuple[list[Any], str]:
    """Return the page of a list that a request asks for, and the next one's token.

    Args:
        listing: The RPC's name.
        items: All that is listed, by ascending keys.
        request: Asks for the page.
        context: Ends the request where its token is none.

    """
    try:
        start = page_start(listing, request)
    except Fault as fault:
        await abort(context, fault)
    return one_page(start, items, lambda item: item)
