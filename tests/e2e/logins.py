"""Servers that require tokens, and logins to them as a person with a browser makes them."""

from __future__ import annotations

import asyncio
import html
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import aiohttp
import mcp_types as types
from tests.conftest import BOUND
from tests.data_plane.oauth.authority import answer_pages, consent
from tests.data_plane.oauth.guarded import Guarded
from tests.e2e.forking import fork_leaseway
from tests.e2e.system import System, eventually
from tests.vaults import QUICK_VAULTS

from leaseway.sdk import (
    AsyncClient,
    AsyncSession,
)

KEY = "the key of this test's vault"


def entry(resource: Guarded, auth: Mapping[str, object], **more: object) -> dict[str, object]:
    return {
        "transport": "streamable_http",
        "url": f"{resource.base}/mcp",
        "truely-stateless": True,
        "auth": dict(auth),
        **more,
    }


def vault_of(folder: Path) -> dict[str, str]:
    vault = {"LEASEWAY_VAULT": str(folder / "vault"), "LEASEWAY_VAULT_KEY": KEY}
    return {**vault, **QUICK_VAULTS}


async def log_in(
    system: System, environment: Mapping[str, str], tenant: str, person: str, user: str = ""
) -> None:
    """Log a tenant or a user in by `leaseway login`, as a person with a browser would.

    Then the server is listed, so that its names are known also to who has not logged in.
    """
    subject = ("--tenant", tenant, *(("--user", user) if user else ()))
    words = ("login", "whoami", *subject, "--no-browser", "--config", str(system.config))
    process = await fork_leaseway(words, {**os.environ, **environment}, None)
    lines: list[str] = []
    async with asyncio.timeout(BOUND):
        async for line in process.stderr:
            lines.append(line.decode().strip())
            if lines[-1].startswith("http"):
                await consent(lines[-1], person)
        status = await process.wait()
    assert status == 0, lines
    whom = f"The user {user} of the tenant {tenant}" if user else f"The tenant {tenant}"
    assert lines[-1] == f"leaseway: {whom} is logged in to the server whoami."
    async with AsyncClient(system.address) as client:
        await eventually(lambda: is_up(client))


async def is_up(client: AsyncClient) -> bool:
    return all(server.state.is_up for server in await client.servers())


async def open_link(pages: aiohttp.ClientSession, link: str) -> str:
    """Open a login's link and continue, as a browser does; return where that leads."""
    async with pages.post(link, headers={"Sec-Fetch-Site": "same-origin"}) as response:
        page = await response.text()
        assert response.status == 200, page
    return html.unescape(re.search(r'content="0;url=([^"]+)"', page)[1])  # type: ignore[index]


class Person:
    """The user of a client, who opens addresses in a browser and logs in there."""

    def __init__(self, pages: aiohttp.ClientSession, name: str) -> None:
        self.asked: list[str] = []
        self._pages = pages
        self._name = name

    async def accept(self, context: Any, params: types.ElicitRequestParams) -> types.ElicitResult:
        assert isinstance(params, types.ElicitRequestURLParams)
        self.asked.append(params.message)
        address = await open_link(self._pages, params.url)
        assert "You are logged in" in await answer_pages(self._pages, address, self._name)
        return types.ElicitResult(action="accept")


async def is_answered(client: AsyncClient | AsyncSession, tool: str = "whoami") -> bool:
    try:
        await client.call_tool(tool, timeout=BOUND)
    except Exception:
        return False
    return True
