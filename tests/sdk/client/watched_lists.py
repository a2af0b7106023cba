"""What watches of lists return."""

from __future__ import annotations

import asyncio
from typing import Any

from tests.sdk.fakes import BOUND

from leaseway.sdk import (
    AsyncListWatch,
    AsyncToolWatch,
    ToolList,
)
from leaseway.sdk.client.listings import CatalogListT


async def next_list(watch: AsyncListWatch[CatalogListT]) -> CatalogListT:
    async with asyncio.timeout(BOUND):
        return await anext(watch)


def names(items: Any) -> list[str]:
    return [item.name for item in items]


async def all_of(watch: AsyncToolWatch) -> list[ToolList]:
    return [tools async for tools in watch]
