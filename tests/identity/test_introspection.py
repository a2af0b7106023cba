"""Opaque tokens, about which an authorization server is asked."""

from __future__ import annotations

import asyncio
import json
import threading
from base64 import b64encode
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl

import pytest
from joserfc import jwt
from joserfc.jwk import ECKey, KeySet
from tests.conftest import BOUND

from leaseway.identity import introspection
from leaseway.identity.authenticator import Authenticator
from leaseway.identity.principal import Principal, Role
from leaseway.identity.settings import IdentityFileError, read_identity_file
from leaseway.telemetry.http_listener import refusal_of
from leaseway.wire.errors import Fault, Reason

NOW = 1_800_000_000.0
TOKEN = "mF_9.B5f-4.1JqM"
CLAIMS: dict[str, object] = {
    "active": True,
    "aud": ["leaseway", "other"],
    "exp": int(NOW) + 600,
    "sub": "anna",
    "tenant": "acme",
    "azp": "billing",
}


class Clock:
    def __init__(self) -> None:
        self.at = NOW

    def __call__(self) -> float:
        return self.at


class Authority:
    """An authorization server: metadata, and prepared answers about tokens."""

    def __init__(self) -> None:
        authority = self
        self.claims: object = CLAIMS
        self.status = 200
        self.asked: list[tuple[dict[str, str], str]] = []
        self.may_answer = threading.Event()
        self.may_answer.set()

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"])).decode()
                authority.asked.append(
                    (dict(parse_qsl(body)), self.headers.get("Authorization", ""))
                )
                assert authority.may_answer.wait(BOUND)
                self._answer(authority.status, authority.claims)

            def do_GET(self) -> None:
                found = authority.places.get(self.path)
                self._answer(404 if found is None else 200, found)

            def _answer(self, status: int, document: object) -> None:
                body = json.dumps(document).encode()
                self.send_response(status)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: Any) -> None: ...

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.issuer = f"http://127.0.0.1:{self._server.server_port}"
        self.endpoint = f"{self.issuer}/introspect"
        self.metadata: dict[str, object] = {
            "issuer": self.issuer,
            "introspection_endpoint": self.endpoint,
        }
        self.places = {"/.well-known/openid-configuration": self.metadata}
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,))
        self._thread.start()

    def close(self) -> None:
        self.may_answer.set()
        self._server.shutdown()
        self._thread.join(BOUND)
        self._server.server_close()


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def authority() -> Iterator[Authority]:
    serving = Authority()
    yield serving
    serving.close()


Build = Callable[..., Authenticator]


@pytest.fixture
def build(tmp_path: Path, authority: Authority, clock: Clock) -> Build:
    """Builds an authenticator with keys of `[introspection]`, and tables before it."""

    def make(*, before: str = "", **keys: str) -> Authenticator:
        secret = tmp_path / "secret"
        secret.write_text("s3cr3t+value\n")
        secret.chmod(0o600)
        values = {
            "issuer": f'"{authority.issuer}"',
            "audience": '"leaseway"',
            "client_id": '"lease:way"',
            "client_secret_file": '"secret"',
            "agent_claim": '"azp"',
            **keys,
        }
        lines = [f"{name} = {value}" for name, value in values.items() if value]
        path = tmp_path / "identity.toml"
        path.write_text(before + "[introspection]\n" + "\n".join(lines))
        return Authenticator(identity=path, now=clock, clock=clock)

    return make


async def sent(auth: Authenticator, token: str = TOKEN) -> Principal:
    return await asyncio.wait_for(auth.principal(f"Bearer {token}"), BOUND)


async def refused(auth: Authenticator, token: str = TOKEN) -> Fault:
    with pytest.raises(Fault) as raised:
        await sent(auth, token)
    assert token not in raised.value.message
    return raised.value


async def test_an_active_token_has_the_tenant_agent_user_and_roles_of_the_answer(
    build: Build, authority: Authority
) -> None:
    authority.claims = {**CLAIMS, "scope": "caller approver email"}
    auth = build(roles_claim='"scope"')
    principal = await sent(auth)
    assert (principal.tenant, principal.agent, principal.user) == ("acme", "billing", "anna")
    assert principal.roles == {Role.CALLER, Role.APPROVER}
    assert principal.token == TOKEN
    [(form, authorization)] = authority.asked
    assert form == {"token": TOKEN, "token_type_hint": "access_token"}
    pair = b64encode(b"lease%3Away:s3cr3t%2Bvalue").decode()
    assert authorization == f"Basic {pair}"
    assert auth.issuers == (authority.issuer,)


@pytest.mark.parametrize(
    "place",
    ["/o/.well-known/oauth-authorization-server", "/.well-known/openid-configuration/o"],
)
async def test_the_endpoint_is_found_where_metadata_of_openid_do_not_name_it(
    build: Build, authority: Authority, place: str
) -> None:
    named = {"issuer": f"{authority.issuer}/o"}
    authority.places["/o/.well-known/openid-configuration"] = dict(named)
    authority.places[place] = {**authority.metadata, **named}
    auth = build(issuer=f'"{authority.issuer}/o"')
    assert (await sent(auth)).tenant == "acme"


async def test_the_endpoint_can_be_written_and_the_client_be_named_in_the_form(
    build: Build, authority: Authority, monkeypatch: pytest.MonkeyPatch
) -> None:
    authority.places.clear()
    monkeypatch.setenv("INTROSPECTION_SECRET", "from a variable")
    auth = build(
        issuer='"https://login.example"',
        endpoint=f'"{authority.endpoint}"',
        auth_method='"client_secret_post"',
        client_secret_file="",
        client_secret_env='"INTROSPECTION_SECRET"',
    )
    assert (await sent(auth)).tenant == "acme"
    [(form, authorization)] = authority.asked
    assert (form["client_id"], form["client_secret"]) == ("lease:way", "from a variable")
    assert not authorization


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"active": False}, "is not active"),
        ({"exp": NOW - 31}, "is not active"),
        ({"nbf": NOW + 31}, "is not active"),
        ({"exp": "soon"}, "'exp' is no time"),
        ({"aud": "other"}, "is not for the audience 'leaseway'"),
        ({"aud": None}, "is not for the audience 'leaseway'"),
        ({"iss": "https://other.example"}, "of another issuer"),
    ],
)
async def test_a_token_that_the_answer_does_not_allow_is_unauthenticated(
    build: Build, authority: Authority, changes: dict[str, object], sentence: str
) -> None:
    authority.claims = {**CLAIMS, **changes}
    fault = await refused(build())
    assert fault.reason is Reason.UNAUTHENTICATED
    assert sentence in fault.message
    assert refusal_of(fault).status == 401


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [({"tenant": None}, "has no claim 'tenant'"), ({"tenant": "../acme"}, "tenant's name")],
)
async def test_a_valid_token_that_allows_nothing_is_denied_and_needs_no_new_login(
    build: Build, authority: Authority, changes: dict[str, object], sentence: str
) -> None:
    authority.claims = {**CLAIMS, **changes}
    fault = await refused(build())
    assert sentence in fault.message
    assert refusal_of(fault).status == 403


async def test_tokens_for_any_audience_are_accepted_if_the_file_says_so(
    build: Build, authority: Authority
) -> None:
    authority.claims = {**CLAIMS, "aud": None, "exp": None}
    principal = await sent(build(audience="[]"))
    assert (principal.tenant, principal.expires_at) == ("acme", None)


async def test_an_answer_is_used_for_some_seconds_but_not_beyond_the_token(
    build: Build, authority: Authority, clock: Clock
) -> None:
    auth = build()
    await sent(auth)
    clock.at += introspection.FRESH - 1
    await sent(auth)
    assert len(authority.asked) == 1
    clock.at += 1
    authority.claims = {**CLAIMS, "exp": clock.at + 5}
    await sent(auth)
    assert len(authority.asked) == 2
    authority.claims = {"active": False}
    clock.at += 36  # with the leeway of 30 s
    await refused(auth)
    await refused(auth)
    assert len(authority.asked) == 3


async def test_equal_tokens_are_asked_about_once_and_all_by_few_requests(
    build: Build, authority: Authority, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(introspection, "MAX_ASKED", 3)
    auth = build(endpoint=f'"{authority.endpoint}"')
    authority.may_answer.clear()
    asking = [asyncio.ensure_future(sent(auth, f"t{number // 2}")) for number in range(6)]
    await asyncio.sleep(0)
    fault = await refused(auth, "one-too-many")
    assert fault.reason is Reason.AUTHORIZATION_FAILED
    authority.may_answer.set()
    assert {principal.tenant for principal in await asyncio.gather(*asking)} == {"acme"}
    assert sorted(form["token"] for form, _ in authority.asked) == ["t0", "t1", "t2"]


@pytest.mark.parametrize(
    ("status", "claims", "logged"),
    [
        (500, {}, "responds with HTTP status 500"),
        (401, {}, "responds with HTTP status 401 to the client 'lease:way'"),
        (200, [], "no JSON object that has 'active'"),
        (200, {"active": "true"}, "no JSON object that has 'active'"),
    ],
)
async def test_a_token_that_cannot_be_checked_is_neither_accepted_nor_called_invalid(
    build: Build,
    authority: Authority,
    clock: Clock,
    caplog: pytest.LogCaptureFixture,
    status: int,
    claims: object,
    logged: str,
) -> None:
    auth = build()
    authority.status, authority.claims = status, claims
    fault = await refused(auth)
    assert fault.reason is Reason.AUTHORIZATION_FAILED
    assert refusal_of(fault).status == 503
    assert logged in caplog.text
    assert TOKEN not in caplog.text
    await refused(auth, "another")  # the server is left alone for a moment
    assert len(authority.asked) == 1
    clock.at += 1
    authority.status, authority.claims = 200, CLAIMS
    assert (await sent(auth)).tenant == "acme"


async def test_nobody_is_asked_about_keys_and_about_tokens_of_other_issuers(
    build: Build, authority: Authority, tmp_path: Path
) -> None:
    known = KeySet([ECKey.generate_key("P-256", private=True)]).as_dict(private=False)
    (tmp_path / "jwks.json").write_text(json.dumps(known))
    table = '[[jwt]]\nissuer = "https://jwt.example"\naudience = "a"\njwks = "jwks.json"\n'
    auth = build(before=table + 'user_prefix = "a:"\nuser_claim = "sub"\n')
    key = ECKey.generate_key("P-256", private=True)

    def signed(issuer: str) -> str:
        return jwt.encode({"alg": "ES256"}, {"iss": issuer}, key, algorithms=["ES256"])

    for credential in (
        "lwk_4kz2m7qa_0123456789",
        signed("https://jwt.example"),
        signed("https://other.example"),
        "two words",
        "x" * 20_000,
    ):
        assert (await refused(auth, credential)).reason is Reason.UNAUTHENTICATED
    assert not authority.asked
    assert (await sent(auth, signed(authority.issuer))).tenant == "acme"
    assert set(auth.issuers) == {"https://jwt.example", authority.issuer}


async def recheck(auth: Authenticator) -> None:
    """Have the authority asked again about streams, and wait for its answers."""
    await auth.refresh()
    for watch in auth._watches:
        if watch.rechecking is not None:
            await asyncio.wait_for(asyncio.shield(watch.rechecking), BOUND)


async def test_a_stream_ends_when_its_token_is_no_longer_active_but_not_for_an_outage(
    build: Build, authority: Authority, clock: Clock
) -> None:
    auth = build()
    principal = await sent(auth)
    with auth.watch(f"Bearer {TOKEN}", None, principal) as revoked:
        clock.at += introspection.FRESH
        authority.claims = {**CLAIMS, "exp": NOW + 6_000}  # it was used
        await recheck(auth)
        assert len(authority.asked) == 2
        assert not revoked.done()
        clock.at += introspection.FRESH
        authority.status = 500
        await recheck(auth)
        assert len(authority.asked) == 3
        assert not revoked.done()
        clock.at += introspection.FRESH
        authority.status, authority.claims = 200, {"active": False}
        await recheck(auth)
        assert len(authority.asked) == 4
        assert "is not active" in revoked.result().message


async def test_a_changed_secret_is_used_at_once(
    build: Build, authority: Authority, tmp_path: Path
) -> None:
    auth = build(auth_method='"client_secret_post"')
    await sent(auth)
    (tmp_path / "secret").write_text("another secret")
    await auth.refresh()
    await sent(auth, "another-token")
    assert [form["client_secret"] for form, _ in authority.asked] == [
        "s3cr3t+value",
        "another secret",
    ]


async def test_a_changed_file_does_not_wait_for_the_authority(
    build: Build, authority: Authority, tmp_path: Path
) -> None:
    auth = build()
    principal = await sent(auth)
    with auth.watch(f"Bearer {TOKEN}", None, principal) as revoked:
        authority.may_answer.clear()
        (tmp_path / "secret").write_text("another secret")
        await asyncio.wait_for(auth.refresh(), BOUND)
        assert [watch.rechecking is not None for watch in auth._watches] == [True]
        authority.claims = {"active": False}
        authority.may_answer.set()
        await recheck(auth)
        assert "is not active" in revoked.result().message


@pytest.mark.parametrize(
    ("keys", "sentence"),
    [
        ({"issuer": ""}, "issuer is missing"),
        ({"audience": ""}, "audience is missing; write"),
        ({"client_id": ""}, "client_id is missing"),
        ({"client_secret_file": ""}, "either client_secret_file or client_secret_env"),
        ({"client_secret_file": '"nothing"'}, "nothing cannot be read"),
        ({"client_secret_env": '"X"'}, "either client_secret_file or client_secret_env"),
        (
            {"client_secret_file": "", "client_secret_env": '"LEASEWAY_NO_SUCH"'},
            "LEASEWAY_NO_SUCH is not set",
        ),
        ({"endpoint": '"http://login.example/introspect"'}, "endpoint: .* is not protected"),
        ({"issuer": '"http://login.example"'}, "issuer: .* is not protected"),
        ({"auth_method": '"none"'}, "auth_method: write client_secret_basic or"),
        ({"jwks": '"keys"'}, "'jwks' is unknown"),
    ],
)
def test_a_table_that_cannot_be_used_is_refused(
    build: Build, keys: dict[str, str], sentence: str
) -> None:
    with pytest.raises(IdentityFileError, match=sentence):
        build(**keys)


def test_a_secret_that_others_can_read_is_refused(build: Build, tmp_path: Path) -> None:
    build()
    (tmp_path / "secret").chmod(0o644)
    with pytest.raises(IdentityFileError, match="open to other users"):
        read_identity_file(tmp_path / "identity.toml")
