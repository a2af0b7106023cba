"""RPCs that authentication or authorization refused, aggregated for the audit.

A client can cause any number of refusals. Of equal ones, the first in a minute is reported at once,
and the number of the others when the minute has passed. So the number of reports is bounded.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Final

from leaseway.wire.errors import Fault
from leaseway.wire.signals import Signal

WINDOW: Final = 60.0
MAX_KINDS: Final = 64
"""Distinct refusals in a minute; all others are counted together."""
_MAX_PEER: Final = 64


@dataclass(frozen=True, slots=True)
class RpcRefusal:
    """A refused RPC.

    Attributes:
        rpc: `Service/Method`, or empty for an unknown RPC.
        by: The name of the credential, also if it has expired or was revoked; empty if none was
            genuine.
        peer: The sender's address without port.
        outcome: The error's reason.
    """

    rpc: str
    by: str
    peer: str
    outcome: str


OTHERS: Final = RpcRefusal("", "", "", "")
"""Stands for all refusals beyond `MAX_KINDS`."""


class RpcRefusals:
    """Counts and reports refused RPCs.

    Attributes:
        refused: Announces a refusal and its count. Nothing is counted while nothing handles it.
    """

    def __init__(self) -> None:
        self.refused: Signal[RpcRefusal, int] = Signal()
        self._counts: dict[RpcRefusal, int] = {}
        self._timer: asyncio.TimerHandle | None = None

    def record(self, rpc: str, by: str, peer: str, fault: Fault) -> None:
        """Count a refusal.

        Args:
            rpc: `Service/Method` of a known RPC, or empty.
            by: The name of the credential, or empty.
            peer: The peer in gRPC's form, with port.
            fault: The error.
        """
        if not self.refused:
            return
        address = peer.rpartition(":")[0] or peer
        refusal = RpcRefusal(rpc, by, address[:_MAX_PEER], fault.reason.value)
        if self._timer is None:
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(WINDOW, self.flush)
        if refusal in self._counts:
            self._counts[refusal] += 1
        elif len(self._counts) < MAX_KINDS:
            self._counts[refusal] = 0
            self.refused.emit(refusal, 1)
        else:
            self._counts[OTHERS] = self._counts.get(OTHERS, 0) + 1

    def flush(self) -> None:
        """Report the counted refusals and reset the counts."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        counts, self._counts = self._counts, {}
        for refusal, count in counts.items():
            if count:
                self.refused.emit(refusal, count)
