"""A special measurement."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass

__all__ = ["Special"]


@dataclass(frozen=True)
class Special:
    """A measurement with its own figures.

    Attributes:
        name: Its name in results and in `--rows`.
        title: Its name in the report.
        measure: Returns figures by name; their units are in their names.
        rounds: The maximum number of rounds, for long measurements.
    """

    name: str
    title: str
    measure: Callable[[], Awaitable[Mapping[str, float]]]
    rounds: int = 100
