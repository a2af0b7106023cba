"""How people log in to servers of other clients' files (`oauth`)."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.specs import part

from leaseway.control_plane.config.formats.detection import parse_text
from leaseway.control_plane.config.schema.issues import ParsedConfig
from leaseway.spec.auth import NO_AUTH, Auth
from leaseway.spec.model import VariantKey
from leaseway.spec.references import Value

URL = "https://api.example.com/mcp"
LOGIN = "https://login.example.com"
METADATA = "https://login.example.com/meta?p=1"


def parsed(root: str = "mcpServers", **entry: object) -> ParsedConfig:
    return parse_text(json.dumps({root: {"s": {"url": URL, **entry}}}), "mcp.json")


def auth_of(found: ParsedConfig) -> Auth:
    auth: Auth = part(found.servers[VariantKey("s")]).auth
    return auth


def literal(**values: str) -> dict[str, Value]:
    return {name: Value("literal", value) for name, value in values.items()}


@pytest.mark.parametrize(
    ("oauth", "auth"),
    [
        ({}, {}),
        (  # Claude Code
            {
                "clientId": "me",
                "callbackPort": 8080,
                "authServerMetadataUrl": METADATA,
                "scopes": "read write",
            },
            {
                "values": literal(client_id="me"),
                "redirect_uri": "http://localhost:8080/callback",
                "auth_server_metadata_url": METADATA,
                "scopes": ("read", "write"),
            },
        ),
        ({"callbackPort": " 8080"}, {"redirect_uri": "http://localhost:8080/callback"}),
        (  # opencode
            {
                "client_id": "me",
                "client_secret": "${env:WORD}",
                "auth_server_metadata_url": METADATA,
            },
            {
                "values": literal(client_id="me", client_secret="${WORD}"),
                "auth_server_metadata_url": METADATA,
            },
        ),
        (  # Gemini CLI
            {
                "enabled": True,
                "clientId": "me",
                "authorizationUrl": "https://login.example.com/a",
                "tokenUrl": "https://login.example.com/t",
                "scopes": ["read"],
                "redirectUri": "http://localhost:7777/oauth/callback",
            },
            {
                "values": literal(client_id="me"),
                "issuer": "https://login.example.com",
                "authorization_endpoint": "https://login.example.com/a",
                "token_endpoint": "https://login.example.com/t",
                "scopes": ("read",),
                "redirect_uri": "http://localhost:7777/oauth/callback",
            },
        ),
    ],
)
def test_a_login_of_a_client_is_taken_over(oauth: dict[str, Any], auth: dict[str, Any]) -> None:
    found = parsed(oauth=oauth)
    assert found.issues == ()
    assert auth_of(found) == Auth("authorization_code", "tenant", **auth)


@pytest.mark.parametrize(
    ("keys", "auth"),
    [
        (  # Codex
            {
                "scopes": ["read"],
                "oauth_resource": "https://a.example",
                "oauth": {"client_id": "me"},
            },
            {
                "values": literal(client_id="me"),
                "scopes": ("read",),
                "resource": "https://a.example",
            },
        ),
        ({"oauthScopes": ["read"]}, {"scopes": ("read",)}),  # Kiro
        ({"oauth": {"oauthScopes": ["read"]}}, {"scopes": ("read",)}),
        ({"auth": {"oauth": True}}, {}),  # fast-agent
    ],
)
def test_a_part_of_a_login_may_stand_beside_the_url(
    keys: dict[str, Any], auth: dict[str, Any]
) -> None:
    found = parsed(**keys)
    assert found.issues == ()
    assert auth_of(found) == Auth("authorization_code", "tenant", **auth)


def test_litellm_writes_a_login_and_the_service_s_own_token_beside_the_url() -> None:
    client = {"client_id": "me", "client_secret": "os.environ/S", "auth_type": "oauth2"}
    token = {"token_url": "https://login.example.com/t", "scopes": ["read"]}
    person = parsed("mcp_servers", **client, **token, authorization_url=f"{LOGIN}/a")
    service = parsed("mcp_servers", **client, **token, oauth2_flow="client_credentials")
    discovered = parsed("mcp_servers", auth_type="oauth2")
    assert [found.issues for found in (person, service, discovered)] == [()] * 3
    own = Auth(
        grant="client_credentials",
        subject="service",
        values=literal(client_id="me", client_secret="${S}"),
        token_endpoint=f"{LOGIN}/t",
        scopes=("read",),
    )
    assert auth_of(service) == own
    assert auth_of(person) == replace(
        own,
        grant="authorization_code",
        subject="tenant",
        issuer=LOGIN,
        authorization_endpoint=f"{LOGIN}/a",
    )
    assert auth_of(discovered) == Auth(grant="authorization_code", subject="tenant")


@pytest.mark.parametrize("kind", ["none", "oauth2_token_exchange"])
def test_keys_of_litellm_s_other_kinds_are_no_login(kind: str) -> None:
    found = parsed("mcp_servers", auth_type=kind, client_id="me", scopes=["read"])
    assert auth_of(found) == Auth()
    assert {issue.reason for issue in found.issues} == {"KEY_NOT_TAKEN_OVER"}


def test_a_flow_that_is_not_known_is_a_warning() -> None:
    found = parsed("mcp_servers", auth_type="oauth2", client_id="me", oauth2_flow="password")
    (issue,) = found.issues
    assert issue.reason == "KEY_NOT_TAKEN_OVER"
    assert "'client_credentials'" in issue.message


def test_the_kind_of_a_login_does_not_replace_the_login() -> None:
    found = parsed("mcp_servers", oauth={"clientId": "me"}, auth_type="oauth2")
    assert auth_of(found).values == literal(client_id="me")


def test_cursor_has_another_name_for_it() -> None:
    found = parsed(auth={"CLIENT_ID": "me", "scopes": ["read"]})
    assert found.issues == ()
    values = literal(client_id="me")
    assert auth_of(found) == Auth("authorization_code", "tenant", values=values, scopes=("read",))


@pytest.mark.parametrize(
    ("oauth", "said"),
    [
        ({"tokenParamName": "t"}, "it has no meaning here"),
        ({"redirectUri": "https://app.example.com/callback"}, "must lead to this machine"),
        ({"clientSecret": "${WORD}"}, "'oauth' needs 'client_id'"),
        ({"clientId": ["me"]}, "must be text"),
        ({"resource": "${A}/mcp"}, "references are resolved on workers"),
        ({"issuer": "login.example.com"}, "must be an http or https URL"),
        ({"scopes": 5}, "must be a list"),
        ({"scopes": "read" * 100}, "longer than 256 characters"),
        ({"callbackPort": 8080.0}, "a whole number from 1 to 65535"),
        ({"callbackPort": 65_536}, "a whole number from 1 to 65535"),
        ({"callbackPort": 0}, "a whole number from 1 to 65535"),
        ({"callbackPort": True}, "a whole number from 1 to 65535"),
        ({"callbackPort": "80a"}, "a whole number from 1 to 65535"),
        ({"callbackPort": "65536"}, "a whole number from 1 to 65535"),
        ({"authorizationUrl": "https://a/a"}, "needs 'token_endpoint'"),
        ({"authorizationUrl": "${A}/a"}, "references are resolved on workers"),
        ({"authorizationUrl": "ftp://a/a"}, "must be an http or https URL"),
        ({"tokenUrl": "https://a/t"}, "people log in there"),
    ],
)
def test_a_part_that_is_of_no_use_is_named_and_costs_only_itself(
    oauth: dict[str, Any], said: str
) -> None:
    found = parsed(oauth=oauth)
    (issue,) = found.issues
    (key,) = oauth
    assert (issue.severity, issue.reason) == ("warning", "KEY_NOT_TAKEN_OVER")
    assert f"'{key}" in issue.message
    assert said in issue.message
    assert auth_of(found) == Auth("authorization_code", "tenant")


@pytest.mark.parametrize("key", ["clientId", "clientSecret", "resource", "scopes", "issuer"])
def test_an_empty_text_is_an_option_that_is_not_set(key: str) -> None:
    found = parsed(oauth={key: " "})
    assert found.issues == ()
    assert auth_of(found) == Auth("authorization_code", "tenant")


def test_a_scope_that_is_none_leaves_the_others() -> None:
    found = parsed(oauth={"scopes": ["read", 5, "", 'a"b', "write"]})
    assert ["'scopes[1]'" in issue.message for issue in found.issues] == [True, False]
    assert {issue.severity for issue in found.issues} == {"warning"}
    assert auth_of(found).scopes == ("read", "write")


_KEYS = st.sampled_from(
    (
        *("clientId", "client_secret", "issuer", "resource", "authServerMetadataUrl", "scope"),
        *("authorizationUrl", "tokenEndpoint", "registrationUrl", "redirectUri", "callbackPort"),
    )
)
_PARTS = st.text("ahtps:/.@?#[]${A} \x00é")
_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(-1e9, 1e9) | _PARTS,
    lambda inner: st.lists(inner) | st.dictionaries(_PARTS | st.just("env"), inner),
    max_leaves=4,
)


@given(st.dictionaries(_KEYS, _VALUES | st.just("https://a/a")))
def test_no_login_of_a_client_costs_its_server(oauth: dict[str, Any]) -> None:
    found = parsed(oauth=oauth)
    assert {issue.severity for issue in found.issues} <= {"warning"}
    assert auth_of(found).grant == "authorization_code"


def test_of_two_spellings_of_one_key_the_second_is_named() -> None:
    found = parsed(oauth={"redirectUri": "http://localhost:1/a", "callbackPort": 2})
    (issue,) = found.issues
    assert "'callbackPort'" in issue.message
    assert auth_of(found).redirect_uri == "http://localhost:1/a"


def test_endpoints_beside_metadata_are_not_taken_over_for_that_reason() -> None:
    found = parsed(
        oauth={
            "clientId": "me",
            "authorizationUrl": "https://a/a",
            "tokenUrl": "https://a/t",
            "authServerMetadataUrl": METADATA,
        }
    )
    assert [issue.severity for issue in found.issues] == ["warning", "warning"]
    for issue in found.issues:
        assert "'oauth' has 'auth_server_metadata_url', which names all endpoints" in issue.message
    values = literal(client_id="me")
    assert auth_of(found) == Auth(
        "authorization_code", "tenant", values=values, auth_server_metadata_url=METADATA
    )


@pytest.mark.parametrize(
    ("entry", "said"),
    [
        ({"oauth": {"enabled": False}}, ""),
        (
            {"oauth": {"clientId": "me"}, "headers": {"authorization": "Bearer ${T}"}},
            "Authorization",
        ),
        ({"scopes": ["a"], "headers": {"authorization": "Bearer ${T}"}}, "'scopes' of the server"),
        ({"oauth": False}, "without this sign-in"),
        ({"scopes": [], "oauthResource": ""}, ""),
    ],
)
def test_nobody_logs_in_where_the_client_does_not(entry: dict[str, Any], said: str) -> None:
    found = parsed(**entry)
    assert [said in issue.message for issue in found.issues] == ([True] if said else [])
    assert auth_of(found) == NO_AUTH


def test_a_port_of_opencode_does_not_say_the_path_of_its_redirect() -> None:
    entry = {"type": "remote", "url": URL, "oauth": {"callbackPort": 19_876}}
    found = parse_text(json.dumps({"mcp": {"s": entry}}), "opencode.json")
    (issue,) = found.issues
    assert "'callbackPort'" in issue.message
    assert auth_of(found) == Auth("authorization_code", "tenant")


def test_native_auth_stays_what_it_is() -> None:
    found = parsed(auth={"authorization_code": {"for": "user"}})
    assert found.issues == ()
    assert auth_of(found) == Auth("authorization_code", "user")


@pytest.mark.parametrize("beside", [{"oauth": {"scopes": ["read"]}}, {"scopes": ["read"]}])
def test_native_auth_counts_beside_a_login_of_a_client(beside: dict[str, Any]) -> None:
    credentials = {"client_id": "me", "client_secret": {"env": "SECRET"}}
    found = parsed(auth={"client_credentials": credentials}, **beside)
    (issue,) = found.issues
    assert f"{next(iter(beside))!r} of the server" in issue.message
    assert auth_of(found).grant == "client_credentials"
