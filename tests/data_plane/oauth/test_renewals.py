"""Renewals of logins: a refresh token is spent once, whatever ends in between."""

from __future__ import annotations

import asyncio
import sys
import threading
import time
from collections.abc import Mapping
from dataclasses import replace

import aiohttp
import pytest
from aiohttp import web
from tests.conftest import BOUND, ROOT
from tests.data_plane.mcp.conftest import until
from tests.data_plane.oauth.authority import Gate, Resource, consent, provider
from tests.data_plane.oauth.expired import IgnoredProblems, expired
from tests.data_plane.oauth.guarded import Guarded
from tests.data_plane.oauth.renewing import wanted_at

from leaseway.data_plane.core.resolved_values import ResolvedValues
from leaseway.data_plane.oauth.challenges import Challenge
from leaseway.data_plane.oauth.errors import AuthorizationError
from leaseway.data_plane.oauth.logins.login import LoginRequest, Told, log_in, revoke
from leaseway.data_plane.oauth.metadata import AuthorizationServer
from leaseway.data_plane.oauth.obtaining import Attempt, Wanted
from leaseway.data_plane.oauth.requests import TokenAnswer
from leaseway.data_plane.oauth.sealed import SealedTokens, described_login
from leaseway.data_plane.oauth.tokens import Tokens
from leaseway.spec.auth import Auth
from leaseway.spec.kinds.table import server_spec
from leaseway.spec.model import VariantKey
from leaseway.vault.key import VaultPlace
from leaseway.vault.logins import LoginStore
from leaseway.wire.channels.fetching import in_thread

USUAL = Attempt(Challenge(401))


async def logged_in(wanted: Wanted, store: LoginStore) -> None:
    """Log a person in at a real authorization server; the token must be renewed at once."""
    told: asyncio.Queue[Told] = asyncio.Queue()
    loop = asyncio.get_running_loop()

    def tell(text: Told) -> None:
        loop.call_soon_threadsafe(told.put_nowait, text)

    logging_in = asyncio.ensure_future(in_thread(log_in, LoginRequest(wanted, tell), store))
    async with asyncio.timeout(BOUND):
        await consent((await told.get()).url, "anna")
        login, _ = await logging_in
    store.write(replace(login, expires_at=time.time()))


async def test_a_token_that_a_killed_process_has_spent_is_not_spent_again(
    place: VaultPlace, store: LoginStore
) -> None:
    spent, release = asyncio.Event(), asyncio.Event()
    async with Gate() as gate, Resource() as resource, provider(gate=gate) as authority:
        await resource.trust(authority)
        wanted = wanted_at(f"{resource.base}/mcp")
        await logged_in(wanted, store)
        gate.passed.clear()

        async def spend(request: web.Request) -> web.StreamResponse | None:
            if request.path != "/token":
                return None
            url = f"http://127.0.0.1:{gate.behind}/token"
            async with (
                aiohttp.ClientSession() as http,
                http.post(url, data=await request.read(), headers=request.headers) as response,
            ):
                assert response.status == 200
            spent.set()
            await release.wait()
            return web.Response(status=500)

        gate.answer = spend
        words = ("-m", "tests.data_plane.oauth.renewing", place.path, place.key_file)
        process = await asyncio.create_subprocess_exec(
            sys.executable, *map(str, words), wanted.url, cwd=ROOT
        )
        try:
            async with asyncio.timeout(BOUND):
                await spent.wait()
                other = asyncio.ensure_future(in_thread(SealedTokens(store), wanted, USUAL))
                process.kill()
                with pytest.raises(AuthorizationError, match="not spent twice") as caught:
                    await other
        finally:
            release.set()
            if process.returncode is None:
                process.kill()
            await process.wait()
        assert caught.value.needs_login
        for _ in range(5):  # other workers
            with pytest.raises(AuthorizationError) as caught:
                await in_thread(SealedTokens(store), wanted, USUAL)
            assert caught.value.needs_login
        assert gate.count("/token") == 1
        await until(lambda: authority.count("success", "refresh_token"))
        assert authority.count("error", "refresh_token") == 0
        assert authority.count("revoked", "refresh_token") == 0
        # The next login is like any other.
        gate.answer = _pass_on
        await logged_in(wanted, store)
        assert await in_thread(SealedTokens(store), wanted, USUAL)


async def _pass_on(request: web.Request) -> None:
    """Answer nothing, so that the request is passed on."""


@pytest.mark.parametrize("rotates", [True, False])
async def test_only_a_token_that_may_be_good_for_one_use_is_noted_before_it_is_spent(
    guarded: Guarded, store: LoginStore, rotates: bool
) -> None:
    wanted, _ = expired(guarded, store)
    marked: list[bool] = []

    async def answer(form: Mapping[str, str]) -> web.Response:
        login = store.read(wanted.login)
        assert login is not None
        marked.append(store.is_spending(login))
        more = {"refresh_token": f"planted-refresh-{len(marked) + 1}"} if rotates else {}
        return web.json_response(
            {"access_token": f"new-{len(marked)}", "token_type": "Bearer", "expires_in": 1, **more}
        )

    guarded.answer = answer
    for _ in range(3):
        known = store.read(wanted.login)
        assert known is not None
        store.write(replace(known, expires_at=1.0))
        await in_thread(SealedTokens(store), wanted, USUAL)
    assert marked == [True, rotates, rotates]


async def test_a_refusal_that_says_to_wait_leaves_the_login_as_it_was(
    guarded: Guarded, store: LoginStore
) -> None:
    wanted, _ = expired(guarded, store)
    before = store.read(wanted.login)

    async def busy(form: Mapping[str, str]) -> web.Response:
        return web.Response(status=503)

    guarded.answer = busy
    with pytest.raises(AuthorizationError, match="503"):
        await in_thread(SealedTokens(store), wanted, USUAL)
    assert store.read(wanted.login) == before
    guarded.answer = None
    answer = await in_thread(SealedTokens(store), wanted, USUAL)
    assert answer.access_token.startswith("planted-access")


@pytest.mark.parametrize(
    ("issuer", "endpoint", "is_allowed"),
    [
        ("http://169.254.169.254", "http://169.254.169.254/token", False),
        ("no URL", "{base}/token", True),
    ],
)
async def test_an_issuer_that_a_server_has_named_allows_and_prevents_no_address(
    guarded: Guarded, store: LoginStore, issuer: str, endpoint: str, is_allowed: bool
) -> None:
    wanted, login = expired(guarded, store)
    endpoint = endpoint.format(base=guarded.base)
    server = AuthorizationServer(issuer, endpoint, revocation_endpoint=endpoint)
    login = described_login(login, server, "", None)
    store.write(login)
    not_revoked = await in_thread(revoke, login, wanted.client)
    if is_allowed:
        assert not_revoked is None
        assert await in_thread(SealedTokens(store), wanted, USUAL)
    else:
        assert not_revoked is not None
        assert "inside this network" in not_revoked
        with pytest.raises(AuthorizationError, match="inside this network"):
            await in_thread(SealedTokens(store), wanted, USUAL)


async def test_a_logout_may_use_the_endpoints_that_the_entry_names(
    guarded: Guarded, store: LoginStore
) -> None:
    wanted, login = expired(guarded, store)
    inside = "http://[fe80::1]/revoke"
    server = AuthorizationServer("", f"{guarded.base}/token", revocation_endpoint=inside)
    login = described_login(login, server, "", None)
    refused = await in_thread(revoke, login, wanted.client)
    assert refused is not None
    assert "inside this network" in refused
    failed = await in_thread(revoke, login, wanted.client, [inside])  # where nobody listens
    assert failed is not None
    assert "inside this network" not in failed


async def test_a_worker_that_stops_begins_no_renewal(guarded: Guarded, store: LoginStore) -> None:
    wanted, _ = expired(guarded, store)
    sealed = SealedTokens(store)
    sealed.stop()
    with pytest.raises(AuthorizationError, match="stopping"):
        await in_thread(sealed, wanted, USUAL)
    assert not guarded.granted


async def test_a_worker_that_stops_lets_a_renewal_end() -> None:
    started, release, ended = threading.Event(), threading.Event(), list[str]()

    def obtain(wanted: Wanted, attempt: Attempt) -> TokenAnswer:
        started.set()
        release.wait(BOUND)
        ended.append(wanted.server)
        return TokenAnswer("token")

    tokens = Tokens(obtain)
    auth = Auth("authorization_code", "tenant", issuer="http://127.0.0.1:9")
    spec = server_spec(VariantKey("mail", "acme"), "streamable_http", auth=auth)
    authorization = tokens.authorization(
        spec, ResolvedValues(url="http://h/mcp"), IgnoredProblems()
    )
    assert authorization is not None
    waiting = asyncio.ensure_future(authorization.credential())
    await until(started.is_set)
    closing = asyncio.ensure_future(tokens.aclose())
    release.set()
    await closing
    assert ended == ["mail"]
    assert await waiting
