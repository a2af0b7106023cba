"""Answers of authorization servers in the shapes that occur, as reports about MCP clients show."""

from __future__ import annotations

import base64
import json
import time
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest
from aiohttp import web
from tests.data_plane.oauth.expired import expired
from tests.data_plane.oauth.guarded import Guarded

from leaseway.data_plane.oauth.challenges import Challenge
from leaseway.data_plane.oauth.errors import AuthorizationError
from leaseway.data_plane.oauth.metadata import (
    AuthorizationServer,
    habits_of,
    is_same_issuer,
)
from leaseway.data_plane.oauth.obtaining import Attempt, Wanted
from leaseway.data_plane.oauth.requests import Client, TokenAnswer
from leaseway.data_plane.oauth.sealed import RESOURCE, SERVER, SealedTokens
from leaseway.spec.auth import Auth
from leaseway.spec.references import Value
from leaseway.vault.logins import LoginStore
from leaseway.wire.channels.fetching import in_thread

USUAL = Attempt(Challenge(401))
TOKEN = {"access_token": "planted-token", "token_type": "Bearer"}


def answering(body: bytes, kind: str = "application/json", status: int = 200) -> Any:
    async def answer(form: Mapping[str, str]) -> web.Response:
        return web.Response(status=status, body=body, headers={"Content-Type": kind})

    return answer


async def obtained(
    guarded: Guarded, auth: Auth | None = None, attempt: Attempt = USUAL
) -> TokenAnswer:
    auth = auth or Auth("client_credentials")
    wanted = Wanted("api", f"{guarded.base}/mcp", auth, Client("me", "word"))
    return await in_thread(SealedTokens(None), wanted, attempt)


@pytest.mark.parametrize(
    ("more", "lifetime"),
    [
        ({"expires_in": "3600"}, 3_600),
        ({"expires_in": 3600.0}, 3_600),
        ({"expires_in": 0}, None),
        ({"expires_in": -1}, None),
        ({"expires_in": "3600abc"}, None),
        ({"expires_in": "nan"}, None),
        ({"expires_in": True}, None),
        ({"expires_in": [3600]}, None),
        ({"expires_in": 10**400}, None),
        ({"expires_in": 10**15}, 365 * 86_400),
        ({"expires_in": "inf"}, 365 * 86_400),
        ({}, None),
    ],
)
async def test_a_lifetime_is_read_or_counts_as_not_told(
    guarded: Guarded, more: Mapping[str, Any], lifetime: float | None
) -> None:
    guarded.answer = answering(json.dumps({**TOKEN, **more}).encode())
    assert (await obtained(guarded)).lifetime == lifetime


@pytest.mark.parametrize(
    ("body", "kind", "status"),
    [
        (json.dumps({"access_token": "planted-token"}).encode(), "application/json", 200),
        (json.dumps({**TOKEN, "token_type": None}).encode(), "text/html", 200),
        (json.dumps({**TOKEN, "token_type": " BEARER "}).encode(), "application/json", 200),
        (
            json.dumps({**TOKEN, "token_type": "user", "scope": "a,b"}).encode(),
            "application/json",
            200,
        ),
        (json.dumps({**TOKEN, "scope": ["a", "b"]}).encode(), "application/json", 200),
        (json.dumps({**TOKEN, "scope": {"a": 1}}).encode(), "application/json", 200),
        (json.dumps({**TOKEN, "refresh_token": 7}).encode(), "application/json", 200),
        (json.dumps({"ok": True, "authed_user": TOKEN}).encode(), "application/json", 200),
        (b"\xef\xbb\xbf" + json.dumps(TOKEN).encode(), "application/json;charset=utf-8", 200),
        (json.dumps(TOKEN).encode(), "application/json", 201),
        (
            b"access_token=planted-token&token_type=bearer&scope=",
            "application/x-www-form-urlencoded",
            200,
        ),
    ],
    ids=range(11),
)
async def test_a_token_is_found_in_an_answer_that_is_not_as_the_standard_says(
    guarded: Guarded, body: bytes, kind: str, status: int
) -> None:
    guarded.answer = answering(body, kind, status)
    answer = await obtained(guarded)
    assert answer.access_token == "planted-token"
    assert answer.scope in ("", "a b")


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (b'{"access_token": null}', "without a token"),
        (b'{"access_token": 5}', "without a token"),
        (b'{"access_token": ["x"]}', "without a token"),
        (b"[]", "without a token"),
        (b"null", "without a token"),
        (b"[" * 100_000, "without a token"),
        (b"access_token=x", "without a token"),
        (b'{"access_token": ""}', "no header"),
        (b'{"access_token": "a\\u0000b"}', "no header"),
        (b'{"error": "bad_verification_code", "error_description": "no"}', "bad_verification_code"),
        (b'{"ok": false, "error": "invalid_client_id"}', "invalid_client_id"),
    ],
)
async def test_an_answer_without_a_token_is_an_error_in_words(
    guarded: Guarded, body: bytes, words: str
) -> None:
    guarded.answer = answering(body)
    with pytest.raises(AuthorizationError, match=words):
        await obtained(guarded)


# Metadata.


@pytest.mark.parametrize(
    ("protected", "metadata"),
    [
        ({"authorization_servers": ["{base}/"]}, {}),
        ({"authorization_servers": ["{base}/.well-known/oauth-authorization-server"]}, {}),
        ({"authorization_servers": ["{base}/.well-known/openid-configuration"]}, {}),
        ({}, {"issuer": "{base}/"}),
        ({"authorization_servers": None}, {}),
        ({"authorization_servers": "{base}"}, {}),
        ({"authorization_servers": ["https://[::1", "{base}"]}, {}),
        ({"resource": "{base}/mcp/"}, {}),
        ({"resource": "{base}"}, {}),
        ({"scopes_supported": "tools"}, {}),
        ({"scopes_supported": {"tools": True}}, {"scopes_supported": None}),
        ({}, {"token_endpoint_auth_methods_supported": "client_secret_basic"}),
    ],
)
async def test_metadata_are_read_in_the_shapes_that_occur(
    guarded: Guarded, protected: Mapping[str, Any], metadata: Mapping[str, Any]
) -> None:
    def filled(document: Mapping[str, Any]) -> dict[str, Any]:
        return dict(json.loads(json.dumps(document).replace("{base}", guarded.base)))

    guarded.protected, guarded.metadata = filled(protected), filled(metadata)
    assert (await obtained(guarded)).access_token in guarded.accepted


async def test_metadata_are_looked_for_where_they_usually_are_if_the_named_place_is_no_address(
    guarded: Guarded,
) -> None:
    named = Attempt(Challenge(401, resource_metadata="http://[x"))
    assert (await obtained(guarded, attempt=named)).access_token in guarded.accepted


def test_a_server_whose_issuer_is_no_address_is_known_by_its_token_endpoint() -> None:
    server = AuthorizationServer("http://[x", "https://sts.windows.net/token")
    assert not habits_of(server).knows_resource


@pytest.mark.parametrize(
    ("protected", "metadata", "words"),
    [
        ({"authorization_servers": [7]}, {}, "no authorization server"),
        ({"authorization_servers": ["https://[::1"]}, {}, "no authorization server"),
        ({"resource": None}, {}, "another resource"),
        ({"resource": "urn:mcp"}, {}, "another resource"),
        ({"resource": "{base}/mcp2"}, {}, "another resource"),
        ({"resource": "https://[::1"}, {}, "another resource"),
        ({"resource": "https://a\\b"}, {}, "another resource"),
        ({}, {"issuer": "{base}//"}, "another issuer"),
        ({}, {"issuer": "https://evil.example.com"}, "another issuer"),
        ({}, {"issuer": None}, "another issuer"),
        ({}, {"token_endpoint": None}, "token endpoint"),
        ({}, {"token_endpoint": "file:///etc/passwd"}, "no web address"),
    ],
)
async def test_metadata_of_something_else_are_refused(
    guarded: Guarded, protected: Mapping[str, Any], metadata: Mapping[str, Any], words: str
) -> None:
    def filled(document: Mapping[str, Any]) -> dict[str, Any]:
        return dict(json.loads(json.dumps(document).replace("{base}", guarded.base)))

    guarded.protected, guarded.metadata = filled(protected), filled(metadata)
    with pytest.raises(AuthorizationError, match=words):
        await obtained(guarded)
    assert not guarded.granted


@pytest.mark.parametrize(
    ("other", "is_same"),
    [
        ("https://a.example/t", True),
        ("https://A.example:443/t/", True),
        ("https://a.example/.well-known/oauth-authorization-server/t", True),
        ("https://a.example/t/.well-known/openid-configuration", True),
        ("https://a.example/t/.well-known/other", False),
        ("https://a.example:8443/t", False),
        ("https://a.example/T", False),
        ("http://a.example/t", False),
        ("https://[::1", False),
    ],
)
def test_the_port_of_its_scheme_makes_no_other_issuer(other: str, is_same: bool) -> None:
    assert is_same_issuer("https://a.example/t", other) is is_same


@pytest.mark.parametrize("first", ["http://127.0.0.1:1", "{base}/gone", "http://169.254.169.254"])
async def test_the_next_authorization_server_is_used_if_the_first_cannot_be(
    guarded: Guarded, first: str
) -> None:
    first = first.replace("{base}", guarded.base)
    guarded.protected = {"authorization_servers": [first, guarded.base]}
    assert (await obtained(guarded)).access_token in guarded.accepted
    registered = Auth("client_credentials", values={"client_id": Value("literal", "me")})
    with pytest.raises(AuthorizationError):  # the client's secret is for the first one only
        await obtained(guarded, registered)
    assert len(guarded.granted) == 1


@pytest.mark.parametrize("of_root", [{}, {"error": "not found"}, {"issuer": "{base}"}])
@pytest.mark.parametrize("place", ["openid-configuration", "oauth-authorization-server"])
async def test_metadata_of_the_root_at_the_place_of_an_issuer_are_passed_over(
    of_root: Mapping[str, str], place: str, guarded: Guarded
) -> None:
    app = web.Application()
    base = ""

    async def root(request: web.Request) -> web.Response:  # whatever follows the address
        return web.json_response({name: text.format(base=base) for name, text in of_root.items()})

    async def realm(request: web.Request) -> web.Response:
        metadata = {"issuer": f"{base}/realms/a", "token_endpoint": f"{guarded.base}/token"}
        return web.json_response(metadata)

    async def protected(request: web.Request) -> web.Response:
        metadata = {"resource": f"{base}/mcp", "authorization_servers": [f"{base}/realms/a"]}
        return web.json_response(metadata)

    app.router.add_get("/.well-known/oauth-authorization-server{path:.*}", root)
    app.router.add_get("/.well-known/oauth-protected-resource/mcp", root)
    app.router.add_get("/.well-known/oauth-protected-resource", protected)
    app.router.add_get(f"/realms/a/.well-known/{place}", realm)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    base = f"http://127.0.0.1:{runner.addresses[0][1]}"
    try:
        wanted = Wanted("api", f"{base}/mcp", Auth("client_credentials"), Client("me", "word"))
        assert await in_thread(SealedTokens(None), wanted, USUAL)
    finally:
        await runner.cleanup()


async def test_metadata_of_another_issuer_beside_an_outage_are_no_lasting_error(
    guarded: Guarded,
) -> None:
    async def answer(request: web.Request) -> web.Response:
        is_asked_last = request.path.startswith("/realms")
        metadata = {"issuer": "https://other.example", "token_endpoint": "https://other.example/t"}
        return web.json_response(metadata, status=503 if is_asked_last else 200)

    app = web.Application()
    app.router.add_get("/{path:.*}", answer)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    guarded.protected = {
        "authorization_servers": [f"http://127.0.0.1:{runner.addresses[0][1]}/realms/a"]
    }
    try:
        with pytest.raises(AuthorizationError, match="503") as caught:
            await obtained(guarded)
        assert not caught.value.is_lasting
    finally:
        await runner.cleanup()


@pytest.mark.parametrize(
    "place",
    [
        "oauth-authorization-server/sandbox/mcp",
        "oauth-authorization-server",
        "openid-configuration",
    ],
)
async def test_a_server_without_metadata_may_have_its_authorization_server_beside_others(
    place: str, guarded: Guarded
) -> None:
    app = web.Application()

    async def answer(request: web.Request) -> web.Response:
        if "protected-resource" in request.path:
            return web.Response(status=404)
        if request.path == f"/.well-known/{place}":
            return web.json_response({"token_endpoint": f"{guarded.base}/token"})
        if "sandbox" in place:  # of the others
            return web.json_response({"token_endpoint": f"{guarded.base}/gone"})
        return web.json_response({"error": "not found"})

    app.router.add_get("/{path:.*}", answer)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    try:
        url = f"http://127.0.0.1:{runner.addresses[0][1]}/sandbox/mcp"
        wanted = Wanted("api", url, Auth("client_credentials"), Client("me", "word"))
        assert (await in_thread(SealedTokens(None), wanted, USUAL)).access_token
    finally:
        await runner.cleanup()


@pytest.mark.parametrize(
    ("text", "kind"), [("<!doctype html>", "text/html"), ('{"status": "ok"}', "application/json")]
)
async def test_a_page_for_everything_is_no_metadata(guarded: Guarded, text: str, kind: str) -> None:
    app = web.Application()

    async def page(request: web.Request) -> web.Response:
        if request.path == "/.well-known/oauth-authorization-server":
            base = f"http://{request.host}"
            return web.json_response({"issuer": base, "token_endpoint": f"{guarded.base}/token"})
        return web.Response(text=text, content_type=kind)

    app.router.add_route("*", "/{path:.*}", page)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    try:
        url = f"http://127.0.0.1:{runner.addresses[0][1]}/mcp"
        wanted = Wanted("api", url, Auth("client_credentials"), Client("me", "word"))
        assert await in_thread(SealedTokens(None), wanted, USUAL)
    finally:
        await runner.cleanup()


@pytest.mark.parametrize("code", ["invalid_client", "unauthorized_client"])
async def test_a_client_is_named_in_the_form_too_where_it_must_be(
    guarded: Guarded, code: str
) -> None:
    async def as_the_official_package(form: Mapping[str, str]) -> web.Response:
        if form.get("client_id") == "me" and guarded.clients[-1]:
            return guarded.grant(form)
        said = {"error": code, "error_description": "Missing client_id"}
        return web.json_response(said, status=401)

    guarded.answer = as_the_official_package
    for _ in range(2):
        assert (await obtained(guarded)).access_token in guarded.accepted
    assert [form.get("client_id") for form in guarded.granted] == [None, "me", "me"]
    unknown = {"error": code, "error_description": "Invalid client_id"}
    guarded.answer = answering(json.dumps(unknown).encode(), status=401)
    with pytest.raises(AuthorizationError, match="Invalid client_id"):
        await obtained(guarded)


@pytest.mark.parametrize(
    ("offered", "status", "said"),
    [
        (None, 401, {"error": "invalid_client"}),
        (["client_secret_basic", "client_secret_post"], 401, {"error": "invalid_client"}),
        (None, 400, {"error": "invalid_request"}),
        (None, 401, {}),
    ],
)
async def test_a_secret_that_is_not_accepted_is_sent_in_the_other_way_once(
    guarded: Guarded, offered: list[str] | None, status: int, said: Mapping[str, str]
) -> None:
    async def only_in_the_form(form: Mapping[str, str]) -> web.Response:
        if form.get("client_secret") == "word":
            return guarded.grant(form)
        return web.json_response(said, status=status)

    guarded.metadata = {"token_endpoint_auth_methods_supported": offered}
    guarded.answer = only_in_the_form
    assert (await obtained(guarded)).access_token in guarded.accepted
    assert [bool(header) for header in guarded.clients] == [True, False]
    await obtained(guarded)  # from now on it is sent in the way that was accepted
    assert [bool(header) for header in guarded.clients] == [True, False, False]
    guarded.answer = answering(b'{"error": "invalid_client"}', status=401)
    with pytest.raises(AuthorizationError, match="invalid_client"):
        await obtained(guarded)
    assert len(guarded.clients) == 5


async def test_a_way_that_is_refused_is_not_remembered_and_hides_no_other_refusal(
    guarded: Guarded,
) -> None:
    async def as_keycloak(form: Mapping[str, str]) -> web.Response:
        named = base64.b64decode(str(guarded.clients[-1]).removeprefix("Basic ")).decode()
        if named != "me:a%2Bb":
            said = {"error": "unauthorized_client", "error_description": "Invalid client"}
            return web.json_response(said, status=401)
        return web.json_response(first, status=400)

    wanted = Wanted("api", f"{guarded.base}/mcp", Auth("client_credentials"), Client("me", "a+b"))
    guarded.metadata = {"token_endpoint_auth_methods_supported": ["client_secret_basic"]}
    guarded.answer = as_keycloak
    for code in ("invalid_request", "invalid_client"):
        first = {"error": code, "error_description": "No proof"}
        with pytest.raises(AuthorizationError, match=f"{code}: No proof"):
            await in_thread(SealedTokens(None), wanted, USUAL)
    guarded.answer = None
    assert (await in_thread(SealedTokens(None), wanted, USUAL)).access_token
    assert guarded.clients[-1] == f"Basic {base64.b64encode(b'me:a%2Bb').decode()}"
    assert len(guarded.clients) == 4


@pytest.mark.parametrize(
    ("code", "remembered"),
    [("authorization_pending", True), ("invalid_grant", True), ("temporarily_unavailable", False)],
)
async def test_what_is_refused_in_the_other_way_is_said_and_not_that_the_first_was(
    guarded: Guarded, code: str, remembered: bool
) -> None:
    async def only_in_the_form(form: Mapping[str, str]) -> web.Response:
        is_known = form.get("client_secret") == "word"
        return web.json_response({"error": code if is_known else "invalid_client"}, status=400)

    guarded.metadata = {"token_endpoint_auth_methods_supported": None}
    guarded.answer = only_in_the_form
    for _ in range(2):
        with pytest.raises(AuthorizationError) as caught:
            await obtained(guarded)
        assert caught.value.code == code
    again = [False] if remembered else [True, False]
    assert [bool(header) for header in guarded.clients] == [True, False, *again]


async def test_what_is_refused_of_a_secret_as_it_is_is_said_too(guarded: Guarded) -> None:
    plain = f"Basic {base64.b64encode(b'me:a+b').decode()}"

    async def answer(_form: Mapping[str, str]) -> web.Response:
        code = "invalid_grant" if guarded.clients[-1] == plain else "invalid_client"
        return web.json_response({"error": code}, status=400)

    wanted = Wanted("api", f"{guarded.base}/mcp", Auth("client_credentials"), Client("me", "a+b"))
    guarded.metadata = {"token_endpoint_auth_methods_supported": ["client_secret_basic"]}
    guarded.answer = answer
    for _ in range(2):
        with pytest.raises(AuthorizationError) as caught:
            await in_thread(SealedTokens(None), wanted, USUAL)
        assert caught.value.code == "invalid_grant"
    assert len(guarded.clients) == 3


async def test_an_encoded_secret_comes_before_one_as_it_is_where_the_form_is_refused(
    guarded: Guarded,
) -> None:
    async def only_encoded(form: Mapping[str, str]) -> web.Response:
        if form.get("client_secret"):
            return web.json_response({"error": "invalid_request"}, status=400)
        return guarded.grant(form)

    client = Client("me", "a+b", auth_method="client_secret_post")
    wanted = Wanted("api", f"{guarded.base}/mcp", Auth("client_credentials"), client)
    guarded.metadata = {"token_endpoint_auth_methods_supported": None}
    guarded.answer = only_encoded
    assert (await in_thread(SealedTokens(None), wanted, USUAL)).access_token
    assert guarded.clients == [None, f"Basic {base64.b64encode(b'me:a%2Bb').decode()}"]


async def test_more_parameters_are_sent_and_replace_none_of_the_protocol(guarded: Guarded) -> None:
    parameters = {"audience": "https://api", "grant_type": "password", "empty": ""}
    await obtained(guarded, Auth("client_credentials", parameters=parameters))
    form = guarded.granted[0]
    assert (form["audience"], form["grant_type"]) == ("https://api", "client_credentials")
    assert "empty" not in form


# Renewals of logins.


REGISTERED = Client("registered", "word", auth_method="client_secret_post")


@pytest.mark.parametrize(
    ("status", "code", "client", "ends", "needs_login"),
    [
        (400, "invalid_grant", None, True, True),
        (401, "invalid_grant", None, True, True),
        (200, "bad_refresh_token", None, True, True),
        (400, "invalid_request", None, False, True),
        (400, "access_denied", None, False, True),
        (400, "", None, False, True),
        (401, "", None, False, True),
        (403, "", None, False, False),
        (401, "invalid_client", REGISTERED, False, True),
        (401, "invalid_client", None, False, False),
        (400, "invalid_target", None, False, False),
        (400, "temporarily_unavailable", None, False, False),
        (500, "invalid_grant", None, False, False),
        (429, "invalid_grant", None, False, False),
        (502, "", None, False, False),
    ],
)
async def test_a_refused_renewal_asks_for_a_login_if_one_may_help(
    guarded: Guarded,
    store: LoginStore,
    status: int,
    code: str,
    client: Client | None,
    ends: bool,
    needs_login: bool,
) -> None:
    wanted, login = expired(guarded, store, client)
    guarded.answer = answering(json.dumps({"error": code}).encode(), status=status)
    for _ in range(3):
        with pytest.raises(AuthorizationError) as caught:
            await in_thread(SealedTokens(store), wanted, USUAL)
        assert caught.value.needs_login is needs_login
        assert caught.value.has_ended is needs_login
    # A secret that is not accepted is sent once in the other way.
    ways = 2 if client is REGISTERED else 1
    assert len(guarded.granted) == (ways if needs_login else 3)
    known = store.read(wanted.login)
    assert known is not None
    assert bool(known.ended) is ends
    assert known.refresh_token == ("" if ends else login.refresh_token)


@pytest.mark.parametrize("code", ["invalid_target", "invalid_request"])
async def test_a_renewal_names_no_resource_where_only_the_login_may(
    guarded: Guarded, store: LoginStore, code: str
) -> None:
    async def without_resource(form: Mapping[str, str]) -> web.Response:
        if "resource" in form:
            return web.json_response({"error": code}, status=400)
        return guarded.grant(form)

    wanted, login = expired(guarded, store)
    store.write(replace(login, metadata={**login.metadata, RESOURCE: wanted.url}))
    guarded.answer = without_resource
    for _ in range(2):
        answer = await in_thread(SealedTokens(store), wanted, USUAL)
        assert answer.access_token in guarded.accepted
        known = store.read(wanted.login)
        assert known is not None
        store.write(replace(known, expires_at=1.0))
    assert ["resource" in form for form in guarded.granted] == [True, False, False]


@pytest.mark.parametrize(
    ("issuer", "scope"),
    [("https://login.microsoftonline.com/0b1f/v2.0", "api://one/read"), ("", None)],
)
async def test_a_renewal_names_the_granted_scopes_where_it_must(
    guarded: Guarded, store: LoginStore, issuer: str, scope: str | None
) -> None:
    wanted, login = expired(guarded, store)
    server = {**login.metadata[SERVER], "issuer": issuer or guarded.base}
    metadata = {**login.metadata, SERVER: server}
    store.write(replace(login, scope="api://one/read", metadata=metadata))
    await in_thread(SealedTokens(store), wanted, USUAL)
    assert guarded.granted[0].get("scope") == scope


async def test_a_refused_renewal_that_has_not_ended_the_login_is_tried_again_later(
    guarded: Guarded, store: LoginStore
) -> None:
    wanted, _ = expired(guarded, store, REGISTERED)
    guarded.answer = answering(b'{"error": "invalid_client"}', status=401)
    with pytest.raises(AuthorizationError):
        await in_thread(SealedTokens(store), wanted, USUAL)
    guarded.answer = None
    later = SealedTokens(store, now=lambda: time.time() + 301)
    assert (await in_thread(later, wanted, USUAL)).access_token.startswith("planted-access")
    assert guarded.granted[-1]["client_secret"] == "word"  # as its registration says
    known = store.read(wanted.login)
    assert known is not None
    store.write(replace(known, expires_at=1.0))
    assert await in_thread(SealedTokens(store), wanted, USUAL)
