"""Problems that callers report, such as tools that an LLM provider rejects.

Such a problem is closed when the tool or server that it is about changes, or after a day without
another report. Their number has its own limit, as callers may report anything.
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

RETENTION: Final = 24 * 3600.0
"""Seconds for which a problem stays open without another report."""

MAX_CLIENT_PROBLEMS: Final = 200
"""Limit of open problems from callers."""

_DROPS: Final = "met:dropped"


@dataclass(frozen=True)
class _Reported:
    """One open problem.

    Attributes:
        problem: The problem without its message.
        about: Identifies the content that it is about; None if there was none.
        until: When it expires on the monotonic clock.
    """

    problem: Problem
    about: str | None
    until: float


class ClientProblems:
    """Open problems from callers; owned by the coordinator.

    Args:
        problems: The table that shows them.
    """

    def __init__(self, problems: ProblemTable) -> None:
        self._problems = problems
        self._reported: dict[ProblemKey, _Reported] = {}  # in the order of expiry
        self._dropped = 0

    def report(self, problem: Problem, visible: Snapshot, now: Moment) -> None:
        """Open a problem or count it again; over the limit, close the one reported longest ago."""
        self._reported.pop(problem.key, None)
        about, until = _content(problem, visible), now.mono + RETENTION
        self._reported[problem.key] = _Reported(replace(problem, message=""), about, until)
        self._problems.replace(_owner(problem.key), [problem], now.unix, seen_again=True)
        if len(self._reported) > MAX_CLIENT_PROBLEMS:
            self._close(next(iter(self._reported)), now)
            self._dropped += 1
            self._problems.replace(_DROPS, [_too_many(self._dropped)], now.unix, seen_again=True)

    def close_changed(self, visible: Snapshot, now: Moment) -> None:
        """Close the problems whose tool or server has changed since the report."""
        for key, reported in list(self._reported.items()):
            content = _content(reported.problem, visible)
            if reported.about is None:
                self._reported[key] = replace(reported, about=content)
            elif content != reported.about:
                self._close(key, now)

    def expire(self, now: Moment) -> None:
        """Close the problems that were not reported again for a day."""
        while self._reported:
            key = next(iter(self._reported))
            if self._reported[key].until > now.mono:
                break
            self._close(key, now)

    def next_expiry(self) -> float | None:
        """Return when the next problem expires on the monotonic clock, or None."""
        first = next(iter(self._reported.values()), None)
        return None if first is None else first.until

    def _close(self, key: ProblemKey, now: Moment) -> None:
        del self._reported[key]
        self._problems.replace(_owner(key), (), now.unix)
        if self._dropped and len(self._reported) <= MAX_CLIENT_PROBLEMS // 2:
            self._dropped = 0  # dropped problems had time to be reported again
            self._problems.replace(_DROPS, (), now.unix)


def _content(problem: Problem, visible: Snapshot) -> str | None:
    """Identify the content that a problem is about: a tool's, else a server's, else None."""
    view = visible.view(problem.tenant)
    # The subject of PROVIDER_REFUSED is `provider:tool`.
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
        f"Callers have reported more than {MAX_CLIENT_PROBLEMS} open problems; {dropped} with the"
        " oldest last report were dropped. Fix the listed ones; dropped ones reappear when they are"
        " reported again."
    )
    return Problem("client", PROBLEMS_DROPPED, message, severity="warning")
