"""From what `tenants:` says to the policy of each server. Pure."""

from __future__ import annotations

from dataclasses import replace

from leaseway.control_plane.config.schema.policy import TenantConfig, Tenants
from leaseway.spec.model import ServerSpec
from leaseway.spec.name_filters import NO_FILTER, NameFilter
from leaseway.spec.permissions import EVERYTHING
from leaseway.spec.policy import Grant


def with_grants(spec: ServerSpec, tenants: Tenants | None) -> ServerSpec:
    """Return a spec with what each tenant may use of it; without `tenants:` it stays as it is."""
    if tenants is None:
        return spec
    server_id = spec.key.server_id
    grants = {
        tenant: grant
        for tenant, config in tenants.items()
        if (grant := _grant(server_id, config)) is not None
    }
    limits = {name: each.limits for name, each in tenants.items() if each.limits is not None}
    return replace(spec, policy=replace(spec.policy, grants=grants, limits=limits))


def _grant(server_id: str, config: TenantConfig) -> Grant | None:
    tools = _tools(server_id, config)
    if tools is None:
        return None
    agents = {name: _tools(server_id, each) for name, each in config.agents.items()}
    granted = (config.servers or {}).get(server_id)
    return Grant(tools, agents, granted.permissions if granted is not None else EVERYTHING)


def _tools(server_id: str, config: TenantConfig) -> NameFilter | None:
    if config.servers is None:
        return NO_FILTER
    granted = config.servers.get(server_id)
    return granted.tools if granted is not None else None


def unknown_grants(tenants: Tenants, server_ids: frozenset[str]) -> list[tuple[str, str]]:
    """Return (place, server id) of each grant of a server that nobody declares."""
    found = []
    for name, tenant in tenants.items():
        places = {f"tenants.{name}.servers": tenant}
        places |= {f"tenants.{name}.agents.{a}.servers": c for a, c in tenant.agents.items()}
        for place, config in places.items():
            ids = config.servers or {}
            found += [(place, each) for each in ids if each not in server_ids]
    return found
