"""Which limits a request counts against."""

from __future__ import annotations

from leaseway.data_plane.core.tools.budgets import Demand
from leaseway.data_plane.core.tools.policy import ToolPolicies
from leaseway.data_plane.core.tools.toolset import ExposedTool, compile_toolset
from leaseway.spec.policy import CallLimits, Quota, Rate, ServerPolicy, TenantLimits
from leaseway.wire.sharing.limits import BudgetKey, LimitEntry

POLICIES = ToolPolicies(
    "web",
    ServerPolicy(
        limits={"acme": TenantLimits(Rate(9, 60.0), 3)},
        agent_limits={"acme": {"billing": CallLimits(concurrent=2)}},
        quota=Quota(
            Rate(100, 60.0),
            tools=(("search_*", CallLimits(Rate(5, 1.0), 1)), ("*", CallLimits(concurrent=7))),
        ),
        risks=(("search_web", "external"),),
        rate=Rate(4, 60.0),
    ),
    compile_toolset(
        [b'{"name": "search_web"}', b'{"name": "read"}'],
        [ExposedTool("search_web", "search_web"), ExposedTool("read", "read")],
        "2025-11-25",
    ).tools,
)
OF_TENANT = (
    Demand(BudgetKey("acme", "concurrent"), 3),
    Demand(BudgetKey("acme", "calls"), 9, 60.0),
)
OF_AGENT = (Demand(BudgetKey("acme", "concurrent", agent="billing"), 2),)
OF_SERVER = (Demand(BudgetKey("", "calls", "web"), 100, 60.0),)


def demands(tenant: str, agent: str, tool: str) -> tuple[Demand, ...]:
    policy = POLICIES.find(tenant, agent, tool)
    assert policy is not None
    return policy.demands


def test_a_call_counts_against_the_limits_of_its_tenant_agent_server_and_tool() -> None:
    assert demands("acme", "billing", "search_web") == (
        *OF_TENANT,
        *OF_AGENT,
        *OF_SERVER,
        Demand(BudgetKey("acme", "external", "web"), 4, 60.0),
        Demand(BudgetKey("", "concurrent", "web", tool="search_web"), 1),
        Demand(BudgetKey("", "calls", "web", tool="search_web"), 5, 1.0),
    )
    of_read = Demand(BudgetKey("", "concurrent", "web", tool="read"), 7)
    assert demands("rival", "billing", "read") == (*OF_SERVER, of_read)


def test_a_subscription_counts_as_a_call_and_takes_no_slot() -> None:
    read = POLICIES.limits_of_request("acme", "billing", "resources/read")
    lasting = POLICIES.limits_of_request("acme", "billing", "resources/subscribe")
    assert read.demands == (*OF_TENANT, *OF_AGENT, *OF_SERVER)
    assert lasting.demands == (OF_TENANT[1], *OF_SERVER)


def test_limits_of_tenants_without_an_entry_do_not_name_the_caller() -> None:
    limits = {"*": TenantLimits(Rate(9, 60.0)), "acme": TenantLimits(Rate(9, 60.0))}
    policies = ToolPolicies("web", ServerPolicy(limits=limits, rate=Rate(4, 60.0)), {})
    entries = {
        demand.entry
        for tenant in ("acme", "any text of a caller")
        for demand in policies.limits_of_request(tenant, "", "resources/read").demands
    }
    assert entries == {LimitEntry("acme"), LimitEntry("*")}
