"""A server that lists something else for each person: each sees and calls his own only."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from tests.conftest import BOUND
from tests.data_plane.oauth.guarded import TOOL, Guarded
from tests.e2e.logins import is_up
from tests.e2e.mcp_front import JSON, front
from tests.e2e.system import System, eventually, running

from leaseway.sdk import AsyncClient, AsyncToolWatch, LoginRequired, ToolNotFound
from leaseway.vault.key import VaultPlace
from leaseway.vault.logins import Login, LoginKey, LoginStore

pytestmark = pytest.mark.usefixtures("leak_guard")


class Office(Guarded):
    """Lists `whoami` for everybody, and for each person one tool and one prompt of his own.

    Attributes:
        more: Further tools of everybody.
    """

    def __init__(self) -> None:
        super().__init__()
        self.more: list[str] = []

    def tools_for(self, token: str) -> list[dict[str, Any]]:
        person = token.removeprefix("planted-token-of-")
        schema = {"type": "object", "properties": {person: {"type": "string"}}}
        own = {**TOOL, "inputSchema": {**schema, "additionalProperties": False}}
        return [
            {**own, "name": "shared", "description": f"As {person} knows it."},
            *({**TOOL, "name": name} for name in (f"of_{person}", *self.more)),
        ]

    def others_for(self, token: str) -> dict[str, list[dict[str, Any]]]:
        person = token.removeprefix("planted-token-of-")
        return {
            "prompts": [{"name": f"greet_{person}"}],
            "resources": [{"name": "note", "uri": f"note://{person}"}],
        }


class Logins:
    """The logins of people, as `leaseway login` leaves them."""

    def __init__(self, folder: Path, office: Office) -> None:
        key = folder / "key"
        key.write_text("the key of this test's vault")
        key.chmod(0o600)
        self._store = LoginStore(VaultPlace(folder / "vault", key))
        self._office = office

    def key_of(self, tenant: str, user: str, server: str) -> LoginKey:
        return LoginKey(server, f"{self._office.base}/mcp", tenant, user=user)

    def add(
        self, person: str, user: str, *, tenant: str = "default", server: str = "office"
    ) -> None:
        token = f"planted-token-of-{person}"
        self._office.accepted[token] = {"tools"}
        key = self.key_of(tenant, user, server)
        self._store.write(Login(key, issuer=self._office.base, access_token=token))

    def remove(self, user: str, *, tenant: str = "default", server: str = "office") -> None:
        self._store.remove(self.key_of(tenant, user, server))


@asynccontextmanager
async def office_of(
    folder: Path, whose: str = "user", *, workers: int = 1, shared: bool = True
) -> AsyncIterator[tuple[System, AsyncClient, Office, Logins]]:
    office = Office()
    server = await office.start()
    entry: Mapping[str, Any] = {
        "transport": "streamable_http",
        "url": f"{office.base}/mcp",
        "truely-stateless": shared,
        "protocol": "legacy",
        "auth": {"authorization_code": {"for": whose}},
        "transform": [{"prefix": "{server}_"}],
        "tools": {"blacklist": ["of_eve"]},
    }
    logins = Logins(folder, office)
    environment = {
        "LEASEWAY_VAULT": str(folder / "vault"),
        "LEASEWAY_VAULT_KEY": "the key of this test's vault",
    }
    try:
        async with running(folder, {"office": entry}, workers=workers, environment=environment) as (
            system,
            client,
        ):
            yield system, client, office, logins
    finally:
        await server.close()


async def names(client: AsyncClient, user: str) -> set[str]:
    return {tool.name for tool in await client.list_tools(["office"], user=user)}


async def sees(client: AsyncClient, user: str, *tools: str) -> bool:
    return await names(client, user) == {f"office_{tool}" for tool in tools}


@pytest.mark.parametrize("shared", [True, False], ids=["shared", "leased"])
async def test_two_users_list_and_call_their_own_tools_only(tmp_path: Path, shared: bool) -> None:
    async with office_of(tmp_path, workers=2, shared=shared) as (_, client, _, logins):
        logins.add("alice", "anna")
        logins.add("bob", "bob")
        await eventually(lambda: sees(client, "anna", "shared", "of_alice"))
        await eventually(lambda: sees(client, "bob", "shared", "of_bob"))
        tools = {user: await client.list_tools(user=user) for user in ("anna", "bob")}
        said = {user: {tool.description for tool in found} for user, found in tools.items()}
        assert "As alice knows it." in said["anna"]
        assert "As bob knows it." in said["bob"]

        for user, person in (("anna", "alice"), ("bob", "bob")):
            prompts = await client.list_prompts(user=user)
            resources = await client.list_resources(user=user)
            assert [prompt.name for prompt in prompts] == [f"office_greet_{person}"]
            assert [resource.uri for resource in resources] == [f"note://{person}"]
        assert not await client.list_resources(), "the common listing has no documents"

        sessions = {user: client.session(user, user=user) for user in ("anna", "bob")}
        people = {"anna": "alice", "bob": "bob"}
        for _ in range(10):
            calls = [
                sessions[user].call_tool(name, arguments, timeout=BOUND)
                for user, person in people.items()
                for name, arguments in (
                    (f"office_of_{person}", {}),
                    ("office_shared", {person: "x"}),
                    (f"office:of_{person}", {}),
                )
            ]
            found = [outcome.text for outcome in await asyncio.gather(*calls)]
            assert found == ["planted-token-of-alice"] * 3 + ["planted-token-of-bob"] * 3
        for name in ("office_of_alice", "office:of_alice"):
            with pytest.raises(ToolNotFound) as missing:
                await sessions["bob"].call_tool(name, timeout=BOUND)
            assert "alice" not in json.dumps(missing.value.metadata)
        with pytest.raises(Exception, match="schema"):
            await sessions["bob"].call_tool("office_shared", {"alice": "x"}, timeout=BOUND)


async def until_listed(watch: AsyncToolWatch, *tools: str) -> None:
    """Read lists until one has exactly these tools."""
    async with asyncio.timeout(BOUND):
        while {tool.name for tool in await anext(watch)} != set(tools):
            pass


async def test_who_has_not_logged_in_sees_only_a_login_and_a_logout_takes_the_list_away(
    tmp_path: Path,
) -> None:
    async with office_of(tmp_path) as (system, client, _, logins):
        logins.add("alice", "anna")
        await eventually(lambda: sees(client, "anna", "shared", "of_alice"))
        await eventually(lambda: is_up(client))
        assert await names(client, "bob") == set(), "mcp_login is not of this server"
        with pytest.raises(LoginRequired):
            await client.session("b", user="bob").call_tool("office_shared", timeout=BOUND)
        async with AsyncClient(system.address, user="bob") as bob:
            watch = bob.watch_tools()
            await until_listed(watch, "mcp_login")
            logins.add("bob", "bob")
            await until_listed(watch, "office_shared", "office_of_bob")
            logins.remove("bob")
            await until_listed(watch, "mcp_login")
        assert await sees(client, "anna", "shared", "of_alice")


async def ask(
    http: aiohttp.ClientSession, url: str, user: str, method: str, **params: Any
) -> dict[str, Any]:
    """Send a request of 2025-11-25 for a user to the front; return the response."""
    message = {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}
    headers = {"Leaseway-User": user, "MCP-Protocol-Version": "2025-11-25"}
    async with http.post(url, json=message, headers=headers) as answer:
        found: dict[str, Any] = await answer.json()
        return found


async def test_users_of_a_front_list_and_call_their_own_also_after_a_restart(
    tmp_path: Path,
) -> None:
    async with (
        office_of(tmp_path) as (system, client, office, logins),
        front(system) as url,
        aiohttp.ClientSession(headers=JSON) as http,
    ):
        logins.add("alice", "anna")
        logins.add("bob", "bob")
        await eventually(lambda: is_up(client))
        people = {"anna": "alice", "bob": "bob"}

        async def listed(user: str, *tools: str) -> bool:
            answer = await ask(http, url, user, "tools/list")
            if "error" in answer:  # the control plane is being restarted
                return False
            found = {tool["name"] for tool in answer["result"]["tools"]}
            return found == {f"office_{tool}" for tool in tools}

        async def call(user: str, tool: str) -> dict[str, Any]:
            return await ask(http, url, user, "tools/call", name=f"office_{tool}", arguments={})

        async def serve_both() -> None:
            for user, person in people.items():
                await eventually(lambda u=user, p=person: listed(u, "shared", f"of_{p}"))
            for _ in range(5):
                for user, person in people.items():
                    for tool in ("shared", f"of_{person}"):
                        (item,) = (await call(user, tool))["result"]["content"]
                        assert item["text"] == f"planted-token-of-{person}"
            assert "result" not in await call("bob", "of_alice")

        await serve_both()
        office.called = 0
        assert system.control_plane is not None
        await system.control_plane.end()
        await system.start_control_plane()
        await serve_both()
        assert "planted" not in system.logs()


@pytest.mark.parametrize("shared", [True, False], ids=["shared", "leased"])
async def test_tenants_see_theirs(tmp_path: Path, shared: bool) -> None:
    async with (
        office_of(tmp_path, "tenant", shared=shared) as (system, _, _, logins),
        AsyncClient(system.address, tenant="acme") as acme,
        AsyncClient(system.address, tenant="beta") as beta,
    ):
        logins.add("alice", "", tenant="acme")
        logins.add("bob", "", tenant="beta")
        await eventually(lambda: sees(acme, "anybody", "shared", "of_alice"))
        await eventually(lambda: sees(beta, "anybody", "shared", "of_bob"))
        for client, person in ((acme, "alice"), (beta, "bob")):
            result = await client.call_tool(f"office_of_{person}", timeout=BOUND)
            assert result.text == f"planted-token-of-{person}"
        with pytest.raises(ToolNotFound):
            await beta.call_tool("office_of_alice", timeout=BOUND)
