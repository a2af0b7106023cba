"""Where clients keep their servers, and how each of them spells what a server needs."""

import json
from typing import Any

import pytest
from tests.specs import part

from leaseway.control_plane.config.formats.detection import parse_config, parse_text
from leaseway.control_plane.config.layers.document import Layer
from leaseway.control_plane.config.schema.issues import ParsedConfig
from leaseway.spec.filters.names import NameFilter
from leaseway.spec.model import ServerSpec, VariantKey
from leaseway.spec.references import Value

RUN = {"command": "x"}


def server(parsed: ParsedConfig, server_id: str) -> ServerSpec:
    return parsed.servers[VariantKey(server_id)]


def reasons(parsed: ParsedConfig) -> list[tuple[str | None, str, str]]:
    return [(issue.server_id, issue.severity, issue.reason) for issue in parsed.issues]


def env_of(name: str, key: str, text: str) -> tuple[ParsedConfig, Value | None]:
    """Parse a file whose server `s` has `text` in its environment; return its value."""
    entry = {"command": "x", "env": {"A": text}}
    parsed = parse_text(json.dumps({key: {"s": entry}}), name)
    spec = parsed.servers.get(VariantKey("s"))
    return parsed, None if spec is None else part(spec).env["A"]


@pytest.mark.parametrize(
    ("name", "root"),
    [
        ("config.yaml", {"mcp_servers": {"s": RUN}, "model": "m"}),
        ("agent.config.yaml", {"mcp": {"servers": {"s": RUN}}, "execution_engine": "asyncio"}),
        ("librechat.yaml", {"version": "1.3.1", "cache": True, "mcpServers": {"s": RUN}}),
        ("config.yaml", {"name": "n", "version": "1.0.0", "schema": "v1", "mcpServers": [
            {"name": "s"} | RUN]}),
        ("config.yaml", {"mcp": {"enabled": True, "servers": [{"name": "s"} | RUN]}}),
        ("config.yaml", {"extensions": [{"name": "s", "type": "stdio", "cmd": "x"}]}),
        ("crush.json", {"$schema": "x", "mcp": {"s": {"type": "stdio"} | RUN}}),
        ("settings.json", {"amp.mcpServers": {"s": RUN}}),
        ("settings.json", {"theme": "x", "context_servers": {"s": RUN}}),
        (".mcp.json", {"s": RUN}),
    ],
)  # fmt: skip
def test_each_client_keeps_its_servers_in_a_place_of_its_own(
    name: str, root: dict[str, Any]
) -> None:
    parsed = parse_text(json.dumps(root), name)
    assert reasons(parsed) == []
    assert part(server(parsed, "s")).command == "x"


@pytest.mark.parametrize("server_id", ["command", "url", "httpUrl", "servers", "mcp", "inputs"])
@pytest.mark.parametrize(
    ("name", "path"),
    [
        (".mcp.json", ["mcpServers"]),
        ("mcp.json", ["servers"]),
        ("mcp.json", []),
        ("settings.json", ["mcp", "servers"]),
        ("opencode.json", ["mcp"]),
        ("crush.json", ["mcp"]),
        ("settings.json", ["context_servers"]),
    ],
)
def test_a_server_may_be_called_like_a_key(name: str, path: list[str], server_id: str) -> None:
    entry = {"command": ["x"], "type": "local"} if name == "opencode.json" else RUN
    root: dict[str, Any] = {"s": entry, server_id: entry}
    for key in reversed(path):
        root = {key: root}
    parsed = parse_text(json.dumps(root), name)
    assert reasons(parsed) == []
    assert parsed.servers.keys() == {VariantKey("s"), VariantKey(server_id)}


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("config.yaml", "name: n\nversion: 1.0.0\nschema: v1\nmodels: []\n"),
        ("config.json", '{"mcp": {"allowed": ["a"]}, "mcpServers": {}}'),
    ],
)
def test_a_clients_file_without_servers_has_none(name: str, text: str) -> None:
    parsed = parse_text(text, name)
    assert (parsed.servers, parsed.issues) == ({}, ())


def test_a_mapping_of_servers_alone_counts_in_a_file_of_clients_only() -> None:
    assert parse_text(json.dumps({"s": RUN}), "other.json").broken


def test_an_item_of_a_list_without_a_name_costs_only_itself() -> None:
    servers = [{"uses": "someone/block"}, "x", {"name": "my s"} | RUN]
    parsed = parse_text(json.dumps({"mcpServers": servers}), "mcp.json")
    assert list(parsed.servers) == [VariantKey("my_s")]
    assert reasons(parsed) == [
        (None, "error", "MISSING_KEY"),
        (None, "error", "MISSING_KEY"),
        ("my_s", "warning", "SERVER_RENAMED"),
    ]
    assert "'mcpServers[0]' is no server" in parsed.issues[0].message


CODEX = """\
model = "m"
sandbox_mode = "workspace-write"

[mcp_servers.s]
command = "x"
env = { A = "1" }
env_vars = ["A", "B", { name = "C", source = "local" }, { name = "D", source = "remote" }]
disabled_tools = ["t"]

[mcp_servers.s.tools.u]
approval_mode = "approve"

[mcp_servers.asks]
command = "x"
default_tools_approval_mode = "prompt"

[mcp_servers.off]
url = "http://a/mcp"
enabled = false
"""


def test_codex_keeps_servers_in_toml_and_names_the_variables_that_they_get() -> None:
    parsed = parse_text(CODEX, "config.toml")
    spec = server(parsed, "s")
    assert part(spec).env == {
        "A": Value("literal", "1"),
        "B": Value("env", "B"),
        "C": Value("env", "C"),
    }
    assert spec.tools.blacklist == ("t",)
    assert list(parsed.servers) == [VariantKey("s")]
    assert reasons(parsed) == [
        ("s", "warning", "KEY_NOT_TAKEN_OVER"),
        ("asks", "error", "RESTRICTION_NOT_TAKEN_OVER"),
    ]
    assert [issue.line for issue in parsed.issues] == [7, 15]


GOOSE = """\
GOOSE_MODE: auto
extensions:
  developer: {type: builtin, name: developer, enabled: true, bundled: true, timeout: 300}
  s:
    {type: stdio, name: s, cmd: x, args: [], envs: {A: a}, env_keys: [KEY], timeout: 1500,
     enabled: true, bundled: null, available_tools: []}
  far: {type: streamable_http, name: far, uri: "http://a/mcp", headers: {H: h}, envs: {}}
"""


def test_goose_keeps_servers_among_its_extensions() -> None:
    parsed = parse_text(GOOSE, "config.yaml")
    spec = server(parsed, "s")
    assert part(spec).env == {"A": Value("literal", "a"), "KEY": Value("secret", "KEY")}
    assert spec.call_timeout == 1500
    assert spec.tools == NameFilter()
    assert server(parsed, "far").transport == "streamable_http"
    assert reasons(parsed) == [("developer", "warning", "CLIENT_SERVER_SKIPPED")]


def test_continue_writes_headers_among_the_options_of_requests() -> None:
    entry = {
        "name": "s",
        "type": "sse",
        "url": "http://a/sse",
        "connectionTimeout": 5000,
        "requestOptions": {"headers": {"Authorization": "Bearer ${{ secrets.TOKEN }}"}},
    }
    root = {"name": "n", "version": "1.0.0", "schema": "v1", "mcpServers": [entry]}
    spec = server(parse_text(json.dumps(root), "config.yaml"), "s")
    assert part(spec).headers == {"Authorization": Value("literal", "Bearer ${TOKEN}")}
    assert (spec.transport, spec.startup_timeout) == ("sse", 5)


@pytest.mark.parametrize(
    ("name", "key", "entry"),
    [
        ("settings.json", "context_servers", {"source": "extension", "settings": {}}),
        ("settings.json", "context_servers", {"settings": {"key": 1}}),
        ("mcp.json", "mcpServers", {"type": "sdk", "name": "s"}),
        ("opencode.json", "mcp", {"enabled": False}),
    ],
)
def test_an_entry_that_nothing_can_be_run_for_is_skipped(
    name: str, key: str, entry: dict[str, Any]
) -> None:
    parsed = parse_text(json.dumps({key: {"s": entry, "t": RUN}}), name)
    assert reasons(parsed) == [("s", "warning", "CLIENT_SERVER_SKIPPED")]
    assert list(parsed.servers) == [VariantKey("t")]


def test_a_switch_alone_in_an_upper_layer_switches_the_server_below() -> None:
    layers = [
        Layer("system", "system.json", json.dumps({"mcpServers": {"s": RUN, "t": RUN}})),
        Layer("session", "session.json", json.dumps({"mcpServers": {"s": {"disabled": True}}})),
    ]
    assert list(parse_config(layers).servers) == [VariantKey("t")]


@pytest.mark.parametrize(
    ("name", "key", "text", "native"),
    [
        ("opencode.json", "mcp", "a-{env:TOKEN}", "a-${TOKEN}"),
        ("config.yaml", "mcpServers", "${{ secrets.TOKEN }}", "${TOKEN}"),
        ("settings.json", "mcpServers", "$TOKEN", "${TOKEN}"),
        ("gemini-extension.json", "mcpServers", "$TOKEN", "${TOKEN}"),
        ("crush.json", "mcp", "a $TOKEN", "a ${TOKEN}"),
        ("mcp.json", "mcpServers", "$TOKEN", "$TOKEN"),
        ("mcp.json", "mcpServers", "$(date)", "$(date)"),
        ("mcp.json", "mcpServers", "{{json .}}", "{{json .}}"),
        ("mcp.json", "mcpServers", "${TOKEN:-{env}}", "${TOKEN:-{env}}"),
    ],
)
def test_each_client_spells_variables_its_own_way(
    name: str, key: str, text: str, native: str
) -> None:
    _, value = env_of(name, key, text)
    assert value == Value("literal", native)


@pytest.mark.parametrize(
    ("name", "key", "text", "reason", "said"),
    [
        ("librechat.yaml", "mcpServers", "{{LIBRECHAT_USER_ID}}", "CLIENT_VARIABLE",
         "uses '{{LIBRECHAT_USER_ID}}'"),
        ("servers.json", "mcpServers", "${cmd: op read x}", "CLIENT_VARIABLE",
         "uses '${cmd: op read x}'"),
        ("crush.json", "mcp", "$(op read x)", "CLIENT_VARIABLE", "uses '$(…)'"),
        ("opencode.json", "mcp", "{file:~/.key}", "CLIENT_VARIABLE", '{"file": PATH}'),
        ("mcp_config.json", "mcpServers", "${file:/a}", "CLIENT_VARIABLE", '{"file": PATH}'),
        ("config.yaml", "mcpServers", "${{ inputs.KEY }}", "CLIENT_INPUT", "'KEY'"),
    ],
)  # fmt: skip
def test_what_only_a_client_can_fill_in_refuses_its_server_once(
    name: str, key: str, text: str, reason: str, said: str
) -> None:
    parsed, value = env_of(name, key, text)
    assert value is None
    assert reasons(parsed) == [("s", "error", reason)]
    assert said in parsed.issues[0].message
