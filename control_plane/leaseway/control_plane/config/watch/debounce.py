"""When a burst of file events is over (DESIGN §3): quiet for a while, or too long already.

`watchfiles` has a debounce of its own, for one watched directory. This one is for several
directories, polls, torn reads and resources of Kubernetes together, and would have to stay.
"""

from __future__ import annotations

from dataclasses import dataclass, replace


@dataclass(frozen=True)
class Debounce:
    """A burst of events, by the times at which they came. Seconds on any one clock.

    Attributes:
        quiet: It is over once this long has passed since its last event.
        longest: It is over in any case once this long has passed since its first.
        first: When its first event came; None where there is no burst.
        last: When its last one came.
    """

    quiet: float
    longest: float
    first: float | None = None
    last: float | None = None

    def event(self, now: float) -> Debounce:
        return replace(self, first=now if self.first is None else self.first, last=now)

    @property
    def due(self) -> float | None:
        """When the burst is over unless another event comes, or None where there is none."""
        if self.first is None or self.last is None:
            return None
        return min(self.last + self.quiet, self.first + self.longest)
