"""The roles and the tenant check of each RPC.

A test compares the table with the service descriptors. An RPC without a row is rejected.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal, assert_never

from leaseway.identity.principal import SEES_ALL, Principal, Role
from leaseway.wire import bounds
from leaseway.wire.errors import Fault, Reason
from leaseway.wire.messages.decoding import DEFAULT_LIMIT, MessageLimit

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

_CALL: Final = MessageLimit(bounds.MAX_GRPC_RECEIVED, bounds.MAX_CALL_FIELDS)
"""Of a call, whose arguments have limits and an error of their own."""
_SYNC: Final = MessageLimit(bounds.MAX_GRPC_RECEIVED, bounds.MAX_GRPC_RECEIVED)
"""Of a worker, which sends up to 1 MiB and the parts of longer messages."""
_SMALL: Final = MessageLimit(bounds.MAX_OPEN_MESSAGE, bounds.MAX_OPEN_MESSAGE)
"""Of RPCs that are not Leaseway's own: health and reflection."""


@dataclass(frozen=True, slots=True)
class Rule:
    """The authorization of one RPC.

    Attributes:
        roles: The allowed roles.
        tenant: How it uses its tenant field.
        changes: Whether it may change state.
        limit: The limits of a request.
    """

    roles: frozenset[Role]
    tenant: TenantUse = "none"
    changes: bool = False
    limit: MessageLimit = DEFAULT_LIMIT


RULES: Final[Mapping[str, Rule]] = {
    f"/leaseway.v1.{name}": rule
    for name, rule in {
        "CatalogService/ListTools": Rule(_LISTS, "own"),
        "CatalogService/ListPrompts": Rule(_LISTS, "own"),
        "CatalogService/ListResources": Rule(_LISTS, "own"),
        "CatalogService/ListIntroductions": Rule(_LISTS, "own"),
        "CatalogService/ResolveTools": Rule(_LISTS, "own"),
        "CatalogService/WatchTools": Rule(_LISTS, "own"),
        "CatalogService/ListServers": Rule(_LISTS, "own"),
        "PlacementService/Place": Rule(_CALLS, "own", changes=True),
        "PlacementService/FindLease": Rule(_CALLS, "own"),
        "PlacementService/ShareSessionEnds": Rule(_CALLS, "own", changes=True),
        "AdminService/GetStatus": Rule(_LISTS),
        "AdminService/ListWorkers": Rule(_LISTS),
        "AdminService/ListHeldLeases": Rule(_LISTS, "filter"),
        "AdminService/ListLimits": Rule(SEES_ALL, "filter"),
        "AdminService/ListProblems": Rule(SEES_ALL),
        "AdminService/ReportProblem": Rule(_REPORTS, changes=True),
        "AdminService/DrainWorker": Rule(_OPERATES, changes=True),
        "AdminService/RevokeLease": Rule(_OPERATES, changes=True),
        "AdminService/WatchEvents": Rule(SEES_ALL),
        "AdminService/ListCalls": Rule(SEES_ALL),
        "AdminService/GetTraffic": Rule(SEES_ALL),
        "AdminService/ListApprovals": Rule(_SEES_APPROVALS, "filter"),
        "AdminService/DecideApproval": Rule(_APPROVES, "filter", changes=True),
        "AdminService/ListAuditAnchors": Rule(SEES_ALL),
        "SyncService/Sync": Rule(_JOINS, changes=True, limit=_SYNC),
        "ExecutionService/Exchange": Rule(_CALLS, "calls", changes=True),
        "ExecutionService/CallTool": Rule(_CALLS, "own", changes=True, limit=_CALL),
        "ExecutionService/CallToolStreaming": Rule(_CALLS, "own", changes=True, limit=_CALL),
        "ExecutionService/ReadArtifact": Rule(_CALLS, "own"),
        "ExecutionService/ReadLogs": Rule(SEES_ALL, "own"),
        "LeaseService/AcquireLease": Rule(_CALLS, "own", changes=True),
        "LeaseService/ReleaseLease": Rule(_CALLS, "own", changes=True),
        "LeaseService/KeepAlive": Rule(_CALLS, changes=True),
        "LeaseService/ResolveLeased": Rule(_CALLS, "own"),
        "LeaseService/ListLeaseTools": Rule(_CALLS, "own"),
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


def limit_of(method: str) -> MessageLimit:
    """Return the limits of an RPC's request."""
    rule = RULES.get(method)
    return _SMALL if rule is None else rule.limit


def authorize(principal: Principal, method: str) -> Rule:
    """Return the rule of an RPC; raises a PERMISSION_DENIED `Fault` if it forbids the RPC."""
    rule = find_rule(method)
    name = method.rpartition("/")[2]
    if rule is None:
        raise Fault(Reason.PERMISSION_DENIED, f"{name} is not allowed for any role.")
    principal.check_roles(rule.roles, name)
    return rule


def scope_request(principal: Principal, rule: Rule, request: Any) -> None:
    """Set a request's tenant, agent and user to those of the credential.

    Raises:
        Fault: PERMISSION_DENIED: the request names another tenant, or a user that the credential
            does not speak for.
    """
    target = getattr(request, "call", request)
    match rule.tenant:
        case "own" | "filter":
            if principal.tenant is not None:
                target.tenant = principal.tenant_for(target.tenant)
        case "calls" | "none":
            pass  # whoever reads the frames asks for each
        case _:
            assert_never(rule.tenant)
    if not hasattr(target, "client"):
        return
    if principal.agent is not None:
        target.client.agent = principal.agent
    if principal.user is not None or target.client.user:
        target.client.user = principal.user_for(target.client.user)
