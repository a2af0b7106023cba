"""The roles and the tenant check of each RPC.

A test compares the table with the service descriptors. An RPC without a row is rejected.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal

from leaseway.identity.principal import SEES_ALL, Principal, Role
from leaseway.wire.errors import Fault, Reason

TenantUse = Literal["own", "filter", "calls", "none"]
"""How an RPC uses its tenant field: `own` acts for it, `filter` means all tenants if it is empty
and the caller may see all, `calls` has one in each frame, `none` has no such field."""

_CALLS: Final = frozenset({Role.CALLER})
_REPORTS: Final = frozenset({Role.CALLER, Role.OPERATOR})
_OPERATES: Final = frozenset({Role.OPERATOR})
_JOINS: Final = frozenset({Role.PLANE})
_APPROVES: Final = frozenset({Role.APPROVER})
_LISTS: Final = _CALLS | SEES_ALL
_SEES_APPROVALS: Final = _APPROVES | SEES_ALL
_ANY: Final = frozenset(Role)


@dataclass(frozen=True, slots=True)
class Rule:
    """The authorization of one RPC.

    Attributes:
        roles: The allowed roles.
        tenant: How it uses its tenant field.
        changes: Whether it may change state.
    """

    roles: frozenset[Role]
    tenant: TenantUse = "none"
    changes: bool = False


RULES: Final[Mapping[str, Rule]] = {
    f"/leaseway.v1.{name}": rule
    for name, rule in {
        "CatalogService/ListTools": Rule(_LISTS, "own"),
        "CatalogService/ListPrompts": Rule(_LISTS, "own"),
        "CatalogService/ListResources": Rule(_LISTS, "own"),
        "CatalogService/ResolveTools": Rule(_LISTS, "own"),
        "CatalogService/WatchTools": Rule(_LISTS, "own"),
        "CatalogService/ListServers": Rule(_LISTS, "own"),
        "PlacementService/Place": Rule(_CALLS, "own", changes=True),
        "PlacementService/FindLease": Rule(_CALLS, "own"),
        "PlacementService/ShareSessionEnds": Rule(_CALLS, "own", changes=True),
        "AdminService/GetStatus": Rule(_LISTS),
        "AdminService/ListWorkers": Rule(_LISTS),
        "AdminService/ListHeldLeases": Rule(_LISTS, "filter"),
        "AdminService/ListProblems": Rule(SEES_ALL),
        "AdminService/ReportProblem": Rule(_REPORTS, changes=True),
        "AdminService/DrainWorker": Rule(_OPERATES, changes=True),
        "AdminService/RevokeLease": Rule(_OPERATES, changes=True),
        "AdminService/WatchEvents": Rule(SEES_ALL),
        "AdminService/ListCalls": Rule(SEES_ALL),
        "AdminService/GetTraffic": Rule(SEES_ALL),
        "AdminService/ListApprovals": Rule(_SEES_APPROVALS, "filter"),
        "AdminService/DecideApproval": Rule(_APPROVES, "filter", changes=True),
        "SyncService/Sync": Rule(_JOINS, changes=True),
        "ExecutionService/Exchange": Rule(_CALLS, "calls", changes=True),
        "ExecutionService/CallTool": Rule(_CALLS, "own", changes=True),
        "ExecutionService/CallToolStreaming": Rule(_CALLS, "own", changes=True),
        "ExecutionService/ReadArtifact": Rule(_CALLS, "own"),
        "ExecutionService/ReadLogs": Rule(SEES_ALL, "own"),
        "LeaseService/AcquireLease": Rule(_CALLS, "own", changes=True),
        "LeaseService/ReleaseLease": Rule(_CALLS, "own", changes=True),
        "LeaseService/KeepAlive": Rule(_CALLS, changes=True),
        "LeaseService/ResolveLeased": Rule(_CALLS, "own"),
        "LeaseService/ListLeases": Rule(_LISTS, "filter"),
    }.items()
}

HEALTH: Final = "/grpc.health.v1.Health/"
"""Open to all senders, so that an orchestrator needs no credential."""

_REFLECTION: Final = "/grpc.reflection."


def find_rule(method: str) -> Rule | None:
    """Return the rule of an RPC, or None if it has none."""
    rule = RULES.get(method)
    if rule is None and method.startswith(_REFLECTION):
        return Rule(_ANY)
    return rule


def authorize(principal: Principal, method: str) -> Rule:
    """Return the rule of an RPC; raises a PERMISSION_DENIED `Fault` if it forbids the RPC."""
    rule = find_rule(method)
    name = method.rpartition("/")[2]
    if rule is None:
        raise Fault(Reason.PERMISSION_DENIED, f"{name} is not allowed for any role.")
    principal.check_roles(rule.roles, name)
    return rule


def scope_request(principal: Principal, rule: Rule, request: Any) -> None:
    """Set a request's tenant and agent to those of the credential.

    Raises:
        Fault: PERMISSION_DENIED: the request names another tenant.
    """
    target = getattr(request, "call", request)
    if rule.tenant in ("own", "filter") and principal.tenant is not None:
        target.tenant = principal.tenant_for(target.tenant)
    if principal.agent is not None and hasattr(target, "client"):
        target.client.agent = principal.agent
