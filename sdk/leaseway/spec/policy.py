"""The policy of one server: permissions, grants, limits, risks and rules, as part of its spec.

The control plane compiles it from the configuration; workers and listings apply it. Workers judge
each call by its permissions (`data_plane/core/tools/paths.py`). They cannot check a path inside a
text, the target of a link, or what a tool reads below a permitted folder; a sandbox can. Pure;
`codec` converts it.
"""

from __future__ import annotations

import functools
import posixpath
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Literal, get_args

from leaseway.spec.filters.names import NO_FILTER, NameFilter, passes
from leaseway.spec.filters.uris import spellings
from leaseway.spec.keys import Flag, Key, OwnReader, Size, Whole, declared, keys_of, setting

Risk = Literal["read_only", "mutating", "external", "financial"]
RISKS: Final[tuple[Risk, ...]] = get_args(Risk)

MAX_CALLS: Final = 1_000_000_000
MAX_ARTIFACT_BYTES: Final = 1 << 40
"""The highest limits of a tenant."""

OTHER_TENANTS: Final = "*"
"""The key of `tenants:` for all tenants without an entry."""


@dataclass(frozen=True)
class Permissions:
    """What tools of a server may do.

    Attributes:
        read: Whether read-only tools may run.
        write: Whether other tools may run.
        allowed_paths: Allowed paths and everything below them, or None for all. Relative ones start
            at the server's working directory.
        denied_paths: Denied paths and everything below them; a relative one at any depth.
    """

    read: bool = setting(True, Key(Flag(), "Whether read-only tools may run."))
    write: bool = setting(True, Key(Flag(), "Whether other tools may run."))
    allowed_paths: tuple[str, ...] | None = setting(
        None, Key(OwnReader(), "Allowed paths and everything below them.")
    )
    denied_paths: tuple[str, ...] = setting(
        (), Key(OwnReader(), "Denied paths and everything below them.")
    )

    @property
    def names_paths(self) -> bool:
        return self.allowed_paths is not None or bool(self.denied_paths)


EVERYTHING: Final = Permissions()


def folders(permissions: Permissions, base: str) -> tuple[str, ...]:
    """Return the allowed paths as absolute paths, without relative ones if the base is unknown.

    Args:
        permissions: The server's permissions.
        base: The folder that relative paths start from; empty if unknown.
    """
    allowed = (_absolute(path, base) for path in permissions.allowed_paths or ())
    return tuple(dict.fromkeys(path for path in allowed if path))


def _absolute(path: str, base: str) -> str:
    if path.startswith("/"):
        return posixpath.normpath(path)
    return posixpath.normpath(posixpath.join(base, path)) if base else ""


@dataclass(frozen=True)
class Rate:
    """A number of calls in a period of seconds; all of them may arrive at once."""

    calls: int
    seconds: float


@dataclass(frozen=True)
class ArgumentRule:
    """A CEL expression that denies the calls for which it is true.

    Attributes:
        expression: Over `method`, `tool`, `tenant`, `agent`, `session` and `args`.
        tools: Patterns over original names of tools and prompts, and over URIs; none means every
            request.
    """

    expression: str = field(
        metadata=declared(
            Key(OwnReader(), "The expression (CEL), true for denied calls.", "deny", required=True)
        )
    )
    tools: tuple[str, ...] = setting(
        (), Key(OwnReader(), "Patterns of the names that it holds for.", default="all")
    )

    def applies_to(self, name: str) -> bool:
        """Return whether it holds for a tool, a prompt or a reading of a URI."""
        return not self.tools or passes(name, self._patterns, ())

    @functools.cached_property
    def _patterns(self) -> tuple[str, ...]:
        uris = [pattern for pattern in self.tools if ":" in pattern]
        return (*self.tools, *spellings(uris)) if uris else self.tools


@dataclass(frozen=True)
class Grant:
    """What one tenant may use of a server.

    Attributes:
        tools: The permitted tools, by original name.
        agents: The permitted tools of single agents, within `tools`; None means that the agent may
            not use this server.
        permissions: Restrictions on the tenant's calls, besides the server's permissions.
    """

    tools: NameFilter = NO_FILTER
    agents: Mapping[str, NameFilter | None] = field(default_factory=dict)
    permissions: Permissions = EVERYTHING


@dataclass(frozen=True)
class CallLimits:
    """Limits of calls, which hold over all workers; None means unlimited."""

    calls: Rate | None = setting(None, Key(OwnReader(), "Calls in a time, such as `60/m`."))
    concurrent: int | None = setting(None, Key(Whole(1, MAX_CALLS), "Calls at once."))


UNLIMITED: Final = CallLimits()


@dataclass(frozen=True)
class TenantLimits(CallLimits):
    """Limits of one tenant; None means unlimited.

    Those of calls and leases hold over all workers, that of artifacts on each worker.

    Attributes:
        weight: The tenant's share of turns when calls wait for an instance.
    """

    leases: int | None = setting(None, Key(Whole(1, MAX_CALLS), "Leases at once."))
    artifact_bytes: int | None = setting(
        None, Key(Size(1, MAX_ARTIFACT_BYTES), "Bytes of stored media.")
    )
    weight: int = setting(1, Key(Whole(1, 1_000), "Its share of turns when calls wait."))


@dataclass(frozen=True)
class Quota(CallLimits):
    """What all callers of a server together may use, over all workers; None means unlimited.

    Attributes:
        tools: (pattern over original names, limits of each tool that matches), the narrowest
            first; the first match applies.
    """

    leases: int | None = setting(None, Key(Whole(1, MAX_CALLS), "Leases at once."))
    tools: tuple[tuple[str, CallLimits], ...] = setting(
        (),
        Key(
            OwnReader(),
            "Limits of each tool, by patterns of original names; the narrowest match counts.",
            inside=tuple(keys_of(CallLimits)),
        ),
    )

    def of_tool(self, tool: str) -> CallLimits:
        """Return the limits of a tool, by its original name."""
        return next((limits for name, limits in self.tools if passes(tool, (name,), ())), UNLIMITED)


@dataclass(frozen=True)
class ServerPolicy:
    """The policy of one server.

    Attributes:
        grants: Grants by tenant, with `OTHER_TENANTS` for tenants without an entry; None means that
            every tenant may use everything.
        limits: Limits by tenant, with `OTHER_TENANTS` for tenants without an entry.
        agent_limits: Limits of single agents, by tenant as in `limits`.
        quota: The limits of all callers together.
        risks: (pattern over original names, risk), the narrowest first; the first match applies.
        rate: The rate of calls of external tools, for each tenant separately.
    """

    grants: Mapping[str, Grant] | None = None
    limits: Mapping[str, TenantLimits] = field(default_factory=dict)
    agent_limits: Mapping[str, Mapping[str, CallLimits]] = field(default_factory=dict)
    quota: Quota = setting(
        Quota(),
        Key(
            OwnReader(),
            "What all callers together may use, over all workers: see"
            " [identity](identity.md#limits).",
            default="unlimited",
            # The variants of a server share it.
            domain="never_set",
            inside=tuple(keys_of(Quota)),
        ),
    )
    risks: tuple[tuple[str, Risk], ...] = setting(
        (),
        Key(
            OwnReader(),
            "The risk of tools, by patterns of original names: see"
            " [identity](identity.md#rules-on-calls).",
            name="risk",
            default="by annotations",
        ),
    )
    rate: Rate | None = setting(
        None,
        Key(
            OwnReader(),
            "Calls of external tools in a time, for each tenant, such as `60/m`: see"
            " [identity](identity.md#rules-on-calls).",
            name="rate_limit",
            default="unlimited",
        ),
    )
    rules: tuple[ArgumentRule, ...] = setting(
        (),
        Key(
            OwnReader(),
            "Rules that deny calls because of their arguments: see"
            " [identity](identity.md#rules-on-calls).",
            inside=tuple(keys_of(ArgumentRule)),
        ),
    )
    permissions: Permissions = setting(
        EVERYTHING,
        Key(
            OwnReader(),
            "Whether tools may `read` or `write`, and `allowed_paths`, `denied_paths`: see"
            " [identity](identity.md#permissions-reading-writing-and-paths).",
            default="everything",
            inside=tuple(keys_of(Permissions)),
        ),
    )

    def __bool__(self) -> bool:
        return self != NO_POLICY

    def is_visible(self, tenant: str, agent: str = "") -> bool:
        grant = self._grant(tenant)
        return grant is not None and grant.agents.get(agent, NO_FILTER) is not None

    def allows(self, tenant: str, agent: str, tool: str) -> bool:
        """Return whether a caller may use a tool, by its original name."""
        grant = self._grant(tenant)
        if grant is None or not grant.tools.passes(tool):
            return False
        agent_filter = grant.agents.get(agent, NO_FILTER)
        return agent_filter is not None and agent_filter.passes(tool)

    def allows_all(self, tenant: str, agent: str) -> bool:
        """Return whether a caller may use a whole server, so also its prompts and resources."""
        grant = self._grant(tenant)
        if grant is None or grant.tools:
            return False
        agent_filter = grant.agents.get(agent, NO_FILTER)
        return agent_filter is not None and not agent_filter

    def permissions_of(self, tenant: str) -> Permissions:
        """Return the permissions of a tenant's grant."""
        grant = self._grant(tenant)
        return grant.permissions if grant is not None else EVERYTHING

    def tenant_entry(self, tenant: str) -> str:
        """Return the name of the entry with the limits of a tenant or its agents, or `*`."""
        is_named = tenant in self.limits or tenant in self.agent_limits
        return tenant if is_named else OTHER_TENANTS

    def limits_of(self, tenant: str) -> TenantLimits | None:
        return self.limits.get(tenant) or self.limits.get(OTHER_TENANTS)

    def limits_of_agent(self, tenant: str, agent: str) -> CallLimits:
        """Return the limits of a tenant's agent besides those of the tenant."""
        of_tenant = self.agent_limits.get(tenant) or self.agent_limits.get(OTHER_TENANTS) or {}
        return of_tenant.get(agent, UNLIMITED)

    def leases_of(self, tenant: str) -> int | None:
        """Return a tenant's limit of leases, or None."""
        limits = self.limits_of(tenant)
        return limits.leases if limits is not None else None

    def weight_of(self, tenant: str) -> int:
        limits = self.limits_of(tenant)
        return limits.weight if limits is not None else 1

    def risk_of(self, tool: str, annotations: Mapping[str, Any]) -> Risk:
        """Return the configured risk of a tool, or the risk by its annotations.

        A tool without annotations may change something.
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
        grant = self.grants.get(tenant, self.grants.get(OTHER_TENANTS))
        return grant if grant != NO_GRANT else None


_EVERYTHING: Final = Grant()
NO_GRANT: Final = Grant(NameFilter(blacklist=("*",)))
"""What a tenant with an entry has of a server that only tenants without one may use.

It denies every call also to a worker that does not know it.
"""
NO_POLICY: Final = ServerPolicy()
"""No restrictions."""
