"""Whether a call may run: what is compiled for each tool, and what is counted for each tenant.

Pure: time is a parameter. Of a server without a policy nothing is asked here.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Literal

import msgspec

from leaseway.data_plane.core.tools.toolset import ToolPlan
from leaseway.spec.permissions import EVERYTHING, Permissions, expressions
from leaseway.spec.policy import OTHERS, Rate, Risk, ServerPolicy, TenantLimits
from leaseway.spec.rules import (
    DeniesAll,
    Expression,
    Expressions,
    RuleNotCompiled,
    compile_expression,
)
from leaseway.wire.errors import Fault, Reason
from leaseway.wire.limits import named

Quota = Literal["calls", "concurrent", "external"]
"""Of `limits` of a tenant, and of `rate_limit` of a server."""

_MOST_BUCKETS: Final = 10_000
_MOST_REMEMBERED: Final = 20_000
_BUSY_RETRY: Final = 0.1


@dataclass(frozen=True, slots=True)
class CompiledRule:
    """One rule, with its number in the configuration.

    Attributes:
        number: Its number; 0 for one that `permissions` makes.
        expression: What is true of a call that is denied.
        why: What is said of such a call, where no number says it.
    """

    number: int
    expression: Expression
    why: str = ""


@dataclass(frozen=True, slots=True)
class ToolPolicy:
    """All that one caller's calls of one tool are judged by.

    Attributes:
        risk: Of the tool.
        rules: What denies a call.
        expressions: Those of the rules, to be evaluated together.
        rate: Calls of the server's external tools, or None for any number.
        limits: Of the tenant, or None for none.
    """

    risk: Risk
    rules: tuple[CompiledRule, ...] = ()
    rate: Rate | None = None
    limits: TenantLimits | None = None
    expressions: Expressions = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        together = Expressions([rule.expression for rule in self.rules])
        object.__setattr__(self, "expressions", together)

    @property
    def needs_person(self) -> bool:
        """Whether somebody has to agree to each call."""
        return self.risk == "financial"

    @property
    def counts(self) -> bool:
        return self.rate is not None or self.limits is not None


class Judge:
    """What one variant's policy says of each tool and caller, compiled when it is first asked.

    Args:
        policy: The policy.
        tools: The tools that are exposed, by original name.
        base: The folder that relative paths start from; empty where that is not known.
    """

    def __init__(self, policy: ServerPolicy, tools: Mapping[str, ToolPlan], base: str = "") -> None:
        self.is_needed = bool(policy)
        self._base = base
        self._policy = policy
        self._tools = tools
        self._rules: dict[str, tuple[CompiledRule, ...]] = {}
        self._permits: dict[tuple[str, Permissions], tuple[CompiledRule, ...]] = {}
        self._known: dict[tuple[str, str, str], ToolPolicy | None] = {}

    def exists(self, tenant: str, agent: str, tool: str) -> bool:
        """Return whether a tool, by its original name, exists for a caller."""
        return not self.is_needed or self._policy.allows(tenant, agent, tool)

    def names(self, tenant: str, agent: str) -> list[str]:
        return [name for name in self._tools if self.exists(tenant, agent, name)]

    def tool(self, tenant: str, agent: str, tool: str) -> ToolPolicy | None:
        """Return what calls of a tool are judged by; None where it does not exist for a caller."""
        key = tenant, agent, tool
        try:
            return self._known[key]
        except KeyError:
            pass
        if len(self._known) >= _MOST_REMEMBERED:  # names are callers' to choose
            self._known.clear()
        found = self._known[key] = self._compiled(tenant, agent, tool)
        return found

    def _compiled(self, tenant: str, agent: str, tool: str) -> ToolPolicy | None:
        plan, allowed = self._tools.get(tool), self._policy.allows(tenant, agent, tool)
        if plan is None or not allowed:  # what was never there takes as long as what is not granted
            return None
        risk = self._policy.risk_of(tool, _annotations(plan))
        rate = self._policy.rate if risk == "external" else None
        rules = self._rules_of(tool, plan, risk)
        narrower = self._policy.permissions_of(tenant)
        if narrower != EVERYTHING:
            rules = (*self._permitted(tool, plan, risk, narrower), *rules)
        return ToolPolicy(risk, rules, rate, self._policy.limits_of(tenant))

    def _rules_of(self, tool: str, plan: ToolPlan, risk: Risk) -> tuple[CompiledRule, ...]:
        if tool not in self._rules:
            permitted = self._permitted(tool, plan, risk, self._policy.permissions)
            self._rules[tool] = (*permitted, *self._configured_of(tool))
        return self._rules[tool]

    def _configured_of(self, tool: str) -> Iterable[CompiledRule]:
        return (
            CompiledRule(number, _expression(rule.expression))
            for number, rule in enumerate(self._policy.rules, start=1)
            if rule.is_for(tool)
        )

    def _permitted(
        self, tool: str, plan: ToolPlan, risk: Risk, permissions: Permissions
    ) -> tuple[CompiledRule, ...]:
        """Return permissions as rules on a tool; tenants with the same ones share them."""
        known = self._permits.get((tool, permissions))
        if known is None:
            schema = msgspec.json.decode(plan.definition).get("inputSchema")
            found = expressions(permissions, self._base, schema, reads_only(risk, plan))
            known = tuple(CompiledRule(0, _expression(rule), why) for why, rule in found)
            self._permits[tool, permissions] = known
        return known


def reads_only(risk: Risk, plan: ToolPlan) -> bool:
    """Return whether calls of a tool change nothing."""
    return risk == "read_only" or (risk == "external" and plan.read_only)


def _annotations(plan: ToolPlan) -> Mapping[str, Any]:
    hints = msgspec.json.decode(plan.definition).get("annotations")
    return hints if isinstance(hints, dict) else {}


def _expression(text: str) -> Expression:
    try:
        return compile_expression(text)
    except RuleNotCompiled:  # the control plane lets none pass that it cannot compile
        return DeniesAll()


def check_rules(policy: ToolPolicy, facts: Mapping[str, Any], server_id: str) -> None:
    """Refuse a call that a rule denies.

    Args:
        policy: Of the tool.
        facts: What expressions may name.
        server_id: For the message.

    Raises:
        Fault: PERMISSION_DENIED; it names the rule by its number and holds no argument.
    """
    denying = policy.expressions.first_that_denies(facts)
    if denying is None:
        return
    rule = policy.rules[denying]
    if rule.why:
        raise Fault(
            Reason.PERMISSION_DENIED,
            f"The permissions of server {server_id} deny this call of {facts['tool']}: "
            f"{rule.why}. Its operator says in 'permissions' what may be done.",
            metadata={"rule": "0"},
        )
    raise Fault(
        Reason.PERMISSION_DENIED,
        f"Rule {rule.number} of server {server_id} denies this call of {facts['tool']}. "
        "Other arguments may pass; ask whoever configures the server.",
        metadata={"server": server_id, "rule": str(rule.number)},
    )


class Counts:
    """How much each tenant uses of this worker.

    Attributes:
        under_way: The calls of each tenant that has a limit of them.
        refused: How often each (tenant, limit) was the reason of a refusal.
    """

    def __init__(self) -> None:
        self._buckets = TokenBuckets()
        self.under_way: Counter[str] = Counter()
        self.refused: Counter[tuple[str, Quota]] = Counter()

    def take(self, tenant: str, server_id: str, policy: ToolPolicy, now: float) -> bool:
        """Count a call that is about to run; say whether `ended` must be told of its end.

        Raises:
            Fault: RATE_LIMITED, with the delay after which there is room; nothing was counted.
        """
        limits = policy.limits
        most = limits.concurrent if limits is not None else None
        if most is not None and self.under_way[tenant] >= most:
            self._refuse(tenant, "concurrent")
            raise Fault(
                Reason.RATE_LIMITED,
                f"{most} calls of tenant {tenant} are under way on this worker, as many as it may "
                "have. Wait for some to end.",
                metadata=named("limits.concurrent", "tenant"),
                retry_delay=_BUSY_RETRY,
            )
        if limits is not None and limits.calls is not None:
            wait = self._buckets.take((tenant,), limits.calls, now)
            if wait > 0:
                raise self._over(tenant, "calls", limits.calls, f"Tools of tenant {tenant}", wait)
        if policy.rate is not None:
            wait = self._buckets.take((tenant, server_id), policy.rate, now)
            if wait > 0:
                what = f"External tools of server {server_id}"
                raise self._over(tenant, "external", policy.rate, what, wait)
        if most is not None:
            self.under_way[tenant] += 1
        return most is not None

    def ended(self, tenant: str) -> None:
        self.under_way[tenant] -= 1
        if not self.under_way[tenant]:
            del self.under_way[tenant]

    def _over(self, tenant: str, quota: Quota, rate: Rate, what: str, wait: float) -> Fault:
        self._refuse(tenant, quota)
        return Fault(
            Reason.RATE_LIMITED,
            f"{what} may be called {rate.calls} times in {rate.seconds:g} s, and were. The "
            f"next call may come in {wait:.2f} s.",
            metadata=named(f"limits.{quota}", "tenant"),
            retry_delay=wait,
        )

    def _refuse(self, tenant: str, quota: Quota) -> None:
        counted = len(self.refused) < _MOST_BUCKETS
        self.refused[tenant if counted else OTHERS, quota] += 1


class TokenBuckets:
    """Token buckets, one for each key in use; one that is full needs no memory."""

    def __init__(self) -> None:
        self._full_at: OrderedDict[tuple[str, ...], float] = OrderedDict()

    def take(self, key: tuple[str, ...], rate: Rate, now: float) -> float:
        """Take a token and return 0, or the seconds after which there is one.

        What is kept of each bucket is the moment at which it is full again.
        """
        each = rate.seconds / rate.calls
        known = self._full_at.get(key)
        full_at = (now if known is None or known < now else known) + each
        wait = full_at - now - rate.seconds
        if wait > each * 1e-6:
            return wait
        self._full_at[key] = full_at
        self._full_at.move_to_end(key)
        if known is None:  # room is made for each one that is new
            while len(self._full_at) > _MOST_BUCKETS or next(iter(self._full_at.values())) <= now:
                self._full_at.popitem(last=False)
        return 0.0

    def __len__(self) -> int:
        return len(self._full_at)
