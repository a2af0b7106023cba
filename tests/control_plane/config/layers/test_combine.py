"""Merge rules: what each layer may say, and what a tenant gets of it."""

from collections.abc import Collection

import pytest
from tests.specs import part

from leaseway.control_plane.config.formats.detection import parse_config
from leaseway.control_plane.config.layers import combine
from leaseway.control_plane.config.layers.document import Layer
from leaseway.control_plane.config.schema.issues import ParsedConfig
from leaseway.spec.kinds.remote import RemotePart
from leaseway.spec.kinds.table import hidden_spec
from leaseway.spec.model import VariantKey
from leaseway.spec.references import Value
from leaseway.wire.text.suggestions import alike

SYSTEM = """\
version: 1
defaults: { transform: [ { prefix: '{server}_' } ] }
servers:
  on: { transport: stdio, command: on, env: { A: a, B: b }, args: [x] }
  off: { transport: stdio, command: off, enabled: false }
  web: { transport: streamable_http, url: 'http://a/mcp' }
"""
T = "acme"
SECRET = "sk-" + "a1b2c3d4" * 4


def layered(domain: str = "", session: str = "", system: str = SYSTEM) -> ParsedConfig:
    layers = [Layer("system", "system.yaml", system)]
    if domain:
        layers.append(Layer("domain", "acme.yaml", f"version: 1\nservers:\n  {domain}\n", T))
    if session:
        layers.append(Layer("session", "mine.yaml", f"version: 1\nservers:\n  {session}\n"))
    return parse_config(layers)


def reasons(parsed: ParsedConfig) -> list[tuple[str, str, str]]:
    return [(issue.file, issue.reason, issue.tenant) for issue in parsed.issues]


def test_system_alone_gives_common_variants_only() -> None:
    parsed = layered()
    assert list(parsed.servers) == [VariantKey("on"), VariantKey("web")]
    assert parsed.issues == ()


@pytest.mark.parametrize(
    "domain",
    ["on: {}", "on: { enabled: true }", "on: { env: { A: a } }", "off: { enabled: false }"],
)
def test_a_tenant_without_a_difference_uses_the_common_variant(domain: str) -> None:
    assert layered(domain).servers == layered().servers


def test_a_domain_overrides_variables_one_by_one_and_other_values_whole() -> None:
    system = SYSTEM.replace("args: [x]", "args: [x], domain_may: [args]")
    spec = layered("on: { env: { B: c }, args: [y, z] }", system=system).servers[
        VariantKey("on", T)
    ]
    assert part(spec).env == {"A": Value("literal", "a"), "B": Value("literal", "c")}
    assert part(spec).args == ("y", "z")
    assert part(spec).command == "on"
    assert [step.add for step in spec.transforms] == ["on_"]


def test_a_server_disabled_for_a_tenant_is_hidden_from_it_alone() -> None:
    parsed = layered("on: { enabled: false }")
    key = VariantKey("on", T)
    assert parsed.servers[key] == hidden_spec(key)
    assert not parsed.servers[VariantKey("on")].hidden


def test_a_server_enabled_for_a_tenant_has_no_common_variant() -> None:
    parsed = layered("off: { enabled: true }")
    assert VariantKey("off", T) in parsed.servers
    assert VariantKey("off") not in parsed.servers


def test_a_domain_declares_no_server() -> None:
    parsed = layered("won: { transport: stdio, command: x }")
    assert parsed.servers == layered().servers
    assert reasons(parsed) == [("acme.yaml", "UNDECLARED_SERVER", T)]
    assert "Did you mean 'on'?" in parsed.issues[0].message
    assert not parsed.rejected


def test_a_server_that_is_gone_is_compared_once_for_all_tenants(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    compared: list[str] = []

    def counted(name: str, known: Collection[str]) -> list[str]:
        compared.append(name)
        return alike(name, known)

    monkeypatch.setattr(combine, "alike", counted)
    text = "version: 1\nservers:\n  wep: {}\n"
    domains = (Layer("domain", f"{name}.yaml", text, name) for name in ("a", "b", "c"))
    parsed = parse_config([Layer("system", "system.yaml", SYSTEM), *domains])
    assert ["Did you mean 'web'?" in issue.message for issue in parsed.issues] == [True] * 3
    assert compared == ["wep"]
    compared.clear()
    others = "".join(f"  wep{number}: {{}}\n" for number in range(100))
    parsed = parse_config(
        [
            Layer("system", "system.yaml", SYSTEM),
            Layer("domain", "a.yaml", f"version: 1\nservers:\n{others}", "a"),
        ]
    )
    assert len(parsed.issues) == 100
    assert len(compared) == len([i for i in parsed.issues if "Did you mean" in i.message]) == 20


VALUES = {
    "transport": "sse",
    "command": "evil",
    "url": "http://b/mcp",
    "sandbox": "true",
    "limits": "{ cpu: 1 }",
    "inherit_env": "all",
    "args": "[evil]",
    "transform": "[ { prefix: other_ } ]",
    "truely-stateless": "true",
    "call_timeout": "5",
}


@pytest.mark.parametrize(("key", "value"), VALUES.items())
def test_a_domain_changes_not_what_runs_nor_how_it_is_held(key: str, value: str) -> None:
    server = "web" if key == "url" else "on"
    parsed = layered(f"{server}: {{ {key}: {value} }}")
    assert ("acme.yaml", "KEY_NOT_FOR_LAYER", T) in reasons(parsed)
    assert parsed.refused == {VariantKey(server, T)}
    assert VariantKey(server, T) not in parsed.servers
    assert not parsed.rejected


def test_a_domain_sets_values_that_the_system_states_or_opens_and_no_other() -> None:
    parsed = layered("on: { env: { B: c, LD_PRELOAD: /evil.so } }")
    assert parsed.refused == {VariantKey("on", T)}
    (issue,) = parsed.issues
    assert (issue.key, issue.line) == ("servers.on.env.LD_PRELOAD", 3)
    assert "domain_may: [env.LD_PRELOAD]" in issue.message
    told = [issue.message for issue in layered('on: { env: { "\\ud7fc": c } }').issues]
    assert any("domain_may: [env." in message for message in told)
    assert all(message.isprintable() for message in told)
    system = SYSTEM.replace("args: [x]", "domain_may: [env.NEW, call_timeout]")
    spec = layered("on: { env: { NEW: n }, call_timeout: 5 }", system=system)
    assert spec.issues == ()
    assert part(spec.servers[VariantKey("on", T)]).env["NEW"] == Value("literal", "n")


def test_a_filter_of_a_domain_narrows_and_never_widens() -> None:
    system = SYSTEM.replace("args: [x]", "tools: { blacklist: ['rm_*'] }")
    tools = layered("on: { tools: { whitelist: ['*'] } }", system=system)
    rules = tools.servers[VariantKey("on", T)].tools
    assert [name for name in ("ls", "rm_all") if rules.passes(name)] == ["ls"]
    narrow = layered("on: { tools: { blacklist: [ls] } }", system=system)
    rules = narrow.servers[VariantKey("on", T)].tools
    assert [name for name in ("ls", "cat", "rm_all") if rules.passes(name)] == ["cat"]
    opened = system.replace("tools:", "domain_may: [tools], tools:")
    wide = layered("on: { tools: { whitelist: ['*'] } }", system=opened)
    assert wide.servers[VariantKey("on", T)].tools.passes("rm_all")


def test_what_is_opened_to_domains_is_a_key() -> None:
    parsed = layered(system=SYSTEM.replace("args: [x]", "domain_may: [agrs]"))
    assert parsed.rejected == {"on"}
    assert "'args'" in parsed.issues[0].message


def test_an_override_with_an_error_refuses_that_tenants_variant_only() -> None:
    parsed = layered("on: { enabled: soon }")
    assert parsed.refused == {VariantKey("on", T)}
    assert not parsed.rejected
    assert VariantKey("on") in parsed.servers
    (issue,) = parsed.issues
    assert (issue.file, issue.line, issue.tenant) == ("acme.yaml", 3, T)


def test_an_error_of_the_system_layer_is_said_once() -> None:
    parsed = layered("on: { env: { A: y } }", system=SYSTEM.replace("args: [x]", "warm: -1"))
    assert parsed.rejected == {"on"}
    assert parsed.refused == {VariantKey("on", T)}
    assert reasons(parsed) == [("system.yaml", "WRONG_TYPE", "")]


def test_a_session_may_change_anything_and_declare_servers() -> None:
    parsed = layered(
        session="on: { transport: streamable_http, url: 'http://b/mcp' }\n"
        "  new: { transport: stdio, command: n }"
    )
    on = parsed.servers[VariantKey("on")]
    assert (on.transport, on.part) == ("streamable_http", RemotePart(url="http://b/mcp"))
    assert part(parsed.servers[VariantKey("new")]).command == "n"
    assert parsed.issues == ()


def test_a_session_lies_over_every_domain() -> None:
    parsed = layered("on: { env: { A: t, B: t } }", "on: { env: { B: s } }")
    env = part(parsed.servers[VariantKey("on", T)]).env
    assert {name: value.text for name, value in env.items()} == {"A": "t", "B": "s"}


@pytest.mark.parametrize(
    ("parsed", "severity"),
    [
        (layered(system=SYSTEM.replace("A: a", f"A: {SECRET}")), "error"),
        (layered(f"on: {{ env: {{ A: {SECRET} }} }}"), "error"),
        (layered(session=f"on: {{ env: {{ A: {SECRET} }} }}"), "warning"),
    ],
)
def test_a_literal_credential_is_an_error_but_in_a_session(
    parsed: ParsedConfig, severity: str
) -> None:
    (issue,) = parsed.issues
    assert (issue.reason, issue.severity) == ("LITERAL_CREDENTIAL", severity)
    assert SECRET not in issue.message


def test_a_broken_file_refuses_all_layers() -> None:
    parsed = parse_config(
        [Layer("system", "system.yaml", SYSTEM), Layer("domain", "acme.yaml", "{", T)]
    )
    assert parsed.broken
    assert not parsed.servers
    assert [(issue.file, issue.reason) for issue in parsed.issues] == [("acme.yaml", "BAD_YAML")]


def test_each_value_keeps_the_place_that_it_came_from() -> None:
    parsed = layered("on: { env: { B: c } }")
    origins = parsed.origins[VariantKey("on", T)]
    assert (origins["env.B"].file, origins["env.B"].line) == ("acme.yaml", 3)
    assert (origins["env.A"].file, origins["env.A"].line) == ("system.yaml", 4)
