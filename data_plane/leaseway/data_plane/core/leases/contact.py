"""Until when a worker may serve its leases without another word of the control plane.

Pure: time is a parameter. See design.md#leases.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import inf
from typing import Final

MAX_WAIT: Final = 5.0
"""Seconds for which a call waits for the word of a control plane that says nothing."""


@dataclass(frozen=True, slots=True)
class PlaneContact:
    """What a worker knows of the control plane that may give its leases to other workers.

    A control plane gives them away at the earliest when it has heard nothing for its patience. It
    heard a pulse no earlier than the pulse was sent, so its answer is good for the patience from
    then. Without one, only a control plane that does not exist is known to give nothing away. All
    times are seconds on the worker's monotonic clock.

    Attributes:
        patience: As the last control plane told it; 0 from one that answers no pulses.
        welcomed_at: When the newest stream began.
        confirmed_at: When the last pulse that was answered had been sent.
        gone_at: When no control plane was found last.
        unreached: Attempts in a row that have reached none.
        is_refused: Whether the last one that was reached refused this worker.
    """

    patience: float = 0.0
    welcomed_at: float = -inf
    confirmed_at: float = -inf
    gone_at: float = -inf
    unreached: int = 0
    is_refused: bool = False

    @property
    def until(self) -> float:
        """Until when leases may be served; infinity if no control plane answers pulses."""
        return max(self.confirmed_at, self.gone_at) + self.patience if self.patience else inf

    def is_silent(self, now: float) -> bool:
        """Return whether the control plane has answered nothing on the stream for its patience."""
        since = max(self.welcomed_at, self.confirmed_at)
        return self.patience > 0 and now >= since + self.patience

    def welcomed(self, patience: float, now: float) -> PlaneContact:
        """Return the contact after a stream has begun: its first answered pulse confirms leases."""
        return replace(
            self, patience=patience, welcomed_at=now, gone_at=-inf, unreached=0, is_refused=False
        )

    def answered(self, sent_at: float, now: float) -> PlaneContact:
        """Return the contact after the answer to a pulse, which had been sent at a time."""
        return replace(self, confirmed_at=max(self.confirmed_at, min(sent_at, now)))

    def missed(self, now: float, planes: int) -> PlaneContact:
        """Return the contact after an attempt that has reached no leading control plane.

        Args:
            now: The time.
            planes: How many addresses there are; after as many attempts none leads.
        """
        unreached = self.unreached + 1
        gone_at = now if unreached >= planes else self.gone_at
        return replace(self, gone_at=gone_at, unreached=unreached, is_refused=False)

    def refused(self) -> PlaneContact:
        """Return the contact after a control plane has refused this worker."""
        return replace(self, gone_at=-inf, unreached=0, is_refused=True)

    def waited(self, now: float) -> PlaneContact:
        """Return the contact after a call has waited for `MAX_WAIT`.

        A control plane that says nothing in this time counts as gone; one that refuses does not.
        """
        return self if self.is_refused else replace(self, gone_at=now)
