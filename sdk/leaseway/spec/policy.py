"""What callers may do with one server: grants, limits, risks and rules, as they travel with a spec.

The control plane decides all of it when it reads the configuration; workers apply it, and so do
lists. Pure; the conversions are in `protobuf`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Literal

from leaseway.spec.name_filters import NO_FILTER, NameFilter, passes
from leaseway.spec.permissions import EVERYTHING, Permissions

Risk = Literal["read_only", "mutating", "external", "financial"]
RISKS: Final[tuple[Risk, ...]] = ("read_only", "mutating", "external", "financial")

OTHERS: Final = "*"
"""The tenant of `tenants:` that stands for all that are not named there."""


@dataclass(frozen=True)
class Rate:
    """So many calls in so many seconds; as many may come at once."""

    calls: int
    seconds: float


@dataclass(frozen=True)
class ArgumentRule:
    """A CEL expression; where it is true of a call, the call is denied.

    Attributes:
        expression: Over `tool`, `tenant`, `agent`, `session` and `args`.
        tools: Patterns over original names; none means every tool.
    """

    expression: str
    tools: tuple[str, ...] = ()

    def applies_to(self, tool: str) -> bool:
        return not self.tools or passes(tool, self.tools, ())


@dataclass(frozen=True)
class Grant:
    """What one tenant may use of a server.

    Attributes:
        tools: Which tools, by original names.
        agents: For agents with grants of their own: which of those tools; an agent that is
            configured without this server maps to None.
        permissions: What the tenant's calls may do, within the server's own permissions.
    """

    tools: NameFilter = NO_FILTER
    agents: Mapping[str, NameFilter | None] = field(default_factory=dict)
    permissions: Permissions = EVERYTHING


@dataclass(frozen=True)
class TenantLimits:
    """How much one tenant may use of each worker; None is as much as there is.

    Attributes:
        weight: How many turns its calls have, where calls wait for one another.
    """

    calls: Rate | None = None
    concurrent: int | None = None
    leases: int | None = None
    artifact_bytes: int | None = None
    weight: int = 1


@dataclass(frozen=True)
class ServerPolicy:
    """All of it for one server.

    Attributes:
        grants: What each tenant may use; None means that everybody may use everything.
        limits: Of tenants, with `OTHERS` for those that are not named.
        risks: (pattern over original names, risk); the first that matches decides.
        rate: Calls of external tools, for each tenant by itself.
        rules: What is denied.
        permissions: What tools may do and which paths they may name.
    """

    grants: Mapping[str, Grant] | None = None
    limits: Mapping[str, TenantLimits] = field(default_factory=dict)
    risks: tuple[tuple[str, Risk], ...] = ()
    rate: Rate | None = None
    rules: tuple[ArgumentRule, ...] = ()
    permissions: Permissions = EVERYTHING

    def __bool__(self) -> bool:
        return self != NO_POLICY

    def is_visible(self, tenant: str, agent: str = "") -> bool:
        grant = self._grant(tenant)
        return grant is not None and grant.agents.get(agent, NO_FILTER) is not None

    def allows(self, tenant: str, agent: str, tool: str) -> bool:
        """Return whether a tool, by its original name, exists for a caller."""
        grant = self._grant(tenant)
        if grant is None or not grant.tools.passes(tool):
            return False
        narrower = grant.agents.get(agent, NO_FILTER)
        return narrower is not None and narrower.passes(tool)

    def permissions_of(self, tenant: str) -> Permissions:
        """Return what a tenant's own grant lets its calls do."""
        grant = self._grant(tenant)
        return grant.permissions if grant is not None else EVERYTHING

    def limits_of(self, tenant: str) -> TenantLimits | None:
        return self.limits.get(tenant) or self.limits.get(OTHERS)

    def weight_of(self, tenant: str) -> int:
        limits = self.limits_of(tenant)
        return limits.weight if limits is not None else 1

    def risk_of(self, tool: str, annotations: Mapping[str, Any]) -> Risk:
        """Return the risk of a tool: as configured, else as its own annotations say.

        What says nothing about itself may change something.
        """
        for pattern, risk in self.risks:
            if passes(tool, (pattern,), ()):
                return risk
        if annotations.get("openWorldHint") is True:
            return "external"
        return "read_only" if annotations.get("readOnlyHint") is True else "mutating"

    def _grant(self, tenant: str) -> Grant | None:
        if self.grants is None:
            return _EVERYTHING
        grant = self.grants.get(tenant)
        return grant if grant is not None else self.grants.get(OTHERS)


_EVERYTHING: Final = Grant()
NO_POLICY: Final = ServerPolicy()
"""Everybody may do everything."""
