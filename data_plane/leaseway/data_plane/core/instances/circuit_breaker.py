"""Restart backoff and circuit breaker of a failing server (design.md#bounds-and-defaults). Pure.

The backoff grows with the failures in a row; the fifth opens the circuit. An open circuit allows
one trial start at a time, after each backoff, and a start that succeeds closes it. If that
instance soon ends by itself, the failures before it count again.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final

from leaseway.wire.messages.states import CircuitState

FAILURE_THRESHOLD: Final = 5
"""Failures in a row that open the circuit."""

STABLE_AFTER: Final = 10.0
"""Seconds after which the end of an instance has nothing to do with its start."""


@dataclass(frozen=True, slots=True)
class CircuitBreaker:
    """The result of the starts of one generation so far; each event returns the next state.

    Times are seconds on a monotonic clock. A `delay` parameter returns the backoff in seconds
    after a number of earlier failures.

    Attributes:
        failures: Failures in a row.
        retry_at: When the backoff ends. It holds for starts that no caller needs, and for all
            starts while the circuit is open.
        trial: Whether the trial start of an open circuit is in progress.
        earlier_failures: Failures before the newest start that succeeded.
        unstable_until: Until when the end of that instance makes those failures count again.
    """

    failures: int = 0
    retry_at: float = 0.0
    trial: bool = False
    earlier_failures: int = 0
    unstable_until: float = 0.0

    @property
    def is_open(self) -> bool:
        return self.failures >= FAILURE_THRESHOLD

    @property
    def circuit(self) -> CircuitState:
        if not self.is_open:
            return "closed"
        return "half_open" if self.trial else "open"

    def allows_start(self, now: float) -> bool:
        """Return whether an instance may be started for a caller that needs it."""
        return not self.is_open or (not self.trial and now >= self.retry_at)

    def allows_background_start(self, now: float) -> bool:
        """Return whether an instance may be started that no caller needs yet."""
        return now >= self.retry_at and self.allows_start(now)

    def start_attempted(self) -> CircuitBreaker:
        """Return the state after a start began; it is the trial if the circuit is open."""
        return replace(self, trial=True) if self.is_open else self

    def start_cancelled(self, trial: bool) -> CircuitBreaker:
        """Return the state after a start was cancelled; `trial` says whether it was the trial."""
        return replace(self, trial=False) if trial else self

    def start_failed(
        self, now: float, delay: Callable[[int], float], trial: bool = False
    ) -> CircuitBreaker:
        """Return the state after a start failed; `trial` says whether it was the trial."""
        return CircuitBreaker(
            failures=self.failures + 1,
            retry_at=now + delay(self.failures),
            trial=self.trial and not trial,
        )

    def start_succeeded(self, now: float) -> CircuitBreaker:
        """Return the state after a start succeeded: the circuit is closed."""
        if self.failures:
            return CircuitBreaker(earlier_failures=self.failures, unstable_until=now + STABLE_AFTER)
        return replace(self, retry_at=0.0, trial=False)

    def instance_ended(
        self, now: float, up_since: float, delay: Callable[[int], float]
    ) -> CircuitBreaker:
        """Return the state after an instance ended by itself, and not because of its use.

        Args:
            now: The time.
            up_since: When the instance had started.
            delay: The backoff.
        """
        failures = self.failures
        if now - up_since < STABLE_AFTER and now < self.unstable_until:
            failures = max(failures, self.earlier_failures)
        return CircuitBreaker(
            failures=failures + 1, retry_at=now + delay(failures), trial=self.trial
        )


MAX_QUIET: Final = 600.0
"""Seconds between two crashes after which they have nothing to do with each other."""


@dataclass(frozen=True, slots=True)
class CrashHistory:
    """The crashes of one generation so far.

    Attributes:
        last: When an instance last exited by itself, or None if none has.
        quiet: Seconds that an instance must run until the last crash is history.
    """

    last: float | None = None
    quiet: float = STABLE_AFTER

    def crashed(self, now: float) -> CrashHistory:
        """Return the history after another crash."""
        if self.last is None or now - self.last > MAX_QUIET:
            return CrashHistory(now)
        return CrashHistory(now, min(MAX_QUIET, max(STABLE_AFTER, 2 * (now - self.last))))
