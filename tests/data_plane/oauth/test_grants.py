"""Every grant gets tokens over every transport; those of callers are their own."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from tests.data_plane.mcp.conftest import Bench, bench
from tests.data_plane.oauth.issuer import EXCHANGE, TYPE, Issuer
from tests.data_plane.oauth.whoami import PATHS, WHOAMI, call, started

from leaseway.data_plane.core.ports import InstancePort
from leaseway.data_plane.core.subjects import subject_name, user_of_subject
from leaseway.data_plane.oauth.caller_tokens import CallerTokens, CallToken
from leaseway.data_plane.oauth.sealed import SealedTokens
from leaseway.data_plane.oauth.tokens import Tokens
from leaseway.spec.auth import Auth, AuthGrant, Subject
from leaseway.spec.kinds.table import server_spec
from leaseway.spec.model import ServerSpec, VariantKey
from leaseway.spec.references import Value
from leaseway.vault.key import VaultPlace
from leaseway.vault.logins import Login, LoginKey, LoginStore
from leaseway.wire.errors import Fault, Reason
from leaseway.wire.secrets.redaction import redact

__all__ = ["bench"]
SECRET = "planted-secret-9Xc41p"
MINE = "planted-caller-token-Vr71Zk"
ENVIRONMENT = {"WORD": SECRET}
BEARER = "urn:ietf:params:oauth:grant-type:jwt-bearer"
GRANTS: Mapping[tuple[AuthGrant, Subject], VariantKey] = {
    ("client_credentials", "service"): VariantKey("remote"),
    ("workload_identity", "service"): VariantKey("remote"),
    ("authorization_code", "tenant"): VariantKey("remote", "acme"),
    ("authorization_code", "user"): VariantKey("remote", "acme", "anna"),
    ("token_exchange", "caller"): VariantKey("remote", "acme", "anna"),
    ("id_jag", "caller"): VariantKey("remote", "acme", "anna"),
}


@pytest.fixture
async def issuer() -> AsyncIterator[Issuer]:
    issuer = Issuer()
    server = await issuer.start()
    try:
        yield issuer
    finally:
        if hasattr(issuer, "closed"):
            issuer.closed.set()
        await server.close()


def auth_of(issuer: Issuer, grant: AuthGrant, subject: Subject) -> Auth:
    values = {"client_id": Value("literal", "me"), "client_secret": Value("env", "WORD")}
    more: dict[str, Any] = {}
    if grant == "workload_identity":
        values = {"assertion": Value("literal", "planted-workload")}
    if grant == "id_jag":
        more = {"identity_provider": issuer.base}
        values["identity_provider_client_id"] = Value("literal", "at-provider")
    return Auth(grant, subject, values, **more)


def url_of(issuer: Issuer, transport: str) -> str:
    base = issuer.base.replace("http", "ws") if transport == "websocket" else issuer.base
    return f"{base}/{PATHS[transport]}"


def spec_of(issuer: Issuer, transport: str, key: VariantKey, auth: Auth) -> ServerSpec:
    own: dict[str, Any] = (
        {"http_tools": (WHOAMI,)} if transport == "http_api" else {"protocol": "legacy"}
    )
    url = url_of(issuer, transport)
    return server_spec(key, transport, url=url, auth=auth, truely_stateless=True, **own)


@pytest.fixture
def store(tmp_path: Path) -> LoginStore:
    key_file = tmp_path / "key"
    key_file.write_text("the key of this test's vault\n")
    key_file.chmod(0o600)
    return LoginStore(VaultPlace(tmp_path / "vault", key_file))


@pytest.mark.parametrize("transport", PATHS)
@pytest.mark.parametrize(("grant", "subject"), GRANTS, ids=[f"{a}-{b}" for a, b in GRANTS])
async def test_every_grant_gets_tokens_over_every_transport(
    bench: Bench,
    issuer: Issuer,
    store: LoginStore,
    transport: str,
    grant: AuthGrant,
    subject: Subject,
) -> None:
    key, callers = GRANTS[grant, subject], CallerTokens()
    spec = spec_of(issuer, transport, key, auth_of(issuer, grant, subject))
    if grant == "authorization_code":
        login = LoginKey("remote", url_of(issuer, transport), key.tenant, "me", user=key.user)
        store.write(Login(login, issuer=issuer.base, access_token="planted-login"))
        issuer.accepted["planted-login"] = {"tools"}
    if subject == "caller":
        callers.give(key, MINE)
    tokens = Tokens(SealedTokens(store), callers=callers)
    instance = await started(bench, spec, ENVIRONMENT, tokens)
    for _ in range(5):
        outcome = await call(instance)
        assert outcome.fault is None, outcome.fault
        assert not outcome.is_error
    assert issuer.called == 5
    assert len(issuer.granted) == {"authorization_code": 0, "id_jag": 2}.get(grant, 1)
    await instance.close()
    await tokens.aclose()


async def api_of(
    bench: Bench, issuer: Issuer, callers: CallerTokens, grant: AuthGrant = "token_exchange"
) -> InstancePort:
    key = GRANTS[grant, "caller"]
    spec = spec_of(issuer, "http_api", key, auth_of(issuer, grant, "caller"))
    return await started(bench, spec, ENVIRONMENT, Tokens(SealedTokens(None), callers=callers))


async def test_an_exchange_names_the_token_the_server_and_the_actor(
    bench: Bench, issuer: Issuer
) -> None:
    callers = CallerTokens()
    key = GRANTS["token_exchange", "caller"]
    callers.give(key, MINE)
    plain = auth_of(issuer, "token_exchange", "caller")
    values = {**plain.values, "actor_token": Value("literal", "planted-actor")}
    auth = Auth("token_exchange", "caller", values, subject_token_type="jwt", audience="tracker")
    spec = spec_of(issuer, "http_api", key, auth)
    instance = await started(bench, spec, ENVIRONMENT, Tokens(SealedTokens(None), callers=callers))
    assert (await call(instance)).fault is None
    assert issuer.granted == [
        {
            "grant_type": EXCHANGE,
            "requested_token_type": f"{TYPE}access_token",
            "subject_token": MINE,
            "subject_token_type": f"{TYPE}jwt",
            "actor_token": "planted-actor",
            "actor_token_type": f"{TYPE}jwt",
            "audience": "tracker",
            "resource": f"{issuer.base}/api",
            "scope": "tools",
        }
    ]
    await instance.close()


async def test_an_assertion_of_the_identity_provider_is_granted_a_token(
    bench: Bench, issuer: Issuer
) -> None:
    callers = CallerTokens()
    callers.give(GRANTS["id_jag", "caller"], MINE)
    instance = await api_of(bench, issuer, callers, "id_jag")
    assert (await call(instance)).fault is None
    at_provider, at_server = issuer.granted
    assert at_provider == {
        "grant_type": EXCHANGE,
        "requested_token_type": f"{TYPE}id-jag",
        "subject_token": MINE,
        "subject_token_type": f"{TYPE}id_token",
        "audience": issuer.base,
        "resource": f"{issuer.base}/api",
        "scope": "tools",
        "client_id": "at-provider",
    }
    assert (at_server["grant_type"], at_server["assertion"]) == (BEARER, f"jag-{MINE}")
    assert issuer.clients[0] is None
    assert str(issuer.clients[1]).startswith("Basic ")
    await instance.close()


async def test_a_new_token_of_the_caller_is_exchanged_once_and_an_old_one_is_remembered(
    bench: Bench, issuer: Issuer
) -> None:
    callers, key = CallerTokens(), GRANTS["token_exchange", "caller"]
    callers.give(key, "first")
    instance = await api_of(bench, issuer, callers)
    for token in ("first", "second", "first", "second"):
        callers.give(key, token)
        outcomes = await asyncio.gather(*(call(instance) for _ in range(20)))
        assert not [outcome.fault for outcome in outcomes if outcome.fault]
    assert [form["subject_token"] for form in issuer.granted] == ["first", "second"]
    await instance.close()


@pytest.mark.parametrize("transport", ["streamable_http", "sse", "http_api"])
async def test_each_call_of_a_user_with_two_tokens_uses_the_one_that_came_with_it(
    bench: Bench, issuer: Issuer, transport: str
) -> None:
    callers, key = CallerTokens(), GRANTS["token_exchange", "caller"]
    callers.give(key, "token-newest")
    spec = spec_of(issuer, transport, key, auth_of(issuer, "token_exchange", "caller"))
    instance = await started(bench, spec, ENVIRONMENT, Tokens(SealedTokens(None), callers=callers))

    async def call_with(token: str) -> bytes:
        given = CallToken(key, token)
        with given.in_use():
            outcome = await call(instance)
        given.end()
        assert outcome.fault is None, outcome.fault
        return outcome.payload

    given = [f"token-{number % 2}" for number in range(40)]
    answers = await asyncio.gather(*map(call_with, given))
    assert [token.encode() in answer for token, answer in zip(given, answers, strict=True)] == [
        True
    ] * 40
    assert b"token-newest" in (await call(instance)).payload
    await instance.close()


def test_the_token_of_a_call_is_used_for_its_subject_only_and_until_it_ends() -> None:
    anna, bob = VariantKey("remote", "acme", "anna"), VariantKey("remote", "acme", "bob")
    callers = CallerTokens()
    callers.give(anna, "newest-of-anna")
    callers.give(bob, "newest-of-bob")
    given = CallToken(anna, "older-of-anna")
    with given.in_use():
        assert (callers.of(anna), callers.of(bob)) == ("older-of-anna", "newest-of-bob")
        assert redact("older-of-anna") == "[redacted]"
        given.end()
        assert callers.of(anna) == "newest-of-anna"


@pytest.mark.parametrize("grant", ["token_exchange", "id_jag"])
async def test_many_callers_ask_for_the_metadata_of_a_server_once_in_a_minute(
    bench: Bench, issuer: Issuer, grant: AuthGrant
) -> None:
    callers, key = CallerTokens(), GRANTS[grant, "caller"]
    instance = await api_of(bench, issuer, callers, grant)
    for number in range(20):
        callers.give(key, f"of-caller-{number}")
        assert (await call(instance)).fault is None
    assert len(issuer.asked) <= 3
    assert len(issuer.granted) == {"token_exchange": 20, "id_jag": 40}[grant]
    await instance.close()


@pytest.mark.parametrize("grant", ["token_exchange", "id_jag"])
async def test_a_token_of_the_caller_that_is_not_accepted_concerns_only_the_caller(
    bench: Bench, issuer: Issuer, grant: AuthGrant, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    callers, key = CallerTokens(), GRANTS[grant, "caller"]
    callers.give(key, MINE)
    issuer.refused_tokens.add(MINE)
    instance = await api_of(bench, issuer, callers, grant)
    faults = [(await call(instance)).fault for _ in range(20)]
    for fault in faults:
        assert fault is not None
        assert fault.reason is Reason.AUTHORIZATION_FAILED
        assert fault.metadata["oauth_error"] == "invalid_grant"
        assert "call again with a valid one" in fault.message
    assert len(issuer.granted) == 1
    assert bench.warned == []
    assert "planted" not in repr(faults) + caplog.text
    callers.give(key, "another")
    assert (await call(instance)).fault is None
    await instance.close()


async def test_without_a_token_of_the_caller_nothing_is_sent(bench: Bench, issuer: Issuer) -> None:
    instance = await api_of(bench, issuer, CallerTokens())
    fault = (await call(instance)).fault
    assert fault is not None
    assert fault.reason is Reason.USER_REQUIRED
    assert (issuer.granted, issuer.asked, issuer.refused) == ([], [], 0)
    await instance.close()


async def test_scopes_that_the_callers_token_does_not_give_are_named(
    bench: Bench, issuer: Issuer
) -> None:
    callers = CallerTokens()
    callers.give(GRANTS["token_exchange", "caller"], MINE)
    spec = spec_of(
        issuer,
        "streamable_http",
        GRANTS["token_exchange", "caller"],
        auth_of(issuer, "token_exchange", "caller"),
    )
    instance = await started(bench, spec, ENVIRONMENT, Tokens(SealedTokens(None), callers=callers))
    assert (await call(instance)).fault is None
    issuer.needed, issuer.grants_scopes = "more", False
    for _ in range(5):
        fault = (await call(instance)).fault
        assert fault is not None
        assert fault.metadata["oauth_error"] == "insufficient_scope"
        assert fault.metadata["scope"] == "more"
    assert len(issuer.granted) == 2
    issuer.needed = ""
    assert (await call(instance)).fault is None  # the token is still good for other calls
    await instance.close()


async def test_concurrent_calls_that_need_more_scopes_wait_for_one_request(
    bench: Bench, issuer: Issuer
) -> None:
    key = GRANTS["client_credentials", "service"]
    spec = spec_of(issuer, "streamable_http", key, auth_of(issuer, "client_credentials", "service"))
    instance = await started(bench, spec, ENVIRONMENT, Tokens(SealedTokens(None)))
    issuer.needed = "more"
    outcomes = await asyncio.gather(*(call(instance) for _ in range(50)))
    assert not [outcome.fault for outcome in outcomes if outcome.fault]
    assert not any(outcome.is_error for outcome in outcomes)
    assert len(issuer.granted) == 2
    await instance.close()


async def test_a_server_that_refuses_every_exchanged_token_causes_no_further_exchanges(
    bench: Bench, issuer: Issuer
) -> None:
    callers = CallerTokens()
    callers.give(GRANTS["token_exchange", "caller"], MINE)
    instance = await api_of(bench, issuer, callers)
    assert (await call(instance)).fault is None
    issuer.accepted.clear()
    for _ in range(5):
        fault = (await call(instance)).fault
        assert fault is not None
        assert "has just issued" in fault.message
    assert len(issuer.granted) == 1
    await instance.close()


def test_what_a_token_says_names_no_subject() -> None:
    assert subject_name("anna", "x") == "anna"
    assert subject_name("", "x") == subject_name("", "x")
    assert subject_name("", "x") != subject_name("", "y")
    assert "xyzzy-token" not in subject_name("", "xyzzy-token")


def test_no_user_is_taken_for_the_subject_of_a_token() -> None:
    subject = subject_name("", "x")
    assert subject_name(subject, "y") == subject_name("", "y")
    assert user_of_subject(subject) == ""
    assert user_of_subject(subject_name("anna", "x")) == "anna"


@pytest.mark.parametrize("token", ["two words", "tab\t", "ü", "x" * 20_000])
def test_what_can_be_no_token_is_refused_without_repeating_it(token: str) -> None:
    callers = CallerTokens()
    with pytest.raises(Fault, match="subject_token is no token") as caught:
        callers.give(VariantKey("remote", "acme", "anna"), token)
    assert token not in caught.value.message
