"""What is served at which registry version: committed, and then revealed to callers (DESIGN §4).

A commit settles the names of everything that works and gets the next version. It is revealed,
so that callers see it, once a worker has acknowledged it.
"""

from __future__ import annotations

import operator
from collections.abc import Collection, Mapping

from leaseway.control_plane.core.catalog.name_moves import Move, MoveKey, followed
from leaseway.control_plane.core.catalog.snapshot import Snapshot, acknowledged, build_snapshot
from leaseway.control_plane.core.catalog.variants import LastKnownGood
from leaseway.control_plane.core.moment import Moment
from leaseway.control_plane.core.problems import ProblemTable
from leaseway.control_plane.core.workers.records import WorkerRecord
from leaseway.control_plane.core.workers.subscription import Subscription
from leaseway.spec.model import VariantKey
from leaseway.wire import bounds


class Registry:
    """The newest commit and what of it callers see. Its owner is the coordinator.

    Args:
        problems: Gets clashes and names that change their owner.
        first_version: The lowest version that a commit may get.

    Attributes:
        committed: What workers are sent.
        visible: What callers see.
        commit_at: When the next commit is due, on the monotonic clock, or None.
    """

    def __init__(self, problems: ProblemTable, first_version: int) -> None:
        self._problems = problems
        self._version = first_version
        self.committed = Snapshot(0)
        self.visible = Snapshot(0)
        self.commit_at: float | None = None
        self._moves: dict[MoveKey, Move] = {}
        # By whose acknowledgements all of the newest commit is listed; nobody's: not all of it.
        self._witnesses: tuple[Subscription, ...] = ()

    @property
    def established(self) -> bool:
        """Whether some worker serves the registry as it was last committed."""
        return self.visible.version > 0 and self.visible.version == self.committed.version

    @property
    def complete(self) -> bool:
        """Whether all of the newest commit is listed, for the workers that were asked last."""
        return bool(self._witnesses)

    def outrun(self, version: int, *, foreign: bool) -> bool:
        """Give the next commit a version above one that a worker has seen.

        The newest commit's own version is not outrun, unless the worker saw another's: everybody
        would be sent a new version because one worker came back.

        Args:
            version: The highest that the worker has seen.
            foreign: Whether a control plane of another epoch gave it.

        Returns:
            Whether a commit is due for it, even one of equal content.
        """
        ahead = version - self.committed.version
        if ahead < 0 or (ahead == 0 and not foreign):
            return False
        self._version = max(self._version, version + 1)
        return True

    def commit_soon(self, now: Moment) -> None:
        """Commit: with the results of the next 50 ms, or when no more can come."""
        due = now.mono + bounds.COMMIT_WINDOW
        self.commit_at = due if self.commit_at is None else min(self.commit_at, due)

    def commit(
        self,
        last_known_good: Mapping[VariantKey, LastKnownGood],
        now: Moment,
        withheld: Collection[VariantKey] = (),
    ) -> None:
        """Settle the names of everything that works, at the next version.

        Variants of tenants that are kept out have no good and no common one in their place. Equal
        content is a new version only after a worker came that had seen another's (`outrun`).
        """
        outrun = self._version > self.committed.version
        version = max(self._version, self.committed.version + 1)
        snapshot, problems = build_snapshot(version, last_known_good, withheld)
        self._problems.replace("clashes", problems, now.unix)
        if not outrun and snapshot.hashes == self.committed.hashes:
            return
        self._tell_moves(followed(self._moves, self.committed, snapshot, now.mono), now)
        self._version = version
        self.committed = snapshot
        self._witnesses = ()

    def expire(self, now: Moment) -> None:
        """Tell no more of names that moved long ago."""
        next_expiry = self.next_expiry()
        if next_expiry is not None and next_expiry <= now.mono:
            left = {k: m for k, m in self._moves.items() if m.until is None or m.until > now.mono}
            self._tell_moves(left, now)

    def next_expiry(self) -> float | None:
        """Return when the next such name is told of no more, on the monotonic clock."""
        times = (move.until for move in self._moves.values() if move.until is not None)
        return min(times, default=None)

    def _tell_moves(self, moves: dict[MoveKey, Move], now: Moment) -> None:
        self._moves = moves
        self._problems.replace("moves", [move.problem for move in moves.values()], now.unix)

    def reveal(self, records: Collection[WorkerRecord]) -> None:
        """List what some worker has acknowledged of the newest commit (DESIGN §3.5)."""
        subscriptions = tuple(record.subscription for record in records)
        if not any(each.acked_version == self.committed.version for each in subscriptions):
            return
        if len(subscriptions) == len(self._witnesses) and all(
            map(operator.is_, subscriptions, self._witnesses)
        ):
            return  # while the same workers hold all of it, another acknowledgement adds nothing
        self.visible = acknowledged(
            self.committed,
            self.visible,
            lambda served: any(each.has(served) for each in subscriptions),
        )
        self._witnesses = subscriptions if self.visible.served == self.committed.served else ()
