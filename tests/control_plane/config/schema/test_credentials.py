"""Literals that look like credentials: warned about by key, never shown."""

import pytest
from tests.control_plane.config.parsing import parse_server

from leaseway.control_plane.config.schema.issues import ParsedConfig
from leaseway.wire.secrets.secret_shapes import names_a_secret

# Made up for these tests, put together so that no scanner takes them for leaked ones.
RANDOM = "q8Zr3vT1" + "xW9kLm2p"
JWT = "eyJhbGciOiJI" + "." + "eyJzdWIiOiIx" + "." + "c2lnbmF0dXJl"


def stdio(body: str) -> ParsedConfig:
    return parse_server(f"transport: stdio, command: x, {body}")


def http(body: str) -> ParsedConfig:
    return parse_server(f"transport: streamable_http, url: 'http://a/', {body}")


@pytest.mark.parametrize(
    ("name", "value", "kind"),
    [
        ("A", "sk-" + "a1B2c3D4e5F6g7H8", "an API key"),
        ("A", "sk-proj-" + RANDOM, "an API key"),
        ("A", "ghp_" + "a" * 36, "a GitHub token"),
        ("A", "github_pat_" + "a" * 22, "a GitHub token"),
        ("A", "glpat-" + "a" * 20, "a GitLab token"),
        ("A", "AKIA" + "ABCDEFGH12345678", "an AWS access key"),
        ("A", "xoxb-" + "1234567890-abc", "a Slack token"),
        ("A", JWT, "a JSON web token"),
        ("A", "-----BEGIN RSA PRIVATE KEY-----", "a private key"),
        ("A", "postgres://me:pw@db/x", "an address with a password"),
        ("A", "Bearer " + RANDOM, "a bearer credential"),
        ("A", "basic " + "dXNlcjpwYXNz", "a basic credential"),
        ("GITHUB_TOKEN", RANDOM, "a secret"),
        ("DB_PASSWORD", RANDOM, "a secret"),
        ("PGPASSWORD", RANDOM, "a secret"),
        ("CLIENT_SECRET", RANDOM, "a secret"),
        ("OPENAI_API_KEY", RANDOM, "a secret"),
        ("AWS_SECRET_ACCESS_KEY", RANDOM, "a secret"),
        ("apiKey", RANDOM, "a secret"),
        ("TOKEN", "${T:-" + RANDOM + "}", "a secret"),
    ],
)
def test_a_variable_that_looks_like_a_credential_is_a_warning_without_its_value(
    name: str, value: str, kind: str
) -> None:
    parsed = stdio(f"env: {{{name}: '{value}'}}")
    (issue,) = parsed.issues
    assert (issue.severity, issue.reason, issue.key) == (
        "warning",
        "LITERAL_CREDENTIAL",
        f"servers.s.env.{name}",
    )
    assert issue.message == (
        f"'servers.s.env.{name}' contains what looks like {kind}. Keep it out of the file: use"
        " {env: NAME} or {secret: NAME} instead of it."
    )
    assert value not in str(issue)
    assert parsed.rejected == frozenset()
    assert len(parsed.servers) == 1


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("MODE", "headless"),
        ("MODE", RANDOM),
        ("TOKEN", ""),
        ("TOKEN", "${TOKEN}"),
        ("TOKEN", "${TOKEN:-}"),
        ("TOKEN", "changeme"),
        ("MAX_TOKENS", "4096"),
        ("TOKEN_FILE", "/run/secrets/token"),
        ("AUTH", "https://login.example.org/oauth2/v2"),
        ("PASSWORD", "/run/secrets/database-password-1"),
        ("Authorization", "Bearer ${TOKEN}"),
    ],
)
def test_what_is_no_credential_is_left_alone(name: str, value: str) -> None:
    assert stdio(f"env: {{{name}: '{value}'}}").issues == ()


@pytest.mark.parametrize("wired", ["{env: TOKEN}", "{secret: token}", "{file: /run/token}"])
def test_a_wired_value_is_no_literal(wired: str) -> None:
    assert stdio(f"env: {{TOKEN: {wired}}}").issues == ()


def test_a_header_is_looked_at_too() -> None:
    (issue,) = http(f"headers: {{X-Api-Key: {RANDOM}}}").issues
    assert (issue.reason, issue.key) == ("LITERAL_CREDENTIAL", "servers.s.headers.X-Api-Key")


@pytest.mark.parametrize(
    ("arguments", "key"),
    [
        (f"[--token={RANDOM}]", "args[0]"),
        (f"[--token, {RANDOM}]", "args[1]"),
        (f"[--api-key, {RANDOM}, --verbose]", "args[1]"),
        ("[ghp_" + "a" * 36 + "]", "args[0]"),
    ],
)
def test_an_argument_that_holds_a_credential_is_a_warning(arguments: str, key: str) -> None:
    (issue,) = stdio(f"args: {arguments}").issues
    assert (issue.reason, issue.key) == ("LITERAL_CREDENTIAL", f"servers.s.{key}")
    assert issue.message.endswith("{secret: NAME} under 'env' or 'headers'.")  # args takes none
    assert RANDOM not in str(issue)


@pytest.mark.parametrize("arguments", [f"[--name, {RANDOM}]", "[--token, --verbose-and-long-1]"])
def test_an_ordinary_argument_is_left_alone(arguments: str) -> None:
    assert stdio(f"args: {arguments}").issues == ()


def test_a_credential_in_a_urls_query_is_a_warning() -> None:
    (issue,) = parse_server(f"transport: streamable_http, url: 'http://a/?api_key={RANDOM}'").issues
    assert (issue.reason, issue.key) == ("LITERAL_CREDENTIAL", "servers.s.url")


@pytest.mark.parametrize(
    ("name", "expected"),
    [("GH_TOKEN", True), ("--password", True), ("cookie", True), ("DB_PASS", True),
     ("TOKENIZER", False), ("PATH", False), ("KEYBOARD", False), ("BYPASS", False)],
)  # fmt: skip
def test_a_name_tells_whether_it_is_meant_for_a_secret(name: str, expected: bool) -> None:
    assert names_a_secret(name) is expected


@pytest.mark.parametrize(
    ("args", "names"),
    [
        ("'--token=${T}'", "T"),
        ("--password, '${P}'", "P"),
        ("'${API_TOKEN}'", "API_TOKEN"),
        ("'--url', 'https://${USER}:${DB_PASSWORD}@h'", "DB_PASSWORD"),
        ("'--root=${ROOT}'", ""),
        ("--token, --verbose, '${LEVEL}'", ""),
    ],
)
def test_a_secret_that_process_lists_would_show_is_a_warning(args: str, names: str) -> None:
    issues = [i for i in stdio(f"args: [{args}]").issues if i.reason == "SECRET_IN_ARGUMENTS"]
    assert [i.message.partition(" puts ")[2].partition(" ")[0] for i in issues] == (
        [names] if names else []
    )
    assert all(issue.severity == "warning" for issue in issues)
