"""Authorization servers whose metadata, or endpoints, the operator writes."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import pytest
from tests.data_plane.mcp.conftest import Bench, bench
from tests.data_plane.oauth.guarded import Guarded
from tests.data_plane.oauth.whoami import started

from leaseway.data_plane.oauth.challenges import Challenge
from leaseway.data_plane.oauth.discoveries import Discoveries
from leaseway.data_plane.oauth.errors import AuthorizationError
from leaseway.data_plane.oauth.logins.login import begin_login, finish_login
from leaseway.data_plane.oauth.metadata import discover, habits_of, has_left
from leaseway.data_plane.oauth.obtaining import Attempt, Wanted
from leaseway.data_plane.oauth.requests import Client
from leaseway.data_plane.oauth.web import Web
from leaseway.spec.auth import Auth
from leaseway.spec.kinds.table import server_spec
from leaseway.spec.model import VariantKey
from leaseway.spec.references import Value
from leaseway.vault.logins import LoginStore
from leaseway.wire.channels.fetching import Response, in_thread

__all__ = ["bench"]
SERVER = "https://api.example.com/mcp"
PROTECTED = "https://api.example.com/.well-known/oauth-protected-resource/mcp"
METADATA = "https://login.example.com/v4/openid?p=sign_in"
ISSUER = "https://login.example.com"
ENDPOINT = "https://login.example.com/token"
CONSOLE = "http://127.0.0.1/login/callback"


class Documents:
    """Documents of the web; `send` is the twin of `fetching.request`."""

    def __init__(self) -> None:
        self.documents: dict[str, Mapping[str, Any]] = {}
        self.asked: list[str] = []

    def send(self, address: str, **_: object) -> Response:
        self.asked.append(address)
        document = self.documents.get(address)
        if document is None:
            return Response(404, {}, b"")
        return Response(200, {}, json.dumps(document).encode())

    def web(self) -> Web:
        return Web([SERVER], self.send)


def test_metadata_are_read_where_they_are_written_to_be_and_nowhere_else() -> None:
    documents = Documents()
    documents.documents[METADATA] = {"issuer": ISSUER, "token_endpoint": ENDPOINT}
    auth = Auth("client_credentials", auth_server_metadata_url=METADATA)
    found = discover(documents.web(), SERVER, auth, Challenge(401, "https://evil.example.com/"))
    assert (found.server.issuer, found.server.token_endpoint) == (ISSUER, ENDPOINT)
    assert found.resource == SERVER
    assert documents.asked == [METADATA]


@pytest.mark.parametrize(
    ("written", "said", "is_right"),
    [
        ("", ISSUER, True),
        (ISSUER, f"{ISSUER}/", True),
        (ISSUER, None, True),
        (ISSUER, "https://other.example.com", False),
        ("", None, False),
    ],
)
def test_the_issuer_of_written_metadata_is_theirs_or_the_written_one(
    written: str, said: str | None, is_right: bool
) -> None:
    documents = Documents()
    documents.documents[METADATA] = {"issuer": said, "token_endpoint": ENDPOINT}
    auth = Auth("client_credentials", issuer=written, auth_server_metadata_url=METADATA)
    if is_right:
        issuer = discover(documents.web(), SERVER, auth, Challenge(401)).server.issuer
        assert issuer.rstrip("/") == ISSUER
        return
    with pytest.raises(AuthorizationError, match="issuer in auth") as caught:
        discover(documents.web(), SERVER, auth, Challenge(401))
    assert caught.value.is_lasting


@pytest.mark.parametrize(
    ("named", "issuer", "tokens", "is_right"),
    [
        ("https://a.example/customer", "https://a.example", "https://a.example/token", True),
        ("https://a.example/org/x", "https://a.example/org/", "https://a.example/token", True),
        (
            "https://a.example/org/v2",
            "https://a.example/{tenantid}/v2",
            "https://a.example/org/t",
            True,
        ),
        ("https://a.example/customer", "https://a.example", "https://b.example/token", False),
        ("https://a.example/customer", "https://a.example/cust", "https://a.example/token", False),
        ("https://a.example", "https://a.example/customer", "https://a.example/token", False),
        ("https://a.example/x", "https://{tenantid}/x", "https://a.example/token", False),
        (
            "https://a.example/x/y/v2",
            "https://a.example/{tenantid}/v2",
            "https://a.example/t",
            False,
        ),
        ("https://a.example/customer", "https:/", "https://a.example/token", False),
        (
            "https://a.example/org/v2",
            "https://a.example/{tenantid}/v2",
            "https://a.example/other/t",
            False,
        ),
    ],
)
def test_an_issuer_of_a_whole_host_is_meant_by_the_addresses_of_its_customers(
    named: str, issuer: str, tokens: str, is_right: bool
) -> None:
    documents = Documents()
    origin, path = named[:17], named[17:]
    place = f"{origin}/.well-known/oauth-authorization-server{path}"
    documents.documents |= {
        PROTECTED: {"resource": SERVER, "authorization_servers": [named]},
        place: {"issuer": issuer, "token_endpoint": tokens},
    }
    auth, challenge = Auth("client_credentials"), Challenge(401)
    if is_right:
        found = discover(documents.web(), SERVER, auth, challenge)
        assert found.server.issuer == issuer
        assert not has_left(documents.web(), SERVER, challenge, issuer)
    else:
        with pytest.raises(AuthorizationError, match=f"write auth_server_metadata_url: {place} in"):
            discover(documents.web(), SERVER, auth, challenge)


def test_metadata_below_the_address_of_a_customer_are_not_those_of_the_host() -> None:
    documents = Documents()
    named = "https://a.example/customer"
    documents.documents |= {
        PROTECTED: {"resource": SERVER, "authorization_servers": [named]},
        f"{named}/.well-known/openid-configuration": {
            "issuer": "https://a.example",
            "token_endpoint": f"{named}/token",
        },
    }
    with pytest.raises(AuthorizationError, match=r"another issuer, https://a\.example;"):
        discover(documents.web(), SERVER, Auth("client_credentials"), Challenge(401))


def test_who_fills_the_gap_of_an_issuer_names_no_page_of_another_customer() -> None:
    documents = Documents()
    named = "https://a.example/evil/v2"
    documents.documents |= {
        PROTECTED: {"resource": SERVER, "authorization_servers": [named]},
        f"{named}/.well-known/openid-configuration": {
            "issuer": "https://a.example/{tenantid}/v2",
            "authorization_endpoint": "https://a.example/good/authorize",
            "token_endpoint": "https://a.example/evil/token",
        },
    }
    with pytest.raises(AuthorizationError, match="is of another issuer"):
        discover(documents.web(), SERVER, Auth("client_credentials"), Challenge(401))


def test_written_metadata_that_are_not_there_are_an_error_that_says_who_wrote_them() -> None:
    auth = Auth("client_credentials", auth_server_metadata_url=METADATA)
    with pytest.raises(
        AuthorizationError, match=r"which auth names, answered with HTTP status 404"
    ):
        discover(Documents().web(), SERVER, auth, Challenge(401))


@pytest.mark.parametrize("said", [None, "https://other.example.com"])
def test_an_issuer_whose_metadata_cannot_be_found_or_used_is_told_what_to_write(
    said: str | None,
) -> None:
    documents = Documents()
    if said is not None:
        place = f"{ISSUER}/.well-known/oauth-authorization-server"
        documents.documents[place] = {"issuer": said, "token_endpoint": ENDPOINT}
    with pytest.raises(AuthorizationError, match="write auth_server_metadata_url"):
        discover(documents.web(), SERVER, Auth("client_credentials", issuer=ISSUER), Challenge(401))


def test_written_endpoints_need_no_request() -> None:
    documents = Documents()
    google = "https://accounts.google.com"
    auth = Auth("authorization_code", "tenant", issuer=google, token_endpoint=ENDPOINT)
    found = discover(documents.web(), SERVER, auth, Challenge(401))
    assert found.server.token_endpoint == ENDPOINT
    assert habits_of(found.server).login  # by the issuer
    assert documents.asked == []


def test_servers_that_are_written_in_different_ways_are_kept_apart() -> None:
    documents, found = Documents(), Discoveries()
    documents.documents[ISSUER] = {"issuer": "https://a.example.com", "token_endpoint": ENDPOINT}
    place = f"{ISSUER}/.well-known/oauth-authorization-server"
    documents.documents[place] = {"issuer": ISSUER, "token_endpoint": ENDPOINT}
    issuers = [
        found.server(
            documents.web(), Wanted("api", SERVER, auth, Client("me")), Attempt(Challenge(401))
        ).server.issuer
        for auth in (
            Auth("token_exchange", auth_server_metadata_url=ISSUER),
            Auth("token_exchange", issuer=ISSUER),
            Auth("token_exchange", token_endpoint=ISSUER),
        )
    ]
    assert issuers == ["https://a.example.com", ISSUER, ""]


async def test_a_token_of_a_written_endpoint_is_requested_before_the_first_request(
    bench: Bench, guarded: Guarded
) -> None:
    values = {"client_id": Value("literal", "me"), "client_secret": Value("literal", "word")}
    auth = Auth("client_credentials", values=values, token_endpoint=f"{guarded.base}/token")
    spec = server_spec(
        VariantKey("remote"),
        "streamable_http",
        url=f"{guarded.base}/mcp",
        auth=auth,
        protocol="legacy",
    )
    instance = await started(bench, spec, {})
    assert (guarded.refused, guarded.asked, len(guarded.granted)) == (0, [], 1)
    await instance.close()


@pytest.mark.parametrize("said", ["", "https://evil.example.com"])
async def test_a_person_logs_in_at_written_endpoints_and_the_redirect_must_be_of_the_issuer(
    guarded: Guarded, store: LoginStore, said: str
) -> None:
    auth = Auth(
        "authorization_code",
        "tenant",
        issuer=guarded.base,
        token_endpoint=f"{guarded.base}/token",
        authorization_endpoint=f"{guarded.base}/authorize?p=sign_in",
        registration_endpoint=f"{guarded.base}/register",
        scopes=("tools",),
    )
    wanted = Wanted("mail", f"{guarded.base}/mcp", auth, Client(""), tenant="acme")
    begun = await in_thread(begin_login, wanted, store, CONSOLE)
    assert begun.url.startswith(f"{guarded.base}/authorize?p=sign_in&response_type=code&")
    answer = {"code": "planted-code", "iss": said or guarded.base}
    if said:
        with pytest.raises(AuthorizationError, match="another authorization server"):
            await in_thread(finish_login, begun, answer, store)
        assert not guarded.granted
    else:
        login = await in_thread(finish_login, begun, answer, store)
        assert login.issuer == guarded.base
        assert login.key == wanted.login != Wanted("mail", wanted.url, Auth(), Client("")).login
        assert len(guarded.registered) == 1
    assert guarded.asked == []
