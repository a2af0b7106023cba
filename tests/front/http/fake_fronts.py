"""Fake fronts behind HTTP, and the keys of their callers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from aiohttp import web

from leaseway.front.app import McpListener
from leaseway.front.http.callers import Callers
from leaseway.front.http.request_checks import AccessCheck
from leaseway.front.http.server import HttpServer
from leaseway.identity.authenticator import Authenticator
from leaseway.identity.keys import add_key, make_key
from leaseway.identity.principal import Role
from leaseway.wire.channels.endpoint import Endpoint

BOUND = 30


class FakeFront:
    """Responds with the name of its caller."""

    def __init__(
        self, tenant: str, agent: str, key: str | None, _principal: str, user: str
    ) -> None:
        self.name = f"{tenant}/{agent}" + (f"/{user}" if user else "")
        self.key = key
        self.sessions = 0
        self.is_idle = True
        self.closed = asyncio.Event()

    def start(self) -> None: ...

    def end_streams(self) -> None: ...

    async def close(self) -> None:
        self.closed.set()

    async def respond(self, _http: web.BaseRequest) -> web.Response:
        return web.Response(text=self.name)


class Keys:
    """A file of API keys."""

    def __init__(self, folder: Path) -> None:
        self.file = folder / "api-keys.json"
        self.ids: dict[str, str] = {}

    def make(self, tenant: str | None, *roles: Role) -> str:
        key, record = make_key(roles=roles or (Role.CALLER,), tenant=tenant, agent="it", now=0.0)
        add_key(self.file, record)
        self.ids[key] = record.id
        return key

    def callers(self, limit: int = 256) -> Callers:
        build: Any = FakeFront
        return Callers(build, "none", "mcp", None, Authenticator(keys=self.file), limit=limit)


def bearer(key: str) -> str:
    return f"Bearer {key}"


@asynccontextmanager
async def served(callers: Callers, public_url: str = "") -> AsyncIterator[str]:
    """Serve callers over HTTP; yields the URL."""
    listener = McpListener(Endpoint("127.0.0.1", 0), None)
    server = HttpServer(AccessCheck(listener.endpoint, None), callers, public_url)
    async with callers.running(), server.serving(listener.socket):
        yield f"http://{listener.endpoint}"
