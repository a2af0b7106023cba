"""Limits of what one caller may use at once, by connection and by tenant. Pure.

The fault for a reached limit names it in its metadata: `limit` is its name, `scope` its owner, and
`of_tenant`, `of_agent`, `of_server` and `of_tool` the entry of the configuration that sets it. The
caller reads them there, and a plane counts them as `leaseway.limits.reached`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Literal, NamedTuple

from leaseway.wire.errors import Fault, Reason, Started

BudgetScope = Literal["tenant", "agent", "server", "tool"]
"""The owner of a limit that holds over the fleet; a server and a tool stand for all callers."""

LimitScope = Literal["connection", "worker"] | BudgetScope
"""The owner of a limit; `worker` stands for all callers of a worker."""

CallQuota = Literal["calls", "concurrent", "external"]
"""From `limits` of a tenant or agent, `quota` of a server, and `rate_limit` of a server."""


class LimitEntry(NamedTuple):
    """The entry of the configuration that sets a limit. What the entry does not name is empty.

    A caller's own texts are never in it, so that metrics may have a series for each.

    Attributes:
        tenant: The tenant, or `*` for all tenants without an entry.
        agent: The tenant's agent.
        tool: The server's tool, by its original name.
    """

    tenant: str = ""
    agent: str = ""
    server_id: str = ""
    tool: str = ""


NO_ENTRY: Final = LimitEntry()
"""Of bounds that no configuration sets."""


class BudgetKey(NamedTuple):
    """A limit that holds over the fleet: what it counts, and whose.

    Attributes:
        tenant: The tenant; empty for limits of a server or a tool.
        server_id: The server of an external quota, or of a limit of a server or a tool.
        agent: The tenant's agent, of its limits.
        tool: The tool, by its original name, of its limits.
    """

    tenant: str
    quota: CallQuota
    server_id: str = ""
    agent: str = ""
    tool: str = ""

    @property
    def scope(self) -> BudgetScope:
        """Whose limit it is."""
        if self.tenant:
            return "agent" if self.agent else "tenant"
        return "tool" if self.tool else "server"

    @property
    def owner(self) -> str:
        """The owner, for sentences."""
        match self.scope:
            case "tenant":
                return f"tenant {self.tenant}"
            case "agent":
                return f"agent {self.agent} of tenant {self.tenant}"
            case "server":
                return f"server {self.server_id}"
            case "tool":
                return f"tool {self.server_id}:{self.tool}"


@dataclass(frozen=True, slots=True)
class BudgetAsk:
    """A worker's request.

    Attributes:
        limit: The permits of a window, or the slots.
        period: Seconds of a window; 0 means slots.
        needed: Permits for calls that wait.
        expected: Further permits that the worker expects to use soon.
        returned: Slots, or permits of the window, that it returns.
        held: What it has of the window or of the slots, told to a control plane that may not know.
        renews_in: Seconds to the end of the window that `held` or `returned` belongs to.
        leased: What all workers had of the window when this one last got an answer, told to a
            control plane that may not know.
    """

    key: BudgetKey
    limit: int
    period: float
    needed: int = 0
    expected: int = 0
    returned: int = 0
    held: int = 0
    renews_in: float = 0.0
    leased: int = 0


@dataclass(frozen=True, slots=True)
class BudgetGrant:
    """The answer.

    Attributes:
        granted: Permits, at most those that were needed and expected.
        remaining: What is left for all workers.
        renews_in: Seconds to the end of the window; 0 for slots.
        retry_in: Seconds in which to ask for no more; 0 means none.
    """

    key: BudgetKey
    granted: int
    remaining: int
    renews_in: float
    retry_in: float


_LIMIT: Final = "limit"
_SCOPE: Final = "scope"
_ENTRY: Final = ("of_tenant", "of_agent", "of_server", "of_tool")


def limit_metadata(limit: str, scope: LimitScope, entry: LimitEntry = NO_ENTRY) -> dict[str, str]:
    """Return the metadata of a fault for a limit."""
    named = {name: value for name, value in zip(_ENTRY, entry, strict=True) if value}
    return {_LIMIT: limit, _SCOPE: scope, **named}


def reached_limit(metadata: Mapping[str, str]) -> tuple[str, str] | None:
    """Return the limit and the scope in the metadata of a fault, or None.

    The limit of a server's response size has no scope, because it belongs to no caller.
    """
    limit, scope = metadata.get(_LIMIT), metadata.get(_SCOPE)
    return None if limit is None or scope is None else (limit, scope)


def limit_entry(metadata: Mapping[str, str]) -> LimitEntry:
    """Return the entry that sets the limit in the metadata of a fault."""
    return LimitEntry(*(metadata.get(name, "") for name in _ENTRY))


def over_limit(
    limit: str,
    scope: LimitScope,
    message: str,
    *,
    reason: Reason = Reason.OVERLOADED,
    started: Started = "no",
    retry_delay: float = 1.0,
) -> Fault:
    """Return the fault for a reached limit.

    Args:
        limit: The limit's name.
        scope: The limit's owner.
        message: What is wrong, and what the caller can do.
        reason: The fault's reason.
        started: Whether a server may have started to work.
        retry_delay: Seconds after which another try may succeed.
    """
    return Fault(
        reason=reason,
        message=message,
        started=started,
        metadata=limit_metadata(limit, scope),
        retry_delay=retry_delay,
    )


class UsageCounter:
    """Counts what each connection and each tenant uses, and enforces a limit.

    Args:
        limit: The limit's name.
        items: The counted items in the plural, for messages.
        of_tenant: The limit of a tenant, for all its connections.
        advice: What a caller at the limit can do, for messages.
    """

    def __init__(
        self,
        limit: str,
        items: str,
        of_connection: int,
        of_tenant: int,
        advice: str,
    ) -> None:
        self._limit = limit
        self._items = items
        self._limits: dict[LimitScope, int] = {
            "connection": of_connection,
            "tenant": of_tenant,
        }
        self._advice = advice
        self._counts: Counter[tuple[LimitScope, object]] = Counter()

    def acquire(self, connection: str, tenant: object | None) -> None:
        """Count one more item, until it is released.

        Args:
            connection: The caller's connection, as gRPC names it.
            tenant: The caller's tenant, or None if it is unknown.

        Raises:
            Fault: OVERLOADED: the connection or the tenant is at its limit.
        """
        holders = _holders(connection, tenant)
        for scope, owner in holders:
            limit = self._limits[scope]
            if self._counts[scope, owner] >= limit:
                raise over_limit(
                    self._limit,
                    scope,
                    f"This {scope} has {limit} {self._items}, its limit. {self._advice}",
                )
        self._counts.update(holders)

    def release(self, connection: str, tenant: object | None) -> None:
        """Count one item less."""
        for holder in _holders(connection, tenant):
            self._counts[holder] -= 1
            if not self._counts[holder]:
                del self._counts[holder]


def _holders(connection: str, tenant: object | None) -> list[tuple[LimitScope, object]]:
    holders: list[tuple[LimitScope, object]] = [("connection", connection)]
    if tenant is not None:
        holders.append(("tenant", tenant))
    return holders
