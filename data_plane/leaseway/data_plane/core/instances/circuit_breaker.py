"""When a server that fails may be started again (DESIGN §10, restart backoff).

Pure: a backoff that grows with the failures in a row, and a circuit that opens after the fifth.
While it is open only one try at a time is made, after each backoff; a start that succeeds closes
it. An instance that came up and ended at once has not mended anything: the failures before it
count again.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final, Literal

OPENS_AFTER: Final = 5
"""Failures in a row that open the circuit."""

STEADY: Final = 10.0
"""An instance that was up this long, in seconds, did not end because of its start."""

CircuitState = Literal["closed", "open", "half_open"]


@dataclass(frozen=True, slots=True)
class CircuitBreaker:
    """How starting the instances of one generation has gone so far.

    Times are seconds on a monotonic clock; a `delay` gives the backoff after the failed try of a
    number, counted from 0.

    Attributes:
        failures: Failures in a row.
        retry_at: Before this nothing is started in the background, and nothing at all while the
            circuit is open.
        trial: Whether the one try that an open circuit allows is under way.
        doubt: Failures before the newest start that succeeded.
        doubt_until: Until when that start may turn out not to have mended anything.
    """

    failures: int = 0
    retry_at: float = 0.0
    trial: bool = False
    doubt: int = 0
    doubt_until: float = 0.0

    @property
    def is_open(self) -> bool:
        """Whether only one try at a time is made."""
        return self.failures >= OPENS_AFTER

    @property
    def circuit(self) -> CircuitState:
        """`closed`, `open`, or `half_open` while the one try is under way."""
        if not self.is_open:
            return "closed"
        return "half_open" if self.trial else "open"

    def admits(self, now: float) -> bool:
        """Return whether somebody who needs an instance may have one started."""
        return not self.is_open or (not self.trial and now >= self.retry_at)

    def is_due(self, now: float) -> bool:
        """Return whether the background may start an instance: never before the backoff is over."""
        return now >= self.retry_at and self.admits(now)

    def began(self) -> CircuitBreaker:
        """Return what follows a start that begins; it is the trial where the circuit is open."""
        return replace(self, trial=True) if self.is_open else self

    def given_up(self, trial: bool) -> CircuitBreaker:
        """Return what follows a start that was called off.

        Args:
            trial: Whether that start was the trial.
        """
        return replace(self, trial=False) if trial else self

    def failed(
        self, now: float, delay: Callable[[int], float], trial: bool = False
    ) -> CircuitBreaker:
        """Return what follows a start that failed.

        Args:
            now: The time.
            delay: The backoff.
            trial: Whether that start was the trial.
        """
        return CircuitBreaker(
            failures=self.failures + 1,
            retry_at=now + delay(self.failures),
            trial=self.trial and not trial,
        )

    def came_up(self, now: float) -> CircuitBreaker:
        """Return what follows a start that succeeded: the circuit is closed."""
        if self.failures:
            return CircuitBreaker(doubt=self.failures, doubt_until=now + STEADY)
        return replace(self, retry_at=0.0, trial=False)

    def ended(self, now: float, up_since: float, delay: Callable[[int], float]) -> CircuitBreaker:
        """Return what follows an instance that ended by itself, and not because of its use.

        Args:
            now: The time.
            up_since: When it came up.
            delay: The backoff.
        """
        before = self.failures
        if now - up_since < STEADY and now < self.doubt_until:
            before = max(before, self.doubt)
        return CircuitBreaker(failures=before + 1, retry_at=now + delay(before), trial=self.trial)
