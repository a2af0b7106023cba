"""The instances of servers, in a few words and one by one: `servers`, `servers --instances`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from leaseway.sdk import InstanceInfo, ServerInfo

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


def summary(server: ServerInfo, now: datetime) -> str:
    """Return how many instances of a server there are, by what they do, and what is awaited."""
    counts = Counter(_word(one) for one in server.instances if one.state != "backoff")
    words = [f"{count} {word}" for word, count in counts.items()]
    words += [
        f"backoff on {one.worker} ({_failures(one.failures)}, {_next_start(one, now)})"
        for one in server.instances
        if one.state == "backoff"
    ]
    if server.failures:
        words.append(f"{_down(server)} ({_failures(server.failures)}, {_next_try(server, now)})")
    return ", ".join(words)


def _word(one: InstanceInfo) -> str:
    return one.role if one.state == "ready" and one.role in ("leased", "spare") else one.state


def _down(server: ServerInfo) -> str:
    return "not up" if server.state == "failed" else "newest configuration not up"


def _failures(count: int) -> str:
    return "1 failure" if count == 1 else f"{count} failures in a row"


def _next_start(one: InstanceInfo, now: datetime) -> str:
    return _in_seconds(one.next_start_at, now) or "next try when it is needed"


def _next_try(server: ServerInfo, now: datetime) -> str:
    if server.next_try_at is None:
        return "being tried now"
    return _in_seconds(server.next_try_at, now) or "next try when a worker is free"


def _in_seconds(due: datetime | None, now: datetime) -> str:
    wait = (due - now).total_seconds() if due is not None else 0.0
    return f"next try in {wait:.1f} s" if wait > 0 else ""


def rows(servers: Sequence[ServerInfo], now: datetime) -> list[tuple[object, ...]]:
    """Return a row for each instance of each server, and one for each that has not come up."""
    return [row for server in servers for row in _rows(server, now)]


def _rows(server: ServerInfo, now: datetime) -> Iterator[tuple[object, ...]]:
    for one in server.instances:
        next_start = _next_start(one, now) if one.next_start_at is not None else None
        yield (
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
            next_start,
        )
    if server.failures:
        none = (None,) * 3
        state = _down(server)
        next_try = _next_try(server, now)
        yield (server.id, *none, state, *none, server.failures, None, next_try)
