"""Policies: grants, risks, conversion to protobuf, and CEL rules."""

from __future__ import annotations

import time
from dataclasses import replace

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from leaseway.spec.filters.names import NO_FILTER, NameFilter
from leaseway.spec.kinds.table import server_spec
from leaseway.spec.model import VariantKey
from leaseway.spec.policy import (
    NO_POLICY,
    RISKS,
    ArgumentRule,
    CallLimits,
    Grant,
    Permissions,
    Rate,
    ServerPolicy,
    TenantLimits,
)
from leaseway.spec.rules.expressions import (
    DeniesAll,
    Expressions,
    RuleNotCompiled,
    cel_environment,
    compile_expression,
)

READS = NameFilter(whitelist=("read_*",))


def test_without_grants_every_tenant_may_use_everything() -> None:
    assert NO_POLICY.is_visible("anybody")
    assert NO_POLICY.allows("anybody", "any", "tool")


def test_with_grants_only_those_see_it_who_have_one() -> None:
    policy = ServerPolicy(grants={"acme": Grant(READS), "open": Grant()})
    assert policy.is_visible("acme")
    assert policy.allows("acme", "", "read_file")
    assert not policy.allows("acme", "", "write_file")
    assert policy.allows("open", "", "write_file")
    assert not policy.is_visible("rival")
    assert not policy.allows("rival", "", "read_file")
    assert not ServerPolicy(grants={}).is_visible("acme")


def test_a_star_stands_for_the_tenants_that_are_not_named() -> None:
    policy = ServerPolicy(grants={"acme": Grant(READS), "*": Grant()})
    assert policy.allows("rival", "", "write_file")
    assert not policy.allows("acme", "", "write_file")


def test_an_agent_is_limited_by_the_grant_of_its_tenant() -> None:
    agents = {"billing": NameFilter(whitelist=("*_file",)), "guest": None}
    policy = ServerPolicy(grants={"acme": Grant(READS, agents)})
    assert policy.allows("acme", "billing", "read_file")
    assert not policy.allows("acme", "billing", "read_folder")
    assert not policy.allows("acme", "billing", "write_file")
    assert policy.allows("acme", "another", "read_folder")
    assert not policy.is_visible("acme", "guest")
    assert not policy.allows("acme", "guest", "read_file")


def test_an_agents_limits_are_those_of_its_tenant_or_of_all_others() -> None:
    of_bot, of_others = CallLimits(concurrent=1), CallLimits(concurrent=2)
    policy = ServerPolicy(agent_limits={"acme": {"bot": of_bot}, "*": {"bot": of_others}})
    assert policy.limits_of_agent("acme", "bot") is of_bot
    assert policy.limits_of_agent("rival", "bot") is of_others
    assert policy.limits_of_agent("acme", "person") == CallLimits()


def test_the_risk_is_configured_or_follows_from_the_annotations() -> None:
    policy = ServerPolicy(risks=(("read_*", "read_only"), ("*_web", "external")))
    assert policy.risk_of("read_web", {}) == "read_only"
    assert policy.risk_of("search_web", {"readOnlyHint": True}) == "external"
    assert policy.risk_of("else", {}) == "mutating"
    assert policy.risk_of("else", {"readOnlyHint": True}) == "read_only"
    assert policy.risk_of("else", {"readOnlyHint": True, "openWorldHint": True}) == "external"
    assert policy.risk_of("else", {"readOnlyHint": "yes"}) == "mutating"


_NAMES = st.text("ab*_", min_size=1, max_size=5)
_FILTERS = st.builds(
    NameFilter,
    st.lists(_NAMES, max_size=2).map(tuple),
    st.lists(_NAMES, max_size=2).map(tuple),
)
_RATES = st.none() | st.builds(Rate, st.integers(1, 100), st.floats(1, 100))
_PERMISSIONS = st.builds(
    Permissions,
    st.booleans(),
    st.booleans(),
    st.none() | st.lists(_NAMES, max_size=2).map(tuple),
    st.lists(_NAMES, max_size=2).map(tuple),
)
_POLICIES = st.builds(
    ServerPolicy,
    grants=st.none()
    | st.dictionaries(
        _NAMES,
        st.builds(
            Grant,
            _FILTERS,
            st.dictionaries(_NAMES, st.none() | _FILTERS, max_size=2),
            _PERMISSIONS,
        ),
        max_size=3,
    ),
    limits=st.dictionaries(
        _NAMES, st.builds(TenantLimits, _RATES, *[st.none() | st.integers(1, 9)] * 3), max_size=2
    ),
    risks=st.lists(st.tuples(_NAMES, st.sampled_from(RISKS)), max_size=3).map(tuple),
    rate=_RATES,
    rules=st.lists(
        st.builds(ArgumentRule, _NAMES, st.lists(_NAMES, max_size=2).map(tuple)), max_size=2
    ).map(tuple),
    permissions=_PERMISSIONS,
)


@given(_POLICIES, _NAMES, _NAMES, _NAMES)
def test_an_allowed_tool_is_visible_and_allowed_to_the_tenant(
    policy: ServerPolicy, tenant: str, agent: str, tool: str
) -> None:
    if policy.allows(tenant, agent, tool):
        assert policy.is_visible(tenant, agent)
        assert policy.allows(tenant, "", tool) or "" in (policy.grants or {})


def test_a_policy_changes_the_exposure_hash_only() -> None:
    spec = server_spec(VariantKey("a"), "stdio", command="x")
    granted = replace(spec, policy=ServerPolicy(grants={"acme": Grant(NO_FILTER)}))
    assert granted.launch_hash == spec.launch_hash
    assert granted.exposure_hash != spec.exposure_hash


FACTS = {"tool": "read", "tenant": "acme", "agent": "", "session": "s"}


@pytest.mark.parametrize(
    ("expression", "arguments", "denied"),
    [
        ('args.path.startsWith("/etc")', {"path": "/etc/passwd"}, True),
        ('args.path.startsWith("/etc")', {"path": "/home"}, False),
        ('args.path.startsWith("/etc")', {}, True),
        ('args.path.startsWith("/etc")', {"path": 7}, True),
        ('has(args.path) && args.path.contains("..")', {}, False),
        ('tenant != "acme"', {}, False),
        ("args.n > 100", {"n": 101}, True),
        ("args.n > 100", {"n": 2**70}, True),
        ("args.flag", {"flag": "yes"}, True),
        ("args.flag", {"flag": False}, False),
        ("!args.path.matches('^/srv/' + tenant + '/')", {"path": "/srv/acme/x"}, False),
        ('args.list.exists(x, x == "rm")', {"list": ["ls", "rm"]}, True),
        ('args.path == "\\u0000"', {"path": "\ud800"}, True),
    ],
)
def test_a_rule_denies_if_it_is_true_or_cannot_be_evaluated(
    expression: str, arguments: dict[str, object], denied: bool
) -> None:
    assert compile_expression(expression).denies({**FACTS, "args": arguments}) is denied


@pytest.mark.parametrize(
    ("expression", "reason"),
    [
        ("args.path +", "mismatched input"),
        ("arg.path == 1", "undeclared reference to 'arg.*; a rule has the variables method, tool"),
        ("tenant", "STRING"),
        ("tenant + 1", "no matching overload"),
        ("args.path.matches('[')", r"'\[' is no regular expression of RE2 .*missing \]"),
        ("args.a == 1 && !matches(args.path, 'a(?=b)')", "invalid perl operator"),
        ("args.a.matches(args.b)", "its regular expression is the caller's"),
        ("matches(args.a, '^' + session)", "its regular expression is the caller's"),
        ("args.list.exists(p, args.a.matches(p))", "its regular expression is the caller's"),
    ],
)
def test_an_invalid_rule_is_rejected_with_a_reason(expression: str, reason: str) -> None:
    with pytest.raises(RuleNotCompiled, match=reason):
        compile_expression(expression)


@pytest.mark.parametrize(
    ("expression", "given"),
    [
        ("args.a == 1", {"args": {"a": 1}}),
        ("args . a.b == 1 && tenant == 'x'", {"args": {"a": 1}, "tenant": "acme"}),
        ("has(args.a) || args.c == agent", {"args": {"a": 1, "c": 3}, "agent": ""}),
        ("session == tool", {"session": "s", "tool": "read"}),
        ("args.missing == 1", {"args": {}}),
        ("size(args) > 1", {"args": {"a": 1, "b": 2, "c": 3}}),
        ("'a' in args && args.a == 1", {"args": {"a": 1}}),
        ("args['a'] == 1", {"args": {"a": 1}}),
        ("args[tool] == 1", {"args": {"a": 1, "b": 2, "c": 3}, "tool": "read"}),
        ("args.a.startsWith('x') || args.exists(k, k == 'b')", {"args": {"a": 1, "b": 2, "c": 3}}),
        ("args.exists (k, k == 'b')", {"args": {"a": 1, "b": 2, "c": 3}}),
        ("args // tenant\n.a == 'tenant'", {"args": {"a": 1}}),
    ],
)
def test_a_rule_gets_the_facts_that_it_uses(expression: str, given: dict[str, object]) -> None:
    facts = {**FACTS, "args": {"a": 1, "b": 2, "c": 3}}
    assert compile_expression(expression).needs.select(facts) == given


@pytest.mark.parametrize(
    ("expressions", "arguments", "judged"),
    [
        (["args.path == 'x'"], {"Path": "x"}, False),
        (["args['path'] == 'x'"], {"Path": "x"}, False),
        (["'path' in args && args.size() > 1"], {"PATH": "x"}, False),
        (["args.to.path == 'x'"], {"to": {"Path": "x"}}, False),
        (["args.to['path'] == 'x'"], {"to": [{"PATH": "x"}]}, False),
        (["args.list.exists(x, x.path == 'x')"], {"list": [{"patH": "x"}]}, False),
        (['args.a.contains("goin\' in") && args.to["path"] == "x"'], {"to": {"PATH": 1}}, False),
        ([r"args.a.matches(r'\d') && args.to['path'] == 'x'"], {"to": {"PATH": "x"}}, False),
        (['args.to["""path"""] == "x"'], {"to": {"PATH": "x"}}, False),
        ([r"args.to['p\u0061th'] == 'x'"], {"to": {"PATH": "x"}}, False),
        (["['path'].exists(k, args.to[k] == 'x')"], {"to": {"PATH": "x"}}, False),
        (["['path'].exists(k, k in args.to)"], {"to": {"PATH": "x"}}, False),
        (["args.exists(k, k == 'path')"], {"PATH": "x"}, False),
        (["args.to.map(k, k) == ['path']"], {"to": {"PATH": "x"}}, False),
        (["args.to == {'path': 'x'}"], {"to": {"PATH": "x"}}, False),
        (["args.to.kind == 'path'"], {"to": {"PATH": "x"}}, True),
        (["args.to.kind in ['path', 'file']"], {"to": {"PATH": "x"}}, True),
        (["args.to[0] == 'path'"], {"to": [{"PATH": "x"}]}, True),
        (["args.path == 'x'", "args == {}"], {"Path": "x"}, False),
        (["args.to.path == 'x'"], {"to": {"path": "x", "other": 1}}, True),
        (["args.to.path == 'x'"], {"Path": "x", "to": {}}, True),
        (["args.to.endsWith('.ENV')"], {"to": {"env": 1}}, True),
        (["args.path == 'x' && has(args.to)"], {"to": {"Path": "x"}}, True),
    ],
)
def test_arguments_with_a_name_that_differs_only_in_case_from_one_in_a_rule_cannot_be_judged(
    expressions: list[str], arguments: dict[str, object], judged: bool
) -> None:
    rules = Expressions([compile_expression(text) for text in expressions])
    assert rules.can_judge(arguments) is judged


@pytest.mark.parametrize(
    ("expression", "arguments", "judged"),
    [
        (
            "args.list.exists(x, args.big.size() == x)",
            {"list": [1] * 1_900, "big": "x" * 4_000},
            True,
        ),
        (
            "args.list.exists(x, args.big.size() == x)",
            {"list": [1] * 1_900, "big": "x" * 10**5},
            False,
        ),
        ("args.list.all(x, args.list.all(y, x + y != ''))", {"list": ["x" * 2_000] * 200}, False),
        ("args.all(k, args[k] != '')", {"x" * 10**6: ["y"] * 20}, False),
        (
            "args.list.all(x, x.startsWith('/srv/'))",
            {"list": ["/srv/" + "x" * 4_000] * 1_900},
            True,
        ),
        ("args.list.all(x, x != args.a)", {"list": [1], "a": "x", "big": "x" * 10**8}, True),
        (
            "args.list.all(x, x != '') && args.doc.contains('secret') && args.doc.contains(args.b)",
            {"list": ["x"] * 1_900, "doc": "x" * 10**5, "b": "x"},
            True,
        ),
        (
            "args.list.all(x, x != '') && args.list.exists(x, x == '/etc') && args.doc != ''",
            {"list": ["x" * 4_000] * 1_900, "doc": "x" * 10**6},
            True,
        ),
        (
            "args.list.exists(x, x.contains(args.b))",
            {"list": ["x" * 10**5] * 10, "b": "x" * 10**4},
            False,
        ),
        ("args.a.contains(args.b)", {"a": "x" * 10**5, "b": "x" * 50_000}, True),
        ("args.a.contains(args.b)", {"a": "x" * 10**6, "b": "x" * 50_000}, False),
        ("args.a.contains('x') && args.a.matches('^x')", {"a": "x" * 10**7}, True),
    ],
)
def test_arguments_whose_texts_would_take_too_long_cannot_be_judged(
    expression: str, arguments: dict[str, object], judged: bool
) -> None:
    rules = Expressions([compile_expression(expression)])
    assert rules.can_judge(arguments) is judged
    if judged:
        start = time.process_time()
        rules.first_that_denies({**FACTS, "args": arguments})
        assert time.process_time() - start < 1


_MEMBERS = st.sampled_from(["a", "b", "ab", "tool"])
_ATOMS = st.one_of(
    st.builds("args.{0} == 1".format, _MEMBERS),
    st.builds("has(args.{0})".format, _MEMBERS),
    st.builds("'{0}' in args".format, _MEMBERS),
    st.builds("args['{0}'] == 1".format, _MEMBERS),
    st.builds("args[tenant == 'acme' ? '{0}' : 'b'] == 1".format, _MEMBERS),
    st.builds("args.exists(k, k == '{0}')".format, _MEMBERS),
    st.builds("tenant == '{0}'".format, st.sampled_from(["acme", "args.a"])),
    st.just("size(args) > 1"),
    st.just("args == {'a': 1}"),
)
_EXPRESSIONS = st.builds("{0} {1} {2}".format, _ATOMS, st.sampled_from(["&&", "||"]), _ATOMS)


@given(
    st.lists(_EXPRESSIONS, min_size=1, max_size=3),
    st.dictionaries(_MEMBERS, st.sampled_from([1, 2, "x", 2**70])),
)
@example(["args.a == 1 && has(args.a)", "size(args) > 1"], {"b": 2**70})
def test_rules_deny_the_same_calls_together_and_separately(
    texts: list[str], arguments: dict[str, object]
) -> None:
    facts = {**FACTS, "args": arguments}
    compiled = [compile_expression(text) for text in texts]
    denying = [place for place, rule in enumerate(compiled) if rule.denies(facts)]
    assert Expressions(compiled).first_that_denies(facts) == next(iter(denying), None)


@given(_EXPRESSIONS, st.dictionaries(_MEMBERS, st.sampled_from([1, 2, "x"])))
def test_a_rule_gives_the_same_for_the_facts_that_it_uses_as_for_all(
    text: str, arguments: dict[str, object]
) -> None:
    facts = {**FACTS, "args": arguments}
    plain = cel_environment()[1].compile(text)
    try:
        denied = plain.eval(None, facts).value() is not False
    except RuntimeError:
        denied = True
    assert compile_expression(text).denies(facts) is denied


def test_a_rule_that_could_not_be_compiled_denies_every_call() -> None:
    rules = [
        compile_expression("args.a == 1"),
        DeniesAll("no package"),
        compile_expression("args.a == 2"),
    ]
    together = Expressions(rules)
    assert together.first_that_denies({**FACTS, "args": {"a": 1}}) == 0
    assert together.first_that_denies({**FACTS, "args": {"a": 2}}) == 1
