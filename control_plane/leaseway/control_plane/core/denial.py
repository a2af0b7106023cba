"""The core's negative answers to callers."""

from __future__ import annotations

from dataclasses import dataclass, field

from leaseway.wire.errors import Reason


@dataclass(frozen=True)
class Denial:
    """A denied request; services convert it to a `Fault`.

    Attributes:
        retry_delay: Seconds after which a retry may succeed, or None if it cannot.
        can_wait: Whether requests in the wait queue stay there despite this denial.
    """

    reason: Reason
    message: str
    retry_delay: float | None = None
    metadata: dict[str, str] = field(default_factory=dict)
    can_wait: bool = True

    @property
    def is_temporary(self) -> bool:
        """Whether a request in the wait queue may still succeed."""
        return self.can_wait and self.retry_delay is not None


@dataclass(frozen=True)
class PendingServers:
    """The answer depends on the first probe results of these servers, and perhaps of others."""

    servers: tuple[str, ...]
