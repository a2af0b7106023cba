"""How `servers` and `servers --instances` show instances: a summary, and a row for each."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Final

from leaseway.wire.messages.states import ServerState, instance_word

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
    """Return a server's number of instances by role or state, and its next starts."""
    counts = Counter(
        instance_word(instance.state, instance.role)
        for instance in server.instances
        if instance.state != "backoff"
    )
    words = [f"{count} {word}" for word, count in counts.items()]
    words += [
        f"backoff on {instance.worker} ({_failures(instance.failures)}, "
        f"{_next_start(instance, now)})"
        for instance in server.instances
        if instance.state == "backoff"
    ]
    if server.failures:
        words.append(f"{_down(server)} ({_failures(server.failures)}, {_next_try(server, now)})")
    return ", ".join(words)


def _down(server: ServerInfo) -> str:
    if server.state in (ServerState.FAILED, ServerState.NEEDS_LOGIN):
        return "not up"
    return "newest configuration not up"


def _failures(count: int) -> str:
    return "1 failure" if count == 1 else f"{count} failures in a row"


def _next_start(instance: InstanceInfo, now: datetime) -> str:
    return _in_seconds(instance.next_start_at, now) or "next try when it is needed"


def _next_try(server: ServerInfo, now: datetime) -> str:
    if server.next_try_at is None:
        return "a try is in progress"
    return _in_seconds(server.next_try_at, now) or "next try when a worker is free"


def _in_seconds(due: datetime | None, now: datetime) -> str:
    wait = (due - now).total_seconds() if due is not None else 0.0
    return f"next try in {wait:.1f} s" if wait > 0 else ""


def rows(servers: Sequence[ServerInfo], now: datetime) -> list[tuple[object, ...]]:
    """Return a row for each instance, and one for each server that failed to start."""
    return [row for server in servers for row in _rows(server, now)]


def _rows(server: ServerInfo, now: datetime) -> Iterator[tuple[object, ...]]:
    for instance in server.instances:
        is_planned = instance.next_start_at is not None
        next_start = _next_start(instance, now) if is_planned else None
        yield (
            server.id,
            instance.worker,
            instance.id,
            instance.role,
            instance.state,
            instance.pid,
            instance.lease_id,
            instance.starts,
            instance.failures,
            instance.circuit,
            next_start,
        )
    if server.failures:
        none = (None,) * 3
        state = _down(server)
        next_try = _next_try(server, now)
        yield (server.id, *none, state, *none, server.failures, None, next_try)
