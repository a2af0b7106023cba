"""What is left of each limit that holds over the fleet, and when it renews."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, Literal, get_args

from leaseway.control_plane.core.budgets import Budgets
from leaseway.control_plane.core.coordinator import Coordinator
from leaseway.control_plane.core.placement.table import tenant_limit
from leaseway.spec.policy import OTHER_TENANTS, CallLimits, ServerPolicy
from leaseway.wire.sharing.limits import BudgetKey, BudgetScope, CallQuota

_SCOPES: Final[tuple[BudgetScope, ...]] = get_args(BudgetScope)
LimitQuota = CallQuota | Literal["leases"]


@dataclass(frozen=True)
class LimitStatus:
    """One limit.

    Attributes:
        quota: What it counts.
        tenant: The tenant, of its limits and those of its agents; empty for others.
        server_id: The server, of external tools, of a server's limits and a tool's; empty for
            others.
        agent: The agent, of its limits; empty for others.
        tool: The tool's original name, of its limits; empty for others.
        limit: How many there may be in a period, or at once.
        period: Seconds; 0 for those at once.
        remaining: How many are left, for all workers that have none of them leased.
        renews_in: Seconds until all are left again; 0 if no period is open.
    """

    scope: BudgetScope
    quota: LimitQuota
    tenant: str
    server_id: str
    agent: str
    tool: str
    limit: int
    period: float = 0.0
    remaining: int = 0
    renews_in: float = 0.0

    @property
    def key(self) -> tuple[str, ...]:
        """Orders limits: a tenant's own before its agents', servers before their tools."""
        return (
            str(_SCOPES.index(self.scope)),
            self.tenant,
            self.agent,
            self.server_id,
            self.tool,
            self.quota,
        )


def limits(state: Coordinator, budgets: Budgets, now: float) -> list[LimitStatus]:
    """Return the limits of named owners, and those in use of all others, in order."""
    found = {status.key: status for status in (*_configured(state), *_leases_of_others(state))}
    for use in budgets.uses(now):
        status = _of_calls(use.key, use.limit, use.period, use.remaining, use.renews_in)
        found[status.key] = status
    return [found[key] for key in sorted(found)]


def named_tenants(state: Coordinator) -> dict[str, ServerPolicy]:
    """Return the tenants that the configuration names with limits, each with a policy."""
    policy = _tenants_policy(state)
    if policy is None:
        return {}
    names = {*policy.limits, *policy.agent_limits} - {OTHER_TENANTS}
    return dict.fromkeys(names, policy)


def _tenants_policy(state: Coordinator) -> ServerPolicy | None:
    """Return a policy with the limits of tenants, which are the same in all policies."""
    policies = (spec.policy for spec in (state.servers.desired or {}).values())
    return next(
        (each_policy for each_policy in policies if each_policy.limits or each_policy.agent_limits),
        None,
    )


def _leases_of_others(state: Coordinator) -> Iterator[LimitStatus]:
    """Yield the limits of leases of tenants that hold some and that no configuration names."""
    policy = _tenants_policy(state)
    others = policy.limits.get(OTHER_TENANTS) if policy is not None else None
    if policy is None or others is None or others.leases is None:
        return
    for tenant, held in state.placements.tenant_loads.items():
        if policy.tenant_entry(tenant) == OTHER_TENANTS:
            yield _of_leases("tenant", tenant, "", tenant_limit(others.leases), held)


def _configured(state: Coordinator) -> Iterator[LimitStatus]:
    """Yield the limits of each owner that the configuration names, none of their calls in use."""
    placements = state.placements
    for tenant, policy in named_tenants(state).items():
        limits = policy.limits.get(tenant)
        if limits is not None:
            yield from _unused(limits, BudgetKey(tenant, "calls"))
            if limits.leases is not None:
                most = tenant_limit(limits.leases)
                yield _of_leases("tenant", tenant, "", most, placements.tenant_load(tenant))
        for agent, of_agent in policy.agent_limits.get(tenant, {}).items():
            yield from _unused(of_agent, BudgetKey(tenant, "calls", agent=agent))
    for spec in (state.servers.desired or {}).values():
        quota, server_id = spec.policy.quota, spec.key.server_id
        yield from _unused(quota, BudgetKey("", "calls", server_id))
        if quota.leases is not None:
            held = placements.load_of_server(server_id)
            yield _of_leases("server", "", server_id, quota.leases, held)


def _unused(limits: CallLimits, of_calls: BudgetKey) -> Iterator[LimitStatus]:
    rate = limits.calls
    if rate is not None:
        yield _of_calls(of_calls, rate.calls, rate.seconds, rate.calls)
    if limits.concurrent is not None:
        most = limits.concurrent
        yield _of_calls(of_calls._replace(quota="concurrent"), most, 0.0, most)


def _of_calls(
    key: BudgetKey, limit: int, period: float, remaining: int, renews_in: float = 0.0
) -> LimitStatus:
    return LimitStatus(
        scope=key.scope,
        quota=key.quota,
        tenant=key.tenant,
        server_id=key.server_id,
        agent=key.agent,
        tool=key.tool,
        limit=limit,
        period=period,
        remaining=remaining,
        renews_in=renews_in,
    )


def _of_leases(
    scope: BudgetScope, tenant: str, server_id: str, limit: int, held: int
) -> LimitStatus:
    left = max(0, limit - held)
    return LimitStatus(
        scope=scope,
        quota="leases",
        tenant=tenant,
        server_id=server_id,
        agent="",
        tool="",
        limit=limit,
        remaining=left,
    )
