"""A plane in process with its console, and a client."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, closing
from typing import Any

import aiohttp
import pytest

from leaseway.control_plane.console.server import ConsoleListener, serve_console
from leaseway.control_plane.plane import Plane
from leaseway.identity.authenticator import authenticator_for
from leaseway.identity.principal import Role
from leaseway.wire.channels.endpoint import Endpoint

Open = Callable[[str | None], Awaitable[tuple[Plane, "Asker"]]]


class Asker:
    """Sends requests to a console like its page."""

    def __init__(self, url: str, session: aiohttp.ClientSession) -> None:
        self.url = url
        self.session = session

    async def get(self, path: str, **options: Any) -> tuple[int, Any]:
        """Return the status and the JSON of a response."""
        async with self.session.get(self.url + path, **options) as answer:
            return answer.status, await answer.json()

    async def post(self, path: str, body: object, **headers: str) -> tuple[int, Any]:
        """Send JSON and return the status and the JSON of the response."""
        sent = {"X-Leaseway-Console": "1", **headers}
        async with self.session.post(self.url + path, json=body, headers=sent) as answer:
            return answer.status, await answer.json()


@pytest.fixture
async def console() -> AsyncIterator[Open]:
    """Return a function that opens a console, with or without a key."""
    async with AsyncExitStack() as stack:

        async def start(key: str | None = None) -> tuple[Plane, Asker]:
            plane = Plane(epoch=1)
            authenticator = authenticator_for(key)
            admit = None if key is None else authenticator.for_role(Role.OPERATOR)
            listener = ConsoleListener(Endpoint("127.0.0.1", 0), admit)
            stack.enter_context(closing(listener))
            await stack.enter_async_context(serve_console(listener, plane))
            jar = aiohttp.CookieJar(unsafe=True)
            session = await stack.enter_async_context(aiohttp.ClientSession(cookie_jar=jar))
            return plane, Asker(listener.url, session)

        yield start
