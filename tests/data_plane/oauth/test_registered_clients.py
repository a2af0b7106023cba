"""Clients that are registered for logins: used again while they are good, replaced when not."""

from __future__ import annotations

import socket
import time
from collections.abc import Mapping
from dataclasses import replace
from typing import Any
from urllib.parse import urlsplit

import aiohttp
import pytest
from tests.data_plane.oauth.guarded import Guarded
from tests.data_plane.oauth.logging_in import CONSOLE, Logging, query_of, wanted_of

from leaseway.data_plane.oauth.challenges import Challenge
from leaseway.data_plane.oauth.errors import AuthorizationError
from leaseway.data_plane.oauth.kept_clients import forget_refused
from leaseway.data_plane.oauth.logins.login import BegunLogin, begin_login, finish_login
from leaseway.data_plane.oauth.obtaining import Attempt, Wanted
from leaseway.data_plane.oauth.sealed import SealedTokens
from leaseway.vault.file import LOGIN_SUFFIX
from leaseway.vault.key import VaultPlace
from leaseway.vault.logins import Login, LoginStore
from leaseway.wire.channels.fetching import in_thread

CODE = {"code": "planted-code"}


@pytest.fixture
def registering(guarded: Guarded) -> Guarded:
    guarded.metadata = {
        "registration_endpoint": f"{guarded.base}/register",
        "device_authorization_endpoint": f"{guarded.base}/device",
        "token_endpoint_auth_methods_supported": ["none"],
    }
    return guarded


async def begun(wanted: Wanted, store: LoginStore, redirect: str = CONSOLE) -> BegunLogin:
    return await in_thread(begin_login, wanted, store, redirect)


async def client_of(wanted: Wanted, store: LoginStore, redirect: str = CONSOLE) -> str:
    return query_of((await begun(wanted, store, redirect)).url)["client_id"]


async def logged_in(wanted: Wanted, store: LoginStore) -> Login:
    return await in_thread(finish_login, await begun(wanted, store), CODE, store)


async def test_one_client_is_registered_for_the_logins_of_all_subjects_and_workers(
    registering: Guarded, store: LoginStore, place: VaultPlace
) -> None:
    anna = wanted_of(registering)
    assert await client_of(anna, store) == "registered-1"
    assert await client_of(anna, store) == "registered-2", "nobody has logged in with the first"
    await logged_in(anna, store)
    other_worker = LoginStore(place)
    bob = replace(anna, tenant="other")
    assert await client_of(bob, other_worker) == "registered-3"
    await logged_in(anna, store)
    assert len(registering.registered) == 3
    assert not [login for login in store.all()[0] if login.key != anna.login], "it is no login"


@pytest.mark.parametrize(
    ("registration", "scopes", "redirect"),
    [
        ({}, (), "http://127.0.0.1/other"),
        ({}, ("more",), CONSOLE),
        ({"client_secret": "planted", "client_secret_expires_at": time.time() + 60}, (), CONSOLE),
    ],
)
async def test_a_client_that_is_not_good_for_a_login_is_not_used(
    registering: Guarded,
    store: LoginStore,
    registration: Mapping[str, Any],
    scopes: tuple[str, ...],
    redirect: str,
) -> None:
    registering.registration = dict(registration)
    wanted = wanted_of(registering)
    await logged_in(wanted, store)
    wanted = replace(wanted, auth=replace(wanted.auth, scopes=scopes))
    assert await client_of(wanted, store, redirect) == "registered-2"


@pytest.mark.parametrize(
    "expires_at", [0, None, "0", pytest.param(time.time() + 86_400, id="tomorrow")]
)
async def test_a_client_whose_secret_does_not_expire_soon_is_used(
    registering: Guarded, store: LoginStore, expires_at: object
) -> None:
    registering.registration = {"client_secret": "planted", "client_secret_expires_at": expires_at}
    await logged_in(wanted_of(registering), store)
    assert await client_of(wanted_of(registering), store) == "registered-1"


async def test_a_subject_that_does_not_return_gets_another_client_and_the_others_keep_theirs(
    registering: Guarded, store: LoginStore
) -> None:
    anna = wanted_of(registering)
    await logged_in(anna, store)
    assert await client_of(anna, store) == "registered-1"  # she sees an error, and comes again
    assert await client_of(anna, store) == "registered-2"
    bob = replace(anna, tenant="other")
    await logged_in(bob, store)
    assert await client_of(bob, store) == "registered-1"
    await logged_in(anna, store)  # with the third, which all use from now on
    assert await client_of(replace(anna, tenant="third"), store) == "registered-3"


async def test_a_kept_client_is_not_used_at_another_token_endpoint_of_its_issuer(
    registering: Guarded, store: LoginStore
) -> None:
    registering.registration = {"client_secret": "planted"}
    wanted = wanted_of(registering)
    await logged_in(wanted, store)
    known = dict(registering.metadata)
    registering.metadata["token_endpoint"] = f"{registering.base}/elsewhere"
    assert await client_of(wanted, store) == "registered-2"
    registering.metadata = known
    assert await client_of(wanted, store) == "registered-1"


@pytest.mark.parametrize("place_of_refusal", ["redirect", "token endpoint", "renewal"])
async def test_a_client_that_is_refused_is_registered_anew(
    registering: Guarded, store: LoginStore, place_of_refusal: str
) -> None:
    wanted = wanted_of(registering)
    registering.lifetime = 0.001
    await logged_in(wanted, store)
    known = store.read(wanted.login)
    assert known is not None
    store.write(replace(known, refresh_token="planted-refresh", expires_at=1.0))
    registering.unknown_clients = {"registered-1"}
    if place_of_refusal == "renewal":
        with pytest.raises(AuthorizationError, match="cannot be renewed"):
            await in_thread(SealedTokens(store), wanted, Attempt(Challenge(401)))
    else:
        answer = {"error": "unauthorized_client"} if place_of_refusal == "redirect" else CODE
        login = await begun(wanted, store)
        with pytest.raises(AuthorizationError, match="open its link again"):
            await in_thread(finish_login, login, answer, store)
    assert await client_of(replace(wanted, tenant="other"), store) == "registered-2"
    assert (await logged_in(wanted, store)).access_token


async def returned(address: str) -> dict[str, str]:
    """Be the browser at the end of a login; return what the page was asked for."""
    query = query_of(address)
    async with aiohttp.ClientSession() as http:
        where, state = query["redirect_uri"], query["state"]
        async with http.get(where, params={"state": state, **CODE}) as response:
            assert response.status == 200
    return query


async def test_a_command_returns_to_the_registered_port_and_replaces_a_refused_client_once(
    registering: Guarded, store: LoginStore
) -> None:
    wanted, asked = wanted_of(registering), []
    for _ in range(2):
        login = Logging(wanted, store)
        asked.append(await returned((await login.told()).url))
        await login.login()
    assert len({(query["client_id"], query["redirect_uri"]) for query in asked}) == 1
    registering.unknown_clients = {"registered-1"}
    login = Logging(wanted, store)
    assert (await returned((await login.told()).url))["client_id"] == "registered-1"
    assert (await returned((await login.told()).url))["client_id"] == "registered-2"
    assert (await login.login()).metadata["client"]["id"] == "registered-2"
    registering.unknown_clients |= {"registered-2", "registered-3"}
    login = Logging(wanted, store)
    for _ in range(2):
        await returned((await login.told()).url)
    with pytest.raises(AuthorizationError, match="invalid_client"):
        await login.login()
    assert len(registering.registered) == 3


async def test_a_kept_client_whose_port_is_taken_is_not_forgotten_for_another_that_is_refused(
    registering: Guarded, store: LoginStore
) -> None:
    wanted = wanted_of(registering)
    login = Logging(wanted, store)
    port = urlsplit((await returned((await login.told()).url))["redirect_uri"]).port
    await login.login()
    registering.unknown_clients = {"registered-2"}
    with socket.create_server(("127.0.0.1", port or 0)):
        login = Logging(wanted, store)
        assert (await returned((await login.told()).url))["client_id"] == "registered-2"
        with pytest.raises(AuthorizationError, match="invalid_client"):
            await login.login()
    login = Logging(wanted, store)
    assert (await returned((await login.told()).url))["client_id"] == "registered-1"
    await login.login()


async def test_a_code_for_another_device_is_requested_again_by_a_new_client(
    registering: Guarded, store: LoginStore
) -> None:
    wanted = wanted_of(registering)
    for unknown, client in (((), "registered-1"), (("registered-1",), "registered-2")):
        registering.unknown_clients = set(unknown)
        login = Logging(wanted, store, by_device=True)
        assert (await login.told()).code == "AB-CD"
        assert (await login.login()).metadata["client"]["id"] == client
    assert len(registering.registered) == 2


def test_a_refused_client_that_cannot_be_forgotten_is_a_warning(
    store: LoginStore, place: VaultPlace, caplog: pytest.LogCaptureFixture
) -> None:
    place.logins.mkdir(parents=True, exist_ok=True)
    (place.logins / f"clients{LOGIN_SUFFIX}").write_bytes(b"neither clients nor a vault")
    unrelated = AuthorizationError("refused", code="invalid_scope")
    assert not forget_refused(unrelated, store.clients, "https://login.example", "me")
    assert not caplog.records
    refused = AuthorizationError("refused", code="invalid_client")
    assert forget_refused(refused, store.clients, "https://login.example", "me")
    (record,) = caplog.records
    assert "The registered clients cannot be read or changed" in record.message
