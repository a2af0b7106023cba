"""Which workers serve a variant: the answer costs the same with ten workers and with a thousand.

Workers that have acknowledged the same content form a group, of which there are few. Which of them
are failing to start a launch, or have it ready, is kept as instances change. Answers with the same
workers are the same object, so that their messages can be shared, too.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from leaseway.control_plane.core.catalog.variants import Hashes, Served
from leaseway.control_plane.core.workers.instances import Launched, Launches, Offer
from leaseway.control_plane.core.workers.records import WorkerRecord
from leaseway.spec.model import VariantKey

_Key = TypeVar("_Key")
Workers = tuple[WorkerRecord, ...]
"""Workers ordered by id."""


class LaunchIndex(Generic[_Key]):
    """The workers by launch in one state, such as those with a spare instance."""

    def __init__(self) -> None:
        self._workers: dict[_Key, set[str]] = {}

    def __getitem__(self, launched: _Key) -> Set[str]:
        """Return the ids of the workers; do not modify."""
        return self._workers.get(launched, frozenset())

    def update(self, worker_id: str, before: Set[_Key], after: Set[_Key]) -> bool:
        """Replace the launches of a worker; return whether they differ."""
        if before == after:
            return False
        for launched in before - after:
            self._workers[launched].discard(worker_id)
            if not self._workers[launched]:
                del self._workers[launched]
        for launched in after - before:
            self._workers.setdefault(launched, set()).add(worker_id)
        return True


@dataclass(frozen=True)
class _Group:
    """Workers that have acknowledged the same content; the draining ones are connected."""

    acked: Mapping[VariantKey, Hashes]
    connected: list[WorkerRecord] = field(default_factory=list)
    draining: list[WorkerRecord] = field(default_factory=list)
    disconnected: list[WorkerRecord] = field(default_factory=list)


class ServingIndex:
    """Finds the workers that serve a variant; owned by the roster.

    Attributes:
        offers: The workers by launches with a ready instance that waits for a lease, and by whom it
            serves.
        up: The workers by launches with a ready shared instance or spare.
        failing: The workers by launches that failed to start last.
        unready: The workers by launches with instances of which none is usable.
    """

    def __init__(self) -> None:
        self.offers = LaunchIndex[Offer]()
        self.up = LaunchIndex[Launched]()
        self.failing = LaunchIndex[Launched]()
        self.unready = LaunchIndex[Launched]()
        self._groups: list[_Group] = []
        self._grouped_at = -1  # revision of the roster
        self._merged: dict[tuple[int, ...], Workers] = {}
        self._filtered: dict[tuple[int, Launched], Workers] = {}

    def update_launches(self, worker_id: str, before: Launches, after: Launches) -> None:
        """Replace the launches of a worker."""
        self.offers.update(worker_id, before.offers, after.offers)
        self.unready.update(worker_id, before.unready, after.unready)
        changed = self.up.update(worker_id, before.usable, after.usable)
        if self.failing.update(worker_id, before.failing, after.failing) or changed:
            self._filtered.clear()

    def workers_with_spare(self, launched: Launched, accepted: Iterable[str]) -> Set[str]:
        """Return the ids of the workers with a ready spare that serves one of some clients.

        Args:
            accepted: Whom the spare may serve (`Greeting.accepted`).
        """
        found = [self.offers[*launched, served] for served in accepted]
        found = [workers for workers in found if workers]
        return found[0] if len(found) == 1 else frozenset().union(*found)

    def workers_serving(
        self, served: Served, workers: Iterable[WorkerRecord], revision: int
    ) -> Workers:
        """Return the workers that serve a variant, ordered by id.

        Disconnected workers, workers that fail to start the server and, for servers that start
        eagerly, workers where it is not ready are returned only if there are no better ones.

        Args:
            workers: All workers, ordered by id.
            revision: Changes with the workers and what they have acknowledged.
        """
        self._group(workers, revision)
        records = self._holders(served)
        launched = served.key, served.hashes.launch
        is_eager = served.spec.truely_stateless and served.spec.starts_eagerly
        if not is_eager and not self.failing[launched]:
            return records
        key = id(records), launched
        found = self._filtered.get(key)
        if found is None:
            found = self._filtered[key] = self._able(records, launched, is_eager=is_eager)
        return found

    def _able(self, records: Workers, launched: Launched, *, is_eager: bool) -> Workers:
        failing, up = self.failing[launched], self.up[launched]
        able = _kept(records, [record for record in records if record.id not in failing])
        return _kept(able, [record for record in able if record.id in up]) if is_eager else able

    def _holders(self, served: Served) -> Workers:
        """Return the connected workers that have a variant, else the disconnected ones."""
        indices = tuple(
            index
            for index, group in enumerate(self._groups)
            if group.acked.get(served.key) == served.hashes
        )
        found = self._merged.get(indices)
        if found is None:
            groups = [self._groups[index] for index in indices]
            records = [record for group in groups for record in group.connected] or [
                record for group in groups for record in group.disconnected
            ]
            found = self._merged[indices] = tuple(sorted(records, key=_id_of))
        return found

    def count_serving(
        self, served: Served, workers: Iterable[WorkerRecord], revision: int
    ) -> int | None:
        """Return how many connected workers have a variant, or None if it may be down on some.

        Args:
            workers: All workers, ordered by id.
            revision: As for `workers_serving`.
        """
        launched = served.key, served.hashes.launch
        if self.failing[launched] or (served.spec.truely_stateless and self.unready[launched]):
            return None
        self._group(workers, revision)
        return sum(
            len(group.connected) + len(group.draining)
            for group in self._groups
            if group.acked.get(served.key) == served.hashes
        )

    def _group(self, workers: Iterable[WorkerRecord], revision: int) -> None:
        if self._grouped_at == revision:
            return
        groups: dict[int, _Group] = {}
        for record in workers:
            acked = record.subscription.acked
            group = groups.get(id(acked))
            if group is None:
                group = groups[id(acked)] = _Group(acked)
            if record.draining:
                if record.connected:
                    group.draining.append(record)
            elif record.connected:
                group.connected.append(record)
            else:
                group.disconnected.append(record)
        self._groups, self._grouped_at = list(groups.values()), revision
        self._merged.clear()
        self._filtered.clear()


def _kept(records: Workers, better: Sequence[WorkerRecord]) -> Workers:
    """Return the better ones of some workers, if there are any; the same object if all are."""
    return records if len(better) in (0, len(records)) else tuple(better)


def _id_of(record: WorkerRecord) -> str:
    return record.id
