"""Who may look at the console, and who may steer from it.

Without credentials the console listens on loopback only, and whoever reaches it may do what the
command line may do there. With credentials, a page signs in with one of an operator or a viewer and
holds a session in a cookie that scripts cannot read; programs send `Authorization: Bearer`. It
is checked again at each request, so that one that was revoked ends its sessions. What changes
something is only taken from the page itself.
"""

from __future__ import annotations

import secrets
from collections import OrderedDict
from collections.abc import Callable
from typing import Final

from aiohttp import web

from leaseway.identity.principal import LOOPBACK, Principal
from leaseway.telemetry.http_listener import Admit
from leaseway.wire.channels.endpoint import is_local_host
from leaseway.wire.errors import Fault, Reason

COOKIE: Final = "leaseway_console"
MARK: Final = "X-Leaseway-Console"
"""A header that other sites' pages cannot send along."""

_SESSION_LASTS: Final = 12 * 3600.0
_MOST_SESSIONS: Final = 1_000
_MOST_WRONG: Final = 10
_WRONG_FOR: Final = 60.0
_MOST_ADDRESSES: Final = 1_000


class ConsoleAccess:
    """Checks requests.

    Args:
        admit: Says who sent a credential and may look, or refuses; None where none is wanted.
        clock: Seconds, monotonic.
    """

    def __init__(self, admit: Admit | None, clock: Callable[[], float]) -> None:
        self._admit = admit
        self._clock = clock
        self._sessions: OrderedDict[str, tuple[float, str]] = OrderedDict()
        self._wrong: OrderedDict[str, list[float]] = OrderedDict()  # by address

    async def check(self, request: web.Request) -> Principal:
        """Return who asks.

        Raises:
            web.HTTPException: It may not look; with a sentence.
        """
        if request.method not in ("GET", "HEAD"):
            check_origin(request)
        if self._admit is None:
            _check_host(request)
            return LOOPBACK
        try:
            return await self._who(self._authorization(request))
        except Fault as fault:
            if fault.reason is Reason.PERMISSION_DENIED:
                raise web.HTTPForbidden(text=fault.message) from None
            raise web.HTTPUnauthorized(text=fault.message) from None

    async def sign_in(self, credential: str, address: str = "") -> tuple[str | None, Principal]:
        """Return a new session and whose it is; no session where no credential is wanted.

        Args:
            credential: What was sent.
            address: From where: who sends wrong ones from another keeps nobody out here.

        Raises:
            web.HTTPException: It is not good enough, or too many were not.
        """
        if self._admit is None:
            return None, LOOPBACK
        now = self._clock()
        wrong = [at for at in self._wrong.pop(address, ()) if now - at < _WRONG_FOR]
        if wrong:
            self._wrong[address] = wrong
        if len(wrong) >= _MOST_WRONG:
            raise web.HTTPTooManyRequests(text="Too many wrong credentials. Wait a minute.")
        authorization = f"Bearer {credential}"
        try:
            who = await self._who(authorization)
        except Fault as fault:
            self._wrong[address] = [*self._wrong.pop(address, ()), now]
            while len(self._wrong) > _MOST_ADDRESSES:
                self._wrong.popitem(last=False)
            raise web.HTTPForbidden(text=fault.message) from None
        session = secrets.token_urlsafe(32)
        self._sessions[session] = now + _SESSION_LASTS, authorization
        while len(self._sessions) > _MOST_SESSIONS:
            self._sessions.popitem(last=False)
        return session, who

    async def _who(self, authorization: str | None) -> Principal:
        assert self._admit is not None
        who = await self._admit(authorization)
        assert isinstance(who, Principal)
        return who

    def _authorization(self, request: web.Request) -> str | None:
        sent = request.headers.get("Authorization")
        if sent:
            return sent
        ends_at, authorization = self._sessions.get(request.cookies.get(COOKIE, ""), (0.0, None))
        return authorization if self._clock() < ends_at else None


def check_origin(request: web.Request) -> None:
    """Refuse a request that another site's page has made.

    Raises:
        web.HTTPForbidden: It may be one.
    """
    site = request.headers.get("Sec-Fetch-Site", "same-origin")
    if MARK not in request.headers or site not in ("same-origin", "none"):
        raise web.HTTPForbidden(text=f"Only the console itself may ask for this ({MARK}).")


def _check_host(request: web.Request) -> None:
    """Refuse a name that another site could have pointed at this machine."""
    if not is_local_host(request.host):
        raise web.HTTPForbidden(text="Ask for the console as 127.0.0.1 or localhost.")
