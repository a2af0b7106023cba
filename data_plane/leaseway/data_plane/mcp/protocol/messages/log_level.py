"""The level from which a legacy server logs on one connection."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Final

from leaseway.data_plane.mcp.protocol.messages.pending import LEVELS

PATIENCE: Final = 2.0
"""Seconds that calls wait for a server that does not answer `logging/setLevel`."""


class LogLevel:
    """Lowers the level of a server to what its calls want to know; `ToolCall.log` drops the rest.

    Calls may share the connection, so that the lowest level that any of them wants is set.
    """

    def __init__(self, request: Callable[[str], asyncio.Future[bytes]]) -> None:
        """Create it.

        Args:
            request: Sends `logging/setLevel` with this level; returns what the answer resolves.
        """
        self._request = request
        self._rank = len(LEVELS)
        self._in_force: asyncio.Future[None] | None = None

    def lower(self, level: str) -> asyncio.Future[None] | None:
        """Set a level; return what is done once the server logs from it, or None if it does.

        A call must not be sent before: servers such as those on the official Go SDK handle requests
        at once, and would drop what the call logs first.
        """
        rank = LEVELS.get(level, 0)
        if rank < self._rank:
            self._rank = rank
            before, in_force = self._in_force, asyncio.get_running_loop().create_future()
            self._in_force = in_force
            if before is None or before.done():
                self._ask(level, in_force)
            else:  # of two requests at once, the higher level could be the one that stays
                before.add_done_callback(partial(self._ask, level, in_force))
        return None if self._in_force is None or self._in_force.done() else self._in_force

    def _ask(self, level: str, in_force: asyncio.Future[None], _before: object = None) -> None:
        timer = asyncio.get_running_loop().call_later(PATIENCE, _finish, in_force)
        self._request(level).add_done_callback(partial(_on_answer, in_force, timer))

    def forget(self) -> None:
        """Set the level again with the next call: the server's session is a new one."""
        self._rank = len(LEVELS)


def _on_answer(
    in_force: asyncio.Future[None], timer: asyncio.TimerHandle, answer: asyncio.Future[bytes]
) -> None:
    timer.cancel()
    if not answer.cancelled():
        answer.exception()  # mark it as retrieved: the server may log less than it could
    _finish(in_force)


def _finish(in_force: asyncio.Future[None]) -> None:
    if not in_force.done():
        in_force.set_result(None)
