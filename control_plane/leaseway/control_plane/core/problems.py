"""What an operator should know or mend: one table of open problems (DESIGN §1).

A problem is identified by where it is and why, not by its words: the same trouble seen again
counts up instead of filling a list. Sources that always know their whole set (the config file,
one server's exposure, one probe) use `replace`, so that what they no longer see is cleared.
The table has one writer and no clock: `now` is a parameter, in Unix seconds.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Final, Literal

MAX_PROBLEMS: Final = 1_000
"""Open problems that a table holds, the note about dropped ones included."""

MAX_MESSAGE: Final = 4_096
"""Characters of a message that a table keeps; reporters may be remote."""

PROBLEMS_DROPPED: Final = "PROBLEMS_DROPPED"

Scope = Literal["workspace", "server", "worker", "client"]
Severity = Literal["error", "warning"]
ProblemKey = tuple[str, str, str, str, str, str]
"""(scope, server id, tenant, worker id, reason, subject)."""


@dataclass(frozen=True)
class Problem:
    """Something for an operator.

    Attributes:
        scope: What it is about.
        reason: A constant in capitals that programs compare.
        message: What happened, where, and what to do, in sentences.
        server_id: The server, or empty.
        tenant: The tenant of the variant, or empty for the common one.
        worker_id: The worker, or empty.
        severity: Whether something does not work, or only may surprise.
        subject: Tells several problems of one place and reason apart, such as a tool's name.
    """

    scope: Scope
    reason: str
    message: str
    server_id: str = ""
    tenant: str = ""
    worker_id: str = ""
    severity: Severity = "error"
    subject: str = ""

    @property
    def key(self) -> ProblemKey:
        """Its identity: everything but its words and severity."""
        return (
            self.scope,
            self.server_id,
            self.tenant,
            self.worker_id,
            self.reason,
            self.subject,
        )


@dataclass(frozen=True)
class OpenProblem:
    """A problem that has not been cleared.

    Attributes:
        problem: What it is, in the newest words.
        first_seen: Unix time in seconds at which it was first seen since it was last cleared.
        last_seen: Unix time in seconds at which it was last seen.
        count: How often it was seen, at least 1.
    """

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
        revision: Another number whenever a problem was opened or closed.
    """

    def __init__(self) -> None:
        self.revision = 0
        # In the order in which they were last seen, so that the oldest is the first.
        self._entries: dict[ProblemKey, _Entry] = {}

    def report(self, problem: Problem, now: float) -> None:
        """Open a problem, or count it once more where it is open already."""
        self._see(problem, _REPORTED, now, again=True)

    def clear(
        self,
        *,
        scope: Scope | None = None,
        server_id: str | None = None,
        tenant: str | None = None,
        worker_id: str | None = None,
        reason: str | None = None,
    ) -> int:
        """Close the problems that match everything given, whoever reported them.

        Returns:
            How many were closed. With nothing given that is all of them.
        """
        wanted = (scope, server_id, tenant, worker_id, reason)
        closed = [
            key
            for key in self._entries
            # A key's last part, its subject, is beyond what callers select by.
            if all(want in (None, have) for want, have in zip(wanted, key[:-1], strict=True))
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
        """Make these the exact set of problems that one source has.

        New ones are opened and those that the source no longer has are closed, unless another
        source has them too. Unchanged ones are left alone; changed words are taken over.

        Args:
            owner: The source, such as `config`, `exposure:time` or `probe:time`; not empty.
            problems: Its problems; of several with one identity the first serves.
            now: Unix time in seconds.
            seen_again: Whether the source has looked anew, so that unchanged ones count up.
        """
        assert owner, "an empty owner means problems that were reported one by one"
        wanted: dict[ProblemKey, Problem] = {}
        for problem in problems:
            wanted.setdefault(problem.key, problem)
        for key, entry in list(self._entries.items()):
            if owner in entry.owners and key not in wanted:
                self._disown(key, entry, owner)
        for problem in wanted.values():
            self._see(problem, owner, now, again=seen_again)
        self._forget_drops()

    def open(self) -> list[OpenProblem]:
        """Return the open problems, the last seen first."""
        found = [entry.open for entry in reversed(self._entries.values())]
        return sorted(found, key=lambda problem: problem.last_seen, reverse=True)

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
                f"More than {MAX_PROBLEMS} problems are open; the {dropped} longest unseen ones"
                " were dropped from the list. Mend what is listed; the rest shows as it recurs."
            )
            note = Problem("workspace", PROBLEMS_DROPPED, message, severity="warning")
            self._see(note, _REPORTED, now, again=True)

    def _forget_drops(self) -> None:
        # Half empty again: what was dropped has had room to show itself since.
        if _DROPPED_KEY in self._entries and len(self._entries) <= MAX_PROBLEMS // 2:
            self._close(_DROPPED_KEY)
