"""A real authorization server (npm oidc-provider), and an MCP server that trusts it."""

from __future__ import annotations

import asyncio
import contextlib
import html
import json
import os
import re
import shutil
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from email.utils import formatdate
from pathlib import Path
from typing import Any, Self

import aiohttp
from aiohttp import web
from aiohttp.test_utils import TestServer
from joserfc import jwt
from joserfc.errors import JoseError
from joserfc.jwk import KeySet
from multidict import CIMultiDict
from tests.conftest import BOUND, ROOT, absent
from tests.data_plane.oauth.guarded import Guarded
from yarl import URL

SECRET = "planted-secret-5Kd81x"
SERVERS = ROOT / "tests" / "servers"


class Provider:
    """The authorization server, a process.

    Attributes:
        issuer: Its address.
        events: What it granted, refused and revoked.
    """

    def __init__(self, process: asyncio.subprocess.Process, issuer: str) -> None:
        self.issuer = issuer
        self.events: list[dict[str, Any]] = []
        self.process = process
        self._reading = asyncio.create_task(self._read())

    async def _read(self) -> None:
        assert self.process.stdout is not None
        async for line in self.process.stdout:
            if line.startswith(b"{"):  # others are its notices
                self.events.append(json.loads(line))

    def count(self, event: str, grant: str) -> int:
        """Return how many token requests had a result."""
        return sum(
            each_event["event"] == event and each_event["grant"] == grant
            for each_event in self.events
        )


class Gate:
    """Stands before an authorization server, counts its requests, and fails them.

    Attributes:
        base: Its address.
        behind: The port of the authorization server.
        passed: The paths of all requests.
        answer: Answers a request instead, if it returns a response.
        ahead: By how many seconds the `Date` of its responses is wrong.
    """

    def __init__(self) -> None:
        self.base = ""
        self.behind = 0
        self.passed: list[str] = []
        self.answer: Callable[[web.Request], Awaitable[web.StreamResponse | None]] = _pass_on
        self.ahead = 0.0

    async def __aenter__(self) -> Self:
        app = web.Application()
        app.router.add_route("*", "/{path:.*}", self._handle)
        self._server = TestServer(app)
        await self._server.start_server()
        self._http = aiohttp.ClientSession()
        self.base = f"http://127.0.0.1:{self._server.port}"
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._http.close()
        await self._server.close()

    def count(self, path: str) -> int:
        """Return how many requests to a path there were."""
        return self.passed.count(path)

    async def _handle(self, request: web.Request) -> web.StreamResponse:
        self.passed.append(request.path)
        answer = await self.answer(request)
        if answer is not None:
            return answer
        async with self._http.request(
            request.method,
            f"http://127.0.0.1:{self.behind}{request.path_qs}",
            data=await request.read(),
            headers=request.headers,
            allow_redirects=False,
        ) as response:
            headers = CIMultiDict(Date=formatdate(time.time() + self.ahead, usegmt=True))
            for name, value in response.headers.items():
                if name in ("Content-Type", "Location", "Set-Cookie"):
                    headers.add(name, value)
            body = await response.read()
            return web.Response(status=response.status, body=body, headers=headers)


async def _pass_on(request: web.Request) -> None:
    """Answer nothing, so that the request is passed on."""


@contextlib.asynccontextmanager
async def provider(
    lifetime: float = 3_600, *, gate: Gate | None = None, **more: object
) -> AsyncIterator[Provider]:
    """Run the authorization server; skip the test if it is not installed.

    Args:
        lifetime: Of its access tokens, in seconds.
        gate: Stands before it, as its issuer.
        more: By how many seconds its clock is `ahead`; the `key` (JWK) of its client `signer`;
            whether proofs of possession need `nonces`.
    """
    folder = Path(os.environ.get("LEASEWAY_NPM_SERVERS") or ROOT / ".build" / "npm")
    if shutil.which("node") is None or not (folder / "node_modules" / "oidc-provider").exists():
        absent("npm", f"oidc-provider is not in {folder}; run `make npm-servers` (needs npm).")
    if gate is not None:
        more["address"] = gate.base
    words = [str(SERVERS / "oidc.mjs"), str(folder), SECRET, str(lifetime), json.dumps(more)]
    process = await asyncio.create_subprocess_exec(
        "node", *words, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.DEVNULL
    )
    try:
        assert process.stdout is not None
        async with asyncio.timeout(BOUND):
            port = int(await process.stdout.readline())
        if gate is not None:
            gate.behind = port
        yield Provider(process, gate.base if gate is not None else f"http://127.0.0.1:{port}")
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.wait()


class Resource(Guarded):
    """An MCP server that accepts the provider's tokens for itself, and says whose they are."""

    keys: KeySet

    async def __aenter__(self) -> Self:
        self._server = await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._server.close()

    async def trust(self, provider: Provider) -> None:
        self.protected = {"authorization_servers": [provider.issuer]}
        async with (
            aiohttp.ClientSession() as http,
            http.get(f"{provider.issuer}/jwks") as response,
        ):
            self.keys = KeySet.import_key_set(await response.json())

    def claims(self, token: str) -> dict[str, Any] | None:
        try:
            decoded = jwt.decode(token, self.keys, algorithms=["RS256"])
            jwt.JWTClaimsRegistry(
                aud={"essential": True, "value": f"{self.base}/mcp"}, exp={"essential": True}
            ).validate({name: value for name, value in decoded.claims.items() if name != "iat"})
        except (JoseError, ValueError):
            return None
        return decoded.claims

    def scopes_of(self, token: str) -> set[str] | None:
        claims = self.claims(token)
        return None if claims is None else set(str(claims.get("scope", "")).split())

    def name_of(self, token: str) -> str:
        # It was valid when the request arrived, and may have expired since.
        return str(jwt.decode(token, self.keys, algorithms=["RS256"]).claims["sub"])


async def consent(address: str, person: str) -> None:
    """Log in and consent on the provider's pages, until the redirect to the command."""
    async with browser() as pages:
        assert "You are logged in" in await answer_pages(pages, address, person)


def browser() -> aiohttp.ClientSession:
    return aiohttp.ClientSession(cookie_jar=aiohttp.CookieJar(unsafe=True))


async def answer_pages(pages: aiohttp.ClientSession, address: str, person: str) -> str:
    """Log in and consent on the provider's pages; return the page that they lead to."""
    response = await pages.get(address)
    while response.url.path.startswith("/interaction"):
        page = await response.text()
        action = html.unescape(re.search(r'action="([^"]+)"', page)[1])  # type: ignore[index]
        prompt = re.search(r'name="prompt" value="(\w+)"', page)[1]  # type: ignore[index]
        form = {"prompt": prompt, "login": person, "password": "any"}
        response = await pages.post(response.url.join(URL(action)), data=form)
    return await response.text()
