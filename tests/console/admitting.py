"""Admits requests to a console by a function, for tests of what a principal may do."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Iterator

from leaseway.identity.principal import Principal
from leaseway.wire.errors import Fault


class AdmittedBy:
    """Admits whom a function admits, and revokes no stream.

    Args:
        admit: Returns the principal of an `Authorization` header, or raises a `Fault`.
    """

    def __init__(self, admit: Callable[[str | None], Awaitable[Principal]]) -> None:
        self._admit = admit

    async def __call__(self, authorization: str | None, /) -> Principal:
        return await self._admit(authorization)

    @contextlib.contextmanager
    def watch(
        self, _authorization: str | None, _principal: Principal
    ) -> Iterator[asyncio.Future[Fault]]:
        yield asyncio.get_running_loop().create_future()
