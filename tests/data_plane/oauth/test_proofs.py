"""Tokens that are bound to a key (DPoP), of a real authorization server that wants nonces, too."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.conftest import BOUND
from tests.data_plane.mcp.conftest import Bench, bench
from tests.data_plane.oauth.authority import SECRET, Provider, Providers, consent
from tests.data_plane.oauth.bound import Bound
from tests.data_plane.oauth.guarded import Guarded
from tests.data_plane.oauth.whoami import PATHS, WHOAMI, call, started

from leaseway.data_plane.core.ports import InstancePort
from leaseway.data_plane.oauth.challenges import Challenge
from leaseway.data_plane.oauth.errors import AuthorizationError
from leaseway.data_plane.oauth.logins.login import LoginRequest, Told, log_in
from leaseway.data_plane.oauth.metadata import discover
from leaseway.data_plane.oauth.obtaining import Attempt, Wanted
from leaseway.data_plane.oauth.requests import Client
from leaseway.data_plane.oauth.sealed import SealedTokens, key_of
from leaseway.data_plane.oauth.tokens import Tokens
from leaseway.data_plane.oauth.web import Web
from leaseway.spec.auth import Auth
from leaseway.spec.kinds.table import server_spec
from leaseway.spec.model import VariantKey
from leaseway.spec.references import Value
from leaseway.vault.key import VaultPlace
from leaseway.vault.logins import LoginStore
from leaseway.wire.channels.fetching import in_thread
from leaseway.wire.errors import Reason

__all__ = ["bench"]
ENVIRONMENT = {"WORD": SECRET}
VALUES = {"client_id": Value("literal", "service"), "client_secret": Value("env", "WORD")}
QUERY = replace(WHOAMI, endpoint="/whoami?version=1")
LOGIN = Auth("authorization_code", "tenant")


@pytest.fixture
async def bound() -> AsyncIterator[Bound]:
    async with Bound() as bound:
        yield bound
        if hasattr(bound, "closed"):
            bound.closed.set()


@contextlib.asynccontextmanager
async def trusting(host: Providers, bound: Bound) -> AsyncIterator[Provider]:
    async with host.provider(nonces=True) as authority:
        await bound.trust(authority)
        yield authority


@pytest.fixture
def store(tmp_path: Path) -> LoginStore:
    key_file = tmp_path / "key"
    key_file.write_text("the key of this test's vault\n")
    key_file.chmod(0o600)
    return LoginStore(VaultPlace(tmp_path / "vault", key_file))


async def instance_of(
    bench: Bench,
    server: Guarded,
    transport: str,
    tokens: Tokens | None = None,
    **more: Any,
) -> InstancePort:
    base = server.base.replace("http", "ws") if transport == "websocket" else server.base
    own: Mapping[str, Any] = (
        {"http_tools": (QUERY,)} if transport == "http_api" else {"protocol": "legacy"}
    )
    auth = Auth("client_credentials", values=VALUES, resource=f"{server.base}/mcp", **more)
    spec = server_spec(
        VariantKey("remote"),
        transport,
        url=f"{base}/{PATHS[transport]}",
        auth=auth,
        truely_stateless=True,
        **own,
    )
    return await started(bench, spec, ENVIRONMENT, tokens)


@pytest.mark.parametrize("transport", PATHS)
async def test_every_request_has_a_proof_of_its_own_over_every_transport(
    bench: Bench, host: Providers, bound: Bound, transport: str
) -> None:
    async with trusting(host, bound) as authority:
        bound.nonce = "first"
        instance = await instance_of(bench, bound, transport)
        for outcome in [await call(instance) for _ in range(5)]:
            assert outcome.fault is None, (outcome.fault, bound.faults)
            assert not outcome.is_error
        assert not bound.faults
        assert bound.challenged == 1
        assert authority.count("success", "client_credentials") == 1
        await instance.close()


async def test_a_new_nonce_costs_one_repetition_and_none_if_a_response_brought_it(
    bench: Bench, host: Providers, bound: Bound
) -> None:
    async with trusting(host, bound) as authority:
        instance = await instance_of(bench, bound, "http_api")
        assert (await call(instance)).fault is None
        for nonce in ("one", "two"):  # that nobody was told of
            bound.nonce = nonce
            assert (await call(instance)).fault is None
        assert bound.challenged == 2
        bound.is_single = True
        for _ in range(20):
            assert (await call(instance)).fault is None
        assert bound.challenged <= 3
        assert not bound.faults
        assert authority.count("success", "client_credentials") == 1
        await instance.close()


async def test_nonces_that_a_server_never_accepts_end_in_an_error_and_request_no_token(
    bench: Bench, host: Providers, bound: Bound
) -> None:
    async with trusting(host, bound) as authority:
        instance = await instance_of(bench, bound, "http_api")
        bound.nonce, bound.accepts_nonces = "never", False
        assert (await call(instance)).is_error
        assert 1 < bound.challenged <= 4
        assert authority.count("success", "client_credentials") == 1
        await instance.close()


async def test_workers_with_one_vault_share_a_token_with_its_key(
    bench: Bench, host: Providers, bound: Bound, store: LoginStore
) -> None:
    async with trusting(host, bound) as authority:
        workers = [Tokens(SealedTokens(store)) for _ in range(3)]
        for tokens in workers:
            instance = await instance_of(bench, bound, "http_api", tokens)
            outcomes = await asyncio.gather(*(call(instance) for _ in range(10)))
            assert not any(outcome.fault for outcome in outcomes)
            await instance.close()
        assert not bound.faults
        assert authority.count("success", "client_credentials") == 1


async def test_a_login_and_its_renewals_are_bound_to_one_key(
    host: Providers, bound: Bound, store: LoginStore
) -> None:
    async with trusting(host, bound) as authority:
        wanted = Wanted(
            server="mail", url=f"{bound.base}/mcp", auth=LOGIN, client=Client(""), tenant="acme"
        )
        told: asyncio.Queue[Told] = asyncio.Queue()
        loop = asyncio.get_running_loop()

        def tell(text: Told) -> None:
            loop.call_soon_threadsafe(told.put_nowait, text)

        logging_in = asyncio.ensure_future(in_thread(log_in, LoginRequest(wanted, tell), store))
        async with asyncio.timeout(BOUND):
            address = (await told.get()).url
            assert "dpop_jkt=" in address
            await consent(address, "anna")
            login, _ = await logging_in
        key = key_of(login)
        assert key is not None
        assert key.secret not in f"{login}{key}"
        # It is renewed with that key; the rotated refresh token is bound to it, too.
        for _ in range(2):
            known = store.read(wanted.login)
            assert known is not None
            store.write(replace(known, expires_at=time.time()))
            answer = await in_thread(SealedTokens(store), wanted, Attempt(Challenge(401)))
            assert answer.key == key
        assert authority.count("success", "refresh_token") == 2
        assert authority.count("error", "refresh_token") == 2  # for want of a nonce
        assert authority.count("revoked", "refresh_token") == 0


@pytest.mark.parametrize("is_forced", [True, False])
async def test_bearer_tokens_stay_where_the_server_does_not_ask_for_more(
    bench: Bench, is_forced: bool
) -> None:
    guarded = Guarded()
    server = await guarded.start()
    guarded.metadata = {"dpop_signing_alg_values_supported": ["ES256"]}
    try:
        if is_forced:
            auth = Auth("client_credentials", values=VALUES, dpop="always")
            url = f"{guarded.base}/mcp"
            spec = server_spec(
                VariantKey("remote"), "streamable_http", url=url, auth=auth, truely_stateless=True
            )
            fault = await bench.fails(spec, environment=ENVIRONMENT)
            assert fault.reason is Reason.AUTHORIZATION_FAILED
            assert "bound to no key" in fault.message
        else:
            instance = await instance_of(bench, guarded, "http_api")
            assert (await call(instance)).fault is None
            await instance.close()
    finally:
        await server.close()


async def test_signatures_in_metadata_are_no_reason_to_bind_tokens_to_a_key() -> None:
    guarded = Guarded()
    listening = await guarded.start()
    algorithms = {"dpop_signing_alg_values_supported": ["ES256"]}
    guarded.metadata = guarded.protected = algorithms
    try:
        url, auth = f"{guarded.base}/mcp", Auth("client_credentials", values=VALUES)
        found = await in_thread(discover, Web([url]), url, auth, Challenge(401))
        assert not found.proof
    finally:
        await listening.close()


@pytest.mark.parametrize(
    ("server", "resource"),
    [(["HS256", "none"], {}), (["ES256"], {"dpop_signing_alg_values_supported": ["RS512"]})],
)
async def test_a_signature_that_nobody_here_knows_is_a_typed_error(
    server: list[str], resource: dict[str, Any]
) -> None:
    guarded = Guarded()
    listening = await guarded.start()
    guarded.metadata = {"dpop_signing_alg_values_supported": server}
    guarded.protected = {"dpop_bound_access_tokens_required": True, **resource}
    try:
        auth = Auth("client_credentials", values=VALUES)
        wanted = Wanted("api", f"{guarded.base}/mcp", auth, Client("me", "word"))
        with pytest.raises(AuthorizationError, match="signature that is not supported"):
            await in_thread(SealedTokens(None), wanted, Attempt(Challenge(401)))
    finally:
        await listening.close()
    assert not guarded.granted
