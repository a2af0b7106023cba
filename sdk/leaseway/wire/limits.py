"""How much of something one caller may have at once, by connection and by tenant. Pure.

A fault names the bound that was reached in its metadata: `limit` says which one, `scope` whose it
is. The caller reads it there, and a plane counts it as `leaseway.limits.reached`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from typing import Final, Literal

from leaseway.wire.errors import Fault, Reason, Started

Scope = Literal["connection", "tenant", "worker"]
"""Whose bound it is; `worker` is what all callers of a worker share."""

_LIMIT: Final = "limit"
_SCOPE: Final = "scope"


def named(limit: str, scope: Scope) -> dict[str, str]:
    """Return the metadata of a fault for a bound."""
    return {_LIMIT: limit, _SCOPE: scope}


def named_in(metadata: Mapping[str, str]) -> tuple[str, str] | None:
    """Return the limit and the scope that the metadata of a fault name, if they name any.

    A size that a server's answer exceeds is a limit, too, and nobody's: it has no scope.
    """
    limit, scope = metadata.get(_LIMIT), metadata.get(_SCOPE)
    return None if limit is None or scope is None else (limit, scope)


def over_limit(
    limit: str,
    scope: Scope,
    message: str,
    *,
    reason: Reason = Reason.OVERLOADED,
    started: Started = "no",
    retry_delay: float = 1.0,
) -> Fault:
    """Return the fault for a bound that was reached.

    Args:
        limit: Names the bound.
        scope: Whose it is.
        message: What the caller may do.
        reason: Why.
        started: Whether a server may have begun to work.
        retry_delay: Seconds after which another try may succeed.
    """
    return Fault(reason, message, started, named(limit, scope), retry_delay)


class InUse:
    """How many of something each connection and each tenant has.

    Args:
        limit: Names the bound.
        what: What is counted, in the plural, for people.
        of_connection: Returns how many a connection may have.
        of_tenant: Returns how many a tenant may have on all its connections.
        advice: What a caller with too many is told to do.
    """

    def __init__(
        self,
        limit: str,
        what: str,
        of_connection: Callable[[], int],
        of_tenant: Callable[[], int],
        advice: str,
    ) -> None:
        self._limit = limit
        self._what = what
        self._most: dict[Scope, Callable[[], int]] = {
            "connection": of_connection,
            "tenant": of_tenant,
        }
        self._advice = advice
        self._counts: Counter[tuple[Scope, object]] = Counter()

    def take(self, connection: str, tenant: object | None) -> None:
        """Count one more, until it is given back.

        Args:
            connection: The connection that asks, as gRPC names it.
            tenant: Names the tenant, or None where it is not known who asks.

        Raises:
            Fault: OVERLOADED: the connection or the tenant has as many as it may.
        """
        holders = _holders(connection, tenant)
        for scope, who in holders:
            most = self._most[scope]()
            if self._counts[scope, who] >= most:
                raise over_limit(
                    self._limit,
                    scope,
                    f"This {scope} has {most} {self._what}, as many as it may. {self._advice}",
                )
        self._counts.update(holders)

    def give_back(self, connection: str, tenant: object | None) -> None:
        """Count one less."""
        for holder in _holders(connection, tenant):
            self._counts[holder] -= 1
            if not self._counts[holder]:
                del self._counts[holder]


def _holders(connection: str, tenant: object | None) -> list[tuple[Scope, object]]:
    holders: list[tuple[Scope, object]] = [("connection", connection)]
    if tenant is not None:
        holders.append(("tenant", tenant))
    return holders
