"""A command that logs somebody in, and what it is asked for."""

from __future__ import annotations

import asyncio
import os
from typing import Any
from urllib.parse import parse_qsl, urlsplit

from tests.conftest import BOUND
from tests.data_plane.oauth.guarded import Guarded

from leaseway.data_plane.oauth.logins.login import LoginRequest, Told, log_in
from leaseway.data_plane.oauth.obtaining import Wanted
from leaseway.data_plane.oauth.requests import Client
from leaseway.spec.auth import Auth
from leaseway.vault.logins import Login, LoginStore
from leaseway.wire.channels.fetching import in_thread

CONSOLE = "http://127.0.0.1/login/callback"


def wanted_of(guarded: Guarded, client: Client | None = None, **more: Any) -> Wanted:
    return Wanted(
        server="mail",
        url=f"{guarded.base}/mcp",
        auth=Auth("authorization_code", "tenant", **more),
        client=client or Client(""),
        tenant="acme",
    )


def query_of(address: str) -> dict[str, str]:
    return dict(parse_qsl(urlsplit(address).query))


class Logging:
    """A command that logs somebody in, with a pipe as its terminal."""

    def __init__(self, wanted: Wanted, store: LoginStore, *, by_device: bool = False) -> None:
        self._told: asyncio.Queue[Told] = asyncio.Queue()
        self._loop = asyncio.get_running_loop()
        self._terminal, self.keys = os.pipe()
        request = LoginRequest(wanted, self._tell, by_device=by_device, pasted=self._terminal)
        self._running = asyncio.ensure_future(in_thread(log_in, request, store))

    def _tell(self, told: Told) -> None:
        self._loop.call_soon_threadsafe(self._told.put_nowait, told)

    async def told(self) -> Told:
        async with asyncio.timeout(BOUND):
            return await self._told.get()

    async def login(self) -> Login:
        try:
            async with asyncio.timeout(BOUND):
                return (await self._running)[0]
        finally:
            os.close(self._terminal)
            os.close(self.keys)
