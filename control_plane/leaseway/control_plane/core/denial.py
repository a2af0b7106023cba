"""Why a caller gets no answer, or not yet."""

from __future__ import annotations

from dataclasses import dataclass, field

from leaseway.wire.errors import Reason


@dataclass(frozen=True)
class Denial:
    """Why there is no answer; the edge makes a fault of it.

    Attributes:
        retry_delay: Seconds after which it may be otherwise by itself; None where it will not.
        can_wait: Whether who waits for room waits for the end of this, too.
    """

    reason: Reason
    message: str
    retry_delay: float | None = None
    metadata: dict[str, str] = field(default_factory=dict)
    can_wait: bool = True

    @property
    def is_temporary(self) -> bool:
        """Whether it may end by itself, soon enough for who waits for room."""
        return self.can_wait and self.retry_delay is not None


@dataclass(frozen=True)
class PendingServers:
    """The answer may come when one of these servers has its first result."""

    servers: tuple[str, ...]
