"""A person logs in: what the page is asked for, who the client is, and how the redirect returns."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
from collections.abc import Mapping
from dataclasses import replace
from typing import Any
from urllib.parse import urlsplit

import aiohttp
import pytest
from aiohttp import web
from tests.conftest import BOUND
from tests.data_plane.oauth.guarded import Guarded
from tests.data_plane.oauth.logging_in import CONSOLE, Logging, query_of, wanted_of
from tests.ports import free_port

from leaseway.data_plane.oauth.challenges import Challenge
from leaseway.data_plane.oauth.errors import AuthorizationError
from leaseway.data_plane.oauth.logins import login as login_module
from leaseway.data_plane.oauth.logins.login import (
    LoginRequest,
    begin_login,
    finish_login,
    log_in,
)
from leaseway.data_plane.oauth.logins.redirects import Redirect
from leaseway.data_plane.oauth.metadata import AuthorizationServer, discover, habits_of
from leaseway.data_plane.oauth.obtaining import Attempt
from leaseway.data_plane.oauth.requests import Client
from leaseway.data_plane.oauth.sealed import SealedTokens
from leaseway.data_plane.oauth.web import Web
from leaseway.spec.auth import Auth
from leaseway.vault.key import VaultError
from leaseway.vault.logins import LoginStore
from leaseway.wire.channels.fetching import Response, in_thread


@pytest.fixture
def registering(guarded: Guarded) -> Guarded:
    guarded.metadata = {"registration_endpoint": f"{guarded.base}/register"}
    guarded.protected = {"scopes_supported": ["tools", "files"]}
    return guarded


# The page, and the client.


@pytest.mark.parametrize(
    ("accepted", "refusal"),
    [
        (None, ""),
        ({"tools"}, "invalid_client_metadata"),
        (set(), "invalid_scope"),
        ({"tools"}, "insufficient_scope"),
    ],
)
async def test_a_client_is_registered_with_the_scopes_of_its_login_or_with_none(
    registering: Guarded, store: LoginStore, accepted: set[str] | None, refusal: str
) -> None:
    registering.only_scopes, registering.refusal = accepted, refusal
    begun = await in_thread(begin_login, wanted_of(registering), store, CONSOLE)
    (registered,) = registering.registered
    assert registered.get("scope") == ("tools files" if accepted is None else None)
    query = query_of(begun.url)
    assert (query["client_id"], query["scope"]) == ("registered-1", "tools files")


async def test_a_login_requests_what_is_named_now_and_what_calls_have_needed_besides(
    guarded: Guarded, store: LoginStore
) -> None:
    wanted = wanted_of(guarded, Client("me"))
    needing = Attempt(Challenge(403, scope="write"), scopes=("write",))
    for named, needed in (("read", ""), ("files", " write"), ("mail", " write")):
        guarded.protected = {"scopes_supported": [named]}
        begun = await in_thread(begin_login, wanted, store, CONSOLE)
        assert query_of(begun.url)["scope"] == f"{named}{needed}"
        await in_thread(finish_login, begun, {"code": "planted-code"}, store)
        if not needed:
            with pytest.raises(AuthorizationError, match="needs further permissions"):
                await in_thread(SealedTokens(store), wanted, needing)


@pytest.mark.parametrize("told", ["", "profile offline_access", "profile"])
async def test_a_client_is_registered_with_the_usual_scopes_where_the_server_names_none(
    registering: Guarded, store: LoginStore, told: str
) -> None:
    registering.protected = {"scopes_supported": []}
    registering.metadata |= {"scopes_supported": ["offline_access"]}
    registering.registration = {"scope": told}
    begun = await in_thread(begin_login, wanted_of(registering), store, CONSOLE)
    [registered] = registering.registered
    assert "scope" not in registered
    asked = query_of(begun.url).get("scope", "")
    assert asked == ("" if told == "profile" else "offline_access")


@pytest.mark.parametrize("offered", ["post basic", "basic post", "private_key_jwt post"])
async def test_a_client_is_registered_for_what_its_authorization_server_offers_first(
    registering: Guarded, store: LoginStore, offered: str
) -> None:
    methods = [f"client_secret_{name}" for name in offered.split()]
    registering.metadata["token_endpoint_auth_methods_supported"] = methods
    await in_thread(begin_login, wanted_of(registering), store, CONSOLE)
    (registered,) = registering.registered
    usable = [name for name in methods if not name.endswith("jwt")]
    assert registered["token_endpoint_auth_method"] == usable[0]


async def test_the_page_of_a_login_gets_the_configured_parameters(
    guarded: Guarded, store: LoginStore
) -> None:
    guarded.metadata = {"scopes_supported": ["offline_access"]}
    me = Client("me")
    usual = await in_thread(begin_login, wanted_of(guarded, me), store, CONSOLE)
    assert query_of(usual.url)["prompt"] == "consent"  # a refresh token is asked for
    parameters = {"audience": "https://api", "prompt": ""}
    wanted = wanted_of(guarded, me, parameters=parameters)
    begun = await in_thread(begin_login, wanted, store, CONSOLE)
    query = query_of(begun.url)
    assert query["audience"] == "https://api"
    assert "prompt" not in query


@pytest.mark.parametrize(
    ("issuer", "login", "resource"),
    [
        ("https://accounts.google.com", {"access_type": "offline", "prompt": "consent"}, True),
        ("https://login.microsoftonline.com/0b1f/v2.0", {"prompt": ""}, False),
        ("https://login.microsoftonline.com.evil.example/v2.0", {}, True),
        ("https://login.example.com", {}, True),
    ],
)
@pytest.mark.parametrize("configured", ["", "https://api.example.com/other"])
def test_what_large_providers_want_needs_no_configuration(
    issuer: str, login: Mapping[str, str], resource: bool, configured: str
) -> None:
    url = "https://api.example.com/mcp"

    def send(address: str, **_: object) -> Response:
        if "protected" in address:
            said: dict[str, Any] = {"resource": url, "authorization_servers": [issuer]}
        else:
            said = {"issuer": issuer, "token_endpoint": f"{issuer}/token"}
        return Response(200, {}, json.dumps(said).encode())

    auth = Auth("client_credentials", resource=configured)
    found = discover(Web([url], send), url, auth, Challenge(401))
    assert habits_of(found.server).login == login
    assert found.resource == configured or (url if resource else "")


def test_a_large_provider_is_known_by_its_token_endpoint_if_it_names_no_issuer() -> None:
    server = AuthorizationServer("", "https://login.microsoftonline.com/0b1f/oauth2/v2.0/token")
    assert not habits_of(server).knows_resource


@pytest.mark.parametrize(
    ("issuer", "said", "is_right"),
    [
        ("https://a.example/", "https://a.example/", True),
        ("", "https://a.example", True),
        ("https://a.example", "https://a.example/", False),
        ("https://a.example/", "https://a.example", False),
        ("https://a.example", "https://b.example", False),
        ("https://a.example", "https://a.example/b", False),
        ("https://a.example/{tenantid}/v2", "https://a.example/7f3e/v2", True),
        ("https://a.example/{tenantid}/v2", "https://b.example/7f3e/v2", False),
        ("https://{tenantid}", "https://b.example", False),
    ],
)
async def test_the_issuer_of_a_redirect_is_compared_character_by_character(
    guarded: Guarded, store: LoginStore, issuer: str, said: str, is_right: bool
) -> None:
    begun = await in_thread(begin_login, wanted_of(guarded, Client("me")), store, CONSOLE)
    server = AuthorizationServer(issuer, f"{guarded.base}/token")
    object.__setattr__(begun.found, "server", server)
    answer = {"code": "planted-code", "iss": said}
    if is_right:
        assert (await in_thread(finish_login, begun, answer, store)).access_token
    else:
        with pytest.raises(AuthorizationError, match="another authorization server") as caught:
            await in_thread(finish_login, begun, answer, store)
        assert f"write issuer: {said} in auth" in str(caught.value)


async def test_a_code_of_base64_that_nobody_has_encoded_is_redeemed_as_it_was(
    guarded: Guarded, store: LoginStore
) -> None:
    begun = await in_thread(begin_login, wanted_of(guarded, Client("me")), store, CONSOLE)
    answer = query_of(f"{CONSOLE}?state={begun.state}&code=pla+nted/co+de==")
    await in_thread(finish_login, begun, answer, store)
    assert guarded.granted[-1]["code"] == "pla+nted/co+de=="


async def test_a_login_is_not_written_while_a_worker_renews_the_previous_one(
    guarded: Guarded, store: LoginStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(login_module, "LOGIN_LOCK", 0.05)
    wanted = wanted_of(guarded, Client("me"))
    begun = await in_thread(begin_login, wanted, store, CONSOLE)
    with store.exclusive(wanted.login, 1.0), pytest.raises(VaultError):
        await in_thread(finish_login, begun, {"code": "planted-code"}, store)
    assert store.read(wanted.login) is None
    assert await in_thread(finish_login, begun, {"code": "planted-code"}, store)


@pytest.mark.parametrize(
    ("told", "refused", "changed"),
    [
        (
            {"grant_types_supported": ["authorization_code"]},
            {"grant_types": ["refresh_token", "authorization_code"]},
            {"grant_types": ["authorization_code"]},
        ),
        (
            {"token_endpoint_auth_methods_supported": None},
            {"token_endpoint_auth_method": "client_secret_basic"},
            {"token_endpoint_auth_method": "none"},
        ),
    ],
)
async def test_a_client_is_registered_without_what_its_authorization_server_does_not_name(
    registering: Guarded,
    store: LoginStore,
    monkeypatch: pytest.MonkeyPatch,
    told: dict[str, Any],
    refused: dict[str, Any],
    changed: dict[str, Any],
) -> None:
    def check(wanted: dict[str, Any]) -> str:
        return "invalid_client_metadata" if refused.items() <= wanted.items() else ""

    registering.metadata |= told
    monkeypatch.setattr(registering, "check_registration", check)
    await in_thread(begin_login, wanted_of(registering), store, CONSOLE)
    [registered] = registering.registered
    assert changed.items() <= registered.items()


@pytest.mark.parametrize(
    ("redirect", "words"),
    [
        (CONSOLE, "write redirect_uri: http"),
        ("https://console.example/login/callback", "leaseway login"),
    ],
)
async def test_a_refused_redirect_is_told_with_what_to_do(
    registering: Guarded,
    store: LoginStore,
    monkeypatch: pytest.MonkeyPatch,
    redirect: str,
    words: str,
) -> None:
    monkeypatch.setattr(registering, "check_registration", lambda wanted: "invalid_redirect_uri")
    with pytest.raises(AuthorizationError, match=f"{words}.* write its client_id"):
        await in_thread(begin_login, wanted_of(registering), store, redirect)


@pytest.mark.parametrize(
    ("is_fixed", "accepts_documents", "words"),
    [
        (False, False, r":(\d+)/callback, and write its client_id and redirect_port: \1$"),
        (True, False, "/in, and write its client_id$"),
        (True, True, "/in, and write its client_id, or write client_metadata_url"),
    ],
)
async def test_who_has_to_register_a_client_is_told_what_to_write(
    guarded: Guarded, store: LoginStore, is_fixed: bool, accepts_documents: bool, words: str
) -> None:
    guarded.metadata = {"client_id_metadata_document_supported": accepts_documents}
    address = f"http://127.0.0.1:{free_port()}/in" if is_fixed else ""
    request = LoginRequest(wanted_of(guarded, redirect_uri=address), tell=print)
    with pytest.raises(AuthorizationError, match=words):
        await in_thread(log_in, request, store)


@pytest.mark.parametrize("is_told", [True, False])
async def test_offline_access_is_not_requested_where_it_is_offered_and_not_given(
    registering: Guarded, store: LoginStore, is_told: bool
) -> None:
    registering.metadata |= {"scopes_supported": ["tools", "offline_access"]}
    wanted = wanted_of(registering)
    if is_told:
        registering.registration = {"scope": "tools files"}
    else:
        begun = await in_thread(begin_login, wanted, store, CONSOLE)
        assert "offline_access" in query_of(begun.url)["scope"]
        with pytest.raises(AuthorizationError, match="open its link again"):
            await in_thread(finish_login, begun, {"error": "invalid_scope"}, store)
    for _ in range(2):
        begun = await in_thread(begin_login, wanted, store, CONSOLE)
        assert query_of(begun.url)["scope"] == "tools files"
        await in_thread(finish_login, begun, {"code": "planted-code"}, store)
    assert len(registering.registered) == (1 if is_told else 2)
    for client in () if is_told else (Client(""), Client("theirs")):
        other = replace(wanted, tenant="other", client=client)
        begun = await in_thread(begin_login, other, store, CONSOLE)
        assert "offline_access" in query_of(begun.url)["scope"]


@pytest.mark.parametrize("secret", ["", "word"])
async def test_the_request_of_a_login_is_sent_before_where_it_must_be(
    guarded: Guarded, store: LoginStore, secret: str
) -> None:
    offered = {"pushed_authorization_request_endpoint": f"{guarded.base}/par"}
    guarded.metadata = offered
    wanted = wanted_of(guarded, Client("me", secret))
    begun = await in_thread(begin_login, wanted, store, CONSOLE)
    usual = query_of(begun.url)
    guarded.metadata = {**offered, "require_pushed_authorization_requests": True}
    begun = await in_thread(begin_login, wanted, store, CONSOLE)
    assert query_of(begun.url) == {"client_id": "me", "request_uri": "urn:pushed:1"}
    [(form, client)] = guarded.pushed
    changing = ("state", "code_challenge")
    assert all(form.pop(name) != usual.pop(name) for name in changing)
    assert form == usual
    assert bool(client) is bool(secret)


async def test_a_kept_client_that_may_send_no_request_is_replaced_at_once(
    registering: Guarded, store: LoginStore
) -> None:
    registering.metadata |= {
        "pushed_authorization_request_endpoint": f"{registering.base}/par",
        "require_pushed_authorization_requests": True,
    }
    wanted = wanted_of(registering)
    for client in ("registered-1", "registered-2"):
        begun = await in_thread(begin_login, wanted, store, CONSOLE)
        assert query_of(begun.url)["client_id"] == client
        await in_thread(finish_login, begun, {"code": "planted-code"}, store)
        registering.unknown_clients = {client}


# The redirect.


@pytest.mark.parametrize(
    "pasted", ["{redirect}?{query}", "https://elsewhere/x?{query}#", "{query}"]
)
async def test_the_address_of_a_browser_elsewhere_can_be_pasted(
    guarded: Guarded, store: LoginStore, pasted: str
) -> None:
    logging_in = Logging(wanted_of(guarded, Client("me")), store)
    asked = query_of((await logging_in.told()).url)
    for wrong in (b"\n", b"yes\n", b"http://127.0.0.1/callback?code=planted-code&state=other\n"):
        os.write(logging_in.keys, wrong)
        if wrong.strip():
            assert "Copy the whole address" in (await logging_in.told()).fault
    query = f"code=planted-code&state={asked['state']}"
    text = pasted.format(redirect=asked["redirect_uri"], query=query)
    os.write(logging_in.keys, text[:9].encode())
    os.write(logging_in.keys, f"{text[9:]}\n".encode())
    assert (await logging_in.login()).access_token in guarded.accepted
    form = guarded.granted[0]
    assert (form["code"], form["redirect_uri"]) == ("planted-code", asked["redirect_uri"])


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1"])
async def test_a_registered_redirect_is_used_as_it_is_written(
    guarded: Guarded, store: LoginStore, host: str
) -> None:
    uri = f"http://{host}/oauth/back"
    logging_in = Logging(wanted_of(guarded, Client("me"), redirect_uri=uri), store)
    os.close(logging_in.keys)  # no terminal
    logging_in.keys = os.dup(0)
    asked = query_of((await logging_in.told()).url)
    redirect = urlsplit(asked["redirect_uri"])
    assert (redirect.hostname, redirect.path) == (host, "/oauth/back")
    async with aiohttp.ClientSession() as browser:
        address = f"http://127.0.0.1:{redirect.port}"
        async with browser.get(f"{address}/callback?state={asked['state']}&code=c") as response:
            assert response.status == 404
        query = f"state={asked['state']}&code=planted-code"
        async with browser.get(f"{address}/oauth/back?{query}") as response:
            assert "You are logged in" in await response.text()
    assert (await logging_in.login()).access_token in guarded.accepted


async def test_the_last_page_of_a_login_says_whether_the_code_was_accepted(
    guarded: Guarded, store: LoginStore
) -> None:
    async def refuse(form: Mapping[str, str]) -> web.Response:
        return web.json_response({"error": "invalid_grant"}, status=400)

    guarded.answer = refuse
    logging_in = Logging(wanted_of(guarded, Client("me")), store)
    asked = query_of((await logging_in.told()).url)
    async with aiohttp.ClientSession() as browser:
        query = {"state": asked["state"], "code": "planted-code"}
        async with browser.get(asked["redirect_uri"], params=query) as response:
            page = await response.text()
    assert "The login failed: the authorization server" in page
    assert "answered with invalid_grant. You can close this page." in page
    with pytest.raises(AuthorizationError, match="invalid_grant"):
        await logging_in.login()


async def test_a_page_that_is_loaded_again_before_the_end_of_a_login_tells_it() -> None:
    redirect = Redirect()

    async def shown(browser: aiohttp.ClientSession) -> str:
        async with browser.get(f"{redirect.url}?state={redirect.state}&code=c") as response:
            return await response.text()

    with contextlib.ExitStack() as login:
        login.enter_context(redirect)
        async with aiohttp.ClientSession() as browser, asyncio.timeout(BOUND):
            pages = [asyncio.create_task(shown(browser)) for _ in range(2)]
            while redirect._pages < len(pages):
                await asyncio.sleep(0.01)
            await in_thread(login.close)
            assert all("You are logged in." in page for page in await asyncio.gather(*pages))


def test_a_redirect_without_a_path_has_none() -> None:
    with Redirect("http://localhost") as redirect:
        assert redirect.url == f"http://localhost:{urlsplit(redirect.url).port}"


async def test_an_outage_ends_no_login_on_another_device(
    guarded: Guarded, store: LoginStore
) -> None:
    answers = iter([web.Response(status=502, text="<h1>Bad gateway</h1>")])

    async def answer(form: Mapping[str, str]) -> web.Response:
        return next(answers, None) or guarded.grant(form)

    guarded.metadata = {"device_authorization_endpoint": f"{guarded.base}/device"}
    guarded.answer = answer
    logging_in = Logging(wanted_of(guarded, Client("me")), store, by_device=True)
    told = await logging_in.told()
    assert (told.url, told.code) == (f"{guarded.base}/enter", "AB-CD")
    assert (await logging_in.login()).access_token in guarded.accepted
    assert len(guarded.granted) == 2
