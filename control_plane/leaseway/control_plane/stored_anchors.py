"""Anchors of the audit in the store (design.md#anchors-of-the-audit).

The core has them in memory, and workers wait for nothing here: what has changed is written every
few seconds, together. While the store fails, it stays in memory and is written later.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from math import inf
from typing import Final

from google.protobuf.message import DecodeError

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

_logger = logging.getLogger(__name__)


class _Unreadable(Exception):
    """The store has something else than anchors in their room; the message says where."""


class StoredAnchors:
    """Reads the anchors of earlier terms and keeps those of this one.

    Args:
        anchors: The anchors of the term.
        approvals: The other user of the term's store, which claims it, reports that it fails, and
            finds out when it works again.
        clock: Returns the current time.
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
                    await self._store.write(epoch, [*_changes(changed)])
                    self._anchors.confirm_kept(changed)
                    if len(changed) < _BATCH:
                        return
            except StoreError as error:
                self._approvals.report_failure(error)
            except _Unreadable as error:
                _logger.warning("%s", error)

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
                self._approvals.report_failure(error)
                raise _unavailable(str(error)) from error
            except _Unreadable as error:
                raise _unavailable(str(error)) from error

    async def _read(self) -> None:
        if not self._is_read:
            records = await read_all(self._store, Room.ANCHORS)
            # On a thread: 10,000 of them would keep the loop for a third of a second.
            kept = await asyncio.to_thread(_decoded_all, records)
            self._anchors.restore(kept, self._clock().unix)
            self._is_read = True


def _changes(changed: Mapping[str, AuditAnchor | None]) -> Iterator[Change]:
    for run, anchor in changed.items():
        if anchor is None:
            yield Delete(Room.ANCHORS, run)
        else:
            yield Put(Room.ANCHORS, run, anchor_to_proto(anchor).SerializeToString())


def _decoded_all(records: Sequence[StoredRecord]) -> list[AuditAnchor]:
    return [*map(_decoded, records)]


def _decoded(record: StoredRecord) -> AuditAnchor:
    try:
        anchor = anchor_from_proto(admin_pb2.AuditAnchor.FromString(record.value))
    except DecodeError:
        anchor = None
    if anchor is None or anchor.head.run != record.key:
        raise _Unreadable(
            f"The store has a record '{record.key}' among the anchors of the audit that is none."
            " Until it is deleted, anchors are in memory only."
        )
    return anchor


def _unavailable(why: str) -> Fault:
    return Fault(
        Reason.STORE_UNAVAILABLE,
        f"The control plane has not read the anchors of the audit from its store yet: {why} Try"
        " again later, or verify without them (--no-anchors).",
        retry_delay=1.0,
    )
