"""`leaseway problems --watch`: each problem as it is opened, changes or is cleared."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final, Literal, NamedTuple

import click

from leaseway.cli.connection import ask
from leaseway.cli.options import Connection
from leaseway.cli.output import plain

if TYPE_CHECKING:
    from leaseway.sdk import AsyncClient, ProblemInfo

__all__ = ["Change", "changes", "watch_problems"]

_EVERY: Final = 1.0
"""Seconds between two looks at the problems."""


class _Identity(NamedTuple):
    scope: str
    server_id: str
    tenant: str
    worker: str
    reason: str
    first_seen: datetime | None


class Change(NamedTuple):
    """What has become of a problem; a cleared one is told as it last was."""

    event: Literal["opened", "changed", "cleared"]
    problem: ProblemInfo


def changes(before: Iterable[ProblemInfo], after: Iterable[ProblemInfo]) -> Iterator[Change]:
    """Tell two looks at the problems apart: the cleared first, then the rest, oldest first.

    One that was cleared and is back by the second look is told as cleared and opened. Two that
    differ in their words only, such as those of two tools, are kept apart by them.
    """
    old, new = _grouped(before), _grouped(after)
    cleared: list[Change] = []
    rest: list[Change] = []
    for identity in {**old, **new}:
        gone, come = old.get(identity, {}), new.get(identity, {})
        same = gone.keys() & come.keys()
        rest += [Change("changed", come[text]) for text in same if come[text] != gone[text]]
        gone_for_good = [problem for text, problem in gone.items() if text not in same]
        arrived = [problem for text, problem in come.items() if text not in same]
        reworded = min(len(gone_for_good), len(arrived))
        rest += [Change("changed", problem) for problem in arrived[:reworded]]
        rest += [Change("opened", problem) for problem in arrived[reworded:]]
        cleared += [Change("cleared", problem) for problem in gone_for_good[reworded:]]
    yield from cleared
    yield from sorted(rest, key=_age)


def watch_problems(connection: Connection, *, as_json: bool) -> None:
    """Print the open problems, then every change, until the user interrupts.

    A control plane that goes away after the first answer is waited for.

    Raises:
        CliFailure: It could not be reached at first, or refused.

    """
    try:
        ask(connection, lambda client: _watch(client, as_json=as_json))
    except KeyboardInterrupt:
        return  # how a watch ends


async def _watch(client: AsyncClient, *, as_json: bool) -> None:
    known: Sequence[ProblemInfo] = ()
    found: Sequence[ProblemInfo] | None = await client.problems()
    told = False
    while True:
        if found is not None:
            for change in changes(known, found):
                click.echo(_json_line(change) if as_json else _text_line(change))
            known, told = found, False
        elif not told:
            told = True
            click.echo("leaseway: The control plane is unreachable; waiting for it.", err=True)
        await asyncio.sleep(_EVERY)
        found = await _look_again(client)


async def _look_again(client: AsyncClient) -> Sequence[ProblemInfo] | None:
    from leaseway.sdk import ControlPlaneUnavailable

    try:
        return await client.problems()
    except ControlPlaneUnavailable:
        return None


def _grouped(problems: Iterable[ProblemInfo]) -> dict[_Identity, dict[str, ProblemInfo]]:
    """Return problems by what does not change while they are open, then by their words."""
    groups: dict[_Identity, dict[str, ProblemInfo]] = {}
    for problem in problems:
        identity = _Identity(
            problem.scope,
            problem.server_id,
            problem.tenant,
            problem.worker,
            problem.reason,
            problem.first_seen,
        )
        groups.setdefault(identity, {})[problem.message] = problem
    return groups


def _age(change: Change) -> tuple[datetime, str]:
    first_seen = change.problem.first_seen or datetime.min.replace(tzinfo=UTC)
    return first_seen, change.problem.message


def _json_line(change: Change) -> str:
    return json.dumps({"event": change.event, **plain(change.problem)}, ensure_ascii=False)


def _text_line(change: Change) -> str:
    problem = change.problem
    seen = problem.last_seen.isoformat(timespec="seconds") if problem.last_seen else "-"
    where = [
        f"{kind} {name}"
        for kind, name in (
            ("server", problem.server_id),
            ("tenant", problem.tenant),
            ("worker", problem.worker),
        )
        if name
    ]
    counted = f" ({problem.count} times)" if problem.count > 1 else ""
    place = ", ".join(where) or problem.scope
    message = " ".join(problem.message.split())
    return f"{seen} {change.event} {problem.severity} {problem.reason}{counted} {place}: {message}"
