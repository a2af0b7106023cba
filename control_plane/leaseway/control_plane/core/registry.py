"""The registry: snapshots are committed, and become visible to callers later.

A commit resolves the exposed names of all working variants and gets the next version. It becomes
visible to callers once a worker has acknowledged it.

See design.md#names-and-versions.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterable, Mapping
from functools import partial
from typing import Final

from leaseway.control_plane.core.catalog.building import SnapshotBuilder
from leaseway.control_plane.core.catalog.name_moves import Move, MoveKey, update_moves
from leaseway.control_plane.core.catalog.snapshot import (
    Snapshot,
    acknowledged,
)
from leaseway.control_plane.core.catalog.variants import Hashes, LastKnownGood, Served
from leaseway.control_plane.core.moment import Moment
from leaseway.control_plane.core.problems import ProblemTable
from leaseway.control_plane.core.workers.records import WorkerRecord
from leaseway.control_plane.core.workers.subscription import Subscription
from leaseway.spec.model import VariantKey
from leaseway.wire import bounds
from leaseway.wire.messages.admin import ADMIN_TOOLSET

_WINDOW_A_WORKER: Final = 0.001
_WINDOW_A_VARIANT: Final = 0.00002
"""Seconds between commits: four times what each costs of the event loop."""
_REMEMBERED: Final = 8
"""Changes of what is visible that watchers can be told of one by one."""


class Registry:
    """The newest commit and its visible part; owned by the coordinator.

    Args:
        problems: Receives name clashes and moved names.
        first_version: The lowest version of a commit.

    Attributes:
        committed: The snapshot that workers are sent.
        visible: The snapshot that callers see.
        commit_at: When the next commit is due on the monotonic clock, or None.
    """

    def __init__(self, problems: ProblemTable, first_version: int) -> None:
        self._problems = problems
        self._version = first_version
        self._builder = SnapshotBuilder()
        self.committed = Snapshot(0)
        self.visible = Snapshot(0)
        self.commit_at: float | None = None
        self._moves: dict[MoveKey, Move] = {}
        # The newest changes of what is visible, each with the snapshot before it.
        self._revealed: deque[tuple[Snapshot, Snapshot]] = deque(maxlen=_REMEMBERED)
        # The workers that made all of the newest commit visible; empty if not all of it is.
        self._witnesses: tuple[WorkerRecord, ...] = ()
        # What of the newest commit no worker holds, if callers see nothing older in its place.
        self._unheld: Mapping[VariantKey, Hashes] | None = None

    @property
    def established(self) -> bool:
        """Whether some worker has acknowledged the newest commit."""
        return self.visible.version > 0 and self.visible.version == self.committed.version

    @property
    def complete(self) -> bool:
        """Whether all of the newest commit is visible."""
        return bool(self._witnesses)

    def outrun(self, version: int, *, foreign: bool) -> bool:
        """Make the next commit's version higher than one that a worker has seen.

        The newest commit's own version is not exceeded unless it is foreign: a reconnecting worker
        must not cause a new version for all.

        Args:
            version: The highest version that the worker has seen.
            foreign: Whether a control plane with another epoch assigned it.

        Returns:
            Whether a commit is needed, even one with equal content.
        """
        ahead = version - self.committed.version
        if ahead < 0 or (ahead == 0 and not foreign):
            return False
        self._version = max(self._version, version + 1)
        return True

    def commit_soon(self, now: Moment, workers: int) -> None:
        """Schedule a commit so that it includes results that arrive until then.

        A commit costs all variants, and a message to each worker and its answer. The window grows
        with both, so that commits leave the event loop free while thousands of probes end.

        Args:
            now: The time.
            workers: How many workers there are.
        """
        variants = len(self.committed.served)
        window = workers * _WINDOW_A_WORKER + variants * _WINDOW_A_VARIANT
        due = now.mono + max(bounds.COMMIT_WINDOW, window)
        self.commit_at = due if self.commit_at is None else min(self.commit_at, due)

    def commit(
        self,
        last_known_good: Mapping[VariantKey, LastKnownGood],
        now: Moment,
        withheld: Collection[VariantKey] = (),
    ) -> None:
        """Commit all working variants at the next version.

        Withheld variants hide their server from the tenant. Equal content is committed again only
        if a worker has seen a higher version (`outrun`).
        """
        outrun = self._version > self.committed.version
        version = max(self._version, self.committed.version + 1)
        snapshot, problems = self._builder.build(version, last_known_good, withheld)
        self._problems.replace("clashes", problems, now.unix)
        if not outrun and snapshot.hashes == self.committed.hashes:
            return
        self._set_moves(update_moves(self._moves, self.committed, snapshot, now.mono), now)
        self._version = version
        self.committed = snapshot
        self._witnesses = ()
        self._unheld = None

    def expire(self, now: Moment) -> None:
        """Close the problems of names that moved long ago."""
        next_expiry = self.next_expiry()
        if next_expiry is not None and next_expiry <= now.mono:
            moves = {k: m for k, m in self._moves.items() if m.until is None or m.until > now.mono}
            self._set_moves(moves, now)

    def next_expiry(self) -> float | None:
        """Return when the next such problem expires on the monotonic clock, or None."""
        times = (move.until for move in self._moves.values() if move.until is not None)
        return min(times, default=None)

    def _set_moves(self, moves: dict[MoveKey, Move], now: Moment) -> None:
        self._moves = moves
        self._problems.replace("moves", [move.problem for move in moves.values()], now.unix)

    def may_reveal(self, held: Mapping[VariantKey, Hashes]) -> bool:
        """Return whether a worker that has acknowledged what it holds may make more visible.

        With servers that no worker accepts, a commit never becomes visible as a whole.
        """
        if self.complete or self._unheld is None:
            return not self.complete
        return any(held.get(key) == hashes for key, hashes in self._unheld.items())

    def reveal(self, workers: Mapping[str, WorkerRecord]) -> None:
        """Make visible what workers have acknowledged of the newest commit (design.md#reload.5)."""
        if self._witnesses and all(workers.get(known.id) is known for known in self._witnesses):
            return  # these workers hold all of the commit: another one changes nothing
        subscriptions = tuple(record.subscription for record in workers.values())
        if not any(
            subscription.acked_version == self.committed.version for subscription in subscriptions
        ):
            return
        before = self.visible
        if self._find_witness(workers) is not None:  # what is built of a commit is built once
            self.visible = self.committed
        else:
            self.visible = self._acknowledged(before, subscriptions)
        if self.visible is not before:
            self._revealed.append((before, self.visible))
        is_complete = self.visible.served == self.committed.served
        self._witnesses = self._find_witnesses(workers) if is_complete else ()
        self._unheld = self._find_unheld()

    def _find_unheld(self) -> Mapping[VariantKey, Hashes] | None:
        unheld = {}
        for key, served in self.committed.served.items():
            seen = self.visible.served.get(key)
            if seen is not None and seen.hashes == served.hashes:
                continue
            if seen is not None and not seen.spec.hidden:
                return None  # an older content, which ends with the worker that holds it
            unheld[key] = served.hashes
        return unheld

    def _acknowledged(self, before: Snapshot, subscriptions: Iterable[Subscription]) -> Snapshot:
        # Workers with equal content share it: there are few different ones.
        contents = {id(known.acked): known.acked for known in subscriptions}
        return acknowledged(self.committed, before, partial(_is_held, contents.values()))

    def _find_witnesses(self, workers: Mapping[str, WorkerRecord]) -> tuple[WorkerRecord, ...]:
        """Return one worker that holds all of the newest commit, or all workers."""
        witness = self._find_witness(workers)
        return tuple(workers.values()) if witness is None else (witness,)

    def _find_witness(self, workers: Mapping[str, WorkerRecord]) -> WorkerRecord | None:
        content = self.committed.hashes  # workers that have been sent all of it share this object
        return next(
            (record for record in workers.values() if record.subscription.acked is content), None
        )

    def changed_since(self, seen: Snapshot | None, tenant: str) -> frozenset[str] | None:
        """Return the servers that a tenant sees and whose content changed since then.

        Names of other servers resolve to the same as before. Returns None if that is not known, or
        may not hold: with grants, listings for each user or variants of the tenant's own, names are
        shared out anew for each caller, so that one may move between servers of which neither has
        changed.

        Args:
            seen: What was visible; not its version, which becomes visible in steps, with the
                workers that acknowledge it. None before the first.
        """
        if seen is self.visible:
            return frozenset()
        since: list[tuple[Snapshot, Snapshot]] = []
        for before, after in self._revealed:
            if since or before is seen:
                since.append((before, after))
        if not since:
            return None
        changed: set[str] = set()
        for before, after in since:
            if any(_shares_names_out_anew(state, tenant) for state in (before, after)):
                return None
            old, new = before.view(tenant).servers, after.view(tenant).servers
            changed |= after.servers_changed_since(before) & (old.keys() | new.keys())
            if old.get(ADMIN_TOOLSET) is not new.get(ADMIN_TOOLSET):  # no variant, but a server too
                changed.add(ADMIN_TOOLSET)
        return frozenset(changed)


def _shares_names_out_anew(snapshot: Snapshot, tenant: str) -> bool:
    is_special = snapshot.is_restricted or tenant in snapshot.tenants
    return is_special or snapshot.view(tenant).acts_for_users


def _is_held(contents: Collection[Mapping[VariantKey, Hashes]], served: Served) -> bool:
    return any(content.get(served.key) == served.hashes for content in contents)
