"""What a server's silence means: when it was last heard, and which call makes the silence odd.

Pure. Calls are known by their ids, which only grow: so one number says what had been asked when
something last came, and a call costs nothing for it.
"""

from __future__ import annotations

import asyncio
import time

_now = time.monotonic


class Liveness:
    """When something last came from a server, and whether its silence since is in doubt.

    Attributes:
        heard_at: When something last came, on the monotonic clock; its creation before that.
        wake: Set when the server should be asked at once.
    """

    __slots__ = ("_doubted_up_to", "_heard_up_to", "heard_at", "wake")

    def __init__(self) -> None:
        self.heard_at = _now()
        self.wake = asyncio.Event()
        self._heard_up_to = 0
        self._doubted_up_to = 0

    def hear(self, newest: int) -> None:
        """Note that something came.

        Args:
            newest: The last request id that was given out.
        """
        self.heard_at = _now()
        self._heard_up_to = newest

    @property
    def in_doubt(self) -> bool:
        """Whether a call was given up unanswered and nothing came since it was made."""
        return self._doubted_up_to > self._heard_up_to

    def doubt(self, given_up: int, newest: int) -> None:
        """Note that a call was given up; that is odd where nothing came since it was made."""
        if given_up > self._heard_up_to and not self.in_doubt:
            self._doubted_up_to = newest

    def explained_by(self, oldest: int) -> bool:
        """Return whether a server may be silent because it works on its oldest call in flight.

        Not if that was made only after the silence had come into doubt: or a server that hangs
        would be excused for ever by those who go on calling it.
        """
        return not self.in_doubt or oldest <= self._doubted_up_to
