"""Anchors of the audit in the store (design.md#anchors-of-the-audit).

The core has them in memory, and workers wait for nothing here: what has changed is written every
few seconds, together. While the store fails, it stays in memory and is written later. A record that
this release does not understand is left as it is; what a worker tells of its run is in memory only.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping, Sequence
from math import inf
from typing import Final

from google.protobuf.message import DecodeError
from google.protobuf.unknown_fields import UnknownFieldSet

from leaseway.control_plane.core.audit_anchors import AuditAnchors
from leaseway.control_plane.core.moment import Moment
from leaseway.control_plane.store.port import (
    Change,
    Delete,
    Put,
    Room,
    StoredRecord,
    StoreError,
    read_all,
)
from leaseway.control_plane.stored_approvals import StoredApprovals
from leaseway.v1 import admin_pb2
from leaseway.wire.audit_heads import AuditAnchor
from leaseway.wire.errors import Fault, Reason
from leaseway.wire.messages.audit_heads import anchor_from_proto, anchor_to_proto

INTERVAL: Final = 10.0
"""Seconds between two writes; what was told in them is lost with a killed control plane."""
_BATCH: Final = 200
"""Anchors of one write, whose encoding takes the loop a few milliseconds."""


class StoredAnchors:
    """Reads the anchors of earlier terms and keeps those of this one.

    Args:
        approvals: The other user of the term's store, which claims it, reports that it fails, and
            finds out when it works again.
        clock: Returns the current time.

    Attributes:
        unreadable: Runs whose records in the store are not understood, in order.
    """

    def __init__(
        self,
        anchors: AuditAnchors,
        approvals: StoredApprovals,
        clock: Callable[[], Moment],
    ) -> None:
        self._anchors = anchors
        self._store = approvals.store
        self._approvals = approvals
        self._clock = clock
        self._lock = asyncio.Lock()
        self._due = -inf
        self._is_read = False
        self.unreadable: tuple[str, ...] = ()

    def next_deadline(self) -> float | None:
        """Return when `maintain` is due on the monotonic clock, or None while the store fails."""
        if self._lock.locked() or self._approvals.usable_epoch is None:
            return None
        return self._due

    def needs_maintenance(self) -> bool:
        """Whether `maintain` is due."""
        due = self.next_deadline()
        return due is not None and due <= self._clock().mono

    async def maintain(self) -> None:
        """Read what earlier terms have kept, then write what has changed; report failures."""
        async with self._lock:
            epoch = self._approvals.usable_epoch
            if epoch is None:
                return
            self._due = self._clock().mono + INTERVAL
            try:
                await self._read()
                while changed := self._anchors.changed(_BATCH):
                    await self._store.write(epoch, [*_changes(changed, self.unreadable)])
                    self._anchors.confirm_kept(changed)
                    if len(changed) < _BATCH:
                        return
            except StoreError as error:
                self._approvals.note(error)

    async def refresh(self) -> None:
        """Read what earlier terms have kept, unless it was read.

        Raises:
            Fault: STORE_UNAVAILABLE: it cannot be read, so that nobody takes a part for the whole.
        """
        if self._is_read:
            return
        await self._approvals.refresh()  # which claims the store
        async with self._lock:
            try:
                await self._read()
            except StoreError as error:
                self._approvals.note(error)
                raise _unavailable(str(error)) from error

    async def _read(self) -> None:
        if not self._is_read:
            records = await read_all(self._store, Room.ANCHORS)
            # On a thread: 10,000 of them would keep the loop for a third of a second.
            read = await asyncio.to_thread(_decoded_all, records)
            kept = (anchor for anchor in read.values() if anchor is not None)
            self._anchors.restore(kept, self._clock().unix)
            self._is_read = True
            self.unreadable = tuple(run for run, anchor in read.items() if anchor is None)
            if self.unreadable:
                self._approvals.unreadable.emit(Room.ANCHORS, self.unreadable)


def _changes(
    changed: Mapping[str, AuditAnchor | None], unreadable: Sequence[str]
) -> Iterator[Change]:
    for run, anchor in changed.items():
        if run in unreadable:
            continue
        if anchor is None:
            yield Delete(Room.ANCHORS, run)
        else:
            yield Put(Room.ANCHORS, run, anchor_to_proto(anchor).SerializeToString())


def _decoded_all(records: Sequence[StoredRecord]) -> dict[str, AuditAnchor | None]:
    return {record.key: _decoded(record) for record in records}


def _decoded(record: StoredRecord) -> AuditAnchor | None:
    """Return the anchor of a record, or None if this release does not understand it."""
    try:
        message = admin_pb2.AuditAnchor.FromString(record.value)
    except DecodeError:
        return None
    if len(UnknownFieldSet(message)) or len(UnknownFieldSet(message.head)):
        return None  # to write it again would lose what a newer release has put there
    anchor = anchor_from_proto(message)
    return anchor if anchor is not None and anchor.head.run == record.key else None


def _unavailable(why: str) -> Fault:
    return Fault(
        Reason.STORE_UNAVAILABLE,
        f"The control plane has not read the anchors of the audit from its store yet: {why} Try"
        " again later, or verify without them (--no-anchors).",
        retry_delay=1.0,
    )
