"""The instances of servers, in a few words and one by one: `servers`, `servers --instances`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from leaseway.sdk import InstanceInfo, ServerInfo

__all__ = ["HEADERS", "rows", "summary"]

HEADERS: Final = (
    "SERVER",
    "WORKER",
    "INSTANCE",
    "ROLE",
    "STATE",
    "PID",
    "LEASE",
    "STARTS",
    "FAILURES",
    "CIRCUIT",
    "NEXT START",
)


def summary(instances: Sequence[InstanceInfo], now: datetime) -> str:
    """Return how many instances of a server there are, by what they do, and what is awaited."""
    counts = Counter(_word(one) for one in instances if one.state != "backoff")
    words = [f"{count} {word}" for word, count in counts.items()]
    words += [
        f"backoff on {one.worker} ({_failures(one.failures)}, {_next_start(one, now)})"
        for one in instances
        if one.state == "backoff"
    ]
    return ", ".join(words)


def _word(one: InstanceInfo) -> str:
    return one.role if one.state == "ready" and one.role in ("leased", "spare") else one.state


def _failures(count: int) -> str:
    return "1 failure" if count == 1 else f"{count} failures in a row"


def _next_start(one: InstanceInfo, now: datetime) -> str:
    wait = (one.next_start_at - now).total_seconds() if one.next_start_at is not None else 0.0
    return f"next try in {wait:.1f} s" if wait > 0 else "next try when it is needed"


def rows(servers: Sequence[ServerInfo], now: datetime) -> list[tuple[object, ...]]:
    """Return a row for each instance of each server."""
    return [
        (
            server.id,
            one.worker,
            one.id,
            one.role,
            one.state,
            one.pid,
            one.lease_id,
            one.starts,
            one.failures,
            one.circuit,
            _next_start(one, now) if one.next_start_at is not None else None,
        )
        for server in servers
        for one in server.instances
    ]
