"""What other clients' files restrict holds here too, or its server is refused by name."""

import json
from pathlib import Path

import pytest
from tests.control_plane.config.parsing import load
from tests.specs import part

from leaseway.control_plane.config.exporting import native_text
from leaseway.control_plane.config.formats.detection import parse_text
from leaseway.control_plane.config.schema.issues import ParsedConfig
from leaseway.spec.model import VariantKey

TOOLS = ("read", "read_all", "write", "delete_all")


def parsed_file(root: dict[str, object], name: str = "mcp.json") -> ParsedConfig:
    return parse_text(json.dumps(root), name)


def with_server(**keys: object) -> ParsedConfig:
    return parsed_file({"mcpServers": {"s": {"command": "x", **keys}, "other": {"command": "y"}}})


def exposed(parsed: ParsedConfig, server_id: str = "s") -> set[str]:
    """Return the tools that a caller can call; none if the server does not run."""
    spec = parsed.servers.get(VariantKey(server_id))
    return set() if spec is None else {name for name in TOOLS if spec.tools.passes(name)}


@pytest.mark.parametrize(
    ("keys", "names"),
    [
        ({"disabledTools": ["write", "delete_all"]}, {"read", "read_all"}),
        ({"disabled_tools": ["write"]}, {"read", "read_all", "delete_all"}),
        ({"excludeTools": ["delete_*"]}, {"read", "read_all", "write"}),
        ({"blocked_tools": ["mcp__s__write"]}, {"read", "read_all", "delete_all"}),
        ({"includeTools": ["read"]}, {"read"}),
        ({"includeTools": ["read", "write"], "excludeTools": ["write"]}, {"read"}),
        ({"includeTools": ["write"], "excludeTools": ["w*"]}, set()),
        ({"enabled_tools": ["read", "write"], "tools": ["read", "read_all"]}, {"read"}),
        ({"allowedTools": ["read*"]}, {"read", "read_all"}),
        ({"tools": []}, set()),
        ({"tools": ["*"]}, set(TOOLS)),
        ({"tools": None}, set(TOOLS)),
        ({"allowed_tools": []}, set()),
        ({"available_tools": []}, set(TOOLS)),
        ({"available_tools": ["read"]}, {"read"}),
        ({"excludeTools": []}, set(TOOLS)),
        ({"tools": {"write": False, "read": True}}, {"read", "read_all", "delete_all"}),
        ({"tools": {"*": False, "read": True}}, {"read"}),
        ({"tools": {"write": {"enabled": False}}}, {"read", "read_all", "delete_all"}),
        ({"tools": {"s-write": {"enabled": False, "description": "of MCPHub"}}},
         {"read", "read_all", "delete_all"}),
        ({"allow_all_keys": True}, set(TOOLS)),
        ({"tools": {"write": {"disabled": True}, "read": {"enabled": True}}},
         {"read", "read_all", "delete_all"}),
        ({"toolFilter": {"mode": "block", "list": ["write"]}}, {"read", "read_all", "delete_all"}),
        ({"options": {"toolFilter": {"mode": "allow", "list": ["read"]}}}, {"read"}),
        ({"toolFilter": {"allow": ["read", "write"], "deny": ["write"]}}, {"read"}),
        ({"tool_filters": {"allowed": ["re*"], "rejected": None}}, {"read", "read_all"}),
        ({"tool_filters": {"rejected": ["write"]}}, {"read", "read_all", "delete_all"}),
        ({"anythingllm": {"autoStart": False, "suppressedTools": ["write"]}},
         {"read", "read_all", "delete_all"}),
        ({"tool_configuration": {"enabled": True, "allowed_tools": ["read"]}}, {"read"}),
        ({"disabled": True}, set()),
        ({"enabled": False}, set()),
        ({"isActive": False}, set()),
        ({"disabled": False, "enabled": True}, set(TOOLS)),
        ({"disabled": True, "enabled": True}, set()),
        ({"alwaysAllow": ["read"], "autoApprove": ["write"], "trust": True}, set(TOOLS)),
        ({"readOnly": False}, set(TOOLS)),
    ],
)  # fmt: skip
def test_filters_of_tools_are_taken_over_exactly(keys: dict[str, object], names: set[str]) -> None:
    parsed = with_server(**keys)
    assert not parsed.rejected
    assert exposed(parsed) == names
    assert exposed(parsed, "other") == set(TOOLS)


@pytest.mark.parametrize(
    "keys",
    [
        {"readOnlyTools": ["read"]},
        {"disabledTools": "write, read"},
        {"disabledTools": "write read"},
        {"disabledTools": [{"name": "write"}]},
        {"excludeTools": ["write?"]},
        {"excludeTools": ["write(force)"]},
        {"includeTools": ["read*"], "excludeTools": ["read_all"]},
        {"tools": {"read": True, "*": False}},
        {"tools": {"write": {"approval_mode": "prompt"}}},
        {"tools": {"whitelist": ["read*"]}, "disabledTools": ["read_all"]},
        {"toolFilter": {"mode": "regex", "list": ["^read"]}},
        {"toolFilter": "read"},
        {"permissions": {"deny": ["write"]}},
        {"sandboxEnabled": True},
        {"agents": {"writer": {"enabled": False}}},
        {"agents": {"writer": {"isEnabled": False}}},
        {"allowedDirectories": ["/srv"]},
        {"requireApproval": "always"},
        {"enabled": "no"},
        {"readOnly": "yes"},
        {"metadata": {"vendor": [{"allowedHosts": ["a"]}]}},
        {"scope": "project-x"},
        {"access_groups": ["dev"]},
        {"mcp_info": {"mcp_access_groups": ["dev"]}},
        {"tool_configuration": {"deniedCallers": ["x"]}},
    ],
)
def test_a_restriction_that_is_not_understood_refuses_its_server_by_name(
    keys: dict[str, object],
) -> None:
    parsed = with_server(**keys)
    assert parsed.rejected == {"s"}
    assert set(parsed.servers) == {VariantKey("other")}
    refusals = [issue for issue in parsed.issues if issue.severity == "error"]
    assert [issue.server_id for issue in refusals] == ["s"]
    assert refusals[0].key.startswith("mcpServers.s")


@pytest.mark.parametrize(
    "keys",
    [
        {"gallery": "https://a.example", "version": "1"},
        {"autoApprove": ["read"], "alwaysAllow": [], "trust": False},
        {"requireApproval": "never"},
        {"oauth": {"scopes": ["read"]}},
        {"custom_instructions": {"text": "", "disabled": True}},
        {"colour": "blue"},
        {"options": {"logEnabled": False, "panicIfInvalid": True}},
        {"reconnect": {"enabled": True, "maxAttempts": 3}},
    ],
)
def test_keys_that_restrict_nothing_cost_no_server(keys: dict[str, object]) -> None:
    parsed = with_server(**keys)
    assert exposed(parsed) == set(TOOLS)
    assert {issue.severity for issue in parsed.issues} <= {"warning"}


def test_read_only_servers_may_not_write() -> None:
    spec = with_server(readOnly=True).servers[VariantKey("s")]
    assert (spec.policy.permissions.read, spec.policy.permissions.write) == (True, False)


TWO = {"s": {"command": "x"}, "my server": {"command": "y"}}


@pytest.mark.parametrize(
    ("root", "name", "tools", "others"),
    [
        ({"permissions": {"deny": ["mcp__s__write", "Bash(rm *)"]}}, "settings.json",
         {"read", "read_all", "delete_all"}, set(TOOLS)),
        ({"permissions": {"deny": ["mcp__s__*_all"]}}, "settings.json",
         {"read", "write"}, set(TOOLS)),
        ({"permissions": {"deny": ["mcp__s"]}}, "settings.json", set(), set(TOOLS)),
        ({"permissions": {"deny": ["mcp__my_server__*"]}}, "settings.json", set(TOOLS), set()),
        ({"permissions": {"deny": ["mcp__*__write"]}}, "settings.json",
         {"read", "read_all", "delete_all"}, {"read", "read_all", "delete_all"}),
        ({"permissions": {"deny": ["mcp__*"]}}, "settings.json", set(), set()),
        ({"disabledMcpjsonServers": ["s"]}, "mcp.json", set(), set(TOOLS)),
        ({"disabledMcpServers": ["my server"]}, "mcp.json", set(TOOLS), set()),
        ({"deniedMcpServers": [{"serverName": "s"}]}, "settings.json", set(), set(TOOLS)),
        ({"allowedMcpServers": [{"serverName": "s"}]}, "settings.json", set(TOOLS), set()),
        ({"mcp": {"excluded": ["s"]}}, "settings.json", set(), set(TOOLS)),
        ({"mcp": {"allowed": ["s"]}}, "settings.json", set(TOOLS), set()),
        ({"mcp": {"allowed": []}}, "settings.json", set(), set()),
        ({"excludeMCPServers": ["s"]}, "settings.json", set(), set(TOOLS)),
        ({"tools": {"exclude": ["s__write"]}}, "settings.json",
         {"read", "read_all", "delete_all"}, set(TOOLS)),
        ({"excludeTools": ["write"]}, "settings.json",
         {"read", "read_all", "delete_all"}, {"read", "read_all", "delete_all"}),
        ({"tools": {"s_*": False}}, "mcp.json", set(), set(TOOLS)),
        ({"permission": {"s_write": "deny"}}, "mcp.json",
         {"read", "read_all", "delete_all"}, set(TOOLS)),
        ({"permission": {"s_write": {"*": "allow", "secret": "deny"}}}, "mcp.json",
         {"read", "read_all", "delete_all"}, set(TOOLS)),
        ({"permission": {"s_write": "refuse"}}, "mcp.json",
         {"read", "read_all", "delete_all"}, set(TOOLS)),
        ({"permission": "deny"}, "mcp.json", set(), set()),
        ({"permission": "allow"}, "mcp.json", set(TOOLS), set(TOOLS)),
        ({"permission": {"bash": {"rm *": "deny"}, "edit": "ask"}}, "mcp.json",
         set(TOOLS), set(TOOLS)),
        ({"tools": {"s_*": "off", "sandbox": "docker"}}, "mcp.json", set(), set(TOOLS)),
        ({"permissions": {"deny": "mcp__s"}}, "settings.json", set(), set(TOOLS)),
        ({"permissions": {"deny": [None], "additionalDirectories": ["/tmp"]}}, "settings.json",
         set(TOOLS), set(TOOLS)),
        ({"permissions": {"allowed_tools": ["view", "mcp_s_read"]}}, "crush.json",
         set(TOOLS), set(TOOLS)),
        ({"permissions": {"allowManagedPermissionRulesOnly": True,
                           "disableAutoMode": "disable", "defaultMode": "plan",
                           "skipDangerousModePermissionPrompt": True}},
         "settings.json", set(TOOLS), set(TOOLS)),
        ({"permissions": None, "mcp": None}, "settings.json", set(TOOLS), set(TOOLS)),
        ({"allowedTools": ["mcp__s__read"]}, "mcp.json", set(TOOLS), set(TOOLS)),
    ],
)  # fmt: skip
def test_what_a_files_root_denies_is_denied_on_its_servers(
    root: dict[str, object], name: str, tools: set[str], others: set[str]
) -> None:
    parsed = parsed_file({**root, "mcpServers": TWO}, name)
    assert not parsed.rejected
    assert (exposed(parsed), exposed(parsed, "my_server")) == (tools, others)


@pytest.mark.parametrize(
    ("root", "refused"),
    [
        ({"permissions": {"ask": ["mcp__s__write"]}}, {"s"}),
        ({"permissions": {"defaultMode": "dontAsk"}}, {"s", "my_server"}),
        ({"permission": {"s_wr?te": "deny"}}, {"s", "my_server"}),
        ({"deniedMcpServers": [{"serverCommand": ["x"]}]}, {"s", "my_server"}),
        ({"includeTools": ["read"]}, {"s", "my_server"}),
        ({"permission": "ask"}, {"s", "my_server"}),
        ({"deniedMcpServers": [{"serverName": 1}]}, {"s", "my_server"}),
        ({"permission": {"s_write": {"*": "ask", "path": "allow"}}}, {"s"}),
        ({"permissions": {"deny": [{"tool": "mcp__s__write"}]}}, {"s", "my_server"}),
        ({"permissions": {"deny": {"mcp__s__write": True}}}, {"s", "my_server"}),
        ({"permissions": {"denied": ["mcp__s__write"]}}, {"s", "my_server"}),
        ({"permissions": "deny"}, {"s", "my_server"}),
        ({"mcp": False}, {"s", "my_server"}),
        ({"mcp": {"excluded": [1]}}, {"s", "my_server"}),
        ({"mcp": {"excluded": [None]}}, {"s", "my_server"}),
        ({"disabledMcpjsonServers": "s"}, {"s", "my_server"}),
        ({"disabledMcpjsonServers": [{"name": "s"}]}, {"s", "my_server"}),
    ],
)
def test_what_a_files_root_restricts_and_is_not_understood_refuses_the_servers(
    root: dict[str, object], refused: set[str]
) -> None:
    parsed = parsed_file({**root, "mcpServers": TWO}, "settings.json")
    assert parsed.rejected == refused


def test_claude_settings_deny_tools_of_the_servers_of_lower_layers(tmp_path: Path) -> None:
    system, session = tmp_path / "system.yaml", tmp_path / "settings.local.json"
    system.write_text(
        "version: 1\nservers:\n"
        "  s: {transport: stdio, command: x, tools: {whitelist: [read, write]}}\n"
        "  other: {transport: stdio, command: y}\n"
        "  third: {transport: stdio, command: z}\n"
    )
    denied = {"deny": ["mcp__s__write", "mcp__third"], "ask": ["mcp__other__read"]}
    session.write_text(json.dumps({"permissions": denied}))
    parsed = load(f"system={system}", f"session={session}")
    assert exposed(parsed) == {"read"}
    assert parsed.rejected == {"other"}
    assert VariantKey("third") not in parsed.servers


def test_a_domains_file_of_a_client_denies_tools_of_its_tenant_alone(tmp_path: Path) -> None:
    system, domain = tmp_path / "system.yaml", tmp_path / "settings.json"
    system.write_text("version: 1\nservers: {s: {transport: stdio, command: x}}\n")
    domain.write_text(json.dumps({"permissions": {"deny": ["mcp__s__write"]}}))
    parsed = load(f"system={system}", f"domain=acme:{domain}")
    assert exposed(parsed) == set(TOOLS)
    own = parsed.servers[VariantKey("s", "acme")]
    assert not own.tools.passes("write")


def test_an_exported_file_keeps_the_restrictions() -> None:
    root = {
        "permissions": {"deny": ["mcp__b__write"]},
        "mcpServers": {"a": {"command": "x", "tools": []}, "b": {"command": "y"}},
    }
    text, _ = native_text(json.dumps(root), "settings.json")
    again = parse_text(text, "mcp.yaml")
    assert exposed(again, "a") == set()
    assert exposed(again, "b") == {"read", "read_all", "delete_all"}


def test_a_native_whitelist_that_names_nothing_is_an_error() -> None:
    text = "version: 1\nservers: {s: {transport: stdio, command: x, tools: {whitelist: []}}}\n"
    parsed = parse_text(text, "mcp.yaml")
    assert parsed.rejected == {"s"}
    assert "blacklist: ['*']" in parsed.issues[0].message


def test_a_three_layer_file_with_no_tools_exposes_none() -> None:
    text = 'version: "1.0"\nschema: mcp-config-v5\nservers: {s: {command: x, tools: []}}\n'
    assert exposed(parse_text(text, "mcp.yaml")) == set()


def test_the_current_folders_project_counts_and_others_are_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    projects = {
        str(tmp_path): {"mcpServers": {"s": {"command": "own"}}, "disabledMcpServers": ["mail"]},
        "/elsewhere": {"mcpServers": {"t": {"command": "z"}}},
        "/empty": {"mcpServers": {}},
    }
    users = {"s": {"command": "x"}, "mail": {"command": "y"}}
    parsed = parsed_file({"mcpServers": users, "projects": projects}, "/home/u/.claude.json")
    assert [key.server_id for key in parsed.servers] == ["s"]
    assert part(parsed.servers[VariantKey("s")]).command == "own"
    (issue,) = parsed.issues
    assert (issue.severity, issue.reason) == ("warning", "KEY_NOT_TAKEN_OVER")
    assert "'/elsewhere'" in issue.message
    assert "/empty" not in issue.message


@pytest.mark.parametrize(
    ("root", "name"),
    [
        ({"mcpServers": {}, "servers": {"t": {"command": "x"}}}, "mcp.json"),
        ({"mcp": {"servers": {"t": {"command": "x"}}}, "mcpServers": {}}, "mcp.json"),
        ({"amp.mcpServers": {"t": {"command": "x"}}, "mcpServers": {}}, "settings.json"),
    ],
)
def test_servers_under_another_key_are_not_ignored_in_silence(
    root: dict[str, object], name: str
) -> None:
    parsed = parsed_file(root, name)
    assert [issue.reason for issue in parsed.issues] == ["KEY_NOT_TAKEN_OVER"]


@pytest.mark.parametrize(
    ("command", "args"),
    [
        ("leaseway", ["mcp", "--config", "a.json"]),
        ("/opt/bin/leaseway", ["mcp"]),
        ("uvx", ["leaseway[serving]", "mcp", "--config", "a.json"]),
        ("uv", ["tool", "run", "leaseway@0.1", "mcp"]),
        ("python3", ["-m", "leaseway.cli", "mcp"]),
        ("bash", ["-lc", "exec leaseway mcp --config a.json"]),
        ("C:\\bin\\leaseway.exe", ["mcp"]),
    ],
)
def test_a_clients_entry_for_leaseway_itself_is_skipped(command: str, args: list[str]) -> None:
    servers = {"leaseway": {"command": command, "args": args}, "s": {"command": "x"}}
    parsed = parsed_file({"mcpServers": servers}, "claude_desktop_config.json")
    assert set(parsed.servers) == {VariantKey("s")}
    assert [issue.reason for issue in parsed.issues] == ["OWN_ENTRY_SKIPPED"]


def test_another_server_that_mentions_leaseway_is_kept() -> None:
    servers = {"s": {"command": "npx", "args": ["-y", "server-filesystem", "/srv/leaseway"]}}
    assert set(parsed_file({"mcpServers": servers}).servers) == {VariantKey("s")}
