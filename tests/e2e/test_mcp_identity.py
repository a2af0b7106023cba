"""A front with keys: each client is served as the tenant of its key."""

from __future__ import annotations

import asyncio
import json
import os
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import yaml
from tests.conftest import BOUND
from tests.e2e.forking import fork_leaseway, run_leaseway
from tests.e2e.keys import key_for
from tests.e2e.mcp_front import INITIALIZE, JSON, front
from tests.e2e.system import System, eventually, python_server
from tests.ports import free_port

from leaseway.identity.keys import add_key, make_key, revoke_key
from leaseway.identity.principal import Role
from leaseway.sdk import AsyncClient

SHARED = "the-key-that-planes-share"


def bearer(key: str) -> dict[str, str]:
    """Return the headers of a client with a key."""
    return {**JSON, "Authorization": f"Bearer {key}"}


async def ask(
    http: aiohttp.ClientSession, url: str, session: str, method: str, **params: Any
) -> Any:
    """Send a request in an MCP session; return the response, or the status of a rejection."""
    message = {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}
    async with http.post(url, json=message, headers={"Mcp-Session-Id": session}) as answer:
        return await answer.json() if answer.status == 200 else answer.status


async def open_session(http: aiohttp.ClientSession, url: str) -> str:
    """Open an MCP session; return its id."""
    async with http.post(url, json=INITIALIZE) as answer:
        assert answer.status == 200, await answer.text()
        return answer.headers["Mcp-Session-Id"]


async def test_each_client_is_served_as_the_tenant_of_its_key(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    keys = tmp_path / "keys.json"
    key, record = make_key(roles=[Role.CALLER], tenant="acme", agent="billing", now=0.0)
    add_key(keys, record)
    second, rival = key_for(keys, Role.CALLER, "acme"), key_for(keys, Role.CALLER, "rival")
    operator = key_for(keys, Role.OPERATOR)
    monkeypatch.setenv("LEASEWAY_KEY", SHARED)
    environment = {"LEASEWAY_KEY": SHARED, "LEASEWAY_KEYS": str(keys)}
    servers = {
        "echo": python_server("echo_raw.py"),
        "counter": python_server("counter.py", transform=[{"prefix": "counter_"}]),
    }
    system = System(tmp_path, servers, environment=environment)
    config = yaml.safe_load(system.config.read_text())
    config["tenants"] = {"acme": {}, "rival": {"servers": ["counter"]}}
    system.write_text(yaml.safe_dump(config))
    async with (
        system,
        front(system) as url,
        aiohttp.ClientSession(headers=bearer(key)) as acme,
        aiohttp.ClientSession(headers=bearer(second)) as colleague,
        aiohttp.ClientSession(headers=bearer(rival)) as other,
        AsyncClient(system.address, key=operator) as watcher,
    ):
        for sent, status in (({}, 401), (bearer("lwk_no_such"), 401), (bearer(operator), 403)):
            async with (
                aiohttp.ClientSession(headers={**JSON, **sent}) as unknown,
                unknown.post(url, json=INITIALIZE) as answer,
            ):
                assert answer.status == status
                assert ("WWW-Authenticate" in answer.headers) == (status == 401)

        session, others = await open_session(acme, url), await open_session(other, url)

        listed = await ask(other, url, others, "tools/list")
        names = {tool["name"] for tool in listed["result"]["tools"]}
        assert "counter_add" in names
        assert "echo" not in names
        listed = await ask(acme, url, session, "tools/list")
        assert "echo" in {tool["name"] for tool in listed["result"]["tools"]}
        result = await ask(acme, url, session, "tools/call", name="echo", arguments={})
        assert "result" in result
        refused = await ask(other, url, others, "tools/call", name="echo", arguments={})
        assert refused["error"]["data"]["reason"] == "TOOL_NOT_FOUND"

        answers = set()
        for server in ("echo", "ecko"):  # a server that is not granted, and one that does not exist
            async with other.post(f"{url}/{server}", json=INITIALIZE) as answer:
                answers.add((answer.status, (await answer.text()).replace(server, "NAME")))
        assert [status for status, _ in answers] == [404]

        async def is_leased() -> bool:
            leases = [lease for lease in await watcher.leases() if lease.server_id == "echo"]
            return [(lease.tenant, lease.agent) for lease in leases] == [("acme", "billing")]

        await eventually(is_leased)

        # The session id is worth nothing with another key, of the same tenant or of another one.
        assert await ask(other, url, session, "tools/list") == 404
        assert await ask(colleague, url, session, "ping") == 404

        listening = await acme.get(url, headers={"Mcp-Session-Id": session})
        assert listening.status == 200
        revoke_key(keys, record.id, 0.0)
        async with asyncio.timeout(BOUND):
            await listening.read()  # until the stream ends

        async def is_refused() -> bool:
            return bool(await ask(acme, url, session, "ping") == 401)

        await eventually(is_refused)


async def test_up_serves_mcp_clients_with_keys_and_no_shared_key(tmp_path: Path) -> None:
    keys, config = tmp_path / "keys.json", tmp_path / "mcp.yaml"
    key = key_for(keys, Role.CALLER, "acme")
    config.write_text(
        yaml.safe_dump({"version": 1, "servers": {"echo": python_server("echo_raw.py")}})
    )
    environment = {name: text for name, text in os.environ.items() if name[:8] != "LEASEWAY"}
    url = f"http://127.0.0.1:{free_port()}/mcp"
    arguments = (
        *("up", "--config", str(config), "--listen", f"127.0.0.1:{free_port()}"),
        *("--mcp", url[7:-4], "--keys", str(keys), "--tools", "search"),
        *("--public-url", "https://mcp.example.com", "--allow-origin", "https://page.example"),
    )
    process = await fork_leaseway(arguments, environment, None)
    try:
        async with asyncio.timeout(2 * BOUND):
            while not (line := await process.stdout.readline()).startswith(b"mcp "):
                assert line, "up has exited"
        async with aiohttp.ClientSession(headers=bearer(key)) as http:
            session = await open_session(http, url)
            result = await ask(http, url, session, "tools/call", name="echo", arguments={})
            assert "result" in result
            listed = await ask(http, url, session, "tools/list")
            assert "call_tool" in {tool["name"] for tool in listed["result"]["tools"]}
            for headers, status in (
                ({"Host": "mcp.example.com", "Origin": "https://page.example"}, 400),
                ({"Host": "other.example"}, 403),
            ):
                async with http.post(url, json={}, headers=headers) as answer:
                    assert answer.status == status
        async with aiohttp.ClientSession(headers=JSON) as http, http.post(url) as answer:
            assert answer.status == 401
    finally:
        process.terminate()
        await process.wait()


async def test_requests_in_flight_at_the_end_of_stdin_get_an_error() -> None:
    requests = f'{json.dumps(INITIALIZE)}\n{{"jsonrpc":"2.0","id":"list","method":"tools/list"}}\n'
    done = await run_leaseway("mcp", "--address", f"127.0.0.1:{free_port()}", stdin=requests)
    answers = {line["id"]: line for line in map(json.loads, done.stdout.splitlines())}
    assert "result" in answers[0]
    assert "error" in answers["list"]
    assert done.status == 0
