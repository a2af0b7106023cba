"""A server refuses the token of a login that has just been obtained."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from aiohttp import web
from tests.data_plane.oauth.expired import IgnoredProblems, expired
from tests.data_plane.oauth.guarded import Guarded

from leaseway.data_plane.core.ports import ChangedLogins
from leaseway.data_plane.core.resolved_values import ResolvedValues
from leaseway.data_plane.oauth.challenges import Challenge
from leaseway.data_plane.oauth.errors import AuthorizationError
from leaseway.data_plane.oauth.obtaining import Attempt, Wanted
from leaseway.data_plane.oauth.requests import Client, TokenAnswer
from leaseway.data_plane.oauth.sealed import SealedTokens
from leaseway.data_plane.oauth.tokens import Tokens
from leaseway.data_plane.outgoing import Authorization
from leaseway.spec.auth import Auth
from leaseway.spec.kinds.table import server_spec
from leaseway.spec.model import VariantKey
from leaseway.vault.key import VaultPlace
from leaseway.vault.logins import Login, LoginStore
from leaseway.wire.channels.fetching import in_thread
from leaseway.wire.errors import Fault, Reason

AUTH = Auth(grant="authorization_code", subject="tenant")
REFUSED = {"www-authenticate": "Bearer"}
NEEDS_FILES = 'Bearer error="insufficient_scope", scope="files"'


@asynccontextmanager
async def server_of(issuer: str, path: str = "/mcp") -> AsyncIterator[str]:
    """Serve the metadata of a server that names an authorization server; yield its URL.

    They are about the server at another path if there is one.
    """

    async def metadata(request: web.Request) -> web.Response:
        resource = f"http://{request.host}{path}"
        return web.json_response({"resource": resource, "authorization_servers": [issuer]})

    app = web.Application()
    app.router.add_get("/.well-known/oauth-protected-resource/mcp", metadata)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    try:
        yield f"http://127.0.0.1:{runner.addresses[0][1]}/mcp"
    finally:
        await runner.cleanup()


@pytest.fixture
def store(tmp_path: Path) -> LoginStore:
    return LoginStore(VaultPlace(tmp_path / "vault", tmp_path / "key", None))


@pytest.mark.parametrize("refresh_token", ["", "refresh"])
@pytest.mark.parametrize("named", [("http://127.0.0.1:1",), ("http://127.0.0.1:2", "/other")])
async def test_a_server_that_has_not_moved_costs_nobody_his_login(
    store: LoginStore, refresh_token: str, named: tuple[str, ...]
) -> None:
    async with server_of(*named) as url:
        wanted = Wanted(server="mail", url=url, auth=AUTH, client=Client("me"), tenant="acme")
        login = Login(
            wanted.login,
            issuer="http://127.0.0.1:1",
            access_token="new",
            obtained_at=time.time(),
            refresh_token=refresh_token,
        )
        store.write(login)
        attempt = Attempt(Challenge(401), refused="new", is_new=True)
        answer = await in_thread(SealedTokens(store), wanted, attempt)
    assert answer.access_token == "new"
    assert store.read(wanted.login) == login


@pytest.mark.parametrize("refresh_token", ["", "refresh"])
@pytest.mark.parametrize("age", [0.0, 1_000.0])
async def test_a_server_that_has_moved_needs_a_new_login(
    store: LoginStore, refresh_token: str, age: float
) -> None:
    async with server_of("http://127.0.0.1:2") as url:
        wanted = Wanted(server="mail", url=url, auth=AUTH, client=Client(""), tenant="acme")
        login = Login(
            wanted.login,
            issuer="http://127.0.0.1:1",
            access_token="new",
            obtained_at=time.time() - age,
            refresh_token=refresh_token,
        )
        store.write(login)
        tokens = Tokens(SealedTokens(store))
        spec = server_spec(VariantKey("mail", "acme"), "streamable_http", url=url, auth=AUTH)
        resolved = ResolvedValues(url=url)
        grant = tokens.authorization(spec, resolved, IgnoredProblems())
        assert grant is not None
        assert await grant.refused(None, 401, REFUSED)
        with pytest.raises(Fault, match="another authorization server") as caught:
            await grant.refused(await grant.credential(), 401, REFUSED)
    assert caught.value.reason is Reason.LOGIN_REQUIRED


@pytest.mark.parametrize("refresh_token", ["", "planted-refresh"])
async def test_a_403_that_asks_for_nothing_costs_nobody_a_login_that_cannot_be_renewed(
    guarded: Guarded, store: LoginStore, refresh_token: str
) -> None:
    wanted, login = expired(guarded, store)
    store.write(replace(login, expires_at=None, refresh_token=refresh_token))
    attempt = Attempt(Challenge(401), refused="old", is_doubted=True)
    answer = await in_thread(SealedTokens(store), wanted, attempt)
    assert (answer.access_token == "old") is not bool(refresh_token)
    kept = store.read(wanted.login)
    assert kept is not None
    assert not kept.ended


async def test_a_server_is_listed_with_the_next_login_if_it_refuses_everything_to_the_first(
    store: LoginStore,
) -> None:
    def log_in(tenant: str, granted_at: float) -> None:
        wanted = Wanted(
            server="mail", url="http://h/mcp", auth=AUTH, client=Client(""), tenant=tenant
        )
        store.write(Login(wanted.login, access_token=f"of {tenant}", granted_at=granted_at))

    sealed = SealedTokens(store)
    tokens = Tokens(sealed, granted=sealed.granted)
    spec = server_spec(VariantKey("mail"), "streamable_http", url="http://h/mcp", auth=AUTH)
    grant = tokens.authorization(spec, ResolvedValues(url="http://h/mcp"), IgnoredProblems())
    assert grant is not None
    log_in("acme", 1.0)
    assert await grant.refused(None, 401, REFUSED)
    for tenant, granted_at in (("beta", 2.0), ("alpha", 3.0)):
        sent = await grant.credential()
        assert not await grant.refused(sent, 403, {})
        log_in(tenant, granted_at)
        await tokens.follow_logins()
        assert await grant.refused(sent, 403, {})
        credential = await grant.credential()
        assert credential is not None
        assert credential.header == f"Bearer of {tenant}"
    await tokens.aclose()


class Problems(IgnoredProblems):
    open: Fault | None = None

    def report(self, fault: Fault) -> None:
        self.open = fault

    def clear(self) -> None:
        self.open = None


async def test_a_403_whose_renewal_fails_for_a_moment_leaves_no_problem() -> None:
    away = AuthorizationError("it is away", is_outage=True)
    answers: list[TokenAnswer | AuthorizationError] = [TokenAnswer("good", 3_600.0), away]

    def obtain(wanted: Wanted, attempt: Attempt) -> TokenAnswer:
        answer = answers.pop(0)
        if isinstance(answer, AuthorizationError):
            raise answer
        return answer

    now = 100.0
    tokens, problems = Tokens(obtain, lambda: now), Problems()
    spec = server_spec(VariantKey("mail", "acme"), "streamable_http", url="http://h", auth=AUTH)
    grant = tokens.authorization(spec, ResolvedValues(url="http://h"), problems)
    assert grant is not None
    assert await grant.refused(None, 401, REFUSED)
    good = await grant.credential()
    now += 60
    assert not await grant.refused(good, 403, {})
    assert not answers
    assert problems.open is None
    assert await grant.credential() is good
    await tokens.aclose()


async def test_a_403_during_the_usual_renewal_of_a_token_does_not_end_its_problem() -> None:
    attempts: list[Attempt] = []

    def obtain(wanted: Wanted, attempt: Attempt) -> TokenAnswer:
        attempts.append(attempt)
        if len(attempts) > 1:
            raise AuthorizationError("it is away", is_outage=True)
        return TokenAnswer("good", 3_600.0)

    now = 100.0
    tokens, problems = Tokens(obtain, lambda: now), Problems()
    spec = server_spec(VariantKey("mail", "acme"), "streamable_http", url="http://h", auth=AUTH)
    grant = tokens.authorization(spec, ResolvedValues(url="http://h"), problems)
    assert grant is not None
    assert await grant.refused(None, 401, REFUSED)
    now += 3_570
    good = await grant.credential()  # which is renewed from now on
    assert not await grant.refused(good, 403, {})
    assert problems.open is not None
    assert await grant.credential() is good
    await tokens.aclose()
    assert len(attempts) == 2


async def test_a_refused_new_token_is_looked_into_once_in_a_while() -> None:
    attempts: list[Attempt] = []

    def obtain(wanted: Wanted, attempt: Attempt) -> TokenAnswer:
        assert wanted.tenant == "acme"
        attempts.append(attempt)
        return TokenAnswer("new", 3600.0, "")

    now = 100.0
    tokens = Tokens(obtain, lambda: now)
    spec = server_spec(VariantKey("mail", "acme"), "streamable_http", url="http://h/mcp", auth=AUTH)
    grant = tokens.authorization(spec, ResolvedValues(url="http://h/mcp"), IgnoredProblems())
    assert grant is not None
    assert await grant.refused(None, 401, REFUSED)
    for _ in range(5):
        with pytest.raises(Fault, match="has just issued"):
            await grant.refused(await grant.credential(), 401, REFUSED)
    assert [attempt.is_new for attempt in attempts] == [False, True]
    await tokens.aclose()


async def test_a_login_is_used_at_once_and_its_end_is_noticed_without_a_request(
    store: LoginStore,
) -> None:
    now = 100.0
    sealed = SealedTokens(store)
    tokens = Tokens(sealed, lambda: now, sealed.granted)
    wanted = Wanted(server="mail", url="http://h/mcp", auth=AUTH, client=Client(""), tenant="acme")
    key = VariantKey("mail", "acme")
    spec = server_spec(key, "streamable_http", url="http://h/mcp", auth=AUTH)
    grant = tokens.authorization(spec, ResolvedValues(url="http://h/mcp"), IgnoredProblems())
    assert grant is not None
    for _ in range(3):  # the store is read once, until it has changed
        with pytest.raises(Fault, match="nobody is logged in"):
            await grant.refused(None, 401, REFUSED)
    store.write(Login(wanted.login, issuer="http://i", access_token="new", granted_at=1.0))
    assert await tokens.follow_logins() == ChangedLogins()
    assert await grant.refused(None, 401, REFUSED)
    credential = await grant.credential()
    assert credential is not None
    assert credential.header == "Bearer new"
    assert await tokens.follow_logins() == ChangedLogins(set(), set())
    store.remove(wanted.login)
    assert await tokens.follow_logins() == ChangedLogins({key}, set())
    with pytest.raises(Fault, match="nobody is logged in"):
        await grant.credential()
    await tokens.aclose()


@pytest.mark.parametrize(
    ("is_called", "is_called_first"), [(True, False), (False, False), (False, True)]
)
async def test_a_login_is_used_also_if_the_server_asks_for_none(
    store: LoginStore, is_called: bool, is_called_first: bool
) -> None:
    wanted = Wanted(server="mail", url="http://h/mcp", auth=AUTH, client=Client(""), tenant="acme")
    key = VariantKey("mail", "acme")
    spec = server_spec(key, "streamable_http", url="http://h/mcp", auth=AUTH)

    def begun() -> tuple[Tokens, Authorization]:
        sealed = SealedTokens(store)
        tokens = Tokens(sealed, granted=sealed.granted)
        grant = tokens.authorization(spec, ResolvedValues(url="http://h/mcp"), IgnoredProblems())
        assert grant is not None
        return tokens, grant

    first, before = begun()
    assert [await before.credential() for _ in range(2)] == [None, None]
    assert await first.follow_logins() == ChangedLogins(set(), set())
    if is_called:
        assert await before.credential() is None
    store.write(Login(wanted.login, access_token="new", granted_at=1.0))
    if is_called_first:
        assert await before.credential() is not None
    assert await first.follow_logins() == ChangedLogins(set(), {key})
    second, after = begun()
    for grant in (before, after):
        credential = await grant.credential()
        assert credential is not None
        assert credential.header == "Bearer new"
    assert await first.follow_logins() == ChangedLogins(set(), set())
    for tokens in (first, second):
        await tokens.aclose()


@pytest.mark.parametrize("has_vault", [True, False])
async def test_a_server_that_asks_for_no_login_is_called_without_one(
    store: LoginStore, has_vault: bool
) -> None:
    sealed = SealedTokens(store if has_vault else None)
    tokens = Tokens(sealed, granted=sealed.granted)
    spec = server_spec(VariantKey("mail", "acme"), "streamable_http", url="http://h/mcp", auth=AUTH)
    grant = tokens.authorization(spec, ResolvedValues(url="http://h/mcp"), IgnoredProblems())
    assert grant is not None
    if has_vault:
        wanted = Wanted(
            server="mail", url="http://h/mcp", auth=AUTH, client=Client(""), tenant="acme"
        )
        store.write(Login(wanted.login, access_token="old").ended_by("has expired"))
        with pytest.raises(Fault, match="has expired"):
            await grant.credential()
        store.remove(wanted.login)
        await tokens.follow_logins()
    assert await grant.credential() is None
    await tokens.aclose()


async def test_callers_who_have_not_logged_in_leave_no_files(
    store: LoginStore, tmp_path: Path
) -> None:
    wanted = Wanted(server="mail", url="http://h/mcp", auth=AUTH, client=Client(""), tenant="acme")
    store.write(Login(replace(wanted, tenant="other").login, access_token="theirs"))
    before = sorted(tmp_path.rglob("*"))
    for is_optional in (True, False):
        attempt = Attempt(Challenge(401), is_optional=is_optional)
        with pytest.raises(AuthorizationError, match="nobody is logged in"):
            await in_thread(SealedTokens(store), wanted, attempt)
    assert sorted(tmp_path.rglob("*")) == before


async def test_the_next_login_is_used_at_once_after_renewals_that_failed(
    guarded: Guarded, store: LoginStore
) -> None:
    async def broken(_form: object) -> web.Response:
        return web.Response(status=400, text="<h1>Bad request</h1>")

    clock = [100.0]
    wanted, login = expired(guarded, store)
    sealed = SealedTokens(store)
    tokens = Tokens(sealed, lambda: clock[0], sealed.granted)
    key = VariantKey("mail", "acme")
    spec = server_spec(key, "streamable_http", url=wanted.url, auth=wanted.auth)
    grant = tokens.authorization(spec, ResolvedValues(url=wanted.url), IgnoredProblems())
    assert grant is not None
    good = replace(login, access_token="first", obtained_at=time.time(), expires_at=time.time() + 9)
    store.write(good)
    assert await grant.refused(None, 401, REFUSED)
    guarded.answer, clock[0] = broken, clock[0] + 10
    store.write(login)
    with pytest.raises(Fault, match="HTTP status 400"):
        await grant.credential()
    store.write(replace(good, access_token="second", granted_at=2.0))
    assert await tokens.follow_logins() == ChangedLogins(set(), {key})
    credential = await grant.credential()
    assert credential is not None
    assert credential.header == "Bearer second"
    await tokens.aclose()


@pytest.mark.parametrize("is_followed", [True, False])
async def test_the_next_login_is_used_at_once_by_calls_that_needed_its_scopes(
    store: LoginStore, is_followed: bool
) -> None:
    sealed, stamps = SealedTokens(store), set[object]()
    tokens = Tokens(sealed, granted=sealed.granted)
    wanted = Wanted(server="mail", url="http://h/mcp", auth=AUTH, client=Client(""), tenant="acme")
    key = VariantKey("mail", "acme")
    spec = server_spec(key, "streamable_http", url="http://h/mcp", auth=AUTH)
    grant = tokens.authorization(spec, ResolvedValues(url="http://h/mcp"), IgnoredProblems())
    assert grant is not None
    login = Login(wanted.login, access_token="narrow", granted_at=1.0, scope="tools")
    store.write(login)
    assert await grant.refused(None, 401, REFUSED)
    narrow, more = await grant.credential(), {"www-authenticate": NEEDS_FILES}
    for _ in range(2):  # the first one notes the scopes, which is no change to wait for again
        with pytest.raises(Fault, match="further permissions") as caught:
            await grant.refused(narrow, 403, more)
        assert caught.value.reason is Reason.LOGIN_REQUIRED
        assert await tokens.follow_logins() == ChangedLogins(set(), set())
        stamps.add(store.stamp(wanted.login))
    assert len(stamps) == 1
    store.write(replace(login, access_token="wide", granted_at=2.0, scope="tools files"))
    if is_followed:
        assert await tokens.follow_logins() == ChangedLogins(set(), {key})
    assert await grant.refused(narrow, 403, more)
    credential = await grant.credential()
    assert credential is not None
    assert credential.header == "Bearer wide"
    assert await tokens.follow_logins() == ChangedLogins(set(), set())
    await tokens.aclose()
