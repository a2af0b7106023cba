"""A measured event at several sizes, and how its figures grow. Pure."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

__all__ = ["LEASES", "SIZES", "ScaleRow", "Size", "growth"]


@dataclass(frozen=True)
class Size:
    """How large a fleet is."""

    workers: int
    servers: int

    @property
    def name(self) -> str:
        return f"{self.workers} × {self.servers:,}"


SIZES: Final = (Size(10, 100), Size(100, 1_000), Size(1_000, 10_000))
"""× 1, × 10, × 100: up to as many servers as one file may have."""
LEASES: Final = 100
"""Leases of a worker, where a row has any."""


@dataclass(frozen=True)
class ScaleRow:
    """One event.

    Attributes:
        measure: Returns its figures, by name.
        sizes: The sizes, the smallest first.
    """

    name: str
    title: str
    measure: Callable[[Size], Awaitable[Mapping[str, float]]]
    sizes: Sequence[Size] = SIZES


def growth(figures: Sequence[float]) -> list[float | None]:
    """Return by what each figure has grown since the one before; None without one to compare."""
    ratios = (now / before if before else None for before, now in pairwise(figures))
    return [None, *ratios] if figures else []
