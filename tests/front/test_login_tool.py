"""The tool that logs in to a server, for clients that see only that server."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from tests.conftest import BOUND
from tests.front.tools import make_tool

from leaseway.front import catalog as front_catalog
from leaseway.front.catalog import CatalogCache
from leaseway.front.lists.login_tool import login_arguments, login_to
from leaseway.sdk import AsyncClient
from leaseway.sdk.catalog.tools import CatalogList
from leaseway.sdk.relay import SharedItems, list_shared
from leaseway.sdk.testing import FakeLeaseway
from leaseway.wire.messages.admin import login_definition


def login_tool(*servers: str) -> Any:
    definition = json.loads(login_definition(servers))
    return make_tool(
        "mcp_login",
        server_id="mcp_admin",
        input_schema=definition["inputSchema"],
        extra={"_meta": definition.get("_meta")},
    )


def test_a_client_of_one_server_is_offered_the_login_to_that_server_only() -> None:
    others = [f"server-{number}" for number in range(50)]
    tools = [make_tool("read", server_id="mail"), login_tool(*others, "mail")]
    [offered] = login_to("mail", tools)
    assert "MCP server mail." in offered.description
    assert "properties" not in offered.input_schema
    assert login_arguments("mail", offered) == b'{"serverId":"mail"}'
    assert login_to("files", tools) == []


@pytest.mark.parametrize("scope", ["", "mcp_admin"])
def test_a_client_of_all_servers_says_which_one_it_logs_in_to(scope: str) -> None:
    assert login_arguments(scope, login_tool("mail")) is None


def read() -> str:
    return "read"


async def test_clients_of_a_server_hear_that_a_login_to_it_is_offered(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    offered: list[Any] = []

    async def list_with(of: AsyncClient, kind: str, shared: SharedItems) -> CatalogList[Any]:
        tools = await list_shared(of, kind, shared)
        return CatalogList((*tools, *offered), tools.registry_version, tools.pending)

    monkeypatch.setattr(front_catalog, "list_shared", list_with)
    with FakeLeaseway() as fake:
        fake.server("clock").tool(read)
        async with fake.async_client() as client:
            catalog = CatalogCache(client)
            heard: asyncio.Queue[frozenset[str]] = asyncio.Queue()
            catalog.subscribe(lambda kind, servers, client: heard.put_nowait(servers))
            told: list[str] = []
            try:
                await catalog.listing("tools", "mail")
                for server in ("mail", "files"):
                    offered[:] = [login_tool(*sorted({"mail", server}))]
                    fake.server(f"beside-{server}", prefix=f"{server}_").tool(read)
                    while server not in told:
                        told += await asyncio.wait_for(heard.get(), BOUND)
            finally:
                await catalog.close()
    assert told.count("mail") == 1, "what is offered to its clients has not changed again"
