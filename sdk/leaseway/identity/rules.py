"""Which RPC wants which role, and whose tenant it is about: one row for each RPC.

A test makes the list of RPCs from the service descriptors, so that a new one without a row fails;
at run time an RPC without a row is refused.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal

from leaseway.identity.principal import SEES_ALL, Principal, Role
from leaseway.wire.errors import Fault, Reason

Scope = Literal["own", "filter", "calls", "none"]
"""What an RPC does with the tenant that it names: `own` is about it, `filter` is about all where it
names none and its caller may see all, `calls` names one in each frame, `none` has none."""

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
    """Who may send an RPC, and how its tenant is checked.

    Attributes:
        roles: Any of them may.
        tenant: What it does with the tenant that it names.
        changes: Whether it may change something: calls, grants and ends leases, steers, reports.
    """

    roles: frozenset[Role]
    tenant: Scope = "none"
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
"""Answers everybody, so that an orchestrator needs no credential."""

_REFLECTION: Final = "/grpc.reflection."


def rule_of(method: str) -> Rule | None:
    """Return the row of an RPC; None for one that is not in the table."""
    rule = RULES.get(method)
    if rule is None and method.startswith(_REFLECTION):
        return Rule(_ANY)
    return rule


def authorize(who: Principal, method: str) -> Rule:
    """Return the row of an RPC that a caller may send.

    Raises:
        Fault: PERMISSION_DENIED.
    """
    rule = rule_of(method)
    if rule is None or not who.has(rule.roles):
        wanted = " or ".join(sorted(rule.roles)) if rule is not None else "any"
        raise Fault(
            Reason.PERMISSION_DENIED,
            f"{method.rpartition('/')[2]} is for the role {wanted}; this credential ({who.name}) "
            f"has {', '.join(sorted(who.roles))}.",
        )
    return rule


def scope_request(who: Principal, rule: Rule, request: Any) -> None:
    """Set the tenant and the agent of a request to what its sender's credential says.

    Raises:
        Fault: PERMISSION_DENIED: it names another tenant.
    """
    if rule.tenant in ("own", "filter") and who.tenant is not None:
        target = getattr(request, "call", request)
        target.tenant = who.tenant_for(target.tenant)
    if who.agent is not None:
        target = getattr(request, "call", request)
        if hasattr(target, "client"):
            target.client.agent = who.agent
