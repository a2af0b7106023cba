"""Other clients' files, in the shapes that they use: what is taken over and what is said."""

import json
from pathlib import Path

import pytest
from tests.control_plane.config.parsing import load
from tests.specs import part

from leaseway.control_plane.config.formats.detection import parse_text
from leaseway.control_plane.config.schema.issues import ConfigIssue, ParsedConfig
from leaseway.spec.exposed_names import exposed_name
from leaseway.spec.model import ServerSpec, VariantKey
from leaseway.spec.references import Value

CORPUS = Path(__file__).resolve().parents[3] / "corpus"


def server(parsed: ParsedConfig, server_id: str) -> ServerSpec:
    return parsed.servers[VariantKey(server_id)]


def about(parsed: ParsedConfig, server_id: str | None) -> list[ConfigIssue]:
    return [issue for issue in parsed.issues if issue.server_id == server_id]


def mcp_servers(**servers: object) -> ParsedConfig:
    return parse_text(json.dumps({"mcpServers": servers}), "mcp.json")


def test_claude_desktop_gives_stdio_servers_and_leaves_out_disabled_ones() -> None:
    parsed = load(CORPUS / "claude_desktop" / "claude_desktop_config.json")
    assert parsed.issues == ()
    assert list(parsed.servers) == [VariantKey("files")]
    files = server(parsed, "files")
    assert (files.transport, part(files).command) == ("stdio", "npx")
    assert part(files).args == ("-y", "@modelcontextprotocol/server-filesystem", "/srv/reports")
    assert part(files).env == {
        "LOG_LEVEL": Value("literal", "info"),
        "PAGE_SIZE": Value("literal", "50"),
    }


def test_cursor_names_no_transport_and_spells_variables_its_own_way() -> None:
    parsed = load(CORPUS / "cursor" / "mcp.json")
    search = server(parsed, "search")
    assert (search.transport, part(search).url) == ("streamable_http", "https://search.example/mcp")
    assert part(search).headers == {"Authorization": Value("literal", "Bearer ${SEARCH_TOKEN}")}
    assert part(server(parsed, "smile")).args == ("\N{GRINNING FACE}",)
    assert parsed.rejected == {"notes"}
    (refusal,) = about(parsed, "notes")
    assert (refusal.reason, refusal.line) == ("CLIENT_VARIABLE", 7)
    assert "${workspaceFolder}" in refusal.message
    (ignored,) = about(parsed, "smile")
    assert (ignored.severity, ignored.reason) == ("warning", "KEY_NOT_TAKEN_OVER")
    assert "'autoApprove'" in ignored.message


def test_vs_code_inputs_are_a_problem_and_a_server_that_needs_one_an_error() -> None:
    parsed = load(CORPUS / "vscode" / "mcp.json")
    (inputs,) = about(parsed, None)
    assert (inputs.severity, inputs.reason, inputs.line) == ("warning", "CLIENT_INPUT", 3)
    assert "'tracker-token'" in inputs.message
    (refusal,) = about(parsed, "tracker")
    assert (refusal.severity, refusal.reason, refusal.line) == ("error", "CLIENT_INPUT", 10)
    assert "the input 'tracker-token'" in refusal.message
    assert (refusal.file, refusal.key) == (
        str(CORPUS / "vscode" / "mcp.json"),
        "servers.tracker.headers.Authorization",
    )
    local = server(parsed, "local")
    assert (part(local).command, part(local).args, part(local).env) == (
        "python3",
        ("-m", "local_server"),
        {},
    )


def test_claude_settings_switch_servers_of_the_layers_below() -> None:
    settings = CORPUS / "claude_code" / "settings.local.json"
    system = CORPUS / "layers" / "system.yaml"
    parsed = load(f"system={system}", f"session={settings}")
    assert list(parsed.servers) == [VariantKey(name) for name in ("knowledge", "scratch", "spare")]
    assert part(server(parsed, "scratch")).env == {"MODE": Value("literal", "${SCRATCH_MODE:-dry}")}
    undeclared = [issue for issue in parsed.issues if issue.reason == "UNDECLARED_SERVER"]
    assert ["nowhere" in issue.message for issue in undeclared] == [True]


def test_a_projects_kode_file_replaces_the_users_server_by_server() -> None:
    project = CORPUS / "kode" / "project" / ".kode.json"
    parsed = load(project, home=CORPUS / "kode" / "home")
    assert parsed.issues == ()
    assert [key.server_id for key in parsed.servers] == ["docs", "mail", "wiki"]
    docs = server(parsed, "docs")
    assert (part(docs).args, part(docs).env) == (("--project",), {})
    assert server(parsed, "wiki").transport == "streamable_http"
    assert parsed.origins[VariantKey("mail")]["command"].file.endswith("home/.kode.json")


def test_the_file_in_the_home_serves_where_the_project_has_none(tmp_path: Path) -> None:
    words = [str(tmp_path / ".kode.json")]
    parsed = load(*words, home=CORPUS / "kode" / "home")
    assert parsed.servers
    assert not [issue for issue in parsed.issues if issue.reason == "CONFIG_MISSING"]


def test_where_a_process_starts_and_its_file_of_variables_are_taken_over() -> None:
    one = {"command": "x", "cwd": "${userHome}/a", "envFile": "/srv/.env", "timeout": 90}
    window = {"command": "x", "cwd": "${workspaceFolder}", "timeout": 600_000}
    parsed = mcp_servers(one=one, window=window)
    spec = server(parsed, "one")
    assert (part(spec).cwd, part(spec).env_file, spec.call_timeout) == (
        "${HOME}/a",
        "/srv/.env",
        90,
    )
    (warning,) = about(parsed, "window")
    assert (warning.severity, warning.reason) == ("warning", "KEY_NOT_TAKEN_OVER")
    assert "only the client can fill in the variables of its path" in warning.message
    assert (part(server(parsed, "window")).cwd, server(parsed, "window").call_timeout) == ("", 600)


def names_of(parsed: ParsedConfig, name: str = "t") -> dict[str, str]:
    return {
        key.server_id: exposed_name(name, spec.transforms)
        for key, spec in parsed.servers.items()
        if spec.tools.passes(name)
    }


def test_tools_of_files_that_cannot_state_a_prefix_have_their_servers_id_before_them() -> None:
    text = '{"mcpServers": {"a": {"command": "x"}, "b": {"command": "y", "transform": []}}}'
    code = '{"servers": {"a": {"command": "x"}}, "inputs": []}'
    assert names_of(parse_text(text, "mcp.json")) == {"a": "a_t", "b": "t"}
    assert names_of(parse_text(code, "mcp.json")) == {"a": "a_t"}
    assert names_of(parse_text(text, "mcp.json", bare=True)) == {"a": "t", "b": "t"}
    native = "version: 1\nservers: {a: {transport: stdio, command: x}}\n"
    assert names_of(parse_text(native, "mcp.yaml")) == {"a": "t"}


def test_dots_and_slashes_in_the_names_of_a_clients_tools_are_replaced() -> None:
    parsed = mcp_servers(a={"command": "x"})
    assert names_of(parsed, "session.pause/now") == {"a": "a_session_pause_now"}


def test_no_name_with_replaced_characters_lets_a_denied_tool_through(tmp_path: Path) -> None:
    parsed = mcp_servers(
        a={"command": "x", "disabledTools": ["rm_all"]},
        b={"command": "x", "disabledTools": ["rm"]},
        c={"command": "x", "disabledTools": ["rm-all"]},
        d={"command": "x", "disabledTools": ["rm_all_of_the_very_old_files"]},
    )
    assert names_of(parsed, "rm.all") == {"b": "b_rm_all", "d": "d_rm_all"}
    chosen = mcp_servers(
        a={"command": "x", "includeTools": ["rm.all", "ls"], "denyTools": ["rm_*"]}
    )
    assert (names_of(chosen, "rm.all"), names_of(chosen, "ls")) == ({}, {"a": "a_ls"})
    assert names_of(parsed, "rm all/of.the:very_old@files").keys() == {"a", "b", "c"}
    for name in ("rm of_b", "rm/of_b"):
        assert names_of(parsed, name) == {key: f"{key}_rm_of_b" for key in "abcd"}
    system, session = tmp_path / "mcp.json", tmp_path / "settings.local.json"
    system.write_text('{"mcpServers": {"a": {"command": "x"}, "b": {"command": "y"}}}')
    session.write_text('{"permissions": {"deny": ["mcp__a__rm_all"]}}')
    words = [f"system={system}", f"session={session}"]
    assert names_of(load(*words), "rm.all") == {"b": "b_rm_all"}
    assert names_of(load(*words), "rm.more") == {"a": "a_rm_more", "b": "b_rm_more"}
    system = tmp_path / "mcp.yaml"
    system.write_text("version: 1\nservers: {a: {transport: stdio, command: x}}\n")
    assert names_of(load(f"system={system}", f"session={session}"), "rm all") == {}


def test_what_a_layer_says_of_the_names_of_all_servers_holds_for_other_clients_files(
    tmp_path: Path,
) -> None:
    system, session = tmp_path / "system.yaml", tmp_path / "session.json"
    session.write_text('{"mcpServers": {"a": {"env": {"A": "1"}}, "b": {"command": "y"}}}')
    native = "version: 1\nservers: {a: {transport: stdio, command: x}}\n"
    system.write_text(native)
    words = [f"system={system}", f"session={session}"]
    assert names_of(load(*words)) == {"a": "t", "b": "b_t"}
    assert names_of(load(*words, bare=True)) == {"a": "t", "b": "t"}
    system.write_text(native + "defaults: {transform: [{suffix: _x}]}\n")
    assert names_of(load(*words)) == {"a": "t_x", "b": "t_x"}


def test_a_name_with_other_characters_becomes_an_id() -> None:
    names = ["Brave Search", "io.github.acme/mail-mcp", "docs", "docs!", "\N{GRINNING FACE}"]
    parsed = mcp_servers(**{name: {"command": "x"} for name in names})
    assert {key.server_id for key in parsed.servers} == {
        "Brave_Search",
        "io_github_acme_mail-mcp",
        "docs",
        "server_054db544",
    }
    renamed = [issue for issue in parsed.issues if issue.reason == "SERVER_RENAMED"]
    assert [issue.server_id for issue in renamed][:2] == ["Brave_Search", "io_github_acme_mail-mcp"]
    assert "'Brave Search' gets the id 'Brave_Search'" in renamed[0].message
    (twin,) = [issue for issue in parsed.issues if issue.severity == "error"]
    assert "'docs!' would get the id 'docs', which another server has" in twin.message


def test_claude_settings_switch_a_server_whose_name_became_an_id() -> None:
    servers = {"my mail": {"command": "x"}, "my disk": {"command": "x"}}
    settings = {"mcpServers": servers, "disabledMcpjsonServers": ["my mail"]}
    parsed = parse_text(json.dumps(settings), ".claude/settings.local.json")
    assert list(parsed.servers) == [VariantKey("my_disk")]


@pytest.mark.parametrize("name", ["api.json", "mcp.json", "api.yaml"])
def test_an_openapi_document_in_the_place_of_a_configuration_is_called_one(name: str) -> None:
    document = {"openapi": "3.0.3", "servers": [{"url": "http://a.example"}], "paths": {}}
    parsed = parse_text(json.dumps(document), name)
    (issue,) = parsed.issues
    assert parsed.broken
    assert "`leaseway import openapi FILE`" in issue.message


def test_a_client_without_servers_has_none() -> None:
    parsed = parse_text('{"theme": "dark"}', "/home/u/.kode.json")
    assert (parsed.servers, parsed.issues, parsed.broken) == ({}, (), False)


def test_vs_code_settings_hold_servers_under_mcp() -> None:
    text = '{"editor.fontSize": 12, "mcp": {"servers": {"a": {"command": "x"}}}}'
    assert part(server(parse_text(text, "settings.json"), "a")).command == "x"


@pytest.mark.parametrize(
    ("entry", "transport"),
    [
        ({"type": "http", "url": "http://a/mcp"}, "streamable_http"),
        ({"type": "streamable-http", "url": "http://a/mcp"}, "streamable_http"),
        ({"transport": "streamable_http", "url": "http://a/mcp"}, "streamable_http"),
        ({"serverUrl": "http://a/mcp"}, "streamable_http"),
        ({"protocol": "http", "url": "http://a/mcp"}, "streamable_http"),
        ({"protocol": "stdio", "command": "x"}, "stdio"),
        ({"protocol": "legacy", "command": "x"}, "stdio"),
        ({"type": "stdio", "command": "x"}, "stdio"),
        ({"command": "x"}, "stdio"),
    ],
)
def test_a_transport_has_many_spellings(entry: dict[str, object], transport: str) -> None:
    parsed = mcp_servers(a=entry)
    assert parsed.issues == ()
    assert server(parsed, "a").transport == transport


@pytest.mark.parametrize(
    ("entry", "reason"),
    [
        ({}, "MISSING_KEY"),
        ({"type": "carrier-pigeon", "command": "x"}, "UNSUPPORTED_TRANSPORT"),
        ({"command": [["x"]]}, "WRONG_TYPE"),
        ({"command": "x", "args": ["${input:dir}"]}, "CLIENT_INPUT"),
        ("x", "WRONG_TYPE"),
    ],
)
def test_a_bad_entry_refuses_its_server_only(entry: object, reason: str) -> None:
    parsed = mcp_servers(bad=entry, good={"command": "x"})
    assert parsed.rejected == {"bad"}
    assert [issue.reason for issue in about(parsed, "bad")] == [reason]
    assert VariantKey("good") in parsed.servers


@pytest.mark.parametrize(
    ("entry", "transport"),
    [
        ({"url": "http://a/mcp", "env": {"A": "1"}, "args": [], "cwd": "/"}, "streamable_http"),
        ({"command": "x", "headers": {"A": "1"}}, "stdio"),
        ({"type": "http", "command": "x"}, "stdio"),
        ({"type": "stdio", "url": "http://a/mcp"}, "streamable_http"),
        ({"type": "sse", "url": "http://a/mcp", "command": "x"}, "sse"),
        ({"type": "http", "transport": "sse", "url": "http://a/mcp"}, "streamable_http"),
        ({"httpUrl": "http://a/mcp", "url": "http://a/sse"}, "streamable_http"),
        ({"type": "streamableHttp", "url": "http://a/mcp"}, "streamable_http"),
        ({"type": "STREAMABLE_HTTP", "url": "http://a/mcp"}, "streamable_http"),
        ({"type": "remote", "url": "http://a/sse"}, "sse"),
        ({"url": "wss://a/mcp"}, "websocket"),
        ({"type": "local", "command": ["x", "-y"], "environment": {"A": True}}, "stdio"),
        ({"source": "custom", "command": {"path": "x", "args": ["-y"], "env": {}}}, "stdio"),
        ({"command": "x", "timeout": 0, "url": None}, "stdio"),
    ],
)
def test_keys_that_do_not_go_together_cost_no_server(
    entry: dict[str, object], transport: str
) -> None:
    parsed = mcp_servers(a=entry)
    assert not parsed.rejected
    assert server(parsed, "a").transport == transport
    assert {issue.severity for issue in parsed.issues} <= {"warning"}


def test_a_command_and_a_url_without_a_type_refuse_the_server() -> None:
    assert mcp_servers(a={"command": "x", "url": "http://a/mcp"}).rejected == {"a"}


def test_numbers_and_booleans_of_the_environment_are_texts() -> None:
    spec = server(mcp_servers(a={"command": "x", "env": {"N": 8080, "B": True, "C": False}}), "a")
    assert {name: value.text for name, value in part(spec).env.items()} == {
        "N": "8080",
        "B": "true",
        "C": "false",
    }


@pytest.mark.parametrize(
    ("name", "timeout", "seconds"),
    [
        ("mcp.json", 60, 60),
        ("mcp.json", 60_000, 60),
        ("mcp.json", "30000", 30),
        ("cline_mcp_settings.json", 3600, 3600),
        ("mcp_settings.json", 1800, 1800),
    ],
)
def test_a_timeout_has_the_unit_of_its_client(name: str, timeout: object, seconds: float) -> None:
    text = json.dumps({"mcpServers": {"a": {"command": "x", "timeout": timeout}}})
    assert server(parse_text(text, name), "a").call_timeout == seconds


def test_headers_of_codex_name_variables() -> None:
    entry = {
        "url": "http://a/mcp",
        "bearer_token_env_var": "TOKEN",
        "env_http_headers": {"X-A": "A"},
        "http_headers": {"X-B": "b"},
        "tool_timeout_sec": 5,
        "startup_timeout_sec": 7,
    }
    spec = server(mcp_servers(a=entry), "a")
    assert part(spec).headers == {
        "X-B": Value("literal", "b"),
        "Authorization": Value("literal", "Bearer ${TOKEN}"),
        "X-A": Value("env", "A"),
    }
    assert (spec.call_timeout, spec.startup_timeout) == (5, 7)


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"bearer_token_env_var": ["T"]}, "must be the name of a variable, but it is a list."),
        ({"env_http_headers": "A"}, "must be a mapping of headers to variables, but it is text."),
        ({"http_headers": "X-B: b", "bearer_token_env_var": "T"}, "'mcpServers.a.headers' must be"),
    ],
)
def test_headers_of_another_shape_are_an_error_of_their_server(
    keys: dict[str, object], message: str
) -> None:
    parsed = mcp_servers(a={"url": "http://a/mcp"} | keys, b={"command": "x"})
    assert parsed.rejected == {"a"}
    assert [message in issue.message for issue in parsed.issues] == [True]
    assert VariantKey("b") in parsed.servers


def test_zed_and_opencode_keep_servers_under_keys_of_their_own() -> None:
    zed = {"context_servers": {"a": {"command": "x", "args": []}}, "theme": "One"}
    assert part(server(parse_text(json.dumps(zed), "settings.json"), "a")).command == "x"
    code = {"mcp": {"a": {"type": "local", "command": ["x", "-y"], "enabled": True}}}
    assert part(server(parse_text(json.dumps(code), "opencode.json"), "a")).args == ("-y",)
