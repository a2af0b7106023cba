"""What fronts need to continue each other's sessions: log level and subscriptions. Pure."""

from __future__ import annotations

from typing import Final

from leaseway.wire.sharing.newest import Newest

MAX_STATES: Final = 10_000
"""States that are remembered, of all tenants."""


class SessionStates:
    """The states of sessions, as fronts gave them; the longest unchanged one makes room.

    Args:
        limit: The maximum number of states.
    """

    def __init__(self, limit: int = MAX_STATES) -> None:
        self._states: Newest[tuple[str, str], bytes] = Newest(limit)

    def put(self, tenant: str, session: str, state: bytes) -> None:
        """Remember a state; an empty one is forgotten."""
        if state:
            self._states[tenant, session] = state
        else:
            self._states.pop((tenant, session), None)

    def get(self, tenant: str, session: str) -> bytes:
        """Return the state of a session, or no bytes."""
        return self._states.get((tenant, session), b"")
