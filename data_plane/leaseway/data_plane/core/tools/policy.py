"""Tool policies, compiled for each caller. Pure.

Calls of a server without a policy use none of this.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final, assert_never

import msgspec

from leaseway.data_plane.core.tools.budgets import Demand, Meter
from leaseway.data_plane.core.tools.paths import PathJudge
from leaseway.data_plane.core.tools.prompts_resources import SUBSCRIBE
from leaseway.data_plane.core.tools.toolset import ToolPlan
from leaseway.spec.policy import (
    EVERYTHING,
    OTHER_TENANTS,
    UNLIMITED,
    CallLimits,
    Permissions,
    Risk,
    ServerPolicy,
)
from leaseway.spec.rules.expressions import (
    DeniesAll,
    Expression,
    Expressions,
    RuleNotCompiled,
    compile_expression,
)
from leaseway.spec.rules.needs import MAX_VALUES
from leaseway.wire.bounds import MAX_BUDGETS
from leaseway.wire.errors import Fault, Reason
from leaseway.wire.messages.mcp import ROOTS_CHANGED
from leaseway.wire.sharing.limits import BudgetKey

TOOLS_CALL: Final = "tools/call"
_MAX_CACHED: Final = 20_000


@dataclass(frozen=True, slots=True)
class CompiledRule:
    """A rule that denies calls.

    Attributes:
        number: Its number in the configuration.
        expression: True for denied calls.
    """

    number: int
    expression: Expression


@dataclass(frozen=True, slots=True)
class Restrictions:
    """What `permissions` of a server or of a tenant mean for the calls of one tool.

    Attributes:
        refusal: Why no call is permitted; empty if some are.
        judge: Judges the paths in arguments, or None if every path is permitted.
    """

    refusal: str = ""
    judge: PathJudge | None = None

    def __bool__(self) -> bool:
        return bool(self.refusal) or self.judge is not None


@dataclass(frozen=True, slots=True, eq=False)
class ToolPolicy:
    """The policy for one caller's calls of one tool; equal to itself alone.

    Attributes:
        demands: The limits that each call counts against.
        meter: The same, with this worker's shares of them.
        slots: Those of calls at once, which count it until it ends.
        restrictions: From the permissions of the server and of the tenant.
        expressions: The expressions of all rules, evaluated together.
        needs_approval: Whether a person must approve each call.
        judges_calls: Whether rules or permissions judge each call.
        only_reads: Whether calls of the tool change nothing.
        definition: The tool as its server listed it, as JSON; empty for other requests.
    """

    risk: Risk
    rules: tuple[CompiledRule, ...] = ()
    demands: tuple[Demand, ...] = ()
    restrictions: tuple[Restrictions, ...] = ()
    only_reads: bool = False
    definition: bytes = field(default=b"", repr=False)
    meter: Meter = field(init=False, repr=False)
    slots: tuple[BudgetKey, ...] = field(init=False, repr=False)
    expressions: Expressions = field(init=False, repr=False)
    needs_approval: bool = field(init=False, repr=False)
    judges_calls: bool = field(init=False, repr=False)

    def __post_init__(self) -> None:
        together = Expressions([rule.expression for rule in self.rules])
        # Each call asks for these, and a policy never changes.
        object.__setattr__(self, "expressions", together)
        object.__setattr__(self, "meter", Meter(self.demands))
        slots = tuple(demand.key for demand in self.demands if not demand.period)
        object.__setattr__(self, "slots", slots)
        object.__setattr__(self, "needs_approval", _asks_people(self.risk))
        object.__setattr__(self, "judges_calls", bool(self.rules or self.restrictions))


def _asks_people(risk: Risk) -> bool:
    match risk:
        case "financial":
            return True
        case "read_only" | "mutating" | "external":
            return False
    assert_never(risk)


class ToolPolicies:
    """The tool policies of one variant, compiled for each tool and caller at first use.

    Args:
        server_id: The server.
        policy: The configured policy.
        tools: The exposed tools by original name.
        base: The folder that relative paths start from; empty if unknown.
    """

    def __init__(
        self,
        server_id: str,
        policy: ServerPolicy,
        tools: Mapping[str, ToolPlan],
        base: str = "",
    ) -> None:
        self.is_needed = bool(policy)
        self._server_id = server_id
        self._base = base
        self._policy = policy
        self._tools = tools
        self._rules: dict[str, tuple[CompiledRule, ...]] = {}
        self._restrictions: dict[tuple[str, Permissions], Restrictions] = {}
        self._compiled: dict[tuple[str, str, str], ToolPolicy | None] = {}

    def is_visible(self, tenant: str, agent: str, tool: str) -> bool:
        """Return whether a caller may know of a tool, by its original name."""
        return not self.is_needed or self._policy.allows(tenant, agent, tool)

    def names(self, tenant: str, agent: str) -> list[str]:
        """Return the original names of a caller's tools."""
        return [name for name in self._tools if self.is_visible(tenant, agent, name)]

    def find(self, tenant: str, agent: str, tool: str) -> ToolPolicy | None:
        """Return the policy of a tool for a caller, or None if the caller has no such tool."""
        key = tenant, agent, tool
        try:
            return self._compiled[key]
        except KeyError:
            pass
        if len(self._compiled) >= _MAX_CACHED:  # callers choose the names
            self._compiled.clear()
        policy = self._compiled[key] = self._compile(tenant, agent, tool)
        return policy

    def _compile(self, tenant: str, agent: str, tool: str) -> ToolPolicy | None:
        plan, allowed = self._tools.get(tool), self._policy.allows(tenant, agent, tool)
        if plan is None or not allowed:  # both take equally long, so that timing reveals nothing
            return None
        risk = self._policy.risk_of(tool, _annotations(plan))
        demands = list(self._demands(tenant, agent))
        if risk == "external" and self._policy.rate is not None:
            external = CallLimits(self._policy.rate)
            of_external = BudgetKey(tenant, "external", self._server_id)
            demands += _demands_of(external, of_external, self._is_other(tenant))
        of_tool = BudgetKey("", "calls", self._server_id, tool=tool)
        demands += _demands_of(self._policy.quota.of_tool(tool), of_tool)
        schema = msgspec.json.decode(plan.definition).get("inputSchema")
        only_reads = risk == "read_only" or (risk == "external" and plan.read_only)
        return ToolPolicy(
            risk=risk,
            rules=self._rules_of_tool(tool),
            demands=tuple(demands),
            restrictions=self._restrictions_of(tenant, tool, schema, only_reads),
            only_reads=only_reads,
            definition=plan.definition,
        )

    def allows_all(self, tenant: str, agent: str) -> bool:
        """Return whether a caller may use a server's prompts and resources."""
        return not self.is_needed or self._policy.allows_all(tenant, agent)

    def _demands(self, tenant: str, agent: str) -> Iterator[Demand]:
        """Yield the limits of every request of a caller."""
        policy = self._policy
        of_agent = policy.limits_of_agent(tenant, agent)
        of_tenant, is_other = policy.limits_of(tenant) or UNLIMITED, self._is_other(tenant)
        yield from _demands_of(of_tenant, BudgetKey(tenant, "calls"), is_other)
        yield from _demands_of(of_agent, BudgetKey(tenant, "calls", agent=agent), is_other)
        yield from _demands_of(policy.quota, BudgetKey("", "calls", self._server_id))

    def _is_other(self, tenant: str) -> bool:
        return self._policy.tenant_entry(tenant) == OTHER_TENANTS

    def limits_of_request(self, tenant: str, agent: str, method: str) -> ToolPolicy:
        """Return the limits of a caller's request that calls no tool.

        A subscription lasts for long and counts as a call only; so does a notification, which waits
        for what its server may ask.
        """
        lasts = method in (SUBSCRIBE, ROOTS_CHANGED)
        demands = (demand for demand in self._demands(tenant, agent) if demand.period or not lasts)
        return ToolPolicy("read_only", demands=tuple(demands), only_reads=True)

    def find_request(
        self, tenant: str, agent: str, method: str, names: tuple[str, ...]
    ) -> ToolPolicy:
        """Return the policy of a caller's request that calls no tool.

        Args:
            tenant: The caller's tenant.
            agent: The caller's agent.
            method: The MCP method.
            names: The name of the prompt, or the URI in all its readings. All rules hold for a
                URI without one: it is not known how servers read it.
        """
        return replace(
            self.limits_of_request(tenant, agent, method),
            rules=self._compiled_rules(names),
            restrictions=self._restrictions_of(tenant, "", None, reads=True),
        )

    def may_read(self, tenant: str, agent: str, uri: str) -> bool:
        """Return whether the grants and permissions let a caller name a URI."""
        if not self.is_needed:
            return True
        return self.allows_all(tenant, agent) and not any(
            restriction.refusal
            or (restriction.judge is not None and not restriction.judge.permits_uri(uri))
            for restriction in self._restrictions_of(tenant, "", None, reads=True)
        )

    def _rules_of_tool(self, name: str) -> tuple[CompiledRule, ...]:
        rules = self._rules.get(name)
        if rules is None:
            rules = self._rules[name] = self._compiled_rules((name,))
        return rules

    def _compiled_rules(self, names: tuple[str, ...]) -> tuple[CompiledRule, ...]:
        """Return the rules that hold for one of the names, or all rules if there is none."""
        return tuple(
            CompiledRule(number, _expression(rule.expression))
            for number, rule in enumerate(self._policy.rules, start=1)
            if not names or any(map(rule.applies_to, names))
        )

    def _restrictions_of(
        self, tenant: str, tool: str, schema: object, reads: bool
    ) -> tuple[Restrictions, ...]:
        """Return the restrictions of a tool; tenants with equal permissions share them."""
        found = []
        for permissions in (self._policy.permissions_of(tenant), self._policy.permissions):
            if permissions == EVERYTHING:
                continue
            one = self._restrictions.get((tool, permissions))
            if one is None:
                one = _restrict(permissions, self._base, schema, reads=reads)
                self._restrictions[tool, permissions] = one
            if one:
                found.append(one)
        return tuple(found)


def _demands_of(
    limits: CallLimits, of_calls: BudgetKey, of_others: bool = False
) -> Iterator[Demand]:
    """Yield the limits of one owner, whose key for calls in a time is given."""
    if limits.concurrent is not None:
        of_slots = of_calls._replace(quota="concurrent")
        yield _demand(of_slots, limits.concurrent, 0.0, of_others)
    if limits.calls is not None:
        yield _demand(of_calls, limits.calls.calls, limits.calls.seconds, of_others)


@functools.lru_cache(MAX_BUDGETS)
def _demand(key: BudgetKey, limit: int, period: float, of_others: bool) -> Demand:
    """Return the one object for a limit: shares know it by identity, for each call."""
    return Demand(key, limit, period, of_others)


def _restrict(permissions: Permissions, base: str, schema: object, *, reads: bool) -> Restrictions:
    if reads and not permissions.read:
        return Restrictions("it reads, and 'permissions' has read: false")
    if not reads and not permissions.write:
        return Restrictions("it may change something, and 'permissions' has write: false")
    return Restrictions(
        judge=PathJudge(permissions, base, schema) if permissions.names_paths else None
    )


def _annotations(plan: ToolPlan) -> Mapping[str, Any]:
    hints = msgspec.json.decode(plan.definition).get("annotations")
    return hints if isinstance(hints, dict) else {}


@functools.lru_cache(1_024)
def _expression(text: str) -> Expression:
    try:
        return compile_expression(text)
    except RuleNotCompiled as error:  # the control plane accepted it: this worker lacks the package
        return DeniesAll(str(error))


@dataclass(slots=True)  # one for each call: a frozen one takes twice as long
class JudgedCall:
    """What rules and permissions judge of a request.

    Attributes:
        facts: The variables of rules.
        extra: Other values of the caller that reach the server: `_meta` and answers. Permissions
            judge them, rules do not; None if there are none.
        uri: The URI of a request that reads one; empty for others.
        names: Of a request that calls no tool, the values of `tool`: more than one if servers may
            read its URI in several ways, none if it is not known in which.
    """

    facts: Mapping[str, Any]
    extra: Mapping[str, Any] | None = None
    uri: str = ""
    names: tuple[str, ...] = ()


def judge(policy: ToolPolicy, judged: JudgedCall, server_id: str) -> None:
    """Check permissions and rules for a call.

    Args:
        policy: The policy of its tool.
        judged: The call.
        server_id: For the message.

    Raises:
        Fault: PERMISSION_DENIED, with the rule's number and without the call's arguments.
    """
    facts = judged.facts
    for restrictions in policy.restrictions:
        why = _reason(restrictions, judged)
        if why:
            raise Fault(
                Reason.PERMISSION_DENIED,
                f"The permissions of server {server_id} deny this {_named(facts)}: {why}. Its "
                "operator configures them under 'permissions'.",
                metadata={"rule": "0"},
            )
    if not policy.expressions.can_judge(facts["args"]):
        raise Fault(
            Reason.PERMISSION_DENIED,
            f"The rules of server {server_id} cannot check this {_named(facts)}: it has more than "
            f"{MAX_VALUES} values, texts that take too long to search, or a name that differs from "
            "an argument's only in case.",
            metadata={"server": server_id},
        )
    if judged.uri and policy.rules and not judged.names:
        raise Fault(
            Reason.PERMISSION_DENIED,
            f"The rules of server {server_id} cannot check this {_named(facts)}: servers read its "
            "URI in different ways. Write it plainly, such as file:///path or https://host/path.",
            metadata={"server": server_id},
        )
    denying = _first_that_denies(policy, judged)
    if denying is not None:
        rule = policy.rules[denying]
        number = rule.number
        if isinstance(rule.expression, DeniesAll):
            raise Fault(
                Reason.PERMISSION_DENIED,
                f"Rule {number} of server {server_id} denies every call, because this worker "
                f"cannot evaluate it: {rule.expression.why}.",
                metadata={"server": server_id, "rule": str(number)},
            )
        raise Fault(
            Reason.PERMISSION_DENIED,
            f"Rule {number} of server {server_id} denies this {_named(facts)}. Other arguments "
            "may be allowed; ask the operator who configures the server.",
            metadata={"server": server_id, "rule": str(number)},
        )


def _first_that_denies(policy: ToolPolicy, judged: JudgedCall) -> int | None:
    """Return the index of the first rule that denies a request in one of its readings, or None."""
    facts, names = judged.facts, judged.names
    if len(names) <= 1:
        return policy.expressions.first_that_denies(facts)
    for name in names:
        args = facts["args"]
        read = {**args, "uri": name} if "uri" in args else args
        denying = policy.expressions.first_that_denies({**facts, "tool": name, "args": read})
        if denying is not None:
            return denying
    return None


def why_answer_is_denied(policy: ToolPolicy, answer: Mapping[str, Any]) -> str:
    """Return why permissions deny a caller's answer to its server; empty if they permit it."""
    judges = (restrictions.judge for restrictions in policy.restrictions)
    denials = (judge.denied(answer) for judge in judges if judge is not None)
    return next((why for why in denials if why), "")


def _named(facts: Mapping[str, Any]) -> str:
    return f"call of {facts['tool']}" if facts["method"] == TOOLS_CALL else str(facts["method"])


def _reason(restrictions: Restrictions, judged: JudgedCall) -> str:
    """Return why restrictions deny a call; empty if they permit it."""
    judge = restrictions.judge
    if judge is None:
        return restrictions.refusal
    if judged.uri and not judge.permits_uri(judged.uri):
        return "its URI is not permitted"
    return judge.denied(judged.facts["args"]) or judge.denied(judged.extra or {}) or ""
