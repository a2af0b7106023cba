"""The workers that may probe servers, and how many probes run on each. Pure.

A choice looks at the least loaded workers only, whatever the size of the fleet: workers are kept
in heaps, one for each set of labels that servers require and each set of accepted server ids.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush
from typing import Final

from leaseway.control_plane.core.catalog.worker_scope import WorkerScope
from leaseway.spec.model import ServerSpec
from leaseway.wire import bounds

Labels = frozenset[tuple[str, str]]
"""What a server requires of workers: `worker_labels` as pairs."""
Patterns = tuple[str, ...]
"""Which server ids a worker accepts, as it says; empty for any."""
_Entry = tuple[bool, int, str]

_MAX_LABELS: Final = 64
"""Different requirements whose heaps are kept; others are built again."""
_SPARE: Final = 64
"""Outdated entries of a heap that are kept beyond as many as there are workers."""


def accepts_id(patterns: Patterns, server_id: str) -> bool:
    """Return whether a worker with these patterns accepts a server id."""
    return WorkerScope(servers=patterns).accepts_id(server_id)


def required_labels(spec: ServerSpec) -> Labels:
    """Return the labels that a worker of this server must have."""
    return frozenset(spec.worker_labels.items())


@dataclass(frozen=True)
class _Prober:
    scope: WorkerScope
    silent: bool


@dataclass
class ProbeWorkers:
    """The available workers, and the probes that run on them; owned by the schedule."""

    _workers: dict[str, _Prober] = field(default_factory=dict)
    # The ids of probes by worker; also of workers that start no more, as they may do so again.
    _running: dict[str, dict[int, None]] = field(default_factory=dict)
    # Workers with room, as (silent, probes, id); an entry that is no longer true is outdated.
    _heaps: dict[Labels, dict[Patterns, list[_Entry]]] = field(default_factory=dict)
    _patterns: dict[Patterns, None] = field(default_factory=dict)  # of workers so far

    def set(self, worker_id: str, scope: WorkerScope, *, silent: bool) -> bool:
        """Add a worker, or record that it has changed; return whether its patterns are new.

        Args:
            scope: Which servers it accepts.
            silent: Whether it has acknowledged nothing since it joined; then it is used last.
        """
        before, prober = self._workers.get(worker_id), _Prober(scope, silent)
        if prober != before:
            self._workers[worker_id] = prober
            self._push(worker_id)
        if scope.servers in self._patterns:
            return False
        if len(self._patterns) > 2 * len(self._workers) + _SPARE:
            self._patterns = {prober.scope.servers: None for prober in self._workers.values()}
        self._patterns[scope.servers] = None
        return True

    def accepting(self, server_id: str) -> frozenset[Patterns]:
        """Return the patterns of workers, present or past, that accept a server id."""
        return frozenset(patterns for patterns in self._patterns if accepts_id(patterns, server_id))

    def remove(self, worker_id: str) -> None:
        """Start no more probes on a worker; those that run are still counted."""
        self._workers.pop(worker_id, None)

    def begin(self, worker_id: str, probe_id: int) -> None:
        """Count a probe that starts on a worker."""
        self._running.setdefault(worker_id, {})[probe_id] = None
        self._push(worker_id)

    def end(self, worker_id: str, probe_id: int) -> None:
        """Count a probe no more."""
        running = self._running[worker_id]
        del running[probe_id]
        if not running:
            del self._running[worker_id]
        self._push(worker_id)

    def probes(self, worker_id: str) -> tuple[int, ...]:
        """Return the ids of the probes that run on a worker."""
        return tuple(self._running.get(worker_id, ()))

    def has_room(self, labels: Labels, accepting: Iterable[Patterns]) -> bool:
        """Return whether a worker with these labels and some of these patterns can run a probe."""
        heaps = self._heaps_of(labels)
        for patterns in accepting:
            heap = heaps.get(patterns)
            if heap is None:
                continue
            if self._first(heap, WorkerScope(labels, patterns)) is not None:
                return True
            del heaps[patterns]  # its workers may have left for good
        return False

    def choose(
        self, spec: ServerSpec, *, last: str, never: str = "", listing: Collection[str] = ()
    ) -> str | None:
        """Return the worker with room that is best for a probe, or None.

        Workers that have acknowledged something come first, then others than `last`, then those
        with the fewest probes.

        Args:
            last: The worker of the last probe, or empty.
            never: A worker that is not asked, or empty.
            listing: Workers that need no start; of equals they come first.
        """
        labels = required_labels(spec)
        candidates = {last, *listing}
        for patterns, heap in list(self._heaps_of(labels).items()):
            kind = WorkerScope(labels, patterns)
            if kind.accepts_id(spec.key.server_id):
                first = self._first_other(heap, kind, {last, never})
                candidates.update(() if first is None else (first,))
        able = [
            (prober.silent, worker == last, worker not in listing, self._count(worker), worker)
            for worker in candidates
            if worker != never
            and (prober := self._workers.get(worker)) is not None
            and self._count(worker) < bounds.MAX_PROBES
            and prober.scope.accepts(spec)
        ]
        return min(able)[-1] if able else None

    def others_accept(self, worker_id: str, spec: ServerSpec) -> bool:
        """Return whether another worker accepts a server, even if it has no room."""
        return any(
            prober.scope.accepts(spec)
            for other, prober in self._workers.items()
            if other != worker_id
        )

    def _count(self, worker_id: str) -> int:
        return len(self._running.get(worker_id, ()))

    def _entry(self, worker_id: str) -> _Entry | None:
        """Return a worker's valid entry, or None if it gets no probe."""
        prober, count = self._workers.get(worker_id), self._count(worker_id)
        if prober is None or count >= bounds.MAX_PROBES:
            return None
        return prober.silent, count, worker_id

    def _push(self, worker_id: str) -> None:
        entry = self._entry(worker_id)
        if entry is None:
            return
        scope = self._workers[worker_id].scope
        for labels, heaps in self._heaps.items():
            if labels <= scope.labels:
                heap = heaps.setdefault(scope.servers, [])
                heappush(heap, entry)
                if len(heap) > 2 * len(self._workers) + _SPARE:
                    kind = WorkerScope(labels, scope.servers)
                    heap[:] = {entry for entry in heap if self._is_valid(entry, kind)}
                    heapify(heap)

    def _is_valid(self, entry: _Entry, kind: WorkerScope) -> bool:
        """Return whether an entry of the heap of a kind is still true."""
        worker_id = entry[-1]
        if entry != self._entry(worker_id):
            return False
        scope = self._workers[worker_id].scope
        return scope.servers == kind.servers and kind.labels <= scope.labels

    def _heaps_of(self, labels: Labels) -> dict[Patterns, list[_Entry]]:
        """Return the heaps of workers with these labels, by the server ids that they accept."""
        heaps = self._heaps.get(labels)
        if heaps is None:
            if len(self._heaps) >= _MAX_LABELS:
                self._heaps.clear()
            heaps = self._heaps[labels] = {}
            for worker_id, prober in self._workers.items():
                entry = self._entry(worker_id)
                if entry is not None and labels <= prober.scope.labels:
                    heaps.setdefault(prober.scope.servers, []).append(entry)
            for heap in heaps.values():
                heapify(heap)
        return heaps

    def _first(self, heap: list[_Entry], kind: WorkerScope) -> _Entry | None:
        """Return the first valid entry; drop outdated ones before it."""
        while heap and not self._is_valid(heap[0], kind):
            heappop(heap)
        return heap[0] if heap else None

    def _first_other(
        self, heap: list[_Entry], kind: WorkerScope, skipped: Collection[str]
    ) -> str | None:
        """Return the first worker that is not skipped."""
        aside = []
        while (entry := self._first(heap, kind)) is not None and entry[-1] in skipped:
            aside.append(heappop(heap))
        for skipped_entry in aside:
            heappush(heap, skipped_entry)
        return entry[-1] if entry is not None else None
