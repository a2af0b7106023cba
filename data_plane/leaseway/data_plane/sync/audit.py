"""What a worker and its control plane tell each other for the audit."""

from __future__ import annotations

import asyncio
from typing import Final

from leaseway.data_plane.audit.heads import RunHeads
from leaseway.data_plane.audit.planes import AuditMessage, PlaneRecords
from leaseway.data_plane.sync.outgoing import Outgoing
from leaseway.v1 import sync_pb2
from leaseway.wire.audit_heads import AuditHead
from leaseway.wire.messages.audit_heads import head_to_proto
from leaseway.wire.timing.durations import seconds

_SHORTEST: Final = 1.0
"""Seconds between two heads of a run, if a control plane asks for more."""


class AuditSync:
    """Tells the control plane how far the audit is, and records what the control plane reports.

    Args:
        records: Records decisions about calls and actions of operators.
        heads: Says how far the audit is, or None if there is no audit.
        outgoing: Sends the heads.
    """

    def __init__(self, records: PlaneRecords, heads: RunHeads | None, outgoing: Outgoing) -> None:
        self._records = records
        self._heads = heads
        self._outgoing = outgoing
        self._interval = 0.0
        if heads is not None:
            heads.shipped_earlier.connect(self._tell)

    def handle_record(self, message: AuditMessage) -> None:
        """Record what the control plane reports."""
        self._records.record(message)

    def handle_welcome(self, welcome: sync_pb2.Welcome) -> None:
        """Begin with a control plane; an older one, which knows no heads, is told none."""
        interval = seconds(welcome.audit_interval)
        self._interval = max(interval, _SHORTEST) if interval > 0 else 0.0
        if self._heads is not None:
            for head in self._heads.earlier:
                self._tell(head)

    @property
    def tells_heads(self) -> bool:
        """Whether there is an audit, and a control plane that anchors it."""
        return self._heads is not None and self._interval > 0

    async def tell_heads(self) -> None:
        """Tell how far the audit is, at once and then at the interval; until cancelled."""
        while True:
            self.tell()
            await asyncio.sleep(self._interval)

    def tell(self) -> None:
        """Tell how far the audit is now."""
        if self._heads is not None:
            self._tell(self._heads.current())

    def _tell(self, head: AuditHead) -> None:
        if self._interval > 0:
            self._outgoing.send(sync_pb2.SyncRequest(audit_head=head_to_proto(head)))
