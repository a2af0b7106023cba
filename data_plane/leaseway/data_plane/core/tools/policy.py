"""Tool policies, compiled for each caller, and the usage that their limits count.

Pure: time is a parameter. Calls of a server without a policy use none of this.
"""

from __future__ import annotations

import functools
from collections import Counter, OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

import msgspec

from leaseway.data_plane.core.tools.budgets import (
    Demand,
    LimitReached,
    WorkerBudgets,
)
from leaseway.data_plane.core.tools.paths import PathJudge
from leaseway.data_plane.core.tools.prompts_resources import SUBSCRIBE
from leaseway.data_plane.core.tools.toolset import ToolPlan
from leaseway.spec.policy import (
    EVERYTHING,
    OTHER_TENANTS,
    Permissions,
    Rate,
    Risk,
    ServerPolicy,
    TenantLimits,
)
from leaseway.spec.rules import (
    MAX_VALUES,
    DeniesAll,
    Expression,
    Expressions,
    RuleNotCompiled,
    compile_expression,
)
from leaseway.wire.errors import Fault, Reason
from leaseway.wire.limits import BudgetKey, CallQuota, limit_metadata
from leaseway.wire.messages.mcp import ROOTS_CHANGED

TOOLS_CALL: Final = "tools/call"
_MAX_BUCKETS: Final = 10_000
_MAX_CACHED: Final = 20_000
_CONCURRENT_RETRY: Final = 0.1


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


@dataclass(frozen=True, slots=True)
class ToolPolicy:
    """The policy for one caller's calls of one tool.

    Attributes:
        rate: The rate limit of the server's external tools, or None.
        limits: The limits of the tenant, or None.
        restrictions: From the permissions of the server and of the tenant.
        expressions: The expressions of all rules, evaluated together.
        needs_approval: Whether a person must approve each call.
        judges_calls: Whether rules or permissions judge each call.
        has_limits: Whether each call counts against a limit.
    """

    risk: Risk
    rules: tuple[CompiledRule, ...] = ()
    rate: Rate | None = None
    limits: TenantLimits | None = None
    restrictions: tuple[Restrictions, ...] = ()
    expressions: Expressions = field(init=False, repr=False, compare=False)
    needs_approval: bool = field(init=False, repr=False, compare=False)
    judges_calls: bool = field(init=False, repr=False, compare=False)
    has_limits: bool = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        together = Expressions([rule.expression for rule in self.rules])
        # Each call asks for these, and a policy never changes.
        object.__setattr__(self, "expressions", together)
        object.__setattr__(self, "needs_approval", self.risk == "financial")
        object.__setattr__(self, "judges_calls", bool(self.rules or self.restrictions))
        has_limits = self.rate is not None or self.limits is not None
        object.__setattr__(self, "has_limits", has_limits)


class ToolPolicies:
    """The tool policies of one variant, compiled for each tool and caller at first use.

    Args:
        policy: The configured policy.
        tools: The exposed tools by original name.
        base: The folder that relative paths start from; empty if unknown.
    """

    def __init__(self, policy: ServerPolicy, tools: Mapping[str, ToolPlan], base: str = "") -> None:
        self.is_needed = bool(policy)
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
        rate = self._policy.rate if risk == "external" else None
        schema = msgspec.json.decode(plan.definition).get("inputSchema")
        return ToolPolicy(
            risk,
            self._numbered_rules(tool),
            rate,
            self._policy.limits_of(tenant),
            self._restrictions_of(tenant, tool, schema, reads_only(risk, plan)),
        )

    def allows_all(self, tenant: str, agent: str) -> bool:
        """Return whether a caller may use a server's prompts and resources."""
        return not self.is_needed or self._policy.allows_all(tenant, agent)

    def limits_of_request(self, tenant: str, method: str) -> ToolPolicy:
        """Return the limits of a caller's request that calls no tool.

        A subscription lasts for long and counts as a call only; so does a notification, which waits
        for what its server may ask.
        """
        limits = self._policy.limits_of(tenant)
        if limits is not None and method in (SUBSCRIBE, ROOTS_CHANGED):
            limits = replace(limits, concurrent=None)
        return ToolPolicy("read_only", limits=limits)

    def find_request(self, tenant: str, method: str, name: str) -> ToolPolicy:
        """Return the policy of a caller's request that calls no tool.

        Args:
            tenant: The caller's tenant.
            method: The MCP method.
            name: The name of the prompt, or the URI.
        """
        return replace(
            self.limits_of_request(tenant, method),
            rules=self._numbered_rules(name, remember=False),
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

    def _numbered_rules(self, name: str, *, remember: bool = True) -> tuple[CompiledRule, ...]:
        rules = self._rules.get(name)
        if rules is None:
            rules = tuple(
                CompiledRule(number, _expression(rule.expression))
                for number, rule in enumerate(self._policy.rules, start=1)
                if rule.applies_to(name)
            )
            if remember:
                self._rules[name] = rules
        return rules

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


def _restrict(permissions: Permissions, base: str, schema: object, *, reads: bool) -> Restrictions:
    if reads and not permissions.read:
        return Restrictions("it reads, and 'permissions' has read: false")
    if not reads and not permissions.write:
        return Restrictions("it may change something, and 'permissions' has write: false")
    return Restrictions(
        judge=PathJudge(permissions, base, schema) if permissions.names_paths else None
    )


def reads_only(risk: Risk, plan: ToolPlan) -> bool:
    """Return whether calls of a tool change nothing."""
    return risk == "read_only" or (risk == "external" and plan.read_only)


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
    """

    facts: Mapping[str, Any]
    extra: Mapping[str, Any] | None = None
    uri: str = ""


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
            f"{MAX_VALUES} values, or a name that differs from an argument's only in case.",
            metadata={"server": server_id},
        )
    denying = policy.expressions.first_that_denies(facts)
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


class TenantUsage:
    """Each tenant's calls on this worker, checked against its limits.

    Args:
        budgets: This worker's shares of the limits. Without a fleet the limits hold on this worker
            alone.

    Attributes:
        in_flight: Calls in flight of each tenant with a `concurrent` limit.
        refused: How often each (tenant, limit) caused a rejection.
    """

    def __init__(self, budgets: WorkerBudgets | None = None) -> None:
        self._budgets = budgets or WorkerBudgets()
        self._buckets = TokenBuckets()
        self.in_flight: Counter[str] = Counter()
        self.refused: Counter[tuple[str, CallQuota]] = Counter()

    def start_call(self, tenant: str, server_id: str, policy: ToolPolicy, now: float) -> bool:
        """Count a call that is about to run; return whether to call `end_call` after it.

        Raises:
            Fault: RATE_LIMITED, with the delay after which to try again; nothing was counted.
            PermitNeeded: The control plane must be asked first; nothing was counted.
        """
        if self._budgets.fleet is not None:
            return self._start_within_budgets(tenant, server_id, policy, now)
        limits = policy.limits
        limit = limits.concurrent if limits is not None else None
        if limit is not None and self.in_flight[tenant] >= limit:
            self._count_refusal(tenant, "concurrent")
            raise Fault(
                Reason.RATE_LIMITED,
                f"Tenant {tenant} has {limit} calls in flight on this worker, its limit. Wait for "
                "some to end.",
                metadata=limit_metadata("limits.concurrent", "tenant"),
                retry_delay=_CONCURRENT_RETRY,
            )
        if limits is not None and limits.calls is not None:
            wait = self._buckets.take((tenant,), limits.calls, now)
            if wait > 0:
                tools = f"Tools of tenant {tenant}"
                raise self._rate_fault(tenant, "calls", limits.calls, tools, wait)
        if policy.rate is not None:
            wait = self._buckets.take((tenant, server_id), policy.rate, now)
            if wait > 0:
                tools = f"External tools of server {server_id}"
                raise self._rate_fault(tenant, "external", policy.rate, tools, wait)
        if limit is not None:
            self.in_flight[tenant] += 1
        return limit is not None

    def _start_within_budgets(
        self, tenant: str, server_id: str, policy: ToolPolicy, now: float
    ) -> bool:
        demands = []
        limits, rate = policy.limits, policy.rate
        concurrent = limits.concurrent if limits is not None else None
        if concurrent is not None:
            demands.append(Demand(BudgetKey(tenant, "concurrent"), concurrent))
        if limits is not None and limits.calls is not None:
            calls = limits.calls
            demands.append(Demand(BudgetKey(tenant, "calls"), calls.calls, calls.seconds))
        if rate is not None:
            key = BudgetKey(tenant, "external", server_id)
            demands.append(Demand(key, rate.calls, rate.seconds))
        try:
            self._budgets.take(demands, now)
        except LimitReached as reached:
            raise self._fleet_fault(reached) from None
        if concurrent is not None:
            self.in_flight[tenant] += 1
        return concurrent is not None

    def _fleet_fault(self, reached: LimitReached) -> Fault:
        demand, key = reached.demand, reached.demand.key
        self._count_refusal(key.tenant, key.quota)
        metadata = {
            **limit_metadata(f"limits.{key.quota}", "tenant"),
            "remaining": str(self._budgets.remaining(key)),
            "renews_in": f"{reached.wait:.2f}",
        }
        if key.quota == "concurrent":
            message = (
                f"Tenant {key.tenant} has {demand.limit} calls in flight on all workers, its limit,"
                " or other workers have just used the rest. Wait for some to end."
            )
        else:
            tools = (
                f"External tools of server {key.server_id}"
                if key.quota == "external"
                else f"Tools of tenant {key.tenant}"
            )
            message = (
                f"{tools} may be called {demand.limit} times in {demand.period:g} s on all workers "
                f"together, and no call is left. The next one is possible in {reached.wait:.2f} s."
            )
        return Fault(Reason.RATE_LIMITED, message, metadata=metadata, retry_delay=reached.wait)

    def end_call(self, tenant: str) -> None:
        self._budgets.end_call(tenant)
        self.in_flight[tenant] -= 1
        if not self.in_flight[tenant]:
            del self.in_flight[tenant]

    def _rate_fault(
        self, tenant: str, quota: CallQuota, rate: Rate, tools: str, wait: float
    ) -> Fault:
        self._count_refusal(tenant, quota)
        return Fault(
            Reason.RATE_LIMITED,
            f"{tools} may be called {rate.calls} times in {rate.seconds:g} s, and were. The next "
            f"call is possible in {wait:.2f} s.",
            metadata=limit_metadata(f"limits.{quota}", "tenant"),
            retry_delay=wait,
        )

    def _count_refusal(self, tenant: str, quota: CallQuota) -> None:
        has_room = len(self.refused) < _MAX_BUCKETS
        self.refused[tenant if has_room else OTHER_TENANTS, quota] += 1


class TokenBuckets:
    """Token buckets by key; a full bucket needs no memory."""

    def __init__(self) -> None:
        self._full_at: OrderedDict[tuple[str, ...], float] = OrderedDict()

    def take(self, key: tuple[str, ...], rate: Rate, now: float) -> float:
        """Take a token and return 0, or return the seconds until there is one.

        A bucket is stored as the time at which it is full again.
        """
        interval = rate.seconds / rate.calls
        previous = self._full_at.get(key)
        full_at = (now if previous is None or previous < now else previous) + interval
        wait = full_at - now - rate.seconds
        if wait > interval * 1e-6:
            return wait
        self._full_at[key] = full_at
        self._full_at.move_to_end(key)
        if previous is None:  # each new bucket drops full ones, and the oldest
            while len(self._full_at) > _MAX_BUCKETS or next(iter(self._full_at.values())) <= now:
                self._full_at.popitem(last=False)
        return 0.0

    def __len__(self) -> int:
        return len(self._full_at)
