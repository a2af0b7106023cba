"""Callers' own tokens become tokens for a server: through SDK, planes, workers and the front."""

from __future__ import annotations

import asyncio
import json
import os
import tarfile
import time
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp import web
from joserfc import jwt
from joserfc.jwk import RSAKey
from tests.conftest import BOUND
from tests.data_plane.oauth.guarded import TOOL
from tests.data_plane.oauth.issuer import EXCHANGE, Issuer
from tests.e2e.forking import run_leaseway
from tests.e2e.mcp_front import JSON, front
from tests.e2e.system import eventually, python_server, running
from tests.mcp_answers import response_in

from leaseway.sdk import (
    AsyncClient,
    AuthorizationFailed,
    Client,
    LeasewayError,
    PermissionDenied,
    ToolNotFound,
    UserRequired,
)
from leaseway.telemetry.trace_file import TraceCollector, otlp_environment

pytestmark = pytest.mark.usefixtures("leak_guard")
SECRET = "planted-secret-2Rq80h"
ALICE, BOB = "planted-token-of-alice-Xk81", "planted-token-of-bob-Lw27"


@asynccontextmanager
async def issuing(issuer: Issuer | None = None) -> AsyncIterator[Issuer]:
    issuer = issuer or Issuer()
    server = await issuer.start()
    try:
        yield issuer
    finally:
        await server.close()


def servers_of(issuer: Issuer) -> dict[str, dict[str, Any]]:
    auth = {"token_exchange": {"client_id": "gateway", "client_secret": {"env": "WORD"}}}
    shared = {
        "transport": "streamable_http",
        "url": f"{issuer.base}/mcp",
        "truely-stateless": True,
        "protocol": "legacy",
        "auth": auth,
    }
    leased = {**shared, "truely-stateless": False, "transform": [{"prefix": "leased_"}]}
    return {"shared": shared, "leased": leased}


async def is_listed(client: AsyncClient) -> bool:
    return {"whoami", "leased_whoami"} <= {tool.name for tool in await client.list_tools()}


async def test_every_caller_acts_by_the_token_that_it_gives(tmp_path: Path) -> None:
    async with (
        issuing() as issuer,
        running(tmp_path, servers_of(issuer), workers=2, environment={"WORD": SECRET}) as (
            system,
            client,
        ),
        AsyncClient(system.address, agent="test", subject_token=BOB) as bob,
    ):
        await eventually(lambda: is_listed(client))
        alice = client.session("alice", subject_token=ALICE)
        seen: Counter[tuple[str, str]] = Counter()
        while sum(seen.values()) < 1_000:
            calls = {
                ALICE: alice.call_tool("whoami", timeout=BOUND),
                BOB: bob.call_tool("whoami", timeout=BOUND),
                "of-a-call": client.call_tool("whoami", subject_token="of-a-call", timeout=BOUND),
            }
            found = await asyncio.gather(*calls.values())
            seen.update(zip(calls, (result.text for result in found), strict=True))
        assert set(seen) == {(user, user) for user in (ALICE, BOB, "of-a-call")}

        assert (await alice.call_tool("leased_whoami", timeout=BOUND)).text == ALICE
        assert (await bob.call_tool("leased_whoami", timeout=BOUND)).text == BOB
        with pytest.raises(PermissionDenied):  # the session is Alice's
            await alice.call_tool("leased_whoami", subject_token=BOB, timeout=BOUND)
        with pytest.raises(UserRequired, match="subject_token"):
            await client.call_tool("whoami", timeout=BOUND)

        issuer.refused_tokens.add("expired")
        with pytest.raises(AuthorizationFailed, match="valid one") as refused:
            await client.call_tool("whoami", subject_token="expired", timeout=BOUND)
        assert refused.value.oauth_error == "invalid_grant"

        # A worker and a server with each token: not one request for each call.
        asked = Counter(form.get("subject_token", "") for form in issuer.granted)
        assert max(asked[ALICE], asked[BOB]) <= 4
        shown = system.logs() + repr(await client.problems()) + repr(await client.servers())
        assert "planted" not in shown
        assert "AUTHORIZATION_FAILED" not in shown


class Desk(Issuer):
    """Lists one more tool to each caller by whose token it is asked."""

    def tools_for(self, token: str) -> list[dict[str, Any]]:
        whose = self.name_of(token)
        return [*super().tools_for(token), *([{**TOOL, "name": f"of-{whose}"}] if whose else [])]


async def test_a_user_sees_what_is_listed_by_his_own_token_from_the_first_call_on(
    tmp_path: Path,
) -> None:
    async with (
        issuing(Desk()) as issuer,
        running(tmp_path, servers_of(issuer), environment={"WORD": SECRET}) as (_, client),
    ):
        await eventually(lambda: is_listed(client))

        async def tools_of(user: str, kind: str) -> set[str]:
            return {tool.original_name for tool in await client.list_tools([kind], user=user)}

        for kind in ("shared", "leased"):
            assert await tools_of("anna", kind) == {"whoami"}
            for user in ("anna", "bob"):
                session = client.session(user, user=user, subject_token=f"token-{user}")
                await session.call_tool(f"{kind}:whoami", timeout=BOUND)
                assert await tools_of(user, kind) == {"whoami", f"of-token-{user}"}
                result = await session.call_tool(f"{kind}:of-token-{user}", timeout=BOUND)
                assert result.text == f"token-{user}"
            with pytest.raises(ToolNotFound):
                await client.session("bob").call_tool(f"{kind}:of-token-anna", timeout=BOUND)
            assert await tools_of("anna", kind) == {"whoami", "of-token-anna"}
            assert await tools_of("", kind) == {"whoami"}


def test_a_blocking_client_gives_a_token_with_a_call_or_for_a_session() -> None:
    """See tests/sdk for the rest of the blocking client."""
    client = Client("127.0.0.1:1", subject_token=ALICE)
    assert ALICE not in repr(client)
    with pytest.raises(TypeError, match="subject_token is a str"):
        client.session("one", subject_token=1)  # type: ignore[arg-type]


async def test_a_lease_goes_on_with_a_new_token_of_the_same_user(tmp_path: Path) -> None:
    async with (
        issuing() as issuer,
        running(tmp_path, servers_of(issuer), environment={"WORD": SECRET}) as (_, client),
    ):
        await eventually(lambda: is_listed(client))
        session = client.session("long", user="anna", subject_token="first")
        assert (await session.call_tool("leased_whoami", timeout=BOUND)).text == "first"
        lease = await session.acquire("leased")
        client.session("long", subject_token="second")
        assert (await session.call_tool("leased_whoami", timeout=BOUND)).text == "second"
        assert (await session.acquire("leased")).id == lease.id


def token_of(key: RSAKey, subject: str) -> str:
    claims = {
        "iss": "https://login.example",
        "aud": "leaseway",
        "sub": subject,
        "exp": int(time.time()) + 600,
    }
    return jwt.encode({"alg": "RS256", "kid": "one"}, claims, key)


async def test_a_client_of_the_front_acts_by_its_own_token_and_gets_step_up_challenges(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    environment, key = trusting(tmp_path)
    monkeypatch.setenv("LEASEWAY_KEY", environment["LEASEWAY_KEY"])
    monkeypatch.setenv("LEASEWAY_IDENTITY", environment["LEASEWAY_IDENTITY"])
    tokens = {name: token_of(key, name) for name in ("alice", "bob")}
    async with (
        issuing() as issuer,
        running(tmp_path, servers_of(issuer), environment=environment) as (system, _),
        front(system) as url,
        aiohttp.ClientSession(headers=JSON) as http,
    ):
        async with AsyncClient(system.address, key=tokens["alice"]) as client:
            await eventually(lambda: is_listed(client))
        for token in tokens.values():
            status, _, body = await call(http, url, token)
            assert status == 200, body
            assert body["result"]["content"][0]["text"] == token

        issuer.needed, issuer.grants_scopes = "more", False
        for _ in range(3):  # the first one by aiohttp, others on the short way
            status, challenge, body = await call(http, url, tokens["bob"])
            assert status == 403
            assert body["error"]["data"]["scope"] == "more"
            assert challenge.startswith('Bearer error="insufficient_scope", scope="more", ')
            assert f'resource_metadata="{url.removesuffix("/mcp")}/.well-known/' in challenge
        issuer.needed = ""
        assert (await call(http, url, tokens["bob"]))[0] == 200


async def call(
    http: aiohttp.ClientSession, url: str, token: str
) -> tuple[int, str, dict[str, Any]]:
    """Call a tool as a client of 2025-11-25; return the status, the challenge and the body."""
    params = {"name": "whoami", "arguments": {}}
    message = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}
    headers = {"Authorization": f"Bearer {token}", "MCP-Protocol-Version": "2025-11-25"}
    async with http.post(url, json=message, headers=headers) as answer:
        challenge = answer.headers.get("WWW-Authenticate", "")
        return answer.status, challenge, await response_in(answer)


def trusting(folder: Path) -> tuple[dict[str, str], RSAKey]:
    """Return the environment of planes that accept an issuer's tokens, and its key."""
    key = RSAKey.generate_key(2_048, {"kid": "one"})
    (folder / "keys.json").write_text(json.dumps({"keys": [key.as_dict(private=False)]}))
    (folder / "identity.toml").write_text(
        '[[jwt]]\nissuer = "https://login.example"\naudience = "leaseway"\n'
        'jwks = "keys.json"\ntenant = "acme"\n'
    )
    environment = {
        "WORD": SECRET,
        "LEASEWAY_IDENTITY": str(folder / "identity.toml"),
        "LEASEWAY_KEY": "the-shared-key-of-this-test",
    }
    return environment, key


async def test_a_token_that_is_the_credential_is_the_one_that_is_exchanged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    environment, key = trusting(tmp_path)
    monkeypatch.setenv("LEASEWAY_KEY", environment["LEASEWAY_KEY"])
    tokens = {name: token_of(key, name) for name in ("alice", "bob")}
    async with (
        issuing() as issuer,
        running(tmp_path, servers_of(issuer), environment=environment) as (system, _),
    ):
        for name, token in tokens.items():
            async with AsyncClient(system.address, key=token) as client:
                await eventually(lambda client=client: is_listed(client))
                assert (await client.call_tool("whoami", timeout=BOUND)).text == token
                assert (await client.call_tool("leased_whoami", timeout=BOUND)).text == token
                session = client.session(name)
                assert (await session.acquire("leased")).id
        async with AsyncClient(system.address, key=environment["LEASEWAY_KEY"]) as client:
            with pytest.raises(UserRequired):  # the shared key is nobody's token
                await client.call_tool("whoami", timeout=BOUND)
        exchanged = {f["subject_token"] for f in issuer.granted if f["grant_type"] == EXCHANGE}
        assert exchanged == set(tokens.values())
        assert "eyJ" not in system.logs()


async def test_tools_of_an_openapi_document_act_by_the_callers_token(tmp_path: Path) -> None:
    document = {
        "openapi": "3.1.0",
        "info": {"title": "People", "version": "1"},
        "paths": {"/whoami": {"get": {"operationId": "person", "responses": {"200": {}}}}},
    }
    (tmp_path / "people.json").write_text(json.dumps(document))
    async with issuing() as issuer:
        auth = servers_of(issuer)["shared"]["auth"]
        entry = {
            "transport": "http_api",
            "truely-stateless": True,
            "base_url": f"{issuer.base}/api",
            "openapi": {"source": str(tmp_path / "people.json")},
            "auth": auth,
        }
        async with running(tmp_path, {"people": entry}, environment={"WORD": SECRET}) as (
            _,
            client,
        ):
            for token in (ALICE, BOB, ALICE):
                result = await client.call_tool("person", subject_token=token, timeout=BOUND)
                assert not result.is_error
            with pytest.raises(UserRequired):
                await client.call_tool("person", timeout=BOUND)
        exchanged = [form["subject_token"] for form in issuer.granted]
        assert exchanged == [ALICE, BOB]  # and none to list its tools
        assert issuer.called == 3


class Indiscreet(Issuer):
    """Repeats the tokens that it gets wherever it can."""

    def name_of(self, token: str) -> str:
        raise web.HTTPInternalServerError(text=f"failed for {token} of {self.whose.get(token)}")


async def test_no_output_shows_a_callers_token_or_what_it_became(tmp_path: Path) -> None:
    spans, archive, audit = tmp_path / "spans.jsonl", tmp_path / "dump.tar.gz", tmp_path / "audit"
    async with TraceCollector(spans) as collector, issuing(Indiscreet()) as issuer:
        environment = {
            "WORD": SECRET,
            "LEASEWAY_AUDIT": str(audit),
            **otlp_environment(collector.endpoint),
            "OTEL_BSP_SCHEDULE_DELAY": "100",
        }
        entries = {**servers_of(issuer), "neighbour": python_server("echo_raw.py")}
        async with running(tmp_path, entries, environment=environment) as (system, client):
            await eventually(lambda: is_listed(client))
            alice = client.session("alice", subject_token=ALICE)
            issuer.refused_tokens.add(BOB)
            for caller, tool, token in (
                (alice, "whoami", None),
                (alice, "leased_whoami", None),
                (client, "whoami", BOB),
            ):
                with pytest.raises(LeasewayError) as caught:
                    await caller.call_tool(tool, subject_token=token, timeout=BOUND)
                assert "planted" not in f"{caught.value} {vars(caught.value)}"
            shown = {  # the tools' descriptions repeat the token of the listing, too
                "lists": f"{await client.servers()} {await client.problems()}",
                "tools": str([vars(each_tool) for each_tool in await client.list_tools()]),
            }
            commands = ("events --json", "leases --json", "status", f"dump --output {archive}")
            where = {**os.environ, "LEASEWAY_ADDRESS": system.address}
            for words in commands:
                done = await run_leaseway(*words.split(), environment=where)
                shown[words] = done.stdout + done.stderr
            with tarfile.open(archive) as tar:
                for member in filter(tar.extractfile, tar.getmembers()):
                    opened = tar.extractfile(member)
                    shown[member.name] = opened.read().decode(errors="replace") if opened else ""
            shown["log lines"] = system.logs()
        shown["spans"] = spans.read_text()
        for file in audit.rglob("*"):
            shown[file.name] = file.read_bytes().decode(errors="replace") if file.is_file() else ""
    assert any("whoami" in text for text in shown.values())
    assert [place for place, text in shown.items() if "planted" in text] == []
