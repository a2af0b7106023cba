"""The users for whom the sessions of a client call."""

from __future__ import annotations

from typing import Final

from leaseway.sdk.errors import InvalidRequest

_MAX_SESSIONS: Final = 16_384
"""Sessions whose user is remembered; each use of a session renews it."""


class SessionUsers:
    """The user of each session.

    Args:
        default: The client's own user, or empty: that of sessions without one.
    """

    def __init__(self, default: str) -> None:
        self._default = default
        self._users: dict[str, str] = {}

    def of(self, session: str) -> str:
        """Return the user of a session, or empty for none."""
        return self._users.get(session, self._default)

    def bind(self, session: str, user: str) -> None:
        """Let a session call for a user from now on.

        Raises:
            InvalidRequest: It calls for another one: users must not share what a session keeps.
        """
        known = self._users.get(session)
        if known == user:
            return
        if known is not None:
            raise InvalidRequest(
                f"Session {session!r} calls for the user {known!r}; give each user sessions of "
                "their own."
            )
        self._users[session] = user
        if len(self._users) > _MAX_SESSIONS:
            del self._users[next(iter(self._users))]
