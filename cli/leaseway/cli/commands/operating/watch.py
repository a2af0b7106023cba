"""`leaseway leases --watch` and `problems --watch`: poll, and print each change."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from operator import methodcaller
from typing import TYPE_CHECKING, Final, Literal, NamedTuple, TypeVar

from leaseway.cli.options.common import ConnectionOptions
from leaseway.cli.options.connection import with_client
from leaseway.cli.output.tables import json_line, one_line, plain, say
from leaseway.wire.names import DEFAULT_TENANT

if TYPE_CHECKING:
    from leaseway.sdk import AsyncClient, LeaseInfo, ProblemInfo

T = TypeVar("T")

_POLL: Final = 1.0
"""Seconds between polls."""
_SETTLING_POLL: Final = 0.2
"""Seconds between polls of a control plane that still collects its workers' leases."""


class LeaseChange(NamedTuple):
    """A change of a lease, and the lease; for an ended lease, its last known state.

    Attributes:
        event: `gained`, `changed`, or how it ended: `released`, `revoked`, `expired` or `lost`.
    """

    event: str
    lease: LeaseInfo


class ProblemChange(NamedTuple):
    """A change of a problem, and the problem; for a cleared problem, its last known state."""

    event: Literal["opened", "changed", "cleared"]
    problem: ProblemInfo


class _ProblemKey(NamedTuple):
    """The fields that stay the same while a problem is open."""

    scope: str
    server_id: str
    tenant: str
    worker: str
    reason: str
    subject: str
    first_seen: datetime | None


def lease_changes(
    before: Iterable[LeaseInfo], after: Iterable[LeaseInfo], ends: Mapping[str, str]
) -> Iterator[LeaseChange]:
    """Compare two lists of leases. Ended leases come first, then the others, oldest first.

    A greater age is not a change.

    Args:
        before: The earlier list.
        after: The later list.
        ends: How leases ended, by lease id; other missing leases are `lost`.
    """
    old, new = ({lease.id: lease for lease in leases} for leases in (before, after))
    for lease_id in old.keys() - new.keys():
        yield LeaseChange(ends.get(lease_id, "lost"), old[lease_id])
    for lease in sorted(new.values(), key=lambda lease: (-lease.age, lease.id)):
        previous = old.get(lease.id)
        if previous is None:
            yield LeaseChange("gained", lease)
        elif replace(previous, age=lease.age) != lease:
            yield LeaseChange("changed", lease)


def problem_changes(
    before: Iterable[ProblemInfo], after: Iterable[ProblemInfo]
) -> Iterator[ProblemChange]:
    """Compare two lists of problems. Cleared problems come first, then the others, oldest first.

    A problem that was cleared and opened again in between is yielded as both.
    """
    old, new = (
        {_problem_key(problem): problem for problem in problems} for problems in (before, after)
    )
    yield from (ProblemChange("cleared", old[key]) for key in old if key not in new)
    rest = [
        ProblemChange("changed" if key in old else "opened", problem)
        for key, problem in new.items()
        if old.get(key) != problem
    ]
    yield from sorted(rest, key=_age_order)


def watch_leases(connection: ConnectionOptions, *, as_json: bool) -> None:
    """Print the held leases, then every change, until the user interrupts.

    Raises:
        CliFailure: The first request failed, or a later one was rejected.
    """
    ends: dict[str, str] = {}

    async def poll(client: AsyncClient) -> Sequence[LeaseInfo]:
        leases = await _settled_leases(client)
        ends.clear()
        ends.update(await client.lease_ends())
        return leases

    def render(before: Sequence[LeaseInfo], after: Sequence[LeaseInfo]) -> Iterator[str]:
        now = datetime.now(UTC).isoformat(timespec="seconds")
        for event, lease in lease_changes(before, after, ends):
            if as_json:
                yield json_line({"event": event, "seen": now, **plain(lease)})
            else:
                yield f"{now} {event} {_lease_text(lease)}"

    _watch(connection, poll, render, "No leases are held.")


def watch_problems(connection: ConnectionOptions, *, as_json: bool) -> None:
    """Print the open problems, then every change, until the user interrupts.

    Raises:
        CliFailure: The first request failed, or a later one was rejected.
    """

    def render(before: Sequence[ProblemInfo], after: Sequence[ProblemInfo]) -> Iterator[str]:
        for event, problem in problem_changes(before, after):
            if as_json:
                yield json_line({"event": event, **plain(problem)})
            else:
                yield _problem_text(event, problem)

    _watch(connection, methodcaller("problems"), render, "No problems.")


def _watch(
    connection: ConnectionOptions,
    poll: Callable[[AsyncClient], Awaitable[Sequence[T]]],
    render: Callable[[Sequence[T], Sequence[T]], Iterable[str]],
    empty: str,
) -> None:
    """Print the current items, then every change, until the user interrupts.

    If the control plane becomes unreachable after the first poll, wait for it.

    Args:
        connection: Which control plane to connect to.
        poll: Fetches the current items.
        render: Returns a line for each difference of two polls; the first is compared to nothing.
        empty: The sentence to print to stderr if there are no items at first.
    """
    try:
        with_client(connection, partial(_print_changes, poll=poll, render=render, empty=empty))
    except KeyboardInterrupt:
        return  # Ctrl-C is the normal end


async def _print_changes(
    client: AsyncClient,
    poll: Callable[[AsyncClient], Awaitable[Sequence[T]]],
    render: Callable[[Sequence[T], Sequence[T]], Iterable[str]],
    empty: str,
) -> None:
    from leaseway.sdk import ControlPlaneUnavailable

    current = await poll(client)
    if not current:
        say(f"leaseway: {empty} Watching until Ctrl-C.", err=True)
    for line in render((), current):
        say(line)
    is_reachable = True
    while True:
        await asyncio.sleep(_POLL)
        try:
            previous, current = current, await poll(client)
        except ControlPlaneUnavailable:
            if is_reachable:
                say("leaseway: The control plane is unreachable; waiting for it.", err=True)
            is_reachable = False
            continue
        is_reachable = True
        for line in render(previous, current):
            say(line)


async def _settled_leases(client: AsyncClient) -> Sequence[LeaseInfo]:
    while True:
        leases = await client.leases()
        # A control plane that has just started does not have all leases yet: none of them is lost.
        if not (await client.status()).settling:
            return leases
        await asyncio.sleep(_SETTLING_POLL)


def _lease_text(lease: LeaseInfo) -> str:
    tenant = "" if lease.tenant == DEFAULT_TENANT else lease.tenant
    user = lease.user or lease.holder
    names = (("tenant", tenant), ("agent", lease.agent), ("user", user))
    owner = [f"{kind} {name}" for kind, name in names if name]
    return (
        f"{lease.id} server {lease.server_id}, session {lease.session}, worker {lease.worker}"
        f"{''.join(f', {name}' for name in owner)} (ttl {lease.ttl:.0f} s, age {lease.age:.0f} s)"
    )


def _problem_key(problem: ProblemInfo) -> _ProblemKey:
    return _ProblemKey(*(getattr(problem, field) for field in _ProblemKey._fields))


def _age_order(change: ProblemChange) -> tuple[datetime, str]:
    first_seen = change.problem.first_seen or datetime.min.replace(tzinfo=UTC)
    return first_seen, change.problem.message


def _problem_text(event: str, problem: ProblemInfo) -> str:
    seen = problem.last_seen.isoformat(timespec="seconds") if problem.last_seen else "-"
    named = (("server", problem.server_id), ("tenant", problem.tenant), ("worker", problem.worker))
    place = ", ".join(f"{kind} {name}" for kind, name in named if name) or problem.scope
    count = f" ({problem.count} times)" if problem.count > 1 else ""
    message = " ".join(one_line(problem.message).split())
    return f"{seen} {event} {problem.severity} {problem.reason}{count} {place}: {message}"
