"""A real authorization server (npm oidc-provider), and an MCP server that trusts it."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import shutil
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, Self

import aiohttp
from joserfc import jwt
from joserfc.errors import JoseError
from joserfc.jwk import KeySet
from tests.conftest import BOUND, ROOT, absent
from tests.data_plane.oauth.guarded import Guarded

SECRET = "planted-secret-5Kd81x"
SERVERS = ROOT / "tests" / "servers"


class Provider:
    """The authorization server, a process.

    Attributes:
        issuer: Its address.
        events: What it granted, refused and revoked.
    """

    def __init__(self, process: asyncio.subprocess.Process, port: int) -> None:
        self.issuer = f"http://127.0.0.1:{port}"
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
        return sum(each["event"] == event and each["grant"] == grant for each in self.events)


@contextlib.asynccontextmanager
async def provider(lifetime: float = 3_600) -> AsyncIterator[Provider]:
    """Run the authorization server; skip the test if it is not installed."""
    folder = Path(os.environ.get("LEASEWAY_NPM_SERVERS") or ROOT / ".build" / "npm")
    if shutil.which("node") is None or not (folder / "node_modules" / "oidc-provider").exists():
        absent("npm", f"oidc-provider is not in {folder}; run `make npm-servers` (needs npm).")
    words = [str(SERVERS / "oidc.mjs"), str(folder), SECRET, str(lifetime)]
    process = await asyncio.create_subprocess_exec(
        "node", *words, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.DEVNULL
    )
    try:
        assert process.stdout is not None
        async with asyncio.timeout(BOUND):
            port = int(await process.stdout.readline())
        yield Provider(process, port)
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
            ).validate(decoded.claims)
        except (JoseError, ValueError):
            return None
        return decoded.claims

    def scopes_of(self, token: str) -> set[str] | None:
        claims = self.claims(token)
        return None if claims is None else set(str(claims.get("scope", "")).split())

    def name_of(self, token: str) -> str:
        claims = self.claims(token)
        return str(claims["sub"]) if claims is not None else ""
