"""The grants of `tenants:`: what each tenant may use of a server, and which references. Pure.

A worker resolves references with its own environment, vault and files, which it shares between
tenants. So a domain may only use references that the layer below has in the same server, or that
`secrets` grants.
"""

from __future__ import annotations

import posixpath
from collections.abc import Iterator
from dataclasses import replace
from typing import NamedTuple

from leaseway.control_plane.config.schema.fields import REFERENCE_KINDS
from leaseway.control_plane.config.schema.keys import is_by_name
from leaseway.control_plane.config.schema.policy import TenantConfig, Tenants
from leaseway.control_plane.config.tree.yaml_tree import (
    Items,
    Leaf,
    Position,
    Table,
    TableEntry,
    Tree,
)
from leaseway.spec.filters.names import NO_FILTER, NameFilter, passes
from leaseway.spec.lease_names import NAMES
from leaseway.spec.model import ServerSpec
from leaseway.spec.policy import EVERYTHING, NO_GRANT, OTHER_TENANTS, CallLimits, Grant
from leaseway.spec.references import references


def with_grants(spec: ServerSpec, tenants: Tenants | None) -> ServerSpec:
    """Return a spec with each tenant's grant and limits; unchanged without `tenants:`."""
    if tenants is None:
        return spec
    server_id = spec.key.server_id
    grants = {
        tenant: grant
        for tenant, config in tenants.items()
        if (grant := _grant(server_id, config)) is not None
    }
    if OTHER_TENANTS in grants:  # which are those without an entry
        grants = dict.fromkeys(tenants, NO_GRANT) | grants
    limits = {
        name: settings.limits for name, settings in tenants.items() if settings.limits is not None
    }
    agent_limits = {
        name: of_agents
        for name, settings in tenants.items()
        if (of_agents := _agent_limits(settings))
    }
    policy = replace(spec.policy, grants=grants, limits=limits, agent_limits=agent_limits)
    return replace(spec, policy=policy)


def _agent_limits(config: TenantConfig) -> dict[str, CallLimits]:
    return {
        name: agent.agent_limits
        for name, agent in config.agents.items()
        if agent.agent_limits is not None
    }


def _grant(server_id: str, config: TenantConfig) -> Grant | None:
    tools = _tools(server_id, config)
    if tools is None:
        return None
    agents = {name: _tools(server_id, agent) for name, agent in config.agents.items()}
    granted = (config.servers or {}).get(server_id)
    return Grant(tools, agents, granted.permissions if granted is not None else EVERYTHING)


def _tools(server_id: str, config: TenantConfig) -> NameFilter | None:
    if config.servers is None:
        return NO_FILTER
    granted = config.servers.get(server_id)
    return granted.tools if granted is not None else None


def unknown_grants(tenants: Tenants, server_ids: frozenset[str]) -> list[tuple[str, str]]:
    """Return (key path, server id) of each grant of a server that is not declared."""
    unknown = []
    for name, tenant in tenants.items():
        configs = {f"tenants.{name}.servers": tenant}
        configs |= {f"tenants.{name}.agents.{a}.servers": c for a, c in tenant.agents.items()}
        for path, config in configs.items():
            ids = config.servers or {}
            unknown += [(path, server_id) for server_id in ids if server_id not in server_ids]
    return unknown


class Reference(NamedTuple):
    """A reference in a server's entry."""

    kind: str
    name: str
    at: Position

    @property
    def target(self) -> tuple[str, str]:
        """Equal for references that a worker looks up alike: `env` and `secret` are."""
        return ("file" if self.kind == "file" else "name", self.name)


def references_in(entry: TableEntry) -> Iterator[Reference]:
    """Yield every reference in a server's entry."""
    for member in entry.members:
        if is_by_name(member.name) and isinstance(member.value, Table):
            for value in member.members:  # a variable may have the name `env`
                yield from _references_in(value.value)
        else:
            yield from _references_in(member.value)


def references_not_granted(
    entry: TableEntry, below: TableEntry, tenant: str, tenants: Tenants | None
) -> Iterator[Reference]:
    """Yield the references of a domain's entry that its tenant may not use.

    `below` is the same server's entry in the layer below.
    """
    allowed = {reference.target for reference in references_in(below)}
    patterns = _granted_patterns(tenant, tenants)
    for reference in references_in(entry):
        if reference.target in allowed:
            continue
        path = reference.name
        is_odd_path = reference.kind == "file" and posixpath.normpath(path) != path
        if is_odd_path or not patterns or not passes(reference.name, patterns, ()):
            yield reference


def confined_files(
    entry: TableEntry, below: TableEntry, tenant: str, tenants: Tenants | None
) -> dict[str, tuple[str, ...]]:
    """Return the files that a domain's entry adds, with the patterns that grant each.

    The worker compares what it opens with them: a path that matches may be a link to another
    tenant's file. `below` is the same server's entry in the layer below.
    """
    known = {reference.target for reference in references_in(below)}
    patterns = _granted_patterns(tenant, tenants)
    return {
        reference.name: tuple(
            pattern for pattern in patterns if passes(reference.name, (pattern,), ())
        )
        for reference in references_in(entry)
        if reference.kind == "file" and reference.target not in known
    }


def _granted_patterns(tenant: str, tenants: Tenants | None) -> tuple[str, ...]:
    config = (tenants or {}).get(tenant) or (tenants or {}).get(OTHER_TENANTS)
    return config.secrets if config is not None else ()


def _references_in(tree: Tree) -> Iterator[Reference]:
    match tree:
        case Leaf():
            for name, _ in references(tree.text if isinstance(tree.value, str) else ""):
                if name not in NAMES:  # a tenant's own names are no secrets of others
                    yield Reference("env", name, tree.at)
        case Items():
            for item in tree.items:
                yield from _references_in(item)
        case Table():
            for entry in tree.entries:
                is_reference = len(tree.entries) == 1 and entry.name in REFERENCE_KINDS
                if is_reference and isinstance(entry.value, Leaf):
                    yield Reference(entry.name, entry.value.text, entry.at)
                else:
                    yield from _references_in(entry.value)
