"""`leaseway problems --watch`: each problem as it is opened, changes or is cleared."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Literal, NamedTuple

from leaseway.cli.commands.operating.watch import watch
from leaseway.cli.options.common import Connection
from leaseway.cli.output.tables import json_line, one_line, plain

if TYPE_CHECKING:
    from leaseway.sdk import ProblemInfo


class _Identity(NamedTuple):
    scope: str
    server_id: str
    tenant: str
    worker: str
    reason: str
    subject: str
    first_seen: datetime | None


class Change(NamedTuple):
    """What has become of a problem; a cleared one is told as it last was."""

    event: Literal["opened", "changed", "cleared"]
    problem: ProblemInfo


def changes(before: Iterable[ProblemInfo], after: Iterable[ProblemInfo]) -> Iterator[Change]:
    """Tell two looks at the problems apart: the cleared first, then the rest, oldest first.

    One that was cleared and is back by the second look is told as cleared and opened.
    """
    old, new = _by_identity(before), _by_identity(after)
    yield from (Change("cleared", problem) for each, problem in old.items() if each not in new)
    rest = [
        Change("changed" if each in old else "opened", problem)
        for each, problem in new.items()
        if old.get(each) != problem
    ]
    yield from sorted(rest, key=_age)


def watch_problems(connection: Connection, *, as_json: bool) -> None:
    """Print the open problems, then every change, until the user interrupts.

    Raises:
        CliFailure: The control plane could not be reached at first, or refused.
    """

    def tell(before: Sequence[ProblemInfo], after: Sequence[ProblemInfo]) -> Iterator[str]:
        for change in changes(before, after):
            yield _json_line(change) if as_json else _text_line(change)

    watch(connection, lambda client: client.problems(), tell, "No problems.")


def _by_identity(problems: Iterable[ProblemInfo]) -> dict[_Identity, ProblemInfo]:
    """Return problems by what does not change while they are open."""
    return {
        _Identity(
            problem.scope,
            problem.server_id,
            problem.tenant,
            problem.worker,
            problem.reason,
            problem.subject,
            problem.first_seen,
        ): problem
        for problem in problems
    }


def _age(change: Change) -> tuple[datetime, str]:
    first_seen = change.problem.first_seen or datetime.min.replace(tzinfo=UTC)
    return first_seen, change.problem.message


def _json_line(change: Change) -> str:
    return json_line({"event": change.event, **plain(change.problem)})


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
    message = " ".join(one_line(problem.message).split())
    return f"{seen} {change.event} {problem.severity} {problem.reason}{counted} {place}: {message}"
