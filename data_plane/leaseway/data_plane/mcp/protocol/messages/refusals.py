"""Counts the failures of a server in a row: one that answers may nevertheless serve nothing."""

from __future__ import annotations

from typing import Final

from leaseway.data_plane.background import LightEvent

_SUSPICIOUS: Final = 3
"""Calls that fail in a row, without a success, before the server is checked."""


class Refusals:
    """Whether calls of one connection fail in a row.

    Attributes:
        in_row: Calls that failed since the last success; a success sets it to 0.
        wake: Set when the server should be checked.
    """

    __slots__ = ("in_row", "wake")

    def __init__(self) -> None:
        self.in_row = 0
        self.wake = LightEvent()

    def add(self) -> None:
        """Count a call that the server refused, or answered with an error."""
        self.in_row += 1
        if self.in_row >= _SUSPICIOUS:
            self.wake.set()

    def suspect(self) -> None:
        """Have the server checked at once: it may refuse everything."""
        self.in_row += 1
        self.wake.set()
