"""What a row is, and the arguments and checks that all rows share."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass

from benchmarks.load import Driver

__all__ = ["TEXT", "Row", "check"]

TEXT = "x" * 64
"""What is echoed: 64 bytes, unless a row says otherwise."""


@dataclass(frozen=True)
class Row:
    """One line of the table.

    Attributes:
        name: Names it in results and in `--rows`.
        title: What the table calls it.
        open: Starts everything and yields what drives it.
        in_flight: The numbers of callers to measure.
        peer: Whether it needs an environment that `--peers` installs.
    """

    name: str
    title: str
    open: Callable[[], AbstractAsyncContextManager[Driver]]
    in_flight: tuple[int, ...] = (1, 32, 128, 256)
    peer: bool = False


def check(text: str | None, wanted: str) -> None:
    """Raise where an answer is not what was asked for: a fast wrong answer is none.

    Raises:
        RuntimeError: It is another one.
    """
    if text != wanted:
        raise RuntimeError(f"An answer of {len(text or '')} characters is not the one asked for.")
