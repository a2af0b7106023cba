"""The shapes in which people write commands, variables, headers and switches in clients' files."""

import json

import pytest
from tests.specs import part

from leaseway.control_plane.config.formats.detection import parse_text
from leaseway.control_plane.config.schema.issues import ParsedConfig
from leaseway.spec.model import VariantKey
from leaseway.spec.references import Value

URL = {"url": "http://a/mcp"}


def parse_server(**entry: object) -> ParsedConfig:
    return parse_text(json.dumps({"mcpServers": {"s": entry}}), "mcp.json")


def reasons(parsed: ParsedConfig) -> list[str]:
    return [issue.reason for issue in parsed.issues]


@pytest.mark.parametrize(
    ("entry", "words"),
    [
        ({"command": "npx -y 'a b'"}, ("npx", "-y", "a b")),
        ({"command": ["npx", "-y", "a b"]}, ("npx", "-y", "a b")),
        ({"command": "npx", "args": "-y 'a b'"}, ("npx", "-y", "a b")),
        ({"command": "npx -y", "args": ["a b"]}, ("npx", "-y", "a b")),
        ({"command": "npx -y 'a b'", "args": []}, ("npx", "-y", "a b")),
        ({"args": "'a b'", "command": ["npx", "-y"]}, ("npx", "-y", "a b")),
        ({"command": "/Applications/My App/run", "args": []}, ("/Applications/My App/run",)),
        ({"command": "/Applications/My App/run"}, ("/Applications/My App/run",)),
        ({"command": "~/bin/run"}, ("${HOME}/bin/run",)),
    ],
)
def test_a_command_line_becomes_a_program_and_its_arguments(
    entry: dict[str, object], words: tuple[str, ...]
) -> None:
    server = part(parse_server(**entry).servers[VariantKey("s")])
    assert (server.command, *server.args) == words


def test_words_that_a_shell_would_read_otherwise_are_not_split() -> None:
    assert reasons(parse_server(command="x", args="-d C:\\a\\b c")) == ["WRONG_TYPE"]
    assert reasons(parse_server(command="x", args="it's")) == ["WRONG_TYPE"]


def test_a_split_command_is_a_warning_that_says_where_arguments_belong() -> None:
    (issue,) = parse_server(command="npx -y a").issues
    assert (issue.severity, issue.key) == ("warning", "mcpServers.s.command")
    assert "'args'" in issue.message


@pytest.mark.parametrize(
    "headers",
    [
        ["A: b=c", "D: e"],
        [{"name": "A", "value": "b=c"}, {"key": "D", "value": "e"}],
    ],
)
def test_a_list_of_headers_is_a_mapping(headers: list[object]) -> None:
    parsed = parse_server(headers=headers, **URL)
    assert parsed.issues == ()
    server = part(parsed.servers[VariantKey("s")])
    assert server.headers == {"A": Value("literal", "b=c"), "D": Value("literal", "e")}


def test_a_list_of_variables_is_a_mapping() -> None:
    server = part(parse_server(command="x", env=["A=b:c"]).servers[VariantKey("s")])
    assert server.env == {"A": Value("literal", "b:c")}


@pytest.mark.parametrize("env", [["A"], ["A=b", "A=c"], [{"name": "A"}], [["A", "b"]]])
def test_a_list_that_is_no_mapping_of_names_refuses_its_server(env: list[object]) -> None:
    assert reasons(parse_server(command="x", env=env)) == ["WRONG_TYPE"]


@pytest.mark.parametrize(
    ("entry", "header"),
    [
        ({"bearerToken": "${T}"}, ("Authorization", "Bearer ${T}")),
        ({"auth_type": "bearer_token", "auth_value": "os.environ/T"},
         ("Authorization", "Bearer ${T}")),
        ({"auth_type": "api_key", "auth_value": "${T}"}, ("X-API-Key", "${T}")),
        ({"auth_type": "bearer_token", "authentication_token": "t"},
         ("Authorization", "Bearer t")),
        ({"static_headers": {"X": "os.environ/T"}}, ("X", "${T}")),
        ({"requestInit": {"headers": {"X": "y"}}}, ("X", "y")),
    ],
)  # fmt: skip
def test_a_credential_with_a_key_of_its_own_is_sent_as_a_header(
    entry: dict[str, object], header: tuple[str, str]
) -> None:
    parsed = parse_server(**URL, **entry)
    assert parsed.issues == ()
    name, text = header
    assert part(parsed.servers[VariantKey("s")]).headers == {name: Value("literal", text)}


@pytest.mark.parametrize("key", ["args", "cwd", "env", "envFile", "headers"])
@pytest.mark.parametrize("value", ["", None])
def test_what_a_form_saves_of_an_empty_field_is_left_out(key: str, value: str | None) -> None:
    assert parse_server(command="x", **{key: value}) == parse_server(command="x")


@pytest.mark.parametrize("value", ["me:word", "bWU6d29yZA==", "Basic me:word"])
def test_a_user_and_a_password_are_sent_encoded(value: str) -> None:
    parsed = parse_server(auth_type="basic", auth_value=value, **URL)
    headers = part(parsed.servers[VariantKey("s")]).headers
    assert headers == {"Authorization": Value("literal", "Basic bWU6d29yZA==")}


@pytest.mark.parametrize(("kind", "value"), [("oauth2", "x"), ("basic", "os.environ/T")])
def test_a_credential_that_cannot_be_told_is_a_warning(kind: str, value: str) -> None:
    parsed = parse_server(auth_type=kind, auth_value=value, **URL)
    assert reasons(parsed) == ["KEY_NOT_TAKEN_OVER"]
    assert part(parsed.servers[VariantKey("s")]).headers == {}


@pytest.mark.parametrize("off", ["true", "True", True])
@pytest.mark.parametrize("key", ["disabled", "quarantined"])
def test_a_switch_may_be_a_text(key: str, off: object) -> None:
    parsed = parse_server(command="x", **{key: off})
    assert (parsed.issues, parsed.servers) == ((), {})


@pytest.mark.parametrize(
    ("key", "value", "refused"),
    [
        ("sandboxEnabled", False, False),
        ("sandboxEnabled", True, True),
        ("disabledAutoApproveTools", [], False),
        ("disabledAutoApproveTools", ["t"], True),
        ("disableSandbox", False, True),
        ("unrestricted", False, True),
        ("allowWrites", False, True),
        ("allow_all_keys", False, True),
        ("allow_all_keys", True, False),
        ("allowedPaths", [], True),
    ],
)
def test_a_restriction_that_is_off_restricts_nothing(
    key: str, value: object, refused: bool
) -> None:
    parsed = parse_server(command="x", **{key: value})
    assert reasons(parsed) == ["RESTRICTION_NOT_TAKEN_OVER" if refused else "KEY_NOT_TAKEN_OVER"]


@pytest.mark.parametrize(
    ("key", "meant"), [("arg", "args"), ("Args", "args"), ("header", "headers")]
)
def test_a_misspelt_key_is_a_warning_that_names_the_right_one(key: str, meant: str) -> None:
    (issue,) = parse_server(command="x", **{key: []}).issues
    assert issue.message.endswith(f"did you mean '{meant}'?")


@pytest.mark.parametrize("text", ["${/}a", "${pathSeparator}a"])
def test_the_separator_of_paths_is_that_of_workers(text: str) -> None:
    server = part(parse_server(command="x", args=[text]).servers[VariantKey("s")])
    assert server.args == ("/a",)


@pytest.mark.parametrize(
    "entry",
    [
        {"transport": {"type": "http", **URL}},
        {"type": "streamableHttp", "baseUrl": "http://a/mcp", "command": ""},
        {"type": "streamableHttp", "baseUrl": "", "command": "", **URL},
        {"type": "streamable", "url": " http://a/mcp\n"},
    ],
)
def test_a_url_is_found_where_clients_save_it(entry: dict[str, object]) -> None:
    parsed = parse_server(**entry)
    assert parsed.issues == ()
    spec = parsed.servers[VariantKey("s")]
    assert (spec.transport, part(spec).url) == ("streamable_http", "http://a/mcp")


@pytest.mark.parametrize(
    "keys",
    [
        {"authorization_token": "${T}"},
        {"auth": "${T}"},
        {"auth": "Bearer ${T}"},
        {"auth": "Bearer $COPILOT_MCP_T"},
    ],
)
def test_a_token_alone_is_a_bearer_token(keys: dict[str, object]) -> None:
    parsed = parse_server(**keys, **URL)
    assert parsed.issues == ()
    sent = part(parsed.servers[VariantKey("s")]).headers["Authorization"]
    assert sent.text.replace("COPILOT_MCP_", "") == "Bearer ${T}"


def test_the_word_oauth_is_a_login() -> None:
    parsed = parse_server(auth="oauth", **URL)
    assert parsed.issues == ()
    assert part(parsed.servers[VariantKey("s")]).auth is not None


def test_copilot_names_its_secrets_as_whole_values() -> None:
    server = part(parse_server(command="x", env={"K": "COPILOT_MCP_K"}).servers[VariantKey("s")])
    assert server.env["K"].text == "${COPILOT_MCP_K}"


def test_times_among_the_options_of_a_request_are_milliseconds() -> None:
    root = {"mcpServers": {"s": {"command": "x", "options": {"timeout": 60_000}}}}
    parsed = parse_text(json.dumps(root), "mcp_settings.json")
    assert parsed.servers[VariantKey("s")].call_timeout == 60.0


@pytest.mark.parametrize("name", ["mcp.json", "one.json"])
@pytest.mark.parametrize("entry", [{"command": "x", "args": []}, URL])
def test_a_server_without_its_name_is_named_as_one(name: str, entry: dict[str, object]) -> None:
    parsed = parse_text(json.dumps(entry), name)
    (issue,) = parsed.issues
    assert parsed.broken
    assert "mcpServers" in issue.message
