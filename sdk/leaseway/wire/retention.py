"""For how long numbers of what is gone are still shown (DESIGN §11)."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Final

__all__ = ["SHOWN_FOR", "Retention"]

SHOWN_FOR: Final = 300.0
"""Seconds that series of something removed stay, so that its last numbers are still collected."""


class Retention:
    """Remembers since when names are gone."""

    def __init__(self) -> None:
        self._seen: dict[str, float] = {}

    def wanted(self, present: Collection[str], now: float) -> Callable[[str], bool]:
        """Return what says whether a name is there, or was within the last 300 s.

        Args:
            present: The names that are there.
            now: Seconds on a monotonic clock.

        """
        self._seen.update(dict.fromkeys(present, now))
        for name in [name for name, last in self._seen.items() if now - last > SHOWN_FOR]:
            del self._seen[name]
        return self._seen.__contains__
