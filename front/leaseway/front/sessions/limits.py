"""How many sessions with leases one client has on this front.

Some hosts open a session for each call and never end one. So the sessions of one principal and
client program are bounded: a new one ends the longest idle. And one that was used for one call ends
soon after its client has opened a newer one.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Any, Final, NamedTuple

from leaseway.front.protocol.messages import UNAVAILABLE, JsonRpcError
from leaseway.front.sessions.live_session import LiveSession
from leaseway.front.sessions.sealing import Owner
from leaseway.wire.bounds import SESSIONS_PER_CLIENT
from leaseway.wire.errors import Reason

_WAIT: Final = 30.0
"""Seconds that a new session waits for a call of another one to end."""
_GRACE: Final = 10.0
"""Seconds after its only call for which a session is kept that is followed by a newer one."""
_HANDLE_GRACE: Final = 60.0
"""The same if its model may still pass back what the result of that call said."""

End = Callable[[LiveSession], Awaitable[None]]
"""Ends a session and releases its leases."""


class _Client(NamedTuple):
    """One client program of one principal."""

    owner: Owner
    name: str


class _Held:
    """The sessions of one client, the oldest first, and how each is ended."""

    def __init__(self) -> None:
        self.sessions: dict[LiveSession, End] = {}
        self.ending: set[LiveSession] = set()
        self.has_changed = asyncio.Event()


class SessionLimits:
    """Admits sessions to leases.

    Args:
        per_client: The limit of one client of one principal.
    """

    def __init__(self, per_client: int = SESSIONS_PER_CLIENT) -> None:
        self._per_client = per_client
        self._held: dict[_Client, _Held] = {}

    async def admit(self, live: LiveSession, end: End) -> None:
        """Wait until a session may have leases; end the longest idle one for it if necessary.

        Raises:
            JsonRpcError: All sessions of its client have calls in flight, for too long.
        """
        client = _client_of(live)
        try:
            async with asyncio.timeout(_WAIT):
                while True:
                    held = self._held.setdefault(client, _Held())
                    if live in held.sessions or len(held.sessions) < self._per_client:
                        break
                    await self._make_room(held)
        except TimeoutError:
            raise JsonRpcError(
                UNAVAILABLE,
                f"This client has {self._per_client} sessions with calls in flight, the limit of "
                "--sessions-per-client. Wait for one, or continue in one of these sessions.",
                {"reason": str(Reason.CAPACITY), "started": "no", "retryAfter": 1.0},
            ) from None
        held.sessions[live] = end
        live.admit(held.has_changed.set)

    def remove(self, live: LiveSession) -> None:
        """Forget a session, which has ended or goes on elsewhere."""
        client = _client_of(live)
        held = self._held.get(client)
        if held is None or held.sessions.pop(live, None) is None:
            return
        live.leave()
        held.has_changed.set()
        if not held.sessions:
            del self._held[client]

    def is_superseded(self, live: LiveSession) -> bool:
        """Return whether a session was opened for one call and its client has a newer one.

        One whose client listens on a stream, or names conversations, or that a host names, is
        still in use.
        """
        held = self._held.get(_client_of(live))
        if live.waits_until > time.monotonic():
            return False  # its client answers its server
        if live.calls != 1 or live.is_busy or live.is_derived or held is None:
            return False
        if live.is_outlet or live.streams or (live.outlet is not None and live.outlet.streams):
            return False
        grace = _HANDLE_GRACE if live.is_handle else _GRACE
        newest = next(reversed(held.sessions), None)
        is_older = live in held.sessions and newest is not live
        return is_older and time.monotonic() - live.last_used > grace

    async def _make_room(self, held: _Held) -> None:
        """End the longest idle session, or wait until one may be idle."""
        idle = [
            session
            for session in held.sessions
            if not session.is_busy and session not in held.ending
        ]
        if not idle:
            held.has_changed.clear()
            await held.has_changed.wait()
            return
        oldest = min(idle, key=_last_used)
        held.ending.add(oldest)
        task: asyncio.Future[Any] = asyncio.ensure_future(held.sessions[oldest](oldest))
        try:
            await asyncio.shield(task)  # a caller that gives up must not stop half of it
        finally:
            held.ending.discard(oldest)


def _client_of(live: LiveSession) -> _Client:
    return _Client(live.sealed.owner, live.sealed.client)


def _last_used(live: LiveSession) -> float:
    return live.last_used
