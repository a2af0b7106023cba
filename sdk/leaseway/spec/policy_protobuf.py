"""Policies to and from protobuf: the border of `leaseway.spec.policy`."""

from __future__ import annotations

from leaseway.spec.name_filters import NameFilter
from leaseway.spec.permissions import EVERYTHING, Permissions
from leaseway.spec.policy import (
    RISKS,
    ArgumentRule,
    Grant,
    Rate,
    Risk,
    ServerPolicy,
    TenantLimits,
)
from leaseway.v1 import spec_pb2


def policy_to_proto(policy: ServerPolicy) -> spec_pb2.ServerPolicy:
    message = spec_pb2.ServerPolicy(
        restricted=policy.grants is not None,
        risks=[spec_pb2.RiskPattern(pattern=name, risk=risk) for name, risk in policy.risks],
        rate=_rate_to_proto(policy.rate),
        rules=[
            spec_pb2.ArgumentRule(expression=rule.expression, tools=rule.tools)
            for rule in policy.rules
        ],
    )
    if policy.permissions != EVERYTHING:
        message.permissions.CopyFrom(_permissions_to_proto(policy.permissions))
    for tenant, grant in (policy.grants or {}).items():
        entry = message.grants[tenant]
        entry.tools.CopyFrom(_filter_to_proto(grant.tools))
        if grant.permissions != EVERYTHING:
            entry.permissions.CopyFrom(_permissions_to_proto(grant.permissions))
        for agent, tools in grant.agents.items():
            if tools is None:
                entry.agents[agent].withheld = True
            else:
                entry.agents[agent].tools.CopyFrom(_filter_to_proto(tools))
    for tenant, limits in policy.limits.items():
        message.limits[tenant].CopyFrom(
            spec_pb2.TenantLimits(
                calls=_rate_to_proto(limits.calls),
                concurrent=limits.concurrent or 0,
                leases=limits.leases or 0,
                artifact_bytes=limits.artifact_bytes or 0,
                weight=limits.weight if limits.weight != 1 else 0,
            )
        )
    return message


def policy_from_proto(message: spec_pb2.ServerPolicy) -> ServerPolicy:
    grants = None
    if message.restricted:
        grants = {tenant: _grant_from_proto(grant) for tenant, grant in message.grants.items()}
    return ServerPolicy(
        grants=grants,
        limits={
            tenant: TenantLimits(
                _rate_from_proto(limits.calls),
                limits.concurrent or None,
                limits.leases or None,
                limits.artifact_bytes or None,
                limits.weight or 1,
            )
            for tenant, limits in message.limits.items()
        },
        risks=tuple((each.pattern, _risk(each.risk)) for each in message.risks),
        rate=_rate_from_proto(message.rate),
        rules=tuple(ArgumentRule(rule.expression, tuple(rule.tools)) for rule in message.rules),
        permissions=_permissions_from_proto(message.permissions),
    )


def _permissions_to_proto(permissions: Permissions) -> spec_pb2.Permissions:
    return spec_pb2.Permissions(
        no_read=not permissions.read,
        no_write=not permissions.write,
        restricted=permissions.allowed_paths is not None,
        allowed_paths=permissions.allowed_paths or (),
        denied_paths=permissions.denied_paths,
    )


def _permissions_from_proto(message: spec_pb2.Permissions) -> Permissions:
    return Permissions(
        read=not message.no_read,
        write=not message.no_write,
        allowed_paths=tuple(message.allowed_paths) if message.restricted else None,
        denied_paths=tuple(message.denied_paths),
    )


def _grant_from_proto(message: spec_pb2.TenantGrant) -> Grant:
    agents = {
        agent: None if grant.withheld else _filter_from_proto(grant.tools)
        for agent, grant in message.agents.items()
    }
    permissions = _permissions_from_proto(message.permissions)
    return Grant(_filter_from_proto(message.tools), agents, permissions)


def _risk(word: str) -> Risk:
    for risk in RISKS:
        if risk == word:
            return risk
    return "financial"  # a newer release's word: the strictest that this one knows


def _filter_to_proto(names: NameFilter) -> spec_pb2.NamePatterns:
    return spec_pb2.NamePatterns(whitelist=names.whitelist, blacklist=names.blacklist)


def _filter_from_proto(message: spec_pb2.NamePatterns) -> NameFilter:
    return NameFilter(tuple(message.whitelist), tuple(message.blacklist))


def _rate_to_proto(rate: Rate | None) -> spec_pb2.CallRate | None:
    return None if rate is None else spec_pb2.CallRate(calls=rate.calls, seconds=rate.seconds)


def _rate_from_proto(message: spec_pb2.CallRate) -> Rate | None:
    return Rate(message.calls, message.seconds) if message.calls and message.seconds > 0 else None
