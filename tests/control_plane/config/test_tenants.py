"""`tenants:`, `risk`, `rate_limit` and `rules`: what they come to; a mistake opens nothing."""

from __future__ import annotations

import pytest
from tests.control_plane.config.parsing import parse

from leaseway.control_plane.config.schema.issues import ParsedConfig
from leaseway.spec.model import VariantKey
from leaseway.spec.policy import (
    NO_POLICY,
    ArgumentRule,
    CallLimits,
    Permissions,
    Quota,
    Rate,
    ServerPolicy,
    TenantLimits,
)

SERVERS = """
version: 1
servers:
  files: { transport: stdio, command: x }
  web: { transport: stdio, command: x }
"""


def policy(parsed: ParsedConfig, server_id: str) -> ServerPolicy:
    return parsed.servers[VariantKey(server_id)].policy


def test_without_tenants_everything_is_everybodys() -> None:
    assert policy(parse(SERVERS), "files") == NO_POLICY


def test_grants_come_to_each_server() -> None:
    parsed = parse(
        SERVERS
        + """
tenants:
  acme:
    servers: { files: { tools: { whitelist: [read_*] } }, web: }
    limits: { calls: 100/m, concurrent: 5, leases: 9, artifact_bytes: 2MiB }
    agents:
      billing: { servers: [web], limits: { calls: 9/s } }
  rival: { servers: [web] }
  staff: {}
"""
    )
    assert not parsed.issues
    files, web = policy(parsed, "files"), policy(parsed, "web")
    assert files.allows("acme", "", "read_a")
    assert not files.allows("acme", "", "write_a")
    assert not files.is_visible("acme", "billing")
    assert web.allows("acme", "billing", "anything")
    assert [server.is_visible("rival") for server in (files, web)] == [False, True]
    assert [server.is_visible("staff") for server in (files, web)] == [True, True]
    assert [server.is_visible("stranger") for server in (files, web)] == [False, False]
    assert web.limits_of("acme") == TenantLimits(Rate(100, 60.0), 5, 9, 2 << 20)
    assert web.limits_of("rival") is None
    assert web.limits_of_agent("acme", "billing") == CallLimits(Rate(9, 1.0))
    assert web.limits_of_agent("acme", "other") == web.limits_of_agent("rival", "billing")


def test_what_a_star_grants_is_only_for_tenants_that_are_not_named() -> None:
    named = "acme: { servers: [files] }, staff: {}, idle: { servers: {} }"
    parsed = parse(f"{SERVERS}\ntenants: {{ {named}, '*': {{ servers: [web] }} }}\n")
    assert not parsed.issues
    files, web = policy(parsed, "files"), policy(parsed, "web")
    for tenant, granted in {
        "acme": [True, False],
        "staff": [True, True],
        "idle": [False, False],
        "stranger": [False, True],
    }.items():
        assert [server.is_visible(tenant) for server in (files, web)] == granted
        assert [server.allows(tenant, "", "read") for server in (files, web)] == granted
        assert [server.allows_all(tenant, "") for server in (files, web)] == granted


@pytest.mark.parametrize(
    "tenants",
    [
        "tenants: [acme]",
        "tenants: { acme: { server: [web] } }",
        "tenants: { acme: { servers: web } }",
        "tenants: { acme: { servers: { web: { tools: { whitelst: [a] } } } } }",
        "tenants: { acme: { limits: { calls: 5 } } }",
        "tenants: { acme: { agents: { a: { limits: { leases: 1 } } } } }",
        'tenants: { "": { servers: [web] } }',
        "tenant: { acme: { servers: [web] } }",
        "tenants: { acme: { servers: [web] } }\ntenants: {}",
    ],
)
def test_a_mistake_in_grants_refuses_the_file_as_a_whole(tenants: str) -> None:
    parsed = parse(f"{SERVERS}\n{tenants}\n")
    assert parsed.broken
    assert any(issue.severity == "error" for issue in parsed.issues)


def test_a_grant_of_a_server_that_nobody_declares_is_told_with_the_nearest() -> None:
    parsed = parse(SERVERS + "tenants: { acme: { servers: [wep] } }\n")
    assert not parsed.broken
    [issue] = parsed.issues
    assert issue.severity == "warning"
    assert "Did you mean 'web'" in issue.message
    assert issue.line == 6


def test_risks_rates_and_rules_are_read() -> None:
    parsed = parse(
        """
version: 1
servers:
  files:
    transport: stdio
    command: x
    risk: { read_*: read_only, '*': external }
    rate_limit: 10/s
    quota:
      calls: 100/m
      leases: 3
      tools: { 'write_*': { concurrent: 1 }, '*': { calls: 5/s } }
    rules:
      - deny if args.path.startsWith("/etc")
      - { deny: 'tenant != "acme"', tools: [write_*] }
"""
    )
    assert not parsed.issues
    assert policy(parsed, "files") == ServerPolicy(
        risks=(("read_*", "read_only"), ("*", "external")),
        rate=Rate(10, 1.0),
        quota=Quota(
            Rate(100, 60.0),
            leases=3,
            tools=(("write_*", CallLimits(concurrent=1)), ("*", CallLimits(Rate(5, 1.0)))),
        ),
        rules=(
            ArgumentRule('args.path.startsWith("/etc")'),
            ArgumentRule('tenant != "acme"', ("write_*",)),
        ),
    )


def test_patterns_that_others_match_in_part_or_with_the_same_value_are_read() -> None:
    parsed = parse(
        SERVERS
        + """\
  pay:
    transport: stdio
    command: x
    risk: { pay: financial, 'pay_*': financial, 'pay_a': financial, 'p*y': mutating, '*': external }
    rules: [ { deny: 'true', tools: ['note://secret/*', 'file:///a b', 'pay*'] } ]
"""
    )
    assert not parsed.issues
    assert len(policy(parsed, "pay").risks) == 5
    assert policy(parsed, "pay").rules[0].tools[0] == "note://secret/*"


def test_a_pattern_of_agents_or_servers_is_no_grant() -> None:
    [issue] = parse(SERVERS + "tenants: { acme: { agents: { '*': { servers: [] } } } }").issues
    assert "there are no patterns of agents" in issue.message
    assert issue.severity == "error"
    [issue] = parse(SERVERS + "tenants: { acme: { servers: ['*'] } }").issues
    assert "leave out 'servers' to grant every server" in issue.message


def test_permissions_of_a_tenant_are_its_own() -> None:
    parsed = parse(
        SERVERS
        + """
tenants:
  acme:
    servers: { files: { permissions: { write: false, allowed_paths: [/srv/acme] } }, web: }
  rival: {}
"""
    )
    assert not parsed.issues
    files = policy(parsed, "files")
    assert files.permissions_of("acme") == Permissions(write=False, allowed_paths=("/srv/acme",))
    assert files.permissions_of("rival") == policy(parsed, "web").permissions_of("acme")
    assert files.permissions_of("rival") == files.permissions == Permissions()
    wrong = "tenants: { acme: { agents: { a: { servers: { web: { permissions: {} } } } } } }"
    assert parse(SERVERS + wrong).issues  # an agent has its tenant's


def test_permissions_are_read() -> None:
    parsed = parse(
        """
version: 1
servers:
  files:
    transport: stdio
    command: x
    permissions:
      write: false
      allowed_paths: [reports/, /data]
      denied_paths: [.env]
"""
    )
    assert not parsed.issues
    expected = Permissions(True, False, ("reports/", "/data"), (".env",))
    assert policy(parsed, "files") == ServerPolicy(permissions=expected)


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("permissions: { allowed_paths: [../x] }", "without '..'"),
        ("permissions: { denied_paths: ['*.pem'] }", "patterns are not supported"),
        ("permissions: { denied_paths: ['file:///etc'] }", "without a scheme"),
        ("permissions: { denied_paths: ['$HOME/.ssh'] }", "are not resolved"),
        ("permissions: { denied_paths: ['a/%2eenv'] }", "are not resolved"),
        ("permissions: { denied_paths: ['.env '] }", "begins or ends with a space"),
        ("permissions: { wirte: false }", "'write'"),
        ("rules: [ 'args.path +' ]", "is not a rule: "),
        ("rules: [ 'tennant == \"a\"' ]", "undeclared reference to 'tennant'"),
        ("rules: [ { tools: [a] } ]", "needs 'deny'"),
        ("rules: [ 'method == \"tools/calls\"' ]", "which it never is"),
        ('rules: [ \'method in ["prompts/get", "prompt/get"]\' ]', "'prompt/get'"),
        ("risk: { a: financal }", "can't be 'financal'"),
        ("risk: { 'a?b*': mutating }", "can match no tool"),
        ("risk: { '': financial }", "it is empty; write '*'"),
        ("rules: [ { deny: 'true', tools: ['(a|b)*'] } ]", "can match no tool, prompt or URI"),
        ("rate_limit: 10", "such as 10/s"),
        ("rate_limit: 0/s", "such as 10/s"),
        ("quota: { calls: 10 }", "such as 10/s"),
        ("quota: { tools: { '*': { leases: 1 } } }", "not a key of limits of calls"),
    ],
)
def test_a_mistake_in_a_servers_rules_refuses_that_server(line: str, says: str) -> None:
    parsed = parse(
        f"version: 1\nservers:\n  files:\n    transport: stdio\n    command: x\n    {line}\n"
    )
    assert not parsed.broken
    assert parsed.servers == {}
    assert any(says in issue.message for issue in parsed.issues)


def test_the_narrowest_pattern_that_matches_a_tool_counts_wherever_it_stands() -> None:
    keys = (
        "risk: { '*': read_only, 'p*': mutating, pay: financial }\n"
        "    quota: { tools: { '*': { calls: 9/s }, pay: { calls: 1/s } } }"
    )
    parsed = parse(
        f"version: 1\nservers:\n  files:\n    transport: stdio\n    command: x\n    {keys}\n"
    )
    assert parsed.issues == ()
    found = policy(parsed, "files")
    risks = [found.risk_of(name, {}) for name in ("pay", "plan", "read")]
    assert risks == ["financial", "mutating", "read_only"]
    limits = [found.quota.of_tool(name).calls for name in ("pay", "read")]
    assert limits == [Rate(1, 1.0), Rate(9, 1.0)]


def test_rules_without_their_package_refuse_that_server_and_say_what_to_install(
    no_cel: None,
) -> None:
    parsed = parse(SERVERS + "  ruled: { transport: stdio, command: x, rules: [args.a == 1] }\n")
    assert sorted(key.server_id for key in parsed.servers) == ["files", "web"]
    [issue] = parsed.issues
    assert "cel-expr-python is not installed (pip install 'leaseway[rules]')" in issue.message
