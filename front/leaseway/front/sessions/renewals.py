"""Which client programs begin a new session instead of continuing theirs.

Some hosts send `initialize` before each call and forget the session after it, without DELETE. What
their models then need is a handle. Nothing in a request says that a program is one of these, so it
is learned from what it does: a session that was used, for one call at most, and then left. Several
fronts learn it from what each sees of the sessions, and tell each other (`table.py`).
"""

from __future__ import annotations

from typing import Final

from leaseway.front.sessions.live_session import LiveSession
from leaseway.wire.sharing.newest import Newest

_MAX_PROGRAMS: Final = 256
"""Programs of one caller of which something is known; that of the oldest is forgotten."""


class Renewals:
    """The client programs of one caller that renew their sessions, by their names."""

    def __init__(self) -> None:
        self._renewing: Newest[str, None] = Newest(_MAX_PROGRAMS)
        self._newest: Newest[str, LiveSession] = Newest(_MAX_PROGRAMS)

    def __contains__(self, program: str) -> bool:
        """Return whether a program is known to renew its sessions, now that it begins another."""
        before = self._newest.get(program)
        if before is not None and _was_left(before):
            self.learn(program)
        return program in self._renewing

    def knows(self, program: str) -> bool:
        """Return whether a program was known before to renew its sessions."""
        return program in self._renewing

    def learn(self, program: str) -> None:
        """Note that a program renews its sessions."""
        self._renewing[program] = None

    def see(self, live: LiveSession) -> None:
        """Note the newest session of a program, begun or continued on this front."""
        self._newest[live.sealed.client] = live
        if live.renews:
            self.learn(live.sealed.client)

    def end(self, live: LiveSession) -> None:
        """Note that a session has ended: it was not left for the next one."""
        if self._newest.get(live.sealed.client) is live:
            del self._newest[live.sealed.client]

    def forget(self, program: str) -> None:
        """Forget that a program renews its sessions: it has continued one."""
        self._renewing.pop(program, None)


def _was_left(live: LiveSession) -> bool:
    """Return whether a session looks as if its client does not continue it.

    A stream for notifications shows that it does, and so does a second call.
    """
    calls = live.calls + (live.placed.calls if live.placed is not None else 0)
    return live.requests > 0 and calls <= 1 and not live.is_busy and not live.streams
