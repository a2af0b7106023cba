"""Anchors of the audit: how far each run of a worker was when its worker last said so. Pure.

An anchor only moves forward: a worker that was taken over can add records, but not make the control
plane forget those that it has told (design.md#anchors-of-the-audit). What has changed is kept in
the store (`stored_anchors`); a control plane that starts restores them from there.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from itertools import islice
from operator import attrgetter

from leaseway.wire.audit_heads import AuditAnchor, AuditHead
from leaseway.wire.bounds import MAX_AUDIT_ANCHORS


class AuditAnchors:
    """The anchors of all runs.

    Args:
        limit: How many are kept; beyond that the oldest of runs without a worker are forgotten,
            and counted.

    Attributes:
        forgotten: How many were.
    """

    def __init__(self, limit: int = MAX_AUDIT_ANCHORS) -> None:
        self.forgotten = 0
        self._limit = limit
        self._anchors: dict[str, AuditAnchor] = {}  # in the order in which they were told
        self._current: dict[str, str] = {}
        self._changed: dict[str, None] = {}  # runs to keep or delete, in order

    def record(self, worker_id: str, head: AuditHead, now: float) -> None:
        """Anchor a head.

        Args:
            worker_id: The worker that tells it. A head that has ended may be of an earlier run,
                whose files this worker has found.
            now: Unix time in seconds.
        """
        if head.has_ended:
            if self._current.get(worker_id) == head.run:
                del self._current[worker_id]
        elif self._current.get(worker_id) != head.run:
            self.handle_left(worker_id, now)  # this worker has started anew
            self._current[worker_id] = head.run
        known = self._anchors.pop(head.run, None)
        anchor = AuditAnchor(head, worker_id, now)
        self._set(anchor if known is None else _joined(known, anchor))
        self._forget()

    def handle_left(self, worker_id: str, now: float) -> None:
        """Note that a worker has no stream any more."""
        run = self._current.pop(worker_id, None)
        anchor = self._anchors.get(run or "")
        if run is not None and anchor is not None and not anchor.head.has_ended:
            self._set(replace(anchor, lost_at=now))

    def restore(self, kept: Iterable[AuditAnchor], now: float) -> None:
        """Add the anchors that a store has kept to those that were told since the start.

        Args:
            kept: The anchors. A run that has not ended counts as lost from now, until its worker
                tells it again: nobody knows whether it is still there.
            now: Unix time in seconds.
        """
        told, self._anchors = self._anchors, {}
        for anchor in sorted(kept, key=attrgetter("told_at")):
            run = anchor.head.run
            if anchor.lost_at is None and not anchor.head.has_ended:
                anchor = replace(anchor, lost_at=now)
                self._changed[run] = None
            self._anchors[run] = anchor
        for run, anchor in told.items():
            known = self._anchors.pop(run, None)
            self._set(anchor if known is None else _joined(known, anchor))
        self._forget()

    def changed(self, limit: int) -> Mapping[str, AuditAnchor | None]:
        """Return runs to keep, with their anchors, or to delete (None); oldest changes first."""
        return {run: self._anchors.get(run) for run in islice(self._changed, limit)}

    def confirm_kept(self, kept: Mapping[str, AuditAnchor | None]) -> None:
        """Note that the store has what `changed` returned; what has changed since stays to keep."""
        for run, anchor in kept.items():
            if self._anchors.get(run) is anchor:
                self._changed.pop(run, None)

    def anchors_now(self, worker_id: str) -> bool:
        """Return whether a worker has told a head on its present stream."""
        return worker_id in self._current

    def listed(self) -> list[AuditAnchor]:
        """Return the anchors, ordered by run."""
        return [self._anchors[run] for run in sorted(self._anchors)]

    def _set(self, anchor: AuditAnchor) -> None:
        self._anchors[anchor.head.run] = anchor
        self._changed[anchor.head.run] = None

    def _forget(self) -> None:
        excess = len(self._anchors) - self._limit
        if excess <= 0:
            return
        current = set(self._current.values())
        gone = islice((run for run in self._anchors if run not in current), excess)
        for run in [*gone] or [next(iter(self._anchors))]:
            del self._anchors[run]
            self._changed[run] = None
            self.forgotten += 1


def _joined(known: AuditAnchor, told: AuditAnchor) -> AuditAnchor:
    """Return an anchor that has moved forward, and remembers whether two heads contradict."""
    old, new = known.head, told.head
    written, shipped = max(old.written, new.written), max(old.shipped, new.shipped)
    contradicts = any(
        before.seq == after.seq and before.hash != after.hash
        for before, after in ((old.written, new.written), (old.shipped, new.shipped))
    )
    # The last record of an ended run is known: a later head that goes beyond it is another chain.
    contradicts = contradicts or (old.has_ended and new.written.seq > old.written.seq)
    return replace(
        told,
        head=replace(
            new,
            sink=new.sink or old.sink,
            written=written if not contradicts else old.written,
            shipped=shipped if not contradicts else old.shipped,
            has_ended=old.has_ended or new.has_ended,
        ),
        is_contradicted=known.is_contradicted or told.is_contradicted or contradicts,
    )
