"""Authentication of console requests.

Without credentials, the console listens on loopback only and allows what the command line allows.
With credentials, the page signs in with one of an operator or viewer and gets a session cookie that
scripts cannot read; programs send `Authorization: Bearer`. The credential is checked at each
request, so that revoking it ends its sessions. Changes are only accepted from the page itself.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Final, Protocol

from aiohttp import web

from leaseway.identity.principal import LOOPBACK, Principal
from leaseway.telemetry.http_listener import check_request, refusal_of
from leaseway.wire.errors import Fault
from leaseway.wire.sharing.fair_shares import Holder, who_gives_way
from leaseway.wire.sharing.newest import Newest

_COOKIE: Final = "leaseway_console"
ORIGIN_HEADER: Final = "X-Leaseway-Console"
"""A header that pages of other sites cannot send."""

_SESSION_LIFETIME: Final = 12 * 3600.0
_MAX_SESSIONS: Final = 1_000
_MAX_FAILURES: Final = 10
_FAILURE_WINDOW: Final = 60.0
_MAX_ADDRESSES: Final = 1_000


class ConsoleAdmit(Protocol):
    """Admits requests by their `Authorization`, as `Authenticator.for_role` does."""

    async def __call__(self, authorization: str | None, /) -> Principal:
        """Return the principal, or raise a `Fault`."""
        ...

    def watch(
        self, authorization: str | None, principal: Principal
    ) -> AbstractContextManager[asyncio.Future[Fault]]:
        """Return the watch of a stream's credential, whose future gets a fault when it ends."""
        ...


class ConsoleAccess:
    """Authenticates requests.

    Args:
        admit: Returns the principal of a credential or raises; None if no credential is needed.
        clock: Monotonic seconds.
    """

    def __init__(self, admit: ConsoleAdmit | None, clock: Callable[[], float]) -> None:
        self._admit = admit
        self._clock = clock
        self._sessions: OrderedDict[str, tuple[float, str]] = OrderedDict()
        self._holders: dict[str, Holder] = {}  # of the sessions
        self._failures: Newest[str, list[float]] = Newest(_MAX_ADDRESSES)  # times by address

    async def check(self, request: web.Request) -> Principal:
        """Return the principal of a request.

        Raises:
            HttpRefusal: Its host or its credential is not accepted.
            web.HTTPForbidden: It may come from another site's page.
        """
        if request.method not in ("GET", "HEAD"):
            check_origin(request)
        sent = self.authorization(request)
        principal = await check_request(self._admit, request.host, sent, "the console")
        if principal is None:
            return LOOPBACK
        assert isinstance(principal, Principal)
        return principal

    async def sign_in(self, credential: str, address: str = "") -> tuple[str | None, Principal]:
        """Return a new session and its principal; no session if no credential is needed.

        Args:
            address: The client's address; failures are limited per address.

        Raises:
            web.HTTPException: The credential is rejected, or too many were.
            HttpRefusal: The credential could not be checked.
        """
        if self._admit is None:
            return None, LOOPBACK
        now = self._clock()
        failures = [at for at in self._failures.pop(address, ()) if now - at < _FAILURE_WINDOW]
        if failures:
            self._failures[address] = failures
        if len(failures) >= _MAX_FAILURES:
            raise web.HTTPTooManyRequests(text="Too many wrong credentials. Wait a minute.")
        authorization = f"Bearer {credential}"
        try:
            principal = await self._admit(authorization)
        except Fault as fault:
            refusal = refusal_of(fault)
            if refusal.status not in (401, 403):  # nobody has judged the credential
                raise refusal from None
            self._failures[address] = [*self._failures.pop(address, ()), now]
            raise web.HTTPForbidden(text=fault.message) from None
        session = secrets.token_urlsafe(32)
        self._add(session, now + _SESSION_LIFETIME, authorization, principal)
        return session, principal

    def _add(self, session: str, until: float, authorization: str, principal: Principal) -> None:
        """Keep a session; at the limit, whoever has most loses the oldest one."""
        holder = Holder(principal.tenant or "all tenants", principal.name)
        if len(self._sessions) >= _MAX_SESSIONS:
            payer = who_gives_way(Counter(self._holders.values()), holder)
            oldest = next(
                (
                    session
                    for session in self._sessions
                    if payer and self._holders[session] == payer.holder
                ),
                next(iter(self._sessions)),
            )
            del self._sessions[oldest], self._holders[oldest]
        self._sessions[session] = until, authorization
        self._holders[session] = holder

    def has_session(self, request: web.Request) -> bool:
        """Whether a request comes from a page that has signed in."""
        return request.cookies.get(cookie_of(request), "") in self._sessions

    def sign_out(self, request: web.Request) -> None:
        """End the session of a request, if it has one; its open pages notice within seconds."""
        session = request.cookies.get(cookie_of(request), "")
        self._sessions.pop(session, None)
        self._holders.pop(session, None)

    @contextlib.contextmanager
    def watch(self, request: web.Request, principal: Principal) -> Iterator[asyncio.Future[Fault]]:
        """Yield a future that gets a fault when the credential of a stream is no longer valid.

        Args:
            request: The request that opened the stream.
        """
        if self._admit is None:
            yield asyncio.get_running_loop().create_future()
            return
        with self._admit.watch(self.authorization(request), principal) as revoked:
            yield revoked

    def authorization(self, request: web.Request) -> str | None:
        """Return the `Authorization` that a request came with, or its session's; None for none."""
        sent = request.headers.get("Authorization")
        if sent:
            return sent
        session = request.cookies.get(cookie_of(request), "")
        ends_at, authorization = self._sessions.get(session, (0.0, None))
        return authorization if self._clock() < ends_at else None


def cookie_of(request: web.Request) -> str:
    """Return the name of the cookie with the session of a request.

    Browsers send a cookie to all ports of a host. Without the port in its name, who signs in to one
    of several consoles, such as through tunnels to this machine, would be signed out of the others.
    """
    port = request.host.rpartition(":")[2]
    return f"{_COOKIE}_{port}" if port.isascii() and port.isdecimal() else _COOKIE


def check_origin(request: web.Request) -> None:
    """Reject a request that may come from another site's page.

    Raises:
        web.HTTPForbidden: It may.
    """
    site = request.headers.get("Sec-Fetch-Site", "same-origin")
    if ORIGIN_HEADER not in request.headers or site not in ("same-origin", "none"):
        raise web.HTTPForbidden(text=f"Only the console page may send this ({ORIGIN_HEADER}).")
