"""The key `auth` of servers with an address."""

from __future__ import annotations

import pytest
from tests.control_plane.config.parsing import only_issue, parse_server, spec_of
from tests.specs import part

from leaseway.spec.auth import NO_AUTH, Auth
from leaseway.spec.codec import decode_spec, encode_spec
from leaseway.spec.model import ServerSpec
from leaseway.spec.references import Value

MINIMAL = "auth: {client_credentials: {client_id: me, client_secret: {secret: WORD}}}"

LOGIN = "auth: {{authorization_code: {{for: tenant, {}}}}}"


def remote(body: str, transport: str = "streamable_http") -> ServerSpec:
    return spec_of(parse_server(text_of(body, transport)))


def text_of(body: str, transport: str = "streamable_http") -> str:
    url = "base_url" if transport == "http_api" else "url"
    tools = ", http_tools: [{name: t, method: GET, endpoint: /t}]"
    scheme = "ws" if transport == "websocket" else "http"
    return (
        f"transport: {transport}, {url}: '{scheme}://a/'"
        f"{tools if transport == 'http_api' else ''}, {body}"
    )


@pytest.mark.parametrize("transport", ["streamable_http", "sse", "websocket", "http_api"])
def test_every_transport_with_an_address_accepts_client_credentials(transport: str) -> None:
    spec = remote(MINIMAL, transport)
    values = {"client_id": Value("literal", "me"), "client_secret": Value("secret", "WORD")}
    assert part(spec).auth == Auth("client_credentials", values=values)
    assert part(decode_spec(spec.key, encode_spec(spec))).auth == part(spec).auth
    assert {"auth.client_id", "auth.client_secret"} <= spec.values.keys()


def test_all_that_a_grant_says_reaches_the_worker() -> None:
    body = (
        "auth: {client_credentials: {client_id: '${ID}', private_key: {file: /k.pem},"
        " algorithm: ES256, key_id: one, scopes: [read, 'write:all'],"
        " issuer: 'https://login.example.com/realm', resource: 'https://a/mcp'}}"
    )
    spec = remote(body)
    assert part(decode_spec(spec.key, encode_spec(spec))).auth == part(spec).auth
    assert part(spec).auth.scopes == ("read", "write:all")
    assert part(spec).auth.values["private_key"] == Value("file", "/k.pem")


def test_logins_of_tenants_need_no_client() -> None:
    spec = remote("auth: {authorization_code: {for: tenant}}")
    assert part(spec).auth == Auth("authorization_code", "tenant")
    body = (
        "auth: {authorization_code: {for: tenant, redirect_port: 8123,"
        " client_metadata_url: 'https://example.com/client.json'}}"
    )
    spec = remote(body)
    assert part(decode_spec(spec.key, encode_spec(spec))).auth == part(spec).auth
    assert part(spec).auth.redirect_port == 8_123


@pytest.mark.parametrize(
    "uri", ["http://localhost:3118/callback", "http://[::1]/x", "http://127.1.1.1"]
)
def test_a_login_may_have_a_redirect_and_more_parameters(uri: str) -> None:
    spec = remote(
        f"auth: {{authorization_code: {{for: tenant, redirect_uri: '{uri}',"
        " parameters: {access_type: offline, prompt: ''}}}"
    )
    auth = part(decode_spec(spec.key, encode_spec(spec))).auth
    assert auth.redirect_uri == uri
    assert auth.parameters == {"access_type": "offline", "prompt": ""}


METADATA = "auth_server_metadata_url: 'https://login.example.com/v4/openid?p=sign_in'"
ENDPOINTS = (
    "issuer: 'https://a', token_endpoint: 'https://a/t', authorization_endpoint: 'https://a/a?p=b'"
)


@pytest.mark.parametrize(
    "body",
    [
        LOGIN.format(METADATA),
        LOGIN.format(f"{METADATA}, issuer: 'https://login.example.com'"),
        LOGIN.format(f"client_id: me, {ENDPOINTS}"),
        LOGIN.format(f"registration_endpoint: 'https://a/r', {ENDPOINTS}"),
        LOGIN.format(f"client_metadata_url: 'https://b/client.json', {ENDPOINTS}"),
        LOGIN.format(
            "client_id: me, token_endpoint: 'https://a/t',"
            " device_authorization_endpoint: 'https://a/d', revocation_endpoint: 'https://a/r'"
        ),
        MINIMAL.replace("client_id: me", f"client_id: me, {METADATA}"),
        MINIMAL.replace("client_id: me", "client_id: me, token_endpoint: 'https://a/t'"),
    ],
)
def test_the_metadata_or_the_endpoints_of_an_authorization_server_can_be_written(body: str) -> None:
    spec = remote(body)
    auth = part(decode_spec(spec.key, encode_spec(spec))).auth
    assert auth == part(spec).auth
    assert auth.names_server
    assert auth.configured_at in auth.addresses


@pytest.mark.parametrize("transport", ["streamable_http", "sse", "websocket", "http_api"])
@pytest.mark.parametrize(
    ("grant", "more"),
    [
        ("token_exchange", "audience: tracker, actor_token: {file: /actor}, "),
        (
            "id_jag",
            (
                "identity_provider: 'https://login.example.com', identity_provider_client_id: one,"
                " identity_provider_client_secret: {secret: OTHER}, "
            ),
        ),
    ],
)
def test_callers_tokens_are_exchanged_for_every_transport(
    transport: str, grant: str, more: str
) -> None:
    spec = remote(
        f"auth: {{{grant}: {{client_id: me, {more}subject_token_type: jwt,"
        " listing_token: {env: LISTING}}}",
        transport,
    )
    assert (spec.part.auth.grant, spec.part.auth.subject) == (grant, "caller")
    assert spec.part.auth.values["listing_token"] == Value("env", "LISTING")
    assert decode_spec(spec.key, encode_spec(spec)).part.auth == spec.part.auth


def test_a_workload_needs_no_client_and_its_statement_reaches_the_worker_as_a_reference() -> None:
    spec = remote("auth: {workload_identity: {assertion: {file: /token}, dpop: always}}")
    values = {"assertion": Value("file", "/token")}
    assert part(spec).auth == Auth("workload_identity", values=values, dpop="always")
    assert part(decode_spec(spec.key, encode_spec(spec))).auth == part(spec).auth
    assert "auth.assertion" in spec.values


def test_auth_needs_a_new_connection_and_none_keeps_the_hash_of_before() -> None:
    plain, one, other = remote("enabled: true"), remote(MINIMAL), remote(MINIMAL.replace("me", "i"))
    assert part(plain).auth == NO_AUTH
    assert len({plain.launch_hash, one.launch_hash, other.launch_hash}) == 3


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ("auth: {}", "exactly one key"),
        ("auth: {authorization_code: {}}", "needs 'for'"),
        ("auth: {authorization_code: {for: everybody}}", "can't be 'everybody'"),
        ("auth: {authorization_code: {for: tenant, redirect_port: 0}}", "from 1 to 65535"),
        (
            "auth: {authorization_code: {for: tenant, client_secret: {secret: W}}}",
            "needs 'client_id'",
        ),
        (
            "auth: {authorization_code: {for: tenant, client_metadata_url: 'http://a/b'}}",
            "must be an https URL",
        ),
        (MINIMAL.replace("client_id: me", "client_id: me, dpop: yes"), "can't be"),
        ("auth: {workload_identity: {client_id: me}}", "needs 'assertion'"),
        (MINIMAL.replace("client_id: me", "client_id: me, assertion: {file: /a}"), "assertion"),
        ("auth: {password: {}}", "'password' is not a grant"),
        ("auth: {client_credentials: {client_secret: {secret: W}}}", "needs 'client_id'"),
        ("auth: {client_credentials: {client_id: me}}", "needs 'client_secret' or 'private_key'"),
        (
            MINIMAL.replace("client_id: me", "client_id: me, private_key: {file: /k}"),
            "keep the one",
        ),
        (MINIMAL.replace("client_id: me", "client_id: me, key_id: k"), "belong to 'private_key'"),
        (MINIMAL.replace("client_id: me", "client_id: me, scope: k"), "did you mean 'scopes'"),
        (
            MINIMAL.replace("client_id: me", "client_id: me, issuer: 'ftp://x'"),
            "must be an http or https URL",
        ),
        (
            MINIMAL.replace("client_id: me", "client_id: me, issuer: 'https://x/?a=b'"),
            "neither credentials",
        ),
        (MINIMAL.replace("client_id: me", "client_id: me, scopes: ['a b']"), "no scope has"),
        (LOGIN.format(f"{METADATA}, {ENDPOINTS}"), "keep one"),
        (LOGIN.format("authorization_endpoint: 'https://a/a'"), "needs 'token_endpoint'"),
        (LOGIN.format("client_id: me, token_endpoint: 'https://a/t'"), "people log in there"),
        (
            LOGIN.format(f"client_id: me, {ENDPOINTS}").replace("issuer: 'https://a', ", ""),
            "needs 'issuer' beside 'authorization_endpoint'",
        ),
        (LOGIN.format(ENDPOINTS), "needs 'client_id', or 'registration_endpoint'"),
        (LOGIN.format("auth_server_metadata_url: 'https://a/m#b'"), "nor a fragment"),
        (LOGIN.format("auth_server_metadata_url: '/m'"), "must be an http or https URL"),
        (LOGIN.format("auth_server_metadata_url: 'https://a/m n'"), "contains a space"),
        (
            MINIMAL.replace("client_id: me", "client_id: me, registration_endpoint: 'https://a/r'"),
            "'registration_endpoint' is not a key",
        ),
        (
            (
                "auth: {id_jag: {client_id: me, identity_provider: 'https://b',"
                " identity_provider_client_id: one, token_endpoint: 'https://a/t'}}"
            ),
            "needs 'issuer' beside 'token_endpoint'",
        ),
        (LOGIN.format("redirect_uri: 'http://a/b'"), "must lead to this machine"),
        (LOGIN.format("redirect_uri: 'https://localhost/b'"), "must lead to this machine"),
        (LOGIN.format("redirect_uri: 'http://localhost/b?c=d'"), "neither credentials"),
        (LOGIN.format("redirect_uri: 'http://localhost/b', redirect_port: 1"), "write the port"),
        (LOGIN.format("parameters: {scope: a}"), "write 'scopes' instead"),
        (LOGIN.format("parameters: {state: a}"), "is set by workers"),
        (LOGIN.format("parameters: {'a b': c}"), "is no parameter"),
        (LOGIN.format("parameters: {a: '${B}'}"), "can't contain ${NAME}"),
        (f"headers: {{authorization: {{env: TOKEN}}}}, {MINIMAL}", "keep one of the two"),
    ],
)
def test_a_mistake_is_reported_in_words(body: str, words: str) -> None:
    assert words in only_issue(parse_server(text_of(body))).message


def test_a_server_that_is_a_process_has_no_auth() -> None:
    issue = only_issue(parse_server(f"transport: stdio, command: x, {MINIMAL}"))
    assert issue.reason == "KEY_NOT_FOR_TRANSPORT"


def test_a_second_credential_for_the_same_header_is_an_error() -> None:
    body = f"security: {{key: {{type: bearer, value: {{secret: T}}}}}}, {MINIMAL}"
    issue = only_issue(parse_server(text_of(body, "http_api")))
    assert "keep one of the two" in issue.message


def test_a_literal_secret_is_a_warning() -> None:
    issue = only_issue(parse_server(text_of(MINIMAL.replace("{secret: WORD}", "hunter2hunter2"))))
    assert issue.reason == "LITERAL_CREDENTIAL"
    assert "hunter2" not in issue.message
