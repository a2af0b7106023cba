"""Problems that callers met and reported: nobody else sees them, so nobody else sees them end.

Such a problem is about what its caller was given. It ends when that changes or is gone (then it
shows again if it is still true), and when nobody has met it again for a day. How many there are is
bounded apart from others: callers may report whatever they like.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace
from typing import Final

from leaseway.control_plane.core.catalog.snapshot import Snapshot
from leaseway.control_plane.core.moment import Moment
from leaseway.control_plane.core.problems import (
    PROBLEMS_DROPPED,
    Problem,
    ProblemKey,
    ProblemTable,
)

KEPT_FOR: Final = 24 * 3600.0
"""Seconds for which a problem stays open that nobody meets again."""

MAX_MET: Final = 200
"""Problems that callers have open at the same time."""

_DROPS: Final = "met:dropped"


@dataclass(frozen=True)
class _Met:
    """One open problem.

    Attributes:
        problem: What it is, without its words.
        about: Which content it is about; None where that was not there when it was met.
        until: When it ends by itself, on the monotonic clock.
    """

    problem: Problem
    about: str | None
    until: float


class ClientProblems:
    """What callers have reported. Its owner is the coordinator.

    Args:
        problems: Where they are shown.
    """

    def __init__(self, problems: ProblemTable) -> None:
        self._problems = problems
        self._met: dict[ProblemKey, _Met] = {}  # in the order of their ends
        self._dropped = 0

    def report(self, problem: Problem, visible: Snapshot, now: Moment) -> None:
        """Open a problem, or count it once more; of too many the longest unmet one goes."""
        self._met.pop(problem.key, None)
        about = _content(problem, visible)
        self._met[problem.key] = _Met(replace(problem, message=""), about, now.mono + KEPT_FOR)
        self._problems.replace(_owner(problem.key), [problem], now.unix, seen_again=True)
        if len(self._met) > MAX_MET:
            self._end(next(iter(self._met)), now)
            self._dropped += 1
            self._problems.replace(_DROPS, [_too_many(self._dropped)], now.unix, seen_again=True)

    def close_changed(self, visible: Snapshot, now: Moment) -> None:
        """End those whose tool or server is not any more what it was when they were met."""
        for key, met in list(self._met.items()):
            content = _content(met.problem, visible)
            if met.about is None:
                self._met[key] = replace(met, about=content)
            elif content != met.about:
                self._end(key, now)

    def expire(self, now: Moment) -> None:
        """End those that nobody met again for a day."""
        while self._met:
            key = next(iter(self._met))
            if self._met[key].until > now.mono:
                break
            self._end(key, now)

    def next_expiry(self) -> float | None:
        """Return when the next one ends by itself, on the monotonic clock; None without any."""
        first = next(iter(self._met.values()), None)
        return None if first is None else first.until

    def _end(self, key: ProblemKey, now: Moment) -> None:
        del self._met[key]
        self._problems.replace(_owner(key), (), now.unix)
        if self._dropped and len(self._met) <= MAX_MET // 2:
            self._dropped = 0  # what was dropped has had room to show itself since
            self._problems.replace(_DROPS, (), now.unix)


def _content(problem: Problem, visible: Snapshot) -> str | None:
    """Return which content a problem is about: a tool's, else a server's; None for neither."""
    view = visible.view(problem.tenant)
    # A refusal's subject is `provider:tool`.
    target = view.tools.get(problem.subject.rpartition(":")[2])
    if target is not None and problem.server_id in ("", target.served.key.server_id):
        recorded = target.served.listing.by_name[target.item.original]
        return f"{target.served.key} {hashlib.sha256(recorded.definition).hexdigest()}"
    served = view.servers.get(problem.server_id)
    return None if served is None else f"{served.key} {served.hashes.toolset}"


def _owner(key: ProblemKey) -> str:
    return f"met:{key}"


def _too_many(dropped: int) -> Problem:
    message = (
        f"Callers have more than {MAX_MET} problems open; the {dropped} longest unmet ones were"
        " dropped from the list. Mend what is listed; the rest shows when it is met again."
    )
    return Problem("client", PROBLEMS_DROPPED, message, severity="warning")
