"""What a leased server is told of its client's roots, and what that lets the server ask."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any, Final, NamedTuple

from leaseway.data_plane.core.calls.call import Ask, Callbacks, OnAsk, Outcome, ToolRequest
from leaseway.wire.errors import Fault
from leaseway.wire.messages.mcp import INTERNAL_ERROR, ROOTS

PAUSE: Final = 2.0
"""Seconds in which a server asks nothing, after which a notice ends."""
MAX_HELD: Final = 10.0
"""Seconds that calls wait at most for the roots that their server asks for."""
SETTLING: Final = 0.1
"""Seconds in which a server uses the answer, such as to look whether the folders exist. No message
says when it has, and a call is quicker."""
_OUTCOME: Final = Outcome(b"{}")

FindCaller = Callable[[str], Callbacks | None]
"""Returns what answers a method for a call that waits for the start of a server, if any."""


class WaitingCall(NamedTuple):
    """A call that waits for the start of its server, which asks it before it gets it."""

    request: ToolRequest
    id: int = 0


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


def _ask_for_a_while(on_ask: OnAsk, ask: Ask) -> None:
    """Ask a waiting call, but refuse in time: its server may list no tools before the answer."""
    asyncio.get_running_loop().call_later(MAX_HELD, _give_up, ask)
    on_ask(ask)


def _give_up(ask: Ask) -> None:
    if ask.is_open:
        ask.refuse(INTERNAL_ERROR, f"The client has not answered within {MAX_HELD:g} s.")
        ask.withdrawn.emit()


def _find_none(_method: str) -> None:
    return None


class Notices:
    """Whom a server may ask outside of calls on one connection: its open notices, waiting calls.

    Args:
        is_asking: Returns whether the server waits for an answer.
        expect_roots: Called before the server gets roots from a call that waits for it.

    Attributes:
        find_caller: Finds calls that wait for the connection.
    """

    def __init__(self, is_asking: Callable[[], bool], expect_roots: Callable[[], None]) -> None:
        self._is_asking = is_asking
        self._expect_roots = expect_roots
        self._open: set[Notice] = set()
        self.find_caller: FindCaller = _find_none

    def open(self, request: ToolRequest, done: Callable[[Outcome], None]) -> Notice:
        notice = Notice(request, self._is_asking, self._open.discard, done)
        self._open.add(notice)
        return notice

    def answering(self, method: str) -> Notice | WaitingCall | None:
        """Return one whose sender answers a method, or None.

        For roots, that may be a waiting call. What a person or a model answers takes longer than a
        start may.
        """
        for notice in self._open:
            if method in notice.request.callbacks.answers:
                return notice
        callbacks = self.find_caller(method) if method == ROOTS else None
        if callbacks is None or callbacks.on_ask is None:
            return None
        self._expect_roots()
        bounded = replace(callbacks, on_ask=partial(_ask_for_a_while, callbacks.on_ask))
        return WaitingCall(ToolRequest("", b"", b"", callbacks=bounded))

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
            self.expect()
            self._tell()
        if self._answered is None or other is None:
            return self._answered or other
        return asyncio.gather(self._answered, other)

    def expect(self) -> None:
        """Let calls wait: the server asks now, or will."""
        if self._answered is None:
            loop = asyncio.get_running_loop()
            self._answered, self._until = loop.create_future(), loop.time() + MAX_HELD
            self._end_in(PAUSE)

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
