"""HTTP callers: authentication, their limit, and the responses to rejected requests."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from multidict import CIMultiDict
from tests.front.http.fake_fronts import BOUND, FakeFront, Keys, bearer, served

from leaseway.front.http.callers import Callers, TooManyCallers
from leaseway.identity.authenticator import Authenticator
from leaseway.identity.keys import revoke_key
from leaseway.identity.principal import Role
from leaseway.wire.errors import Fault, Reason

ISSUER = """
[[jwt]]
issuer = "https://login.example"
audience = "leaseway"
jwks = "keys.json"
tenant = "acme"
"""


async def test_each_credential_keeps_its_own_front(tmp_path: Path) -> None:
    keys = Keys(tmp_path)
    first, second = keys.make("acme"), keys.make("acme")
    callers = keys.callers()
    async with callers.running():
        fronts: Any = [(await callers.identify(bearer(key)))[0] for key in (first, second)]
        assert (await callers.identify(bearer(first)))[0] is fronts[0]
        assert [front.name for front in fronts] == ["acme/it", "acme/it"]
        assert [front.key for front in fronts] == [first, second]
    assert all(front.closed.is_set() for front in fronts)


async def test_at_the_limit_the_oldest_idle_front_is_evicted_and_a_busy_one_stays(
    tmp_path: Path,
) -> None:
    keys = Keys(tmp_path)
    sent = [bearer(keys.make(f"t{number}")) for number in range(4)]
    callers = keys.callers(limit=2)
    async with callers.running():
        busy: Any = (await callers.identify(sent[0]))[0]
        busy.is_idle = False
        idle: Any = (await callers.identify(sent[1]))[0]
        last: Any = (await callers.identify(sent[2]))[0]
        async with asyncio.timeout(BOUND):
            await idle.closed.wait()
        assert not busy.closed.is_set()
        assert len(callers) == 2
        last.is_idle = False
        with pytest.raises(TooManyCallers, match="2 credentials"):
            await callers.identify(sent[3])
        assert (await callers.identify(sent[0]))[0] is busy


async def test_a_revoked_credential_closes_its_front(tmp_path: Path) -> None:
    keys = Keys(tmp_path)
    key = keys.make("acme")
    callers = keys.callers()
    async with callers.running():
        front: Any = (await callers.identify(bearer(key)))[0]
        revoke_key(keys.file, keys.ids[key], 0.0)
        async with asyncio.timeout(BOUND):
            await front.closed.wait()
        assert len(callers) == 0
        with pytest.raises(Fault) as error:
            await callers.identify(bearer(key))
        assert error.value.reason == Reason.UNAUTHENTICATED


async def test_rejected_requests_get_their_status_and_headers(tmp_path: Path) -> None:
    keys = Keys(tmp_path)
    first, second = keys.make("acme"), keys.make("acme")
    operator = keys.make(None, Role.OPERATOR)
    callers = keys.callers(limit=1)
    async with served(callers) as url, aiohttp.ClientSession() as http:

        async def status(key: str) -> tuple[int, str | None]:
            async with http.get(f"{url}/mcp", headers={"Authorization": bearer(key)}) as answer:
                return answer.status, answer.headers.get("Retry-After")

        assert await status(first) == (200, None)
        busy: Any = (await callers.identify(bearer(first)))[0]
        busy.is_idle = False
        assert await status(second) == (503, "10")
        assert await status(operator) == (403, None)
        async with http.get(f"{url}/mcp") as answer:
            assert answer.status == 401
            assert answer.headers["WWW-Authenticate"] == 'Bearer realm="leaseway"'
        async with http.get(f"{url}/.well-known/oauth-protected-resource") as answer:
            assert answer.status == 401  # there is no issuer
        async with http.post(f"{url}/register", json={}) as answer:
            assert answer.status == 401
            assert "Authorization: Bearer" in (await answer.json())["error_description"]


async def test_a_delegate_names_the_user_of_each_request_and_nobody_else_does(
    tmp_path: Path,
) -> None:
    keys = Keys(tmp_path)
    caller, delegate = keys.make("acme"), keys.make("acme", Role.CALLER, Role.DELEGATE)
    async with served(keys.callers()) as url, aiohttp.ClientSession() as http:

        async def answered(key: str, *users: str) -> tuple[int, str]:
            headers = [("Authorization", bearer(key)), *(("Leaseway-User", user) for user in users)]
            async with http.post(f"{url}/mcp", json={}, headers=CIMultiDict(headers)) as answer:
                return answer.status, await answer.text()

        assert await answered(delegate, "anna") == (200, "acme/it/anna")
        assert await answered(delegate, "bob") == (200, "acme/it/bob")
        assert await answered(delegate) == (200, "acme/it")
        assert (await answered(caller, "anna"))[0] == 403
        assert (await answered(delegate, "anna", "bob"))[0] == 400
        assert (await answered(delegate, "a" * 257))[0] == 400


@pytest.mark.parametrize("public_url", ["", "https://mcp.example.com"])
async def test_with_issuers_a_client_finds_the_protected_resource_metadata(
    tmp_path: Path, public_url: str
) -> None:
    identity = tmp_path / "identity.toml"
    identity.write_text(f'{ISSUER}scopes = ["mcp:tools"]\n')
    (tmp_path / "keys.json").write_text('{"keys": []}')
    build: Any = FakeFront
    callers = Callers(build, "none", "mcp", None, Authenticator(identity=identity))
    async with served(callers, public_url) as url, aiohttp.ClientSession() as http:
        for path in ("/mcp", "/mcp/files", "/mcp/", "/mcp/files/"):
            async with http.post(f"{url}{path}", json={}) as answer:
                assert answer.status == 401
                challenge = answer.headers["WWW-Authenticate"]
                assert "invalid_token" not in challenge
            metadata_url = challenge.partition('resource_metadata="')[2].rstrip('"')
            base = public_url or url
            assert metadata_url == f"{base}/.well-known/oauth-protected-resource{path}"
            async with http.get(metadata_url.replace(base, url)) as answer:
                assert answer.status == 200
                metadata = await answer.json()
            assert metadata["resource"] == f"{base}{path}"
            assert metadata["authorization_servers"] == ["https://login.example"]
            assert metadata["scopes_supported"] == ["mcp:tools"]
        wrong = {"Authorization": "Bearer no.good.token"}
        async with http.post(f"{url}/mcp", json={}, headers=wrong) as answer:
            assert answer.status == 401
            assert 'error="invalid_token"' in answer.headers["WWW-Authenticate"]
        async with http.get(f"{url}/.well-known/oauth-protected-resource/other") as answer:
            assert answer.status == 404
        evil = {"Host": "evil.example.com"}
        async with http.get(metadata_url.replace(base, url), headers=evil) as answer:
            assert answer.status == 403
