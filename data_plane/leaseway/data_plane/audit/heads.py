"""How far the audit of this worker is, which it tells the control plane."""

from __future__ import annotations

from collections import deque
from typing import Final

from leaseway.data_plane.audit.log import AuditLog
from leaseway.data_plane.audit.shipping import Shipper
from leaseway.wire.audit_heads import NOTHING, AuditHead, Mark
from leaseway.wire.signals import Signal

_MAX_EARLIER: Final = 256
"""Earlier runs that each new control plane is told; beyond that the oldest are forgotten."""


class RunHeads:
    """The heads of this worker's run, and of the runs of killed workers that it has shipped.

    Args:
        log: The run.
        shipper: Ships it, or None if there is no sink.
        sink: The address of the sink; empty without one.

    Attributes:
        earlier: The heads of runs that have ended, the oldest first.
        shipped_earlier: Announces the head of one that was just added.
    """

    def __init__(self, log: AuditLog, shipper: Shipper | None = None, sink: str = "") -> None:
        self.earlier: deque[AuditHead] = deque(maxlen=_MAX_EARLIER)
        self.shipped_earlier: Signal[AuditHead] = Signal()
        self._log = log
        self._shipper = shipper
        self._sink = sink
        if shipper is not None:
            shipper.recovered.connect(self._handle_recovered)

    def current(self) -> AuditHead:
        """Return the head of this worker's run."""
        shipped = self._shipper.shipped_mark if self._shipper is not None else NOTHING
        return AuditHead(
            run=self._log.run,
            sink=self._sink,
            written=max(self._log.mark, shipped),
            shipped=shipped,
            has_ended=self._log.is_closed,
        )

    def _handle_recovered(self, run: str, last: Mark) -> None:
        head = AuditHead(run=run, sink=self._sink, written=last, shipped=last, has_ended=True)
        self.earlier.append(head)
        self.shipped_earlier.emit(head)
