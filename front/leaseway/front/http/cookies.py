"""The session cookie, for clients that return cookies but send no session id."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from aiohttp import web

from leaseway.front.calling.conversations import TakesCookie
from leaseway.front.sessions.ended import EndedSessions
from leaseway.front.sessions.live_session import LiveSession

_NAME: Final = "leaseway-session"
BELOW_PREFIX: Final = web.RequestKey("below_prefix", bool)
"""Set in a request if clients reach the front below a path of its proxy, which takes that off."""


def cookie_of(http: web.BaseRequest) -> str:
    """Return the session id in a request's cookie, or empty."""
    if _NAME not in http.headers.get("Cookie", ""):
        return ""
    return http.cookies.get(_NAME, "")


def attributes_for(http: web.BaseRequest) -> str:
    """Return the attributes of the cookie that answers a request."""
    # Without a path a client takes that of the URL which it has requested.
    path = "" if http.get(BELOW_PREFIX) else "; Path=/mcp"
    secure = "; Secure" if http.secure else ""
    return f"{path}; HttpOnly; SameSite=Strict{secure}"


@dataclass(frozen=True, slots=True)
class SessionCookie:
    """The cookie of one request.

    Attributes:
        attributes: See `attributes_for`.
        told: The ids of sessions whose end was told, or need not be.
        session_id: Its session id, or empty.
        live: Its session, or None.
    """

    attributes: str
    told: EndedSessions
    session_id: str = ""
    live: LiveSession | None = None

    @property
    def is_lost(self) -> bool:
        """Whether its session has ended, which was not told yet."""
        return bool(self.session_id) and self.live is None and self.session_id not in self.told

    def header(self, session_id: str) -> str:
        """Return the `Set-Cookie` header for a session; an empty id removes the cookie."""
        age = "" if session_id else "; Max-Age=0"
        return f"{_NAME}={session_id}{self.attributes}{age}"

    def set_on(self, reply: TakesCookie, session_id: str) -> None:
        """Make the client return a session's id, or forget it if that is empty."""
        if not session_id:
            self.told.add(self.session_id)
        reply.set_cookie(self.header(session_id))

    def take_back(self, reply: TakesCookie, session_id: str) -> None:
        """Let a session end untold whose id was set on a reply."""
        self.told.add(session_id)  # the header may have been sent
        reply.set_cookie("")
