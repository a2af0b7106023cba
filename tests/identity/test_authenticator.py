"""Authentication by keys and tokens, while their files change."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from grpc import StatusCode
from joserfc.jwk import ECKey, KeySet, OctKey
from tests.conftest import BOUND
from tests.identity.tokens import IDENTITY, NOW, ec_key, publish, token

from leaseway.identity import authenticator
from leaseway.identity.authenticator import Authenticator, authenticator_for
from leaseway.identity.keys import add_key, make_key, revoke_key
from leaseway.identity.principal import CREDENTIAL, LOOPBACK, SHARED_KEY, Principal, Role
from leaseway.identity.settings import IdentityFileError, read_identity_file
from leaseway.identity.tokens import Issuer, verify_token
from leaseway.telemetry.http_listener import refusal_of
from leaseway.wire.errors import Fault, Reason
from leaseway.wire.status import code_of


class Clock:
    def __init__(self) -> None:
        self.at = NOW

    def __call__(self) -> float:
        return self.at


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def issued(tmp_path: Path, clock: Clock) -> tuple[Authenticator, ECKey]:
    key = ec_key("first")
    publish(tmp_path, key)
    (tmp_path / "identity.toml").write_text(IDENTITY)
    auth = Authenticator(identity=tmp_path / "identity.toml", now=clock, clock=clock)
    return auth, key


async def refused(
    auth: Authenticator, credential: str | None, reason: Reason = Reason.UNAUTHENTICATED
) -> str:
    with pytest.raises(Fault) as raised:
        await auth.principal(None if credential is None else f"Bearer {credential}")
    assert raised.value.reason is reason
    if credential:
        assert credential not in raised.value.message
    return raised.value.message


async def test_without_configured_credentials_all_senders_are_accepted() -> None:
    auth = Authenticator()
    assert auth.is_open
    assert await auth.principal(None) is LOOPBACK


async def test_with_a_worker_key_only_its_senders_join_even_if_callers_need_no_credential() -> None:
    auth = authenticator_for(None, worker_key="the key of workers")
    assert auth.is_open
    assert not auth.allows_all
    for authorization in (None, "Bearer wrong"):
        principal = await auth.principal(authorization)
        assert principal.has({Role.CALLER})
        assert not principal.has({Role.PLANE})
    assert (await auth.principal("Bearer the key of workers")).roles == {Role.PLANE}


async def test_with_a_worker_key_the_shared_key_does_not_let_workers_join() -> None:
    auth = authenticator_for("the shared key", worker_key="the key of workers")
    assert not (await auth.principal("Bearer the shared key")).has({Role.PLANE})
    assert (await auth.principal("Bearer the key of workers")).roles == {Role.PLANE}


async def test_the_shared_key_may_speak_for_every_tenant() -> None:
    auth = Authenticator(shared=[("s3cret-shared", SHARED_KEY)])
    assert await auth.principal("Bearer s3cret-shared") is SHARED_KEY
    assert "shared key" in await refused(auth, None)
    await refused(auth, "s3cret-share")
    with pytest.raises(Fault, match="Bearer"):
        await auth.principal("Basic czNjcmV0")


async def test_a_token_has_a_tenant_an_agent_and_roles(
    issued: tuple[Authenticator, ECKey],
) -> None:
    auth, key = issued
    principal = await auth.principal(f"Bearer {token(key, roles='approver caller photos:read')}")
    assert (principal.name, principal.tenant, principal.agent) == ("token alice", "acme", "billing")
    assert principal.roles == {Role.APPROVER, Role.CALLER}


async def test_claims_inside_others_are_named_by_pointers(tmp_path: Path, clock: Clock) -> None:
    key, path = ec_key("first"), tmp_path / "identity.toml"
    publish(tmp_path, key)
    pointers = (
        "roles_claim = '/realm_access/roles'\ntenant_claim = '/kubernetes.io/a~1b/namespace'\n"
        "user_claim = '/sub/x'\n"
    )
    path.write_text(IDENTITY.replace('roles_claim = "roles"\n', pointers))
    auth = Authenticator(identity=path, now=clock, clock=clock)
    nested: dict[str, Any] = {
        "realm_access": {"roles": ["approver", "offline_access"]},
        "kubernetes.io": {"a/b": {"namespace": "beta"}},
        "tenant": None,
    }
    principal = await auth.principal(f"Bearer {token(key, **nested)}")
    assert principal.roles == {Role.APPROVER}
    assert (principal.tenant, principal.user) == ("beta", None)
    nested["kubernetes.io"] = {"a/b": ["namespace"]}
    await refused(auth, token(key, **nested), Reason.PERMISSION_DENIED)


@pytest.mark.parametrize("configured", ["https://login.example", "https://login.example/"])
@pytest.mark.parametrize("said", ["https://login.example", "https://login.example/"])
async def test_an_issuer_is_the_same_with_and_without_a_slash(
    tmp_path: Path, clock: Clock, configured: str, said: str
) -> None:
    key, path = ec_key("first"), tmp_path / "identity.toml"
    publish(tmp_path, key)
    path.write_text(IDENTITY.replace("https://login.example", configured))
    auth = Authenticator(identity=path, now=clock, clock=clock)
    assert auth.issuers == (configured,)  # as its metadata are found
    assert (await auth.principal(f"Bearer {token(key, iss=said)}")).tenant == "acme"
    await refused(auth, token(key, iss=f"{said}/x"))
    path.write_text(IDENTITY + IDENTITY.replace("https://login.example", "https://login.example/"))
    with pytest.raises(IdentityFileError, match="the same issuer"):
        read_identity_file(path)


async def test_a_token_needs_one_of_several_audiences(tmp_path: Path, clock: Clock) -> None:
    key, path = ec_key("first"), tmp_path / "identity.toml"
    publish(tmp_path, key)
    path.write_text(IDENTITY.replace('"leaseway"', '["leaseway", "https://mcp.example/mcp"]'))
    auth = Authenticator(identity=path, now=clock, clock=clock)
    served = "https://mcp.example/mcp/files"  # one server's address at the front
    exact = ("leaseway", "https://mcp.example/mcp", ["other", served], served)
    for audience in (
        *exact,
        "https://mcp.example/mcp/",
        f"{served}/",
        "https://mcp.example/mcp/mcp",
    ):
        assert (await auth.principal(f"Bearer {token(key, aud=audience)}")).tenant == "acme"
    others = ("https://mcp.example", f"{served}/b", "https://mcp.example/mcp2", "leaseway/")
    for audience in ("other", ["other"], [], *others):
        said = await refused(auth, token(key, aud=audience))
        assert "'leaseway' or 'https://mcp.example/mcp'" in said


@pytest.mark.parametrize("front", ["http://mcp/mcp", "https://a.example/mcp/mcp"])
def test_a_front_whose_address_names_mcp_twice_has_tokens_for_all_its_addresses(front: str) -> None:
    issuer = Issuer("https://login.example", (front,), "keys.json", tenant="acme")
    for end in ("", "/", "/files", "/files/"):
        assert issuer.accepts_audience(f"{front}{end}"), end
    assert not issuer.accepts_audience(front.removesuffix("/mcp"))


@pytest.mark.parametrize(
    ("changes", "user"),
    [
        ({}, "alice"),
        ({"roles": "caller delegate"}, None),  # a service, which names the users
        ({"roles": "operator", "tenant": None}, None),
        ({"sub": "a\u0000b"}, None),
        ({"sub": None}, None),
        ({"sub": ""}, None),
    ],
)
async def test_the_subject_of_a_token_is_its_user(
    issued: tuple[Authenticator, ECKey], changes: dict[str, Any], user: str | None
) -> None:
    auth, key = issued
    assert (await auth.principal(f"Bearer {token(key, **changes)}")).user == user


async def test_the_users_of_several_issuers_are_told_apart(tmp_path: Path, clock: Clock) -> None:
    key, path = ec_key("first"), tmp_path / "identity.toml"
    publish(tmp_path, key)
    other = IDENTITY.replace("login", "other")

    async def user() -> str | None:
        auth = Authenticator(identity=path, now=clock, clock=clock)
        return (await auth.principal(f"Bearer {token(key)}")).user

    path.write_text(IDENTITY + other)
    assert await user() is None  # both may have an alice
    path.write_text(
        f"{IDENTITY}user_claim = 'sub'\n{other}user_claim = 'sub'\nuser_prefix = 'o:'\n"
    )
    with pytest.raises(IdentityFileError, match="user_prefix"):
        read_identity_file(path)  # an `o:alice` of the first would be an `alice` of the second
    path.write_text(
        f"{IDENTITY}user_claim = 'sub'\nuser_prefix = 'l:'\n"
        f"{other}user_claim = 'sub'\nuser_prefix = 'o:'\n"
    )
    assert await user() == "l:alice"


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"exp": int(NOW) - 31}, "it has expired. Get a new one for the audience 'leaseway'"),
        ({"exp": None}, "it has no exp"),
        ({"aud": "others"}, "it has the aud 'others'. Get a new one for the audience 'leaseway'"),
        ({"aud": "a\n" + "o" * 500}, f"it has the aud 'a\\n{'o' * 124}."),
        ({"aud": None}, "it has no aud"),
        ({"sub": 7}, "it has the sub 7."),
        ({"iss": "https://evil.example"}, "not trusted"),
        ({"nbf": int(NOW) + 60}, "its 'nbf' is in the future. Correct Leaseway's clock"),
    ],
)
async def test_a_token_with_invalid_claims_is_refused_in_words(
    issued: tuple[Authenticator, ECKey], changes: dict[str, Any], why: str
) -> None:
    auth, key = issued
    assert why in await refused(auth, token(key, **changes))


@pytest.mark.parametrize(
    "changes",
    [{"tenant": None}, {"tenant": 7}, {"tenant": "a\u0000b"}, {"roles": ["king"]}],
)
async def test_whose_token_allows_nothing_is_denied_and_not_sent_to_log_in_again(
    issued: tuple[Authenticator, ECKey], changes: dict[str, Any]
) -> None:
    auth, key = issued
    await refused(auth, token(key, **changes), Reason.PERMISSION_DENIED)


async def test_a_token_of_another_key_or_algorithm_is_refused(
    issued: tuple[Authenticator, ECKey],
) -> None:
    auth, key = issued
    assert "none of the issuer's keys has signed it" in await refused(auth, token(ec_key("first")))
    secret = OctKey.generate_key(256, {"kid": "first"})
    assert "its algorithm is none of RS256" in await refused(auth, token(secret, "HS256"))
    good = token(key)
    head, body, signature = good.split(".")
    await refused(auth, f"{head}.{body}.{signature[:-4]}AAAA")
    await refused(auth, f"{head}.{body}.")


async def test_keys_are_read_again_for_an_unknown_key_id(
    issued: tuple[Authenticator, ECKey], tmp_path: Path, clock: Clock
) -> None:
    auth, old = issued
    await auth.principal(f"Bearer {token(old)}")
    new = ec_key("second")
    publish(tmp_path, old, new)
    clock.at += 11
    assert (await auth.principal(f"Bearer {token(new)}")).tenant == "acme"
    assert (await auth.principal(f"Bearer {token(old)}")).tenant == "acme"


async def test_a_removed_key_is_not_trusted_after_the_next_read(
    issued: tuple[Authenticator, ECKey], tmp_path: Path, clock: Clock
) -> None:
    auth, old = issued
    signed = token(old)
    await auth.principal(f"Bearer {signed}")
    publish(tmp_path, ec_key("second"))
    clock.at += 301
    await refused(auth, signed)


async def test_keys_that_cannot_be_read_again_are_trusted_for_a_day(
    issued: tuple[Authenticator, ECKey], tmp_path: Path, clock: Clock
) -> None:
    auth, key = issued
    lasting = token(key, exp=int(NOW) + 10 * 86_400)
    await auth.principal(f"Bearer {lasting}")
    (tmp_path / "jwks.json").unlink()
    clock.at += 86_400 - 1
    await auth.principal(f"Bearer {lasting}")
    clock.at += 61
    assert "cannot be read" in await refused(auth, lasting, Reason.AUTHORIZATION_FAILED)


async def test_other_settings_of_an_issuer_keep_the_keys_that_cannot_be_read_again(
    issued: tuple[Authenticator, ECKey], tmp_path: Path
) -> None:
    auth, key = issued
    await auth.principal(f"Bearer {token(key)}")
    (tmp_path / "jwks.json").unlink()
    another = IDENTITY.replace("login.", "other.").replace("jwks.json", "other.json")
    (tmp_path / "identity.toml").write_text(IDENTITY + another)
    await auth.refresh()
    assert (await auth.principal(f"Bearer {token(key)}")).tenant == "acme"


@pytest.mark.parametrize("content", [None, "no JSON", '{"keys": []}'])
async def test_a_token_whose_key_cannot_be_read_is_neither_accepted_nor_called_invalid(
    issued: tuple[Authenticator, ECKey],
    tmp_path: Path,
    clock: Clock,
    content: str | None,
    caplog: pytest.LogCaptureFixture,
) -> None:
    auth, old = issued
    await auth.principal(f"Bearer {token(old)}")
    path, new = tmp_path / "jwks.json", ec_key("second")
    path.unlink()
    if content is not None:
        path.write_text(content)
    clock.at += 11
    with pytest.raises(Fault) as raised:
        await auth.principal(f"Bearer {token(new)}")
    refusal = refusal_of(raised.value)
    assert (refusal.status, refusal.headers) == (503, {"Retry-After": "10"})
    assert code_of(raised.value) is StatusCode.UNAVAILABLE
    assert str(path) not in str(refusal), "whoever sends a token need not know the place"
    assert str(path) in caplog.text
    await auth.principal(f"Bearer {token(old, sub='bob')}")  # of a key that is known
    forged = token(ec_key("first"))
    await refused(auth, forged)
    publish(tmp_path, old, new)
    assert (await auth.principal(f"Bearer {token(new)}")).tenant == "acme"


async def test_a_revoked_key_ends_its_streams_and_a_new_key_is_accepted(tmp_path: Path) -> None:
    path = tmp_path / "keys.json"
    key, record = make_key(roles=[Role.CALLER], tenant="acme", agent=None, now=NOW)
    add_key(path, record)
    auth = Authenticator(keys=path)
    principal = await auth.principal(f"Bearer {key}")
    other, another = make_key(roles=[Role.OPERATOR], tenant=None, agent=None, now=NOW)
    with auth.watch(f"Bearer {key}", None, principal) as revoked:
        add_key(path, another)
        await auth.refresh()
        assert not revoked.done()
        assert (await auth.principal(f"Bearer {other}")).roles == {Role.OPERATOR}
        revoke_key(path, record.id, NOW)
        await auth.refresh()
        assert "revoked" in revoked.result().message
    await refused(auth, key)


@pytest.mark.parametrize("ends", ["has expired", "was revoked"])
async def test_a_key_that_is_no_longer_valid_is_named_and_a_guess_is_not(
    tmp_path: Path, clock: Clock, ends: str
) -> None:
    path = tmp_path / "keys.json"
    key, record = make_key(
        roles=[Role.CALLER], tenant="acme", agent=None, now=NOW, expires_at=NOW + 5
    )
    add_key(path, record)
    if ends == "was revoked":
        revoke_key(path, record.id, NOW)
    auth = Authenticator(keys=path, now=clock, clock=clock)
    clock.at += 6
    with pytest.raises(Fault, match=f"The API key {record.id} {ends}") as raised:
        await auth.principal(f"Bearer {key}")
    assert raised.value.metadata == {CREDENTIAL: f"key {record.id}"}
    with pytest.raises(Fault, match="is unknown") as raised:
        await auth.principal(f"Bearer {key[:-1]}{'a' if key[-1] != 'a' else 'b'}")
    assert raised.value.metadata == {}


async def test_a_token_is_not_accepted_if_its_issuer_is_removed_while_its_keys_are_read(
    tmp_path: Path, issued: tuple[Authenticator, ECKey], monkeypatch: pytest.MonkeyPatch
) -> None:
    auth, key = issued

    async def remove_meanwhile(*given: Any) -> Principal:
        principal = await verify_token(*given)
        (tmp_path / "identity.toml").write_text(IDENTITY.replace("login.", "other."))
        await auth.refresh()
        return principal

    monkeypatch.setattr(authenticator, "verify_token", remove_meanwhile)
    assert "not trusted" in await refused(auth, token(key))


async def test_the_subject_of_an_expired_token_is_named_and_that_of_a_forged_one_is_not(
    issued: tuple[Authenticator, ECKey],
) -> None:
    auth, key = issued
    with pytest.raises(Fault) as raised:
        await auth.principal(f"Bearer {token(key, exp=int(NOW) - 600)}")
    assert raised.value.metadata == {CREDENTIAL: "token alice"}
    forged = token(ECKey.generate_key("P-256", {"kid": "first"}, private=True), exp=1)
    with pytest.raises(Fault) as raised:
        await auth.principal(f"Bearer {forged}")
    assert raised.value.metadata == {}


async def test_an_expired_credential_ends_its_streams(tmp_path: Path, clock: Clock) -> None:
    path = tmp_path / "keys.json"
    key, record = make_key(
        roles=[Role.CALLER], tenant="acme", agent=None, now=NOW, expires_at=NOW + 5
    )
    add_key(path, record)
    auth = Authenticator(keys=path, now=clock, clock=clock)
    principal = await auth.principal(f"Bearer {key}")
    with auth.watch(f"Bearer {key}", None, principal) as revoked:
        await auth.refresh()
        assert not revoked.done()
        clock.at += 5
        await auth.refresh()
        assert revoked.done()


async def test_an_invalid_file_keeps_the_previous_credentials(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "keys.json"
    key, record = make_key(roles=[Role.CALLER], tenant="acme", agent=None, now=NOW)
    add_key(path, record)
    auth = Authenticator(keys=path)
    expires = f'"expires_at": 1{"0" * 400}, "created_at"'
    for text in ("{", path.read_text().replace('"created_at"', expires)):
        path.write_text(text)
        caplog.clear()
        await auth.refresh()
        assert "stay in force" in caplog.text
        assert (await auth.principal(f"Bearer {key}")).tenant == "acme"


async def test_an_empty_identity_file_does_not_allow_all_senders(tmp_path: Path) -> None:
    path = tmp_path / "identity.toml"
    path.write_text('keys = "keys.json"\n')
    auth = Authenticator(identity=path)
    path.write_text("# nothing any more\n")
    await auth.refresh()
    assert not auth.is_open
    await refused(auth, None)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("keys = 3", "write a path"),
        ('keys = "\\u0000"', "no path may have"),
        ("keys = '~nobody-at-all/keys.json'", "no known user's home"),
        ("[[jwt]]\nissuer='i'\naudience='a'\njwks='~nobody-at-all/k'", "no known user's home"),
        ("[[jwt]]\nissuer='i'\naudience='a'\njwks='j'\nrefresh=nan", "number of seconds"),
        (f"[[jwt]]\nissuer='i'\naudience='a'\njwks='j'\nrefresh=1{'0' * 400}", "number of seconds"),
        ("[[jwt]]\nissuer = 'x'", "audience is missing"),
        ("[[jwt]]\nissuer='i'\naudience='a'\njwks='http://a.example/k'", "use https"),
        ("[[jwt]]\nissuer='i'\naudience='a'\njwks='j'\ntenant='t'\ntenant_claim='c'", "either"),
        ("[[jwt]]\nissuer='i'\naudienc='a'", "Did you mean 'audience'"),
        ("[[jwt]]\nissuer='i'\naudience=[]\njwks='j'", "list of 1 to 16"),
        ("[[jwt]]\nissuer='i'\naudience=['']\njwks='j'", "1 to 2048"),
        ("[[jwt]]\nissuer='i'\naudience='a'\njwks='j'\nscopes='a b'", "a list of at most 32"),
        ("[[jwt]]\nissuer='i'\naudience='a'\njwks='j'\nscopes=['a b']", "has no space"),
        ("[[mtls]]\nmatch='CN=x'", "needs a tenant"),
        ("[[mtls]]\nmatch='x'\ntenant='t'", "neither spiffe"),
        ("[[mtls]]\nmatch='CN=x'\nroles=['king']", "no role"),
        ("jwt = 3", "at most"),
        ("key = ", "not TOML"),
    ],
)
def test_an_error_in_the_identity_file_names_the_file_and_the_place(
    tmp_path: Path, text: str, message: str
) -> None:
    path = tmp_path / "identity.toml"
    path.write_text(text)
    with pytest.raises(IdentityFileError, match=message) as raised:
        read_identity_file(path)
    assert str(path) in str(raised.value)


async def test_many_unknown_key_ids_cause_few_reads(
    issued: tuple[Authenticator, ECKey], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    auth, key = issued
    await auth.principal(f"Bearer {token(key)}")
    reads: list[str] = []
    monkeypatch.setattr("leaseway.identity.tokens._load", _counting(reads))
    tokens = [token(ec_key(f"unknown-{number}")) for number in range(20)]
    await asyncio.gather(*(refused(auth, sent) for sent in tokens))
    assert not reads


def _counting(reads: list[str]) -> Callable[[str], bytes]:
    def load(location: str) -> bytes:
        reads.append(location)
        raise OSError("gone")

    return load


@pytest.mark.parametrize(
    "odd",
    [
        None,
        5,
        {},
        {"kty": "EC", "crv": "P-999", "kid": "odd", "x": "AA", "y": "AA"},
        {"kty": "AKP", "kid": "odd", "alg": "ML-DSA-65", "pub": "AA"},
        {"kty": "oct", "kid": "odd", "k": "c2VjcmV0"},
        {"kty": "EC", "kid": 7, "crv": "P-256"},
        {"kty": "RSA", "kid": "odd", "n": None, "e": "AQAB"},
        {"kty": "EC", "kid": "first", "crv": "P-256", "x": "AA", "y": "AA"},
    ],
)
async def test_an_odd_key_of_an_issuer_costs_only_itself(
    issued: tuple[Authenticator, ECKey], tmp_path: Path, odd: object
) -> None:
    auth, key = issued
    entry = {**key.as_dict(private=False), "use": None, "alg": None}
    (tmp_path / "jwks.json").write_text(json.dumps({"keys": [odd, entry, odd]}))
    assert (await auth.principal(f"Bearer {token(key)}")).tenant == "acme"


async def test_two_keys_with_one_id_are_both_tried(
    issued: tuple[Authenticator, ECKey], tmp_path: Path
) -> None:
    auth, key = issued
    other = ec_key("first")
    publish(tmp_path, other, key)
    for signer in (key, other):
        assert (await auth.principal(f"Bearer {token(signer)}")).tenant == "acme"


async def test_a_key_for_encryption_verifies_no_token_and_is_no_problem(
    issued: tuple[Authenticator, ECKey], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    auth, key = issued
    entry = {**key.as_dict(private=False), "use": "enc"}
    document = {"keys": [entry, ec_key("second").as_dict(private=False)]}
    (tmp_path / "jwks.json").write_text(json.dumps(document))
    await refused(auth, token(key))
    assert not caplog.text, "it is no mistake"


class Issuing:
    """A web server with an issuer's keys, whose answers the test holds back."""

    def __init__(self, document: bytes) -> None:
        self.document = document
        self.requests = 0
        self.asked = asyncio.Event()
        self.may_answer = asyncio.Event()
        self.may_answer.set()

    async def answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        self.requests += 1
        self.asked.set()
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(self.document))
        with contextlib.suppress(ConnectionError):
            await self.may_answer.wait()
            writer.write(self.document)
            await writer.drain()
        writer.close()


async def test_tokens_of_known_keys_do_not_wait_for_an_issuer_that_hangs(
    tmp_path: Path, clock: Clock
) -> None:
    key, newer = ec_key("first"), ec_key("second")
    issuing = Issuing(json.dumps(KeySet([key]).as_dict(private=False)).encode())
    server = await asyncio.start_server(issuing.answer, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    text = IDENTITY.replace("jwks.json", f"http://127.0.0.1:{port}/keys")
    (tmp_path / "identity.toml").write_text(text)
    auth = Authenticator(identity=tmp_path / "identity.toml", now=lambda: NOW, clock=clock)
    async with server, asyncio.timeout(BOUND):
        await auth.principal(f"Bearer {token(key)}")
        issuing.asked.clear()
        issuing.may_answer.clear()
        issuing.document = json.dumps(KeySet([newer]).as_dict(private=False)).encode()
        clock.at += 301
        for subject in ("alice", "bob"):  # not cached
            assert (await auth.principal(f"Bearer {token(key, sub=subject)}")).tenant == "acme"
        await issuing.asked.wait()
        waiting = [
            asyncio.create_task(auth.principal(f"Bearer {token(newer, sub=str(number))}"))
            for number in range(5)
        ]
        await auth.principal(f"Bearer {token(key, sub='carol')}")
        assert not any(task.done() for task in waiting)
        issuing.may_answer.set()
        assert {outcome.tenant for outcome in await asyncio.gather(*waiting)} == {"acme"}
        assert issuing.requests == 2, "one request for all that wait"
        await refused(auth, token(key, sub="dave"))
