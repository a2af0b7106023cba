"""What fronts need to continue each other's sessions: log level and subscriptions. Pure."""

from __future__ import annotations

from collections import OrderedDict
from typing import Final

MAX_STATES: Final = 10_000
"""States that are remembered, of all tenants."""


class SessionStates:
    """The states of sessions, as fronts gave them; the longest unchanged one makes room.

    Args:
        limit: The maximum number of states.
    """

    def __init__(self, limit: int = MAX_STATES) -> None:
        self._limit = limit
        self._states: OrderedDict[tuple[str, str], bytes] = OrderedDict()

    def put(self, tenant: str, session: str, state: bytes) -> None:
        """Remember a state; an empty one is forgotten."""
        self._states.pop((tenant, session), None)
        if state:
            self._states[tenant, session] = state
            if len(self._states) > self._limit:
                self._states.popitem(last=False)

    def get(self, tenant: str, session: str) -> bytes:
        """Return the state of a session, or no bytes."""
        return self._states.get((tenant, session), b"")
