"""The table of open problems that operators should know and fix (design.md#vocabulary).

A problem is identified by its place and reason, not by its message: a repeated problem increases a
count. Sources that always know all their problems (the configuration, one server's exposure, one
probe) use `replace`, which closes problems that no longer exist. Times are Unix seconds.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from operator import attrgetter
from typing import Final

from leaseway.wire.messages.states import ProblemScope, Severity

MAX_PROBLEMS: Final = 1_000
"""Limit of open problems in a table, including the one about dropped problems."""

MAX_MESSAGE: Final = 4_096
"""Limit of characters in a message."""

PROBLEMS_DROPPED: Final = "PROBLEMS_DROPPED"
STORE_RECORDS_UNREADABLE: Final = "STORE_RECORDS_UNREADABLE"

ProblemKey = tuple[str, str, str, str, str, str]
"""(scope, server id, tenant, worker id, reason, subject)."""


@dataclass(frozen=True)
class Problem:
    """A problem for an operator; empty fields do not apply.

    Attributes:
        reason: A constant in capitals that programs compare.
        message: What happened and where, in sentences; if callers are not told, also what to do.
        subject: Distinguishes problems with equal place and reason, such as a tool's name.
        advice: What an operator does about what callers are told, or empty.
    """

    scope: ProblemScope
    reason: str
    message: str
    server_id: str = ""
    tenant: str = ""
    worker_id: str = ""
    severity: Severity = "error"
    subject: str = ""
    advice: str = ""

    @property
    def text(self) -> str:
        """All that an operator reads."""
        return f"{self.message} {self.advice}".rstrip()

    @property
    def key(self) -> ProblemKey:
        """Its identity: all fields except message, severity and advice."""
        where = (self.scope, self.server_id, self.tenant, self.worker_id)
        return (*where, self.reason, self.subject)


@dataclass(frozen=True)
class OpenProblem:
    """A problem that has not been closed, with its newest message and how often it was seen."""

    problem: Problem
    first_seen: float
    last_seen: float
    count: int


@dataclass(frozen=True)
class _Entry:
    open: OpenProblem
    owners: frozenset[str]


_REPORTED: Final = ""
_DROPPED_KEY: Final = Problem("workspace", PROBLEMS_DROPPED, "").key


class ProblemTable:
    """The open problems of one control plane, at most `MAX_PROBLEMS`.

    Attributes:
        revision: Increases whenever a problem is opened or closed.
    """

    def __init__(self) -> None:
        self.revision = 0
        # In the order of `last_seen`, oldest first.
        self._entries: dict[ProblemKey, _Entry] = {}

    def report(self, problem: Problem, now: float) -> None:
        """Open a problem, or count it again if it is open."""
        self._see(problem, _REPORTED, now, again=True)

    def clear(
        self,
        *,
        scope: ProblemScope | None = None,
        server_id: str | None = None,
        tenant: str | None = None,
        worker_id: str | None = None,
        reason: str | None = None,
        subject: str | None = None,
    ) -> int:
        """Close the problems that match all given arguments, from any source.

        Returns:
            The number of closed problems.
        """
        wanted = (scope, server_id, tenant, worker_id, reason, subject)
        closed = [
            key
            for key in self._entries
            if all(want in (None, have) for want, have in zip(wanted, key, strict=True))
        ]
        for key in closed:
            self._close(key)
        self._forget_drops()
        return len(closed)

    def replace(
        self,
        owner: str,
        problems: Iterable[Problem],
        now: float,
        *,
        seen_again: bool = False,
    ) -> None:
        """Replace all problems of one source.

        New problems are opened, missing ones closed unless another source also has them, and
        changed messages updated.

        Args:
            owner: The source, such as `config`, `exposure:time` or `probe:time`; not empty.
            problems: Its problems; the first of several with the same key is used.
            now: The time.
            seen_again: Whether unchanged problems count again.
        """
        assert owner, "an empty owner stands for problems from `report`"
        wanted: dict[ProblemKey, Problem] = {}
        for problem in problems:
            wanted.setdefault(problem.key, problem)
        for key, entry in list(self._entries.items()):
            if owner in entry.owners and key not in wanted:
                self._disown(key, entry, owner)
        for problem in wanted.values():
            self._see(problem, owner, now, again=seen_again)
        self._forget_drops()

    def has(self, *, server_id: str, tenant: str, reason: str) -> bool:
        """Return whether a server has an open problem, which is not only one of its parts'."""
        return any(
            (problem.server_id, problem.tenant, problem.reason, problem.subject)
            == (server_id, tenant, reason, "")
            for problem in (entry.open.problem for entry in self._entries.values())
        )

    def open(self) -> list[OpenProblem]:
        """Return the open problems, last seen first."""
        found = [entry.open for entry in reversed(self._entries.values())]
        return sorted(found, key=attrgetter("last_seen"), reverse=True)

    def found(self) -> list[Problem]:
        """Return the open problems as `open` does, but none that a caller reports.

        A caller may say anything of any server, so that none of it is a server's status.
        """
        return [entry.problem for entry in self.open() if entry.problem.scope != "client"]

    def _see(self, problem: Problem, owner: str, now: float, *, again: bool) -> None:
        if len(problem.message) > MAX_MESSAGE:
            problem = replace(problem, message=problem.message[: MAX_MESSAGE - 1] + "…")
        entry = self._entries.get(problem.key)
        if entry is None:
            self._put(_Entry(OpenProblem(problem, now, now, 1), frozenset({owner})))
            self.revision += 1
            self._make_room(now)
            return
        if again or entry.open.problem != problem:
            count = entry.open.count + (1 if again else 0)
            seen = OpenProblem(problem, entry.open.first_seen, now, count)
            self._put(_Entry(seen, entry.owners | {owner}))
        elif owner not in entry.owners:
            self._entries[problem.key] = replace(entry, owners=entry.owners | {owner})

    def _put(self, entry: _Entry) -> None:
        self._entries.pop(entry.open.problem.key, None)
        self._entries[entry.open.problem.key] = entry

    def _disown(self, key: ProblemKey, entry: _Entry, owner: str) -> None:
        owners = entry.owners - {owner}
        if owners:
            self._entries[key] = replace(entry, owners=owners)
        else:
            self._close(key)

    def _close(self, key: ProblemKey) -> None:
        del self._entries[key]
        self.revision += 1

    def _make_room(self, now: float) -> None:
        while len(self._entries) > MAX_PROBLEMS:
            oldest = next(key for key in self._entries if key != _DROPPED_KEY)
            self._close(oldest)
            noted = self._entries.get(_DROPPED_KEY)
            dropped = (noted.open.count if noted else 0) + 1
            message = (
                f"More than {MAX_PROBLEMS} problems are open; {dropped} with the oldest last"
                " occurrence were dropped. Fix the listed ones; dropped ones reappear when they"
                " recur."
            )
            overflow = Problem("workspace", PROBLEMS_DROPPED, message, severity="warning")
            self._see(overflow, _REPORTED, now, again=True)

    def _forget_drops(self) -> None:
        # The table is half empty: dropped problems had time to be reported again.
        if _DROPPED_KEY in self._entries and len(self._entries) <= MAX_PROBLEMS // 2:
            self._close(_DROPPED_KEY)
