"""Whether a server is alive, by the messages that it sends."""

from __future__ import annotations

import time
from typing import Final

from leaseway.data_plane.background import LightEvent
from leaseway.wire.sharing.newest import Newest

MAX_ABANDONED: Final = 4096
"""Cancelled calls without a response that are remembered: servers need not answer them."""
_MAX_WITHDRAWN: Final = 1024
"""Other requests without a response that are remembered."""
ABANDONED_FOR: Final = 300.0
"""Seconds in which a shared server may still ask, or log, for a call that was cancelled."""


class Liveness:
    """When a server last sent something, and whether its silence since then is suspicious.

    Request ids only grow: one number records which requests had been sent when the server last sent
    something, so a call costs nothing for it.

    Attributes:
        received_at: The time of its last message, monotonic; of creation before the first one.
        wake: Set when the server should be pinged at once.
    """

    __slots__ = ("_doubtful_up_to", "_received_up_to", "received_at", "wake")

    def __init__(self) -> None:
        self.received_at = time.monotonic()
        self.wake = LightEvent()
        self._received_up_to = 0
        self._doubtful_up_to = 0

    def mark_received(self, newest: int) -> None:
        """Record that the server sent something; `newest` is the id of our newest request."""
        self.received_at = time.monotonic()
        self._received_up_to = newest

    @property
    def in_doubt(self) -> bool:
        """Whether a call was abandoned without a response and without a message since its start."""
        return self._doubtful_up_to > self._received_up_to

    def mark_doubtful(self, abandoned: int, newest: int) -> None:
        """Record an abandoned call; suspicious if nothing was received since its start."""
        if abandoned > self._received_up_to and not self.in_doubt:
            self._doubtful_up_to = newest

    def is_explained_by(self, oldest: int) -> bool:
        """Return whether the server may be silent because it works on its oldest call in flight.

        Not if that call started after the silence became suspicious: otherwise new calls would
        excuse a server that hangs forever.
        """
        return not self.in_doubt or oldest <= self._doubtful_up_to


class AbandonedCalls:
    """The cancelled calls of a shared server, for which it may still ask or log.

    It must not answer such a call, so that only time can tell.
    """

    def __init__(self) -> None:
        # When they were cancelled, the oldest first; 0 stands for more of them.
        self._cancelled: dict[object, float] = {}
        self._withdrawn: Newest[object, None] = Newest(_MAX_WITHDRAWN)

    def add(self, call_id: int) -> None:
        key = call_id if len(self._cancelled) < MAX_ABANDONED else 0
        self._cancelled.pop(key, None)
        self._cancelled[key] = time.monotonic()

    def discard(self, key: object) -> None:
        """Forget one, which the server has answered."""
        self._cancelled.pop(key, None)

    def withdraw(self, key: object) -> None:
        """Note a request that is no call. Servers of Go answer a cancelled subscription."""
        self._withdrawn[key] = None

    def was_withdrawn(self, key: object) -> bool:
        return key in self._withdrawn

    def may_speak(self) -> bool:
        """Return whether the server may still ask, or log, for one of them."""
        since = time.monotonic() - ABANDONED_FOR
        while self._cancelled:
            key, cancelled = next(iter(self._cancelled.items()))
            if cancelled > since:
                return True
            del self._cancelled[key]
        return False


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
