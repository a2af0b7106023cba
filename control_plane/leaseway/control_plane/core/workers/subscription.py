"""The variants that one worker was sent, has acknowledged and has refused (design.md#sync).

Only an acknowledgement changes the versions that the worker counts as having. At most one push is
pending; later changes are merged into the next one.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from operator import attrgetter
from typing import Final

from leaseway.control_plane.core.catalog.snapshot import Delta, Snapshot, compute_delta
from leaseway.control_plane.core.catalog.variants import Hashes, Served
from leaseway.spec.model import VariantKey

_key_of: Final = attrgetter("key")


@dataclass(frozen=True)
class Push:
    """A delta for one worker, which workers with equal content share."""

    nonce: int
    version: int
    delta: Delta

    @property
    def upserts(self) -> tuple[Served, ...]:
        return self.delta.upserts

    @property
    def removals(self) -> tuple[VariantKey, ...]:
        return self.delta.removals


@dataclass(frozen=True)
class VariantRefusal:
    """Why a worker did not apply a variant, which is not sent again until it changes."""

    key: VariantKey
    reason: str
    message: str


@dataclass
class Subscription:
    """One stream's state; owned by the coordinator.

    Attributes:
        acked: Variants that the worker has. It is replaced and never changed, as workers with equal
            content share it: a fleet's memory and deltas then do not grow with workers × servers.
        acked_version: The registry version that it has acknowledged on this stream.
        sent_version: The registry version that was sent last.
        stale: Number of answers with the nonce of a delta that was not pending.
        pending: The unacknowledged delta, or None.
        refused: Refused variants with the refused content, newest last.
    """

    acked: Mapping[VariantKey, Hashes] = field(default_factory=dict)
    acked_version: int = 0
    sent_version: int = 0
    stale: int = 0
    pending: Push | None = None
    refused: dict[VariantKey, tuple[VariantRefusal, Hashes]] = field(default_factory=dict)
    _nonce: int = 0
    _compared: tuple[int, bool] = (0, False)
    # What the worker has after `pending` if it refuses nothing, or None if it keeps more.
    _pending_content: Mapping[VariantKey, Hashes] | None = None

    @classmethod
    def resume(
        cls, held: Mapping[VariantKey, Hashes], before: Subscription | None = None
    ) -> Subscription:
        """Return the state of a new stream.

        Args:
            held: Variants that the worker reports as held.
            before: The older stream of the same run, if any; variants refused there are not sent
                again.
        """
        refused = before.refused if before is not None else {}
        return cls(acked=held, refused=dict(refused))

    @property
    def last_error(self) -> str:
        """The newest reason for a variant that is still refused, or empty."""
        newest = next(reversed(self.refused.values()), None)
        return newest[0].message if newest is not None else ""

    def push(self, snapshot: Snapshot, *, removals: bool) -> Push | None:
        """Return the delta to send now, or None if one is pending or nothing has changed."""
        if self.pending is not None or self._compared == (snapshot.version, removals):
            return None
        self._compared = (snapshot.version, removals)
        self._forget_refusals(snapshot)
        delta = self._delta_to(snapshot)
        # Without removals, the worker keeps variants that are not in the snapshot.
        is_exact = removals or not delta.removals
        self._pending_content = snapshot.hashes if is_exact else None
        if not is_exact:
            delta = replace(delta, removals=())
        if self.sent_version == snapshot.version and not delta.upserts and not delta.removals:
            return None
        self._nonce += 1
        self.pending = Push(self._nonce, snapshot.version, delta)
        self.sent_version = snapshot.version
        return self.pending

    def ack(self, nonce: int) -> bool:
        """Record an acknowledgement; return False if its nonce is not the pending one."""
        push = self.pending
        if push is None or push.nonce != nonce:
            self.stale += 1
            return False
        if self.refused or self._pending_content is None:
            self._apply(push)
        if not self.refused and self._pending_content is not None:
            self.acked = self._pending_content  # the usual case costs the same at any size
        self.acked_version = push.version
        self.pending = None
        return True

    def _apply(self, push: Push) -> None:
        applied = {
            served.key: served.hashes
            for served in push.upserts
            if not self._refused_now(served.key, served.hashes)
        }
        for key in (*applied, *push.removals):
            self.refused.pop(key, None)
        if applied or push.removals:
            gone = set(push.removals)
            kept = {key: hashes for key, hashes in self.acked.items() if key not in gone}
            self.acked = kept | applied

    def nack(self, nonce: int, refusals: Iterable[VariantRefusal]) -> tuple[VariantRefusal, ...]:
        """Record refusals; the acknowledgement of the rest follows.

        Returns:
            The refusals of sent variants; none if the nonce is stale.
        """
        push = self.pending
        if push is None or push.nonce != nonce:
            self.stale += 1
            return ()
        sent = {served.key: served.hashes for served in push.upserts}
        accepted = tuple(refusal for refusal in refusals if refusal.key in sent)
        for refusal in accepted:
            self.refused.pop(refusal.key, None)  # keeps the newest last
            self.refused[refusal.key] = (refusal, sent[refusal.key])
        return accepted

    def was_sent(self, key: VariantKey, launch_hash: str) -> bool:
        """Return whether the worker has a launch of a variant, or a pending delta with it."""
        held = self.acked.get(key)
        sent = self.pending.upserts if self.pending is not None else ()
        return (held is not None and held.launch == launch_hash) or any(
            (upsert.key, upsert.hashes.launch) == (key, launch_hash) for upsert in sent
        )

    def is_on_its_way(self, key: VariantKey) -> bool:
        """Return whether the worker has yet to acknowledge a variant that it was sent."""
        if self.pending is None or key in self.refused:
            return False
        content = self._pending_content
        return key in content if content is not None else key in map(_key_of, self.pending.upserts)

    def has(self, served: Served) -> bool:
        """Return whether the worker has acknowledged exactly this content."""
        return self.acked.get(served.key) == served.hashes

    def _delta_to(self, snapshot: Snapshot) -> Delta:
        """Return the delta to a snapshot; shared by all workers in the usual cases."""
        if not self.refused:
            return snapshot.since(self.acked)
        refused = {key: hashes for key, (_, hashes) in self.refused.items()}
        return compute_delta(snapshot, {**self.acked, **refused})

    def _forget_refusals(self, snapshot: Snapshot) -> None:
        """Forget refusals of variants whose current content the worker already has."""
        for key in list(self.refused):
            if snapshot.hashes.get(key) == self.acked.get(key):
                del self.refused[key]

    def _refused_now(self, key: VariantKey, hashes: Hashes) -> bool:
        refused = self.refused.get(key)
        return refused is not None and refused[1] == hashes
