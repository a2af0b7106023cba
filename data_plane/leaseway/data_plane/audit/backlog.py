"""The bytes of files that wait for a sink, and what happens when they are too many. Pure."""

from __future__ import annotations

from enum import Enum


class Policy(Enum):
    """What a worker does when the sink has not acknowledged its records."""

    BLOCK = "block"
    """Calls wait until the sink has acknowledged that they begin, and replies that they ended."""
    SPILL = "spill"
    """Calls go on. If the files reach their limit, those that change something are refused."""
    DROP = "drop"
    """Calls go on. If the files reach their limit, records are dropped and counted."""


class Backlog:
    """The bytes that are written and not acknowledged.

    Args:
        limit: How many bytes there may be.
        policy: What happens beyond.

    Attributes:
        size: Bytes that are not acknowledged.
        limit: As given.
        policy: As given.
    """

    __slots__ = ("limit", "policy", "size")

    def __init__(self, limit: int, policy: Policy) -> None:
        self.size = 0
        self.limit = limit
        self.policy = policy

    def add(self, size: int) -> None:
        self.size += size

    def remove(self, size: int) -> None:
        self.size = max(0, self.size - size)

    @property
    def is_full(self) -> bool:
        return self.size >= self.limit

    @property
    def drops(self) -> bool:
        return self.policy is Policy.DROP
