"""What a leased server is told of its client's roots, and what that lets the server ask."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Final

from leaseway.data_plane.core.calls.call import Outcome, ToolRequest
from leaseway.wire.errors import Fault
from leaseway.wire.messages.mcp import ROOTS

PAUSE: Final = 2.0
"""Seconds in which a server asks nothing, after which a notice ends."""
MAX_HELD: Final = 10.0
"""Seconds that calls wait at most for the roots that their server asks for."""
SETTLING: Final = 0.1
"""Seconds in which a server uses the answer, such as to look whether the folders exist. No message
says when it has, and a call is quicker."""
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


class MissedRoots:
    """Gives a leased server the roots that it asked for when no call could answer.

    Many servers ask when they start, and again only after a change. So the first call whose caller
    answers tells the server of a change. That call, and those that follow it, wait until the server
    has the answer.

    Args:
        tell: Tells the server that the roots have changed.

    Attributes:
        missed: Whether the server has asked in vain.
    """

    def __init__(self, tell: Callable[[], None]) -> None:
        self._tell = tell
        self._answered: asyncio.Future[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._until = 0.0
        self._heeds = True
        self.missed = False

    def miss(self) -> None:
        """Note that the server has asked in vain, unless it asked nothing when it was told."""
        self.missed = self._heeds

    def before(
        self, request: ToolRequest, other: asyncio.Future[None] | None = None
    ) -> asyncio.Future[Any] | None:
        """Return what a call waits for, also for another reason, or None if it is sent at once."""
        if self.missed and ROOTS in request.callbacks.answers:
            self.missed = self._heeds = False
            if self._answered is None:
                loop = asyncio.get_running_loop()
                self._answered, self._until = loop.create_future(), loop.time() + MAX_HELD
                self._end_in(PAUSE)
            self._tell()
        if self._answered is None or other is None:
            return self._answered or other
        return asyncio.gather(self._answered, other)

    def follow(self, is_asking: bool) -> None:
        """Wait while the server waits for an answer, and a moment longer."""
        if self._answered is not None:
            self._heeds = True
            self._end_in(MAX_HELD if is_asking else SETTLING)

    def _end_in(self, seconds: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        loop = asyncio.get_running_loop()
        self._timer = loop.call_at(min(loop.time() + seconds, self._until), self._end)

    def _end(self) -> None:
        answered, self._answered = self._answered, None
        if answered is not None:
            answered.set_result(None)
