"""RPCs that were refused for what their sender proved to be, as an audit is told of them.

Whoever reaches a port can be refused as often as it likes: of what is alike in all that a record
says, the first in a minute is told at once, and how many came after it when the minute has passed.
So a minute adds a bounded number of records, whatever is sent.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from leaseway.wire.errors import Fault

WINDOW: Final = 60.0
MOST_KINDS: Final = 64
"""Refusals in a minute that are told apart; all others count together."""
_LONGEST_PEER: Final = 64


@dataclass(frozen=True, slots=True)
class Refusal:
    """What is known of a refusal.

    Attributes:
        rpc: `Service/Method`; empty for one that there is not.
        by: The credential; empty where none was proved.
        peer: The address that it came from, without its port.
        outcome: Why, as an error's reason.
    """

    rpc: str
    by: str
    peer: str
    outcome: str


OTHERS: Final = Refusal("", "", "", "")
"""What stands for refusals beyond those that are told apart."""

Tell = Callable[[Refusal, int], None]
"""Told of a refusal, and how many there were."""


class Refusals:
    """Counts refusals and tells of them.

    Attributes:
        tell: Told; None where nobody wants to know, and nothing is counted.
    """

    def __init__(self) -> None:
        self.tell: Tell | None = None
        self._counts: dict[Refusal, int] = {}
        self._timer: asyncio.TimerHandle | None = None

    def note(self, rpc: str, by: str, peer: str, fault: Fault) -> None:
        """Count a refusal.

        Args:
            rpc: `Service/Method`, of those that there are, or empty.
            by: The credential, or empty.
            peer: As gRPC names it, with its port.
            fault: What it was refused with.
        """
        if self.tell is None:
            return
        address = peer.rpartition(":")[0] or peer
        refusal = Refusal(rpc, by, address[:_LONGEST_PEER], fault.reason.value)
        if self._timer is None:
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(WINDOW, self.flush)
        if refusal in self._counts:
            self._counts[refusal] += 1
        elif len(self._counts) < MOST_KINDS:
            self._counts[refusal] = 0
            self.tell(refusal, 1)
        else:
            self._counts[OTHERS] = self._counts.get(OTHERS, 0) + 1

    def flush(self) -> None:
        """Tell of what was only counted, and begin anew."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        counts, self._counts = self._counts, {}
        for refusal, count in counts.items():
            if count and self.tell is not None:
                self.tell(refusal, count)
