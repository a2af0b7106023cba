"""`security`: which credentials requests of a REST server carry, and each mistake in a sentence."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tests.control_plane.config.parsing import load
from tests.specs import part

from leaseway.control_plane.config.effective import effective_values
from leaseway.control_plane.config.formats.detection import parse_text
from leaseway.control_plane.config.layers.sources import parse_sources
from leaseway.control_plane.config.openapi.operations import import_document
from leaseway.control_plane.config.openapi.writing import native_server
from leaseway.control_plane.config.schema.issues import ParsedConfig
from leaseway.spec.codec import decode_spec, encode_spec
from leaseway.spec.kinds.http_api import Credential
from leaseway.spec.model import VariantKey
from leaseway.spec.references import Value

SCHEMES: dict[str, Any] = {
    "bearerAuth": {"type": "http", "scheme": "bearer"},
    "keyAuth": {"type": "apiKey", "in": "query", "name": "api_key"},
    "mutual": {"type": "mutualTLS"},
}


def parse(security: str, more: str = "") -> ParsedConfig:
    return parse_text(
        "version: 1\nservers:\n  s:\n    transport: http_api\n    base_url: http://127.0.0.1:1\n"
        "    http_tools: [ { name: t, method: GET, endpoint: /u, parameters: [ { name: q },"
        " { name: theme, position: cookie } ] } ]\n"
        f"    security: {security}\n{more}",
        "mcp.yaml",
    )


def with_document(folder: Path, entry: str) -> Path:
    parameters = [{"name": "api_key", "in": "query"}, {"name": "n", "in": "query"}]
    document = {
        "openapi": "3.0.3",
        "servers": [{"url": "https://a.example"}],
        "paths": {"/x": {"get": {"operationId": "x", "parameters": parameters}}},
        "components": {"securitySchemes": SCHEMES},
    }
    (folder / "api.json").write_text(json.dumps(document))
    path = folder / "mcp.yaml"
    path.write_text(
        f"version: 1\nservers:\n  s: {{ transport: http_api, openapi: api.json, {entry} }}\n"
    )
    return path


def test_a_credential_says_itself_what_it_is() -> None:
    parsed = parse(
        "{ a: { type: query, name: key, value: { secret: k } },"
        " b: { type: basic, name: ann, value: { file: /run/p } },"
        " c: { type: cookie, name: sid, value: '${SID}' } }"
    )
    assert not parsed.issues, parsed.issues
    spec = parsed.servers[VariantKey("s")]
    assert part(spec).security == {
        "a": Credential("query", "key", Value("secret", "k")),
        "b": Credential("basic", "ann", Value("file", "/run/p")),
        "c": Credential("cookie", "sid", Value("literal", "${SID}")),
    }
    assert spec.values["security.b"] == Value("file", "/run/p")  # followed like any referenced file
    assert decode_spec(spec.key, encode_spec(spec)).launch_hash == spec.launch_hash
    assert spec.launch_hash != parse("{}").servers[VariantKey("s")].launch_hash


def test_a_documents_schemes_are_given_their_values_by_name(tmp_path: Path) -> None:
    path = with_document(
        tmp_path, "security: { keyAuth: { secret: k }, bearerAuth: { env: TOKEN } }"
    )
    parsed = load(path)
    assert not parsed.issues, parsed.issues
    spec = parsed.servers[VariantKey("s")]
    assert part(spec).security == {
        "keyAuth": Credential("query", "api_key", Value("secret", "k")),
        "bearerAuth": Credential("bearer", "", Value("env", "TOKEN")),
    }
    # What a credential sets is no parameter of the tool.
    assert [parameter.name for parameter in part(spec).http_tools[0].parameters] == ["n"]
    values = {
        effective_value.key: effective_value.value
        for effective_value in effective_values(parsed, parse_sources([str(path)]))
    }
    assert values["security.keyAuth"] == {
        "type": "query", "name": "api_key", "value": {"secret": "k"},
    }  # fmt: skip


@pytest.mark.parametrize(
    ("entry", "words"),
    [
        ("security: { keyAuht: { secret: k } }", "did you mean 'keyAuth'?"),
        ("security: { mutual: { secret: k } }", "is mutualTLS, which no header, query or cookie"),
        ("security: { bearerAuth: { secret: k } }, headers: { authorization: { env: T } }",
         "sets the header 'Authorization', but 'headers' sets it, too"),
    ],
)  # fmt: skip
def test_what_does_not_fit_the_document_is_refused(tmp_path: Path, entry: str, words: str) -> None:
    parsed = load(with_document(tmp_path, entry))
    assert parsed.rejected == {"s"}
    assert any(words in issue.message for issue in parsed.issues), parsed.issues


@pytest.mark.parametrize(
    ("security", "words"),
    [
        ("[]", "must be a mapping"),
        ("{ a: { secret: k } }", "'a' needs 'type' and 'value'"),
        ("{ a: { type: bearer } }", "needs 'value'"),
        ("{ a: { value: { secret: k } } }", "needs 'type'"),
        ("{ a: { type: digest, value: { secret: k } } }", "can't be 'digest'"),
        ("{ a: { type: query, value: { secret: k } } }", "needs 'name': the name of the query"),
        ("{ a: { type: header, name: a b, value: { secret: k } } }", "the name of the header"),
        ("{ a: { type: bearer, name: x, value: { secret: k } } }", "a bearer token has none"),
        ("{ a: { type: basic, name: 'x:y', value: { secret: k } } }", "has a ':'"),
        ("{ a: { type: bearer, value: { secrt: k } } }", "did you mean 'secret'?"),
        ('{ a: { type: bearer, value: "a\\r\\nb" } }', "a character that no header may contain"),
        ("{ a: { type: bearer, value: { env: A } }, b: { type: basic, value: { env: B } } }",
         "'a' and 'b' both set the header 'Authorization'"),
        ("{ a: { type: query, name: q, value: { secret: k } } }",
         "the query parameter 'q', which 'security' sets already"),
        ("{ a: { type: cookie, name: theme, value: { secret: k } } }",
         "the cookie parameter 'theme', which 'security' sets already"),
    ],
)  # fmt: skip
def test_a_mistake_is_an_error_with_its_place(security: str, words: str) -> None:
    parsed = parse(security)
    assert parsed.rejected == {"s"}
    assert any(words in issue.message for issue in parsed.issues), parsed.issues
    assert all(issue.line >= 6 for issue in parsed.issues)


def test_a_literal_credential_is_warned_about_and_not_shown() -> None:
    parsed = parse("{ a: { type: bearer, value: ghp_0123456789abcdefghijABCD } }")
    (issue,) = parsed.issues
    assert (issue.reason, issue.severity) == ("LITERAL_CREDENTIAL", "warning")
    assert "ghp_" not in issue.message


def test_an_operation_that_needs_no_credential_is_a_tool_without(tmp_path: Path) -> None:
    document = {
        "openapi": "3.1.0",
        "servers": [{"url": "https://a.example"}],
        "security": [{"keyAuth": []}],
        "paths": {
            "/open": {"get": {"operationId": "open", "security": []}},
            "/closed": {"get": {"operationId": "closed"}},
            "/either": {"get": {"operationId": "either", "security": [{}, {"keyAuth": []}]}},
        },
        "components": {"securitySchemes": SCHEMES},
    }
    path = with_document(tmp_path, "security: { keyAuth: { secret: k } }")
    (tmp_path / "api.json").write_text(json.dumps(document))
    spec = load(path).servers[VariantKey("s")]
    assert {http_tool.name: http_tool.security for http_tool in part(spec).http_tools} == {
        "open": (), "closed": None, "either": None,
    }  # fmt: skip
    assert decode_spec(spec.key, encode_spec(spec)).launch_hash == spec.launch_hash
    written = native_server(import_document(document), "s", "api.json")
    again = parse_text(written, "mcp.yaml").servers[VariantKey("s")]
    assert part(again).http_tools == part(spec).http_tools


ADMIN: dict[str, Any] = {"type": "http", "scheme": "bearer"}
ASKING: dict[str, Any] = {
    "user": [{"keyAuth": []}],
    "admin": [{"adminAuth": []}],
    "both": [{"adminAuth": [], "keyAuth": []}],
    "either": [{"bearerAuth": []}, {"adminAuth": []}, {}],
    "public": [{}],
    "misspelt": [{"keyauth": []}],
}


def chosen(folder: Path, entry: str, **more: Any) -> dict[str, tuple[str, ...] | None]:
    """Return the names of the credentials of each operation, by what it asks for."""
    path = with_document(folder, entry)
    document = {
        "openapi": "3.0.3",
        "servers": [{"url": "https://a.example"}],
        "paths": {
            f"/{name}": {"get": {"operationId": name, "security": asked} | more}
            for name, asked in ASKING.items()
        },
        "components": {"securitySchemes": {**SCHEMES, "adminAuth": ADMIN}},
    }
    (folder / "api.json").write_text(json.dumps(document))
    parsed = load(path)
    assert not parsed.rejected, parsed.issues
    return {tool.name: tool.security for tool in part(parsed.servers[VariantKey("s")]).http_tools}


def test_a_credential_goes_only_to_operations_that_ask_for_it(tmp_path: Path) -> None:
    both = "security: { keyAuth: { secret: k }, adminAuth: { secret: a } }"
    assert chosen(tmp_path, both) == {
        "user": ("keyAuth",), "admin": ("adminAuth",), "both": None, "either": ("adminAuth",),
        "public": (), "misspelt": None,
    }  # fmt: skip
    # What the document does not know goes to all but public ones.
    own = (
        "security: { keyAuth: { secret: k }, own: { type: header, name: X-A, value: { env: A } } }"
    )
    assert chosen(tmp_path, own) == {
        "user": None, "admin": ("own",), "both": None, "either": ("own",), "public": (),
        "misspelt": None,
    }  # fmt: skip


def test_a_parameter_of_an_operation_asks_for_the_credential_that_sets_it(tmp_path: Path) -> None:
    both = "security: { keyAuth: { secret: k }, adminAuth: { secret: a } }"
    names = chosen(tmp_path, both, parameters=[{"name": "api_key", "in": "query"}])
    assert (names["admin"], names["public"]) == (None, ("keyAuth",))


def test_the_token_goes_only_to_operations_that_ask_for_the_header_authorization(
    tmp_path: Path,
) -> None:
    token = "auth: { client_credentials: { client_id: me, client_secret: { secret: c } } }"
    names = chosen(tmp_path, f"security: {{ keyAuth: {{ secret: k }} }}, {token}")
    assert (names["user"], names["admin"], names["both"]) == (("keyAuth",), ("auth",), None)


def test_operations_can_have_different_credentials_in_one_header(tmp_path: Path) -> None:
    both = "security: { bearerAuth: { secret: k }, adminAuth: { secret: a } }"
    assert chosen(tmp_path, both) == {
        "user": (), "admin": ("adminAuth",), "both": ("adminAuth",), "either": ("bearerAuth",),
        "public": (), "misspelt": (),
    }  # fmt: skip


def test_an_operation_whose_scheme_is_not_set_is_a_warning(tmp_path: Path) -> None:
    path = with_document(tmp_path, "security: { keyAuth: { secret: k } }")
    document = json.loads((tmp_path / "api.json").read_text())
    for name in ("/b", "/c"):
        document["paths"][name] = {"get": {"security": [{"bearerAuth": []}]}}
    (tmp_path / "api.json").write_text(json.dumps(document))
    (issue,) = load(path).issues
    assert (issue.reason, issue.severity) == ("CREDENTIAL_MISSING", "warning")
    assert "and 1 more of the document asks for its security scheme 'bearerAuth'" in issue.message


def test_the_security_of_a_tool_names_credentials_of_its_server() -> None:
    def of_tools(first: str, second: str) -> ParsedConfig:
        return parse_text(
            "version: 1\nservers:\n  s:\n    transport: http_api\n    base_url: http://127.0.0.1:1\n"
            "    security: { user: { type: bearer, value: { secret: u } },"
            " admin: { type: bearer, value: { secret: a } } }\n"
            f"    http_tools: [ {{ name: t, method: GET, endpoint: /t, {first} }},"
            f" {{ name: u, method: GET, endpoint: /u, {second} }} ]\n",
            "mcp.yaml",
        )

    parsed = of_tools("security: [ user ]", "security: [ admin ]")
    assert not parsed.issues, parsed.issues
    tools = part(parsed.servers[VariantKey("s")]).http_tools
    assert [tool.security for tool in tools] == [("user",), ("admin",)]
    for second, words in (
        ("security: [ admn ]", "did you mean 'admin'?"),
        ("retries: 1", "'user' and 'admin' both set the header 'Authorization' of the tool 'u'"),
    ):
        refused = of_tools("security: [ user ]", second)
        assert refused.rejected == {"s"}
        assert words in refused.issues[0].message


def test_no_credential_has_the_name_of_the_servers_token() -> None:
    token = "auth: { client_credentials: { client_id: me, client_secret: { secret: c } } }"
    security = "{ auth: { type: header, name: X-Key, value: { secret: k } } }"
    assert not parse(security).issues
    (issue,) = parse(security, f"    {token}\n").issues
    assert "'auth' under 'security' has the name that tools have for the token" in issue.message
