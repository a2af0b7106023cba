"""For whom the sessions of a client call: the user, and the token of whoever that is."""

from __future__ import annotations

from typing import Final

from leaseway.sdk.errors import InvalidRequest
from leaseway.wire.sharing.newest import Newest

_MAX_SESSIONS: Final = 16_384
"""Sessions whose user is remembered; each use of a session renews it."""


class SessionUsers:
    """The user of each session.

    Args:
        default: The client's own user, or empty: that of sessions without one.
        token: The client's own subject token, or empty: that of sessions without one.

    Attributes:
        known: The users of sessions that call for another one than the client's own.
        default: The client's own user, or empty.
        have_tokens: Whether there is any subject token.
    """

    def __init__(self, default: str, token: str = "") -> None:
        self.default = default
        self._token = token
        self.known: Newest[str, str] = Newest(_MAX_SESSIONS)
        self._tokens: Newest[str, str] = Newest(_MAX_SESSIONS)
        self.have_tokens = bool(token)

    def token_of(self, session: str) -> str:
        """Return the subject token of a session, or empty for none."""
        return self._tokens.get(session, self._token)

    def give_token(self, session: str, token: str) -> None:
        """Let a session call with a subject token from now on; a new one replaces it."""
        self.have_tokens = True
        self._tokens[session] = token

    def of(self, session: str) -> str:
        """Return the user of a session, or empty for none."""
        return self.known.get(session, self.default)

    def bind(self, session: str, user: str) -> None:
        """Let a session call for a user from now on.

        Raises:
            InvalidRequest: It calls for another one: users must not share what a session keeps.
        """
        known = self.known.get(session)
        if known == user:
            return
        if known is not None:
            raise InvalidRequest(
                f"Session {session!r} calls for the user {known!r}; give each user sessions of "
                "their own."
            )
        self.known[session] = user
