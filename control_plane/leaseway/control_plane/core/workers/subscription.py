"""What one worker was sent, what it acknowledged, what it refused (DESIGN §8).

Sent, acknowledged and last error are three separate facts. What a worker *has* moves on an
acknowledgement only. At most one push is pending; what has changed meanwhile goes into the next.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from leaseway.control_plane.core.catalog.snapshot import Delta, Snapshot, compute_delta
from leaseway.control_plane.core.catalog.variants import Hashes, Served
from leaseway.spec.model import VariantKey


@dataclass(frozen=True)
class Push:
    """A delta for one worker."""

    nonce: int
    version: int
    upserts: tuple[Served, ...]
    removals: tuple[VariantKey, ...]


@dataclass(frozen=True)
class VariantRefusal:
    """Why a worker did not apply one variant, which is not sent again until it changes."""

    key: VariantKey
    reason: str
    message: str


@dataclass
class Subscription:
    """One stream's state. Its owner is the coordinator.

    Attributes:
        acked: What the worker has, as it said itself.
        acked_version: The registry version that it has reached on this stream.
        sent_version: The registry version that it was sent last.
        stale: How many answers named a delta that was not pending.
        pending: The delta that was sent and not acknowledged, or None.
        refused: What it refused of which content and why, the newest last.
    """

    acked: dict[VariantKey, Hashes] = field(default_factory=dict)
    acked_version: int = 0
    sent_version: int = 0
    stale: int = 0
    pending: Push | None = None
    refused: dict[VariantKey, tuple[VariantRefusal, Hashes]] = field(default_factory=dict)
    _nonce: int = 0
    _compared: tuple[int, bool] = (0, False)
    # The snapshot that the worker has all of and nothing else, and the one that `pending` leads to.
    _has_all_of: Snapshot | None = None
    _leads_to: Snapshot | None = None

    @classmethod
    def resume(
        cls, held: Mapping[VariantKey, Hashes], before: Subscription | None = None
    ) -> Subscription:
        """Return the state of a new stream.

        Args:
            held: What the worker says that it has.
            before: The older stream of the same run of it, if there was one. What it refused
                there is not sent again.
        """
        refused = before.refused if before is not None else {}
        return cls(acked=dict(held), refused=dict(refused))

    @property
    def last_error(self) -> str:
        """Why the worker refused what it refused last and still lacks; empty for nothing."""
        newest = next(reversed(self.refused.values()), None)
        return newest[0].message if newest is not None else ""

    def push(self, snapshot: Snapshot, *, removals: bool) -> Push | None:
        """Return the delta to send now, or None: one is pending, or nothing is new."""
        if self.pending is not None or self._compared == (snapshot.version, removals):
            return None
        self._compared = (snapshot.version, removals)
        self._forget_refusals(snapshot)
        delta = self._lacks(snapshot)
        # Where something is not to be removed yet, it has what the snapshot has not.
        self._leads_to = snapshot if removals or not delta.removals else None
        if not removals:
            delta = replace(delta, removals=())
        if self.sent_version == snapshot.version and not delta.upserts and not delta.removals:
            return None
        self._nonce += 1
        self.pending = Push(self._nonce, snapshot.version, delta.upserts, delta.removals)
        self.sent_version = snapshot.version
        return self.pending

    def ack(self, nonce: int) -> bool:
        """Record an acknowledgement; False where its nonce is not the pending one's."""
        push = self.pending
        if push is None or push.nonce != nonce:
            self.stale += 1
            return False
        for served in push.upserts:
            if self._refused_now(served.key, served.hashes):
                continue
            self.acked[served.key] = served.hashes
            self.refused.pop(served.key, None)
        for key in push.removals:
            self.acked.pop(key, None)
            self.refused.pop(key, None)
        self.acked_version = push.version
        self.pending = None
        self._has_all_of = None if self.refused else self._leads_to
        return True

    def nack(self, nonce: int, refusals: Iterable[VariantRefusal]) -> tuple[VariantRefusal, ...]:
        """Record refusals; the acknowledgement of the rest follows.

        Returns:
            Those that were taken: of a stale nonce none, else those of what was sent.
        """
        push = self.pending
        if push is None or push.nonce != nonce:
            self.stale += 1
            return ()
        sent = {served.key: served.hashes for served in push.upserts}
        taken = tuple(refusal for refusal in refusals if refusal.key in sent)
        for refusal in taken:
            self.refused.pop(refusal.key, None)  # the newest is the last
            self.refused[refusal.key] = (refusal, sent[refusal.key])
        return taken

    def was_sent(self, key: VariantKey, launch_hash: str) -> bool:
        """Return whether the worker has a launch of a variant, or has just been sent it."""
        held = self.acked.get(key)
        sent = self.pending.upserts if self.pending is not None else ()
        return (held is not None and held.launch == launch_hash) or any(
            (one.key, one.hashes.launch) == (key, launch_hash) for one in sent
        )

    def has(self, served: Served) -> bool:
        """Return whether the worker has acknowledged exactly this content."""
        return self.acked.get(served.key) == served.hashes

    def _lacks(self, snapshot: Snapshot) -> Delta:
        """Return what the worker lacks, and has too much; nearly always compared once for all."""
        if self._has_all_of is not None:
            return snapshot.since(self._has_all_of)
        if not self.acked and not self.refused:
            return snapshot.whole
        known: Mapping[VariantKey, Hashes] = self.acked | {
            key: hashes for key, (_, hashes) in self.refused.items()
        }
        return compute_delta(snapshot, known, removals=True)

    def _forget_refusals(self, snapshot: Snapshot) -> None:
        """Forget what was refused where the worker has what takes its place already."""
        for key in list(self.refused):
            if snapshot.hashes.get(key) == self.acked.get(key):
                del self.refused[key]

    def _refused_now(self, key: VariantKey, hashes: Hashes) -> bool:
        refused = self.refused.get(key)
        return refused is not None and refused[1] == hashes
