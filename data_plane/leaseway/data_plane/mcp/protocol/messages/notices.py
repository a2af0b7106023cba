"""What a client tells its leased server outside of calls, and what that lets the server ask."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from leaseway.data_plane.core.calls.call import Outcome, ToolRequest
from leaseway.wire.errors import Fault

PAUSE: Final = 2.0
"""Seconds in which a server asks nothing, after which a notice ends."""
_OUTCOME: Final = Outcome(b"{}")


class Notice:
    """A notification of a client, open for as long as its server may ask because of it.

    No response tells when the server has handled it. So it ends after a pause in which the server
    has asked nothing and waits for no answer; the deadline of its call bounds that.

    Args:
        request: The notification, with what its sender answers.
        is_asking: Returns whether the server waits for an answer.
        on_end: Called once, when it ends in any way.
        done: Called with the outcome, unless it is cancelled.

    Attributes:
        id: That of no request.
        request: As given.
        written: Whether it counts as sent: always, because nothing tells.
    """

    __slots__ = ("_done", "_is_asking", "_on_end", "_timer", "id", "request", "written")

    def __init__(
        self,
        request: ToolRequest,
        is_asking: Callable[[], bool],
        on_end: Callable[[Notice], None],
        done: Callable[[Outcome], None],
    ) -> None:
        self.id = 0
        self.request = request
        self.written = True
        self._is_asking = is_asking
        self._on_end = on_end
        self._done: Callable[[Outcome], None] | None = done
        self._timer = asyncio.get_running_loop().call_later(PAUSE, self._end_unless_asking)

    def _end_unless_asking(self) -> None:
        if self._is_asking():
            self._timer = asyncio.get_running_loop().call_later(PAUSE, self._end_unless_asking)
        else:
            self.end()

    def end(self, outcome: Outcome = _OUTCOME) -> None:
        """End it with an outcome. Idempotent."""
        done, self._done = self._done, None
        if done is not None:
            self._leave()
            done(outcome)

    def cancel(self, reason: str) -> None:
        """End it without an outcome. Idempotent."""
        if self._done is not None:
            self._done = None
            self._leave()

    def _leave(self) -> None:
        self._timer.cancel()
        self._on_end(self)


class Notices:
    """The open notices of one connection.

    Args:
        is_asking: Returns whether the server waits for an answer.
    """

    def __init__(self, is_asking: Callable[[], bool]) -> None:
        self._is_asking = is_asking
        self._open: set[Notice] = set()

    def open(self, request: ToolRequest, done: Callable[[Outcome], None]) -> Notice:
        notice = Notice(request, self._is_asking, self._open.discard, done)
        self._open.add(notice)
        return notice

    def answering(self, method: str) -> Notice | None:
        """Return one whose sender answers a method, or None."""
        return next(
            (notice for notice in self._open if method in notice.request.callbacks.answers), None
        )

    def end(self, fault: Fault) -> None:
        for notice in tuple(self._open):
            notice.end(Outcome(b"", fault=fault))
