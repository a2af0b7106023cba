"""A row, and the arguments and checks that rows share."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass

from benchmarks.load import Driver

__all__ = ["SESSIONS", "TEXT", "Row", "check"]

TEXT = "x" * 64
"""The echoed text of 64 bytes, unless a row has its own."""


SESSIONS = 32
"""Sessions with a lease, and so processes of a leased server; rows to compare have as many."""


@dataclass(frozen=True)
class Row:
    """One line of the table.

    Attributes:
        name: Its name in results and in `--rows`.
        title: Its name in the table.
        open: Starts all processes and yields the driver.
        in_flight: Numbers of callers to measure.
        peer: Whether it needs an environment that `--peers` installs.
    """

    name: str
    title: str
    open: Callable[[], AbstractAsyncContextManager[Driver]]
    in_flight: tuple[int, ...] = (1, 32, 128, 256)
    peer: bool = False


def check(text: str | None, expected: str) -> None:
    """Check a result, so that wrong results are not counted as fast calls.

    Raises:
        RuntimeError: It is wrong.
    """
    if text != expected:
        raise RuntimeError(f"A result of {len(text or '')} characters is not the expected one.")
