"""A real authorization server (npm oidc-provider), and an MCP server that trusts it."""

from __future__ import annotations

import asyncio
import contextlib
import html
import itertools
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
    """The authorization server.

    Attributes:
        issuer: Its address.
        events: What it granted, refused and revoked.
    """

    def __init__(self) -> None:
        self.issuer = ""
        self.events: list[dict[str, Any]] = []
        self.port: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self.closed = asyncio.Event()

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


class Providers:
    """A process that serves authorization servers, because each process takes a second to start."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process
        self._served: dict[int, Provider] = {}
        self._ids = itertools.count()
        self._reading = asyncio.create_task(self._read())

    async def _read(self) -> None:
        assert self._process.stdout is not None
        async for line in self._process.stdout:
            if not line.startswith(b"{"):  # a notice
                continue
            told = json.loads(line)
            served = self._served[told.pop("id")]
            if "port" in told:
                served.port.set_result(told["port"])
            elif "closed" in told:
                served.closed.set()
            else:
                served.events.append(told)

    def _tell(self, **line: object) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(line).encode() + b"\n")

    @contextlib.asynccontextmanager
    async def provider(
        self, lifetime: float = 3_600, *, gate: Gate | None = None, **more: object
    ) -> AsyncIterator[Provider]:
        """Run an authorization server.

        Args:
            lifetime: Of its access tokens, in seconds.
            gate: Stands before it, as its issuer.
            more: The `key` (JWK) of its client `signer`; the key of `subjects` whose tokens it
                exchanges; whether proofs of possession need `nonces`.
        """
        if gate is not None:
            more["address"] = gate.base
        number = next(self._ids)
        served = self._served[number] = Provider()
        self._tell(id=number, lifetime=lifetime, **more)
        async with asyncio.timeout(BOUND):
            port = await served.port
        if gate is not None:
            gate.behind = port
        served.issuer = gate.base if gate is not None else f"http://127.0.0.1:{port}"
        try:
            yield served
        finally:
            self._tell(id=number, close=True)
            async with asyncio.timeout(BOUND):
                await served.closed.wait()


@contextlib.asynccontextmanager
async def providers(ahead: float = 0) -> AsyncIterator[Providers]:
    """Run a process for authorization servers; skip the test if they are not installed.

    Args:
        ahead: By how many seconds its clock is wrong.
    """
    folder = Path(os.environ.get("LEASEWAY_NPM_SERVERS") or ROOT / ".build" / "npm")
    if shutil.which("node") is None or not (folder / "node_modules" / "oidc-provider").exists():
        absent("npm", f"oidc-provider is not in {folder}; run `make npm-servers` (needs npm).")
    process = await asyncio.create_subprocess_exec(
        "node", str(SERVERS / "oidc.mjs"), str(folder), SECRET, str(ahead),
        stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.DEVNULL,
    )  # fmt: skip
    try:
        yield Providers(process)
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.wait()


@contextlib.asynccontextmanager
async def provider(
    lifetime: float = 3_600, *, ahead: float = 0, gate: Gate | None = None, **more: object
) -> AsyncIterator[Provider]:
    """Run an authorization server in a process of its own; see `providers` and its `provider`."""
    async with providers(ahead) as made, made.provider(lifetime, gate=gate, **more) as served:
        yield served


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
