"""Tokens of a server with `auth: {client_credentials: …}`, over every transport."""

from __future__ import annotations

import asyncio
import base64
import json
import logging
from collections.abc import Mapping
from functools import partial
from typing import Any

import pytest
from aiohttp import web
from joserfc import jwt
from joserfc.jwk import ECKey, OKPKey, RSAKey
from tests.data_plane.mcp.conftest import Bench, bench, until
from tests.data_plane.oauth.guarded import Guarded
from tests.data_plane.oauth.whoami import PATHS, WHOAMI, call, started

from leaseway.data_plane.oauth.tokens import Tokens
from leaseway.identity.signatures import Signatures
from leaseway.spec.auth import Auth
from leaseway.spec.kinds.table import server_spec
from leaseway.spec.model import ServerSpec, VariantKey
from leaseway.spec.references import Value
from leaseway.wire.errors import Fault, Reason

__all__ = ["bench"]
SECRET = "planted-secret-7Tq2xW"
ENVIRONMENT = {"WORD": SECRET}


def auth(**more: Any) -> Auth:
    values = {"client_id": Value("literal", "me"), "client_secret": Value("env", "WORD")}
    return Auth("client_credentials", values=values, **more)


def spec_of(guarded: Guarded, transport: str = "streamable_http", **more: Any) -> ServerSpec:
    base = guarded.base.replace("http", "ws") if transport == "websocket" else guarded.base
    is_api = transport == "http_api"
    own = {"http_tools": (WHOAMI,)} if is_api else {"protocol": "legacy"}
    given: dict[str, Any] = {"auth": auth(), "truely_stateless": True} | own | more
    url = f"{base}/{PATHS[transport]}"
    return server_spec(VariantKey("remote"), transport, url=url, **given)


def has_failed(bench: Bench, times: int) -> bool:
    return len(bench.warned) == times


class Clock:
    """A clock that a test moves."""

    def __init__(self) -> None:
        self.now = 1_000.0

    def __call__(self) -> float:
        return self.now


@pytest.mark.parametrize("transport", PATHS)
async def test_a_server_gets_a_token_from_the_authorization_server_that_it_names(
    bench: Bench, guarded: Guarded, transport: str
) -> None:
    instance = await started(bench, spec_of(guarded, transport), ENVIRONMENT)
    outcome = await call(instance)
    assert outcome.fault is None
    assert not outcome.is_error
    assert guarded.called == 1
    [form] = guarded.granted
    assert form == {
        "grant_type": "client_credentials",
        "scope": "tools",
        "resource": f"{guarded.base}/{PATHS[transport]}",
    }
    pair = base64.b64encode(f"me:{SECRET}".encode()).decode()
    assert guarded.clients == [f"Basic {pair}"]
    await instance.close()


@pytest.mark.parametrize(
    ("key", "algorithm", "offered"),
    [
        (RSAKey.generate_key(2_048), "RS256", []),
        (RSAKey.generate_key(2_048), "PS256", ["PS256", "ES256"]),
        (ECKey.generate_key("P-256"), "ES256", ["PS256"]),
        (OKPKey.generate_key(), "EdDSA", []),
        (OKPKey.generate_key(), "Ed25519", ["ES256", "Ed25519"]),
    ],
    ids=["RSA", "RSA-PSS", "EC", "EdDSA", "Ed25519"],
)
@pytest.mark.parametrize("is_pem", [True, False], ids=["PEM", "JWK"])
async def test_a_client_with_a_private_key_signs_who_it_is(
    bench: Bench, guarded: Guarded, key: Any, algorithm: str, offered: list[str], is_pem: bool
) -> None:
    guarded.metadata["token_endpoint_auth_signing_alg_values_supported"] = offered
    private = key.as_pem(private=True) if is_pem else json.dumps(key.as_dict(private=True)).encode()
    values = {"client_id": Value("literal", "me"), "private_key": Value("env", "KEY")}
    more = Auth("client_credentials", values=values, key_id="one")
    await bench.start(spec_of(guarded, auth=more), {"KEY": private.decode()})
    [form] = guarded.granted
    assert form["client_assertion_type"].endswith(":jwt-bearer")
    token = jwt.decode(form["client_assertion"], key, registry=Signatures([algorithm]))
    assert token.header == {"alg": algorithm, "kid": "one", "typ": "JWT"}
    claims = token.claims
    assert (claims["iss"], claims["sub"], claims["aud"]) == ("me", "me", guarded.base)
    assert 0 < claims["exp"] - claims["iat"] <= 300
    assert guarded.clients == [None]


async def test_a_secret_is_sent_as_it_is_where_its_encoding_is_refused(
    bench: Bench, guarded: Guarded
) -> None:
    secret = "a+b/c= d"
    plain, encoded = (
        f"Basic {base64.b64encode(f'me:{text}'.encode()).decode()}"
        for text in (secret, "a%2Bb%2Fc%3D%20d")
    )

    async def answer(form: Mapping[str, str]) -> web.Response:
        if guarded.clients[-1] != plain:
            return web.json_response({"error": "invalid_client"}, status=401)
        return guarded.grant(form)

    guarded.answer = answer
    guarded.metadata["token_endpoint_auth_methods_supported"] = ["client_secret_basic"]
    for _ in range(2):
        await bench.start(spec_of(guarded), {"WORD": secret})
    assert guarded.clients == [encoded, plain, plain]


async def test_a_statement_names_the_token_endpoint_where_the_issuer_is_refused(
    bench: Bench, guarded: Guarded
) -> None:
    key = ECKey.generate_key("P-256")
    audiences = []

    async def answer(form: Mapping[str, str]) -> web.Response:
        audiences.append(jwt.decode(form["client_assertion"], key).claims["aud"])
        if audiences[-1] != f"{guarded.base}/token":
            return web.json_response({"error": "invalid_client"}, status=401)
        return guarded.grant(form)

    guarded.answer = answer
    values = {"client_id": Value("literal", "me"), "private_key": Value("env", "KEY")}
    spec = spec_of(guarded, auth=Auth("client_credentials", values=values))
    for _ in range(2):
        await bench.start(spec, {"KEY": key.as_pem(private=True).decode()})
    assert audiences == [guarded.base, *(f"{guarded.base}/token",) * 2]


async def test_a_key_that_cannot_sign_is_a_typed_error(bench: Bench, guarded: Guarded) -> None:
    values = {"client_id": Value("literal", "me"), "private_key": Value("env", "WORD")}
    spec = spec_of(guarded, auth=Auth("client_credentials", values=values))
    fault = await bench.fails(spec, environment=ENVIRONMENT)
    assert "private_key cannot sign" in fault.message
    assert SECRET not in fault.message


async def test_concurrent_calls_make_one_token_request(bench: Bench, guarded: Guarded) -> None:
    instance = await started(bench, spec_of(guarded, "http_api"), ENVIRONMENT)
    outcomes = await asyncio.gather(*(call(instance) for _ in range(500)))
    assert [outcome.fault for outcome in outcomes if outcome.fault] == []
    assert guarded.called == 500
    assert len(guarded.granted) == 1
    await instance.close()


async def test_a_configured_issuer_is_asked_before_the_first_request(
    bench: Bench, guarded: Guarded
) -> None:
    more = auth(issuer=guarded.base, scopes=("a", "b"), resource="none")
    await started(bench, spec_of(guarded, auth=more), ENVIRONMENT)
    assert guarded.refused == 0
    assert guarded.asked == ["/.well-known/oauth-authorization-server"]
    assert guarded.granted == [{"grant_type": "client_credentials", "scope": "a b"}]


@pytest.mark.parametrize(("status", "says_why"), [(401, True), (400, True), (403, False)])
async def test_a_revoked_token_is_replaced_once_and_the_calls_succeed(
    bench: Bench, guarded: Guarded, status: int, says_why: bool
) -> None:
    guarded.invalid, guarded.challenge = status, says_why
    clock = Clock()
    instance = await started(bench, spec_of(guarded, "http_api"), ENVIRONMENT, Tokens(now=clock))
    await call(instance)
    guarded.accepted.clear()
    clock.now += 60
    outcomes = await asyncio.gather(*(call(instance) for _ in range(50)))
    assert not any(outcome.fault or outcome.is_error for outcome in outcomes)
    assert len(guarded.granted) == 2
    await instance.close()


@pytest.mark.parametrize(
    ("says", "is_replaced"),
    [
        ('{"error":"server_error","error_description":"Internal Server Error"}', True),
        ('{"jsonrpc":"2.0","id":null,"error":{"code":-32603,"message":"server_error"}}', False),
        ("server_error", False),
        (f'{{"error_uri":"server_error","more":{"[" * 1500}{"]" * 1500}}}', False),
    ],
)
async def test_a_server_that_failed_to_check_a_token_gets_another_one_once_in_a_while(
    bench: Bench, guarded: Guarded, says: str, is_replaced: bool
) -> None:
    clock = Clock()
    instance = await started(bench, spec_of(guarded), ENVIRONMENT, Tokens(now=clock))
    guarded.invalid, guarded.challenge, guarded.says = 500, False, says
    guarded.accepted.clear()
    clock.now += 60
    fault = (await call(instance)).fault
    assert (fault is None) is is_replaced
    for _ in range(3):
        guarded.accepted.clear()
        fault = (await call(instance)).fault
        assert fault is not None
        assert ("check its token" in fault.message) is is_replaced
        assert "server_error" in fault.message
    assert len(guarded.granted) == 1 + is_replaced
    await instance.close()


async def test_a_token_that_expires_soon_is_renewed_while_calls_use_it(
    bench: Bench, guarded: Guarded
) -> None:
    clock = Clock()
    instance = await started(bench, spec_of(guarded, "http_api"), ENVIRONMENT, Tokens(now=clock))
    await call(instance)
    clock.now += 3_600 - 60
    assert (await call(instance)).fault is None  # with the old token
    await until(lambda: len(guarded.granted) == 2)
    guarded.accepted.pop("planted-access-1-Zk3vQ9")
    assert (await call(instance)).fault is None
    assert len(guarded.granted) == 2
    await instance.close()


async def test_a_failed_renewal_is_repeated_and_fails_no_call_until_the_token_expires(
    bench: Bench, guarded: Guarded
) -> None:
    clock = Clock()
    instance = await started(bench, spec_of(guarded, "http_api"), ENVIRONMENT, Tokens(now=clock))
    await call(instance)
    guarded.answer = answering(503, b"")
    for tries in range(2, 5):
        clock.now += 3_540 if tries == 2 else 10
        assert (await call(instance)).fault is None
        await until(partial(has_failed, bench, tries - 1))  # the worker has seen the answer
        assert len(guarded.granted) == tries
    clock.now += 60
    fault = (await call(instance)).fault
    assert fault is not None
    assert fault.reason is Reason.AUTHORIZATION_FAILED
    await instance.close()


async def test_more_scopes_are_requested_when_a_call_needs_them(
    bench: Bench, guarded: Guarded
) -> None:
    instance = await started(bench, spec_of(guarded, auth=auth(scopes=("tools",))), ENVIRONMENT)
    guarded.needed = "write"
    outcome = await call(instance)
    assert outcome.fault is None
    assert [form["scope"] for form in guarded.granted] == ["tools", "tools write"]
    guarded.accepted = {token: {"tools"} for token in guarded.accepted}
    fault = (await call(instance)).fault
    assert fault is not None
    assert fault.metadata["http_status"] == "403"
    assert len(guarded.granted) == 2


def answering(
    status: int, body: Mapping[str, Any] | bytes, headers: Mapping[str, str] | None = None
) -> Any:
    async def answer(form: Mapping[str, str]) -> web.Response:
        if isinstance(body, bytes):
            return web.Response(status=status, body=body, headers=headers)
        return web.json_response(body, status=status, headers=headers)

    return answer


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (answering(401, {"error": "invalid_client"}), "invalid_client"),
        (
            answering(400, {"error": "invalid_scope", "error_description": "no tools here"}),
            "no tools here",
        ),
        (answering(429, b"", {"Retry-After": "7"}), "HTTP status 429"),
        (answering(500, b"<html>"), "HTTP status 500"),
        (answering(200, b"<html>"), "without a token"),
        (answering(200, {"access_token": "x y"}), "no header may contain"),
        (answering(200, {"access_token": "x", "token_type": "MAC"}), "only bearer"),
        (answering(200, {"access_token": "x", "token_type": "DPoP"}), "dpop: always"),
        (answering(200, b" " * 300_000), "more than 262144 bytes"),
        (answering(302, b"", {"Location": "/elsewhere"}), "redirects a request"),
    ],
)
async def test_a_failed_request_is_a_typed_error_in_words(
    bench: Bench, guarded: Guarded, answer: Any, words: str
) -> None:
    guarded.answer = answer
    fault = await bench.fails(spec_of(guarded), environment=ENVIRONMENT)
    assert fault.reason is Reason.AUTHORIZATION_FAILED
    assert fault.started == "no"
    assert fault.metadata["problem"] == "AUTHORIZATION_FAILED"
    assert words in fault.message
    assert SECRET not in fault.message
    assert len(guarded.granted) == 1


async def test_calls_during_an_outage_cause_no_further_requests(
    bench: Bench, guarded: Guarded
) -> None:
    guarded.answer = answering(429, b"", {"Retry-After": "7"})
    instance = await started(bench, spec_of(guarded, "http_api"), ENVIRONMENT)
    outcomes = await asyncio.gather(*(call(instance) for _ in range(100)))
    outcomes += [await call(instance) for _ in range(20)]
    faults = [outcome.fault for outcome in outcomes]
    assert all(fault and fault.reason is Reason.AUTHORIZATION_FAILED for fault in faults)
    assert all(fault and 0 < (fault.retry_delay or 0) <= 7 for fault in faults)
    assert len(guarded.granted) == 1
    assert [reason for reason, _ in bench.warned] == ["AUTHORIZATION_FAILED"]
    await instance.close()


async def test_a_server_that_refuses_new_tokens_causes_no_further_requests(
    bench: Bench, guarded: Guarded
) -> None:
    instance = await started(bench, spec_of(guarded, "http_api"), ENVIRONMENT)
    await call(instance)
    guarded.accepted.clear()
    faults = [(await call(instance)).fault for _ in range(5)]
    assert all(fault and "has just issued" in fault.message for fault in faults)
    assert len(guarded.granted) == 1
    await instance.close()


async def test_a_slow_authorization_server_delays_only_its_own_server(
    bench: Bench, guarded: Guarded
) -> None:
    release = asyncio.Event()

    async def slow(form: Mapping[str, str]) -> web.Response:
        await release.wait()
        return guarded.grant(form)

    guarded.answer = slow
    instance = await started(bench, spec_of(guarded, "http_api"), ENVIRONMENT)
    waiting = asyncio.ensure_future(call(instance))
    await until(lambda: guarded.granted)
    assert not waiting.done()  # and this test goes on
    release.set()
    assert (await waiting).fault is None
    await instance.close()


async def test_no_secret_and_no_token_is_in_what_a_worker_says(
    bench: Bench, guarded: Guarded, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)

    async def echo(form: Mapping[str, str]) -> web.Response:
        said = f"wrong: {guarded.clients[-1]} {SECRET}"
        return web.json_response({"error": "invalid_client", "error_description": said}, status=401)

    guarded.status = 500  # an API that repeats its caller's token in an error
    api = await started(bench, spec_of(guarded, "http_api"), ENVIRONMENT)
    outcome = await call(api)
    assert outcome.is_error
    assert b"planted" not in outcome.payload
    await api.close()
    listing = await started(bench, spec_of(guarded), ENVIRONMENT)
    assert b"[hidden]" in listing.tools["whoami"]
    assert b"planted" not in listing.tools["whoami"]
    guarded.answer = echo
    fault = await bench.fails(spec_of(guarded), environment=ENVIRONMENT)
    texts = [fault.message, repr(fault.metadata), caplog.text, repr(bench.warned)]
    assert not [text for text in texts if "planted" in text]


@pytest.fixture
def fault_of_discovery(bench: Bench, guarded: Guarded) -> Any:
    async def fails() -> Fault:
        fault = await bench.fails(spec_of(guarded), environment=ENVIRONMENT)
        assert fault.reason is Reason.AUTHORIZATION_FAILED
        assert guarded.granted == []
        return fault

    return fails


@pytest.mark.parametrize(
    ("protected", "metadata", "words"),
    [
        ({"resource": "https://other.example/mcp"}, {}, "another resource"),
        ({"authorization_servers": []}, {}, "no authorization server"),
        ({"authorization_servers": ["http://169.254.169.254/"]}, {}, "inside this network"),
        ({"authorization_servers": ["file:///etc/passwd"]}, {}, "no authorization server"),
        ({}, {"issuer": "https://other.example"}, "another issuer"),
        ({}, {"token_endpoint": "http://169.254.169.254/t"}, "inside this network"),
        ({}, {"token_endpoint": "ftp://127.0.0.1/t"}, "no web address"),
        ({}, {"token_endpoint": 7}, "no token endpoint"),
    ],
)
async def test_metadata_cannot_lead_a_secret_elsewhere(
    guarded: Guarded,
    fault_of_discovery: Any,
    protected: dict[str, Any],
    metadata: dict[str, Any],
    words: str,
) -> None:
    guarded.protected, guarded.metadata = protected, metadata
    assert words in (await fault_of_discovery()).message
