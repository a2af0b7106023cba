"""How listings show the calls in flight of a server or a worker."""

from __future__ import annotations

from typing import Final, Protocol

LOAD_HEADERS: Final = ("IN FLIGHT", "WAITING", "OLDEST WAIT")


class Loaded(Protocol):
    """A server or a worker, or a row of its calls."""

    @property
    def in_flight(self) -> int | None:
        """The number of calls without a result, or None if unknown."""

    @property
    def waiting(self) -> int | None:
        """How many of them were not sent to the server."""

    @property
    def oldest_wait(self) -> float | None:
        """Seconds that the oldest of these has waited; None if none waits."""


def load_cells(loaded: Loaded) -> tuple[str, str, str]:
    """Return the cells for `LOAD_HEADERS`."""
    if loaded.in_flight is None or loaded.waiting is None:
        return "", "", ""
    wait = loaded.oldest_wait
    return f"{loaded.in_flight:,}", f"{loaded.waiting:,}", "-" if wait is None else duration(wait)


def duration(seconds: float) -> str:
    """Return a duration in ms or s."""
    return f"{seconds * 1e3:.0f} ms" if seconds < 1 else f"{seconds:.1f} s"
