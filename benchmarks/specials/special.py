"""What a special measurement is."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass

__all__ = ["Special"]


@dataclass(frozen=True)
class Special:
    """A measurement with figures of its own.

    Attributes:
        name: Names it in results and in `--rows`.
        title: What the report calls it.
        measure: Returns figures by name; their units are in their names.
        rounds: At most so many, where one takes long.
    """

    name: str
    title: str
    measure: Callable[[], Awaitable[Mapping[str, float]]]
    rounds: int = 100
