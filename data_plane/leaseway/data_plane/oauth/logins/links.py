"""Logins that begin at a link, which a person opens at the console (`console/login_pages.py`).

The worker that needs the login makes the link, and keeps what must be secret: the client's
credential, the verifier of PKCE and the tokens. The console shows the person whose login it is and
passes on the redirect. See design.md#tokens-for-remote-servers.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Final, TypeVar
from urllib.parse import quote
from weakref import WeakValueDictionary

from leaseway.data_plane.core.ports import LoginSubject
from leaseway.data_plane.oauth.errors import AuthorizationError
from leaseway.data_plane.oauth.logins.login import BegunLogin, begin_login, finish_login
from leaseway.data_plane.oauth.logins.shared_table import SharedTable
from leaseway.data_plane.oauth.obtaining import Wanted
from leaseway.vault.key import VaultError
from leaseway.vault.logins import LoginKey, LoginStore
from leaseway.wire import bounds
from leaseway.wire.channels.fetching import in_thread
from leaseway.wire.errors import Fault, Reason
from leaseway.wire.names import check_caller_names
from leaseway.wire.sharing.newest import Newest

T = TypeVar("T")

_LIFETIME: Final = 1_800.0
"""Seconds in which a link can be opened; a fault has one that lives for half of it or longer."""
_LOGIN_TIME: Final = 600.0
"""Seconds that a person has at the authorization server."""
_MAX_BEGUN: Final = 256
_MAX_AT_ONCE: Final = 8
"""Steps of one server's logins that run at a time: a slow authorization server holds up its own
only."""
_MAX_STEPS: Final = 24
"""Steps of one server's logins, running or waiting, at which no further login begins: nobody waits
behind all who have given up during an outage."""
_MAX_ALL: Final = 96
"""Steps of all logins: a server gets at most half of what the others leave of them, and always one,
so that it finds room however many authorization servers are slow."""
_PATIENCE: Final = 14.0
"""Seconds that a login waits to begin. With those of its authorization server they are fewer than
the control plane waits."""
_DONE: Final = (
    "somebody has logged in at its link meanwhile, such as in another tab, and that login is used;"
    " to replace it, log out and open a new link"
)


@dataclass(frozen=True)
class _Link:
    ticket: str
    wanted: Wanted


class LoginLinks:
    """The links of one worker, and the logins that have begun at them.

    A link is for one subject and works until somebody has logged in. At its limits, what has ended
    gives way, and then the oldest of the tenant that has most, so that none displaces those of
    others.

    Args:
        store: The sealed logins, or None if the worker has no vault: then there are no links.
        worker_id: The worker, which the console finds by the link.
        now: The monotonic clock.
    """

    def __init__(
        self,
        store: LoginStore | None,
        worker_id: str,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._store = store
        self._worker_id = worker_id
        self._now = now
        self._console = ""
        self._servers: Newest[tuple[str, str], Wanted] = Newest(bounds.MAX_OAUTH_GRANTS)
        self._links = SharedTable[LoginKey, _Link](bounds.MAX_OAUTH_GRANTS, _LIFETIME)
        self._tickets: dict[str, LoginKey] = {}
        self._begun = SharedTable[str, BegunLogin](_MAX_BEGUN, _LOGIN_TIME)
        self._done: Newest[str, None] = Newest(_MAX_BEGUN)
        self._slots = WeakValueDictionary[str, asyncio.Semaphore]()
        self._steps: Counter[str] = Counter()  # by server

    def use_console(self, url: str) -> None:
        """Make links to this console from now on; empty for none."""
        self._console = url

    def record(self, wanted: Wanted) -> None:
        """Remember how subjects log in to a server."""
        self._servers[wanted.server, wanted.tenant] = wanted

    def url_for(self, wanted: Wanted) -> str:
        """Return the address where a subject logs in, or empty if there is none."""
        is_whole = wanted.tenant and (wanted.user or wanted.auth.subject != "user")
        if not self._console or self._store is None or not is_whole:
            return ""
        return f"{self._console}login/{quote(self._worker_id, safe='')}/{self._ticket(wanted)}"

    def link(self, subject: LoginSubject) -> str:
        """Return the ticket of a link for a subject.

        Raises:
            Fault: INVALID_REQUEST: this worker has not met the server, or it has no such logins.
        """
        server, tenant = subject.server, subject.tenant
        check_caller_names(tenant=tenant, user=subject.user)
        known = self._servers.get((server, tenant)) or self._servers.get((server, ""))
        if known is None or self._store is None:
            raise _refused(f"this worker has not tried to reach a server {server[:64]} with logins")
        if bool(subject.user) is not (known.auth.subject == "user"):
            whose = "a user" if known.auth.subject == "user" else "a tenant, and of no user"
            raise _refused(f"a login to the server {server} is one of {whose}")
        return self._ticket(replace(known, tenant=tenant, user=subject.user))

    def subject(self, ticket: str) -> LoginSubject:
        """Return whose login a link is for.

        Raises:
            Fault: INVALID_REQUEST: it has ended.
        """
        return _subject(self._wanted(ticket))

    async def begin(self, ticket: str, redirect: str) -> tuple[str, str]:
        """Begin the login of a link; return the address to open, and the redirect's state.

        Raises:
            Fault: INVALID_REQUEST: it has ended, too many logins to its server take place, or the
                authorization server does not let it begin.
        """
        wanted, store = self._wanted(ticket), self._store
        assert store is not None
        own = self._steps[wanted.server]
        left = _MAX_ALL - (self._steps.total() - own)
        if own >= max(1, min(_MAX_STEPS, left / 2)):  # who has begun may always finish
            raise _too_many(wanted)
        begun = await self._run(wanted, partial(begin_login, wanted, store, redirect), _PATIENCE)
        self._begun.add(begun.state, begun, wanted.tenant, self._now())
        return begun.url, begun.state

    async def finish(self, state: str, answer: Mapping[str, str]) -> LoginSubject:
        """Finish a login with the parameters of its redirect; return whose it is.

        Raises:
            Fault: INVALID_REQUEST: it has ended, or failed.
        """
        if state in self._done:
            raise _refused(_DONE)
        begun, store = self._begun.get(state, self._now()), self._store
        self._begun.pop(state)
        if begun is None or store is None:
            raise _refused("it took too long, or was finished before; open its link again")
        await self._run(begun.wanted, partial(finish_login, begun, answer, store))
        self._end(begun.wanted.login)
        self._note_done(state)
        return _subject(begun.wanted)

    def _end(self, key: LoginKey) -> None:
        """End the link of a login, and what others have begun at it: nobody replaces the login."""
        used = self._links.pop(key)
        if used is not None:
            del self._tickets[used.ticket]
            self._note_done(used.ticket)
        for state, begun in self._begun:
            if begun.wanted.login == key:
                self._begun.pop(state)
                self._note_done(state)

    def _note_done(self, name: str) -> None:
        """Remember a link, or a login begun at it, whose subject is logged in."""
        self._done[name] = None

    async def _run(self, wanted: Wanted, work: Callable[[], T], patience: float | None = None) -> T:
        """Take a step when there is room for it, which may take `patience` seconds."""
        server = wanted.server
        slots = self._slots.get(server)
        if slots is None:
            slots = self._slots[server] = asyncio.Semaphore(_MAX_AT_ONCE)
        self._steps[server] += 1
        try:
            async with asyncio.timeout(patience):
                await slots.acquire()
            try:
                return await in_thread(work)
            finally:
                slots.release()
        except TimeoutError:
            raise _too_many(wanted) from None
        except (AuthorizationError, VaultError) as error:
            text = str(error).rstrip(".")
            raise _refused(f"the server {server}: {text}") from None
        finally:
            self._steps[server] -= 1
            if not self._steps[server]:
                del self._steps[server]

    def _wanted(self, ticket: str) -> Wanted:
        key = self._tickets.get(ticket)
        link = self._links.get(key, self._now()) if key is not None else None
        if link is None:
            if ticket in self._done:
                raise _refused(_DONE)
            raise _refused(
                "its link has ended; call the server again for a new one, or ask an operator"
            )
        return link.wanted

    def _ticket(self, wanted: Wanted) -> str:
        key, now = wanted.login, self._now()
        link = self._links.get(key, now)
        if link is not None and self._links.time_left(key, now) > _LIFETIME / 2:
            return link.ticket
        link = _Link(secrets.token_urlsafe(24), wanted)
        for replaced in self._links.add(key, link, wanted.tenant, now):
            del self._tickets[replaced.ticket]
        self._tickets[link.ticket] = key
        return link.ticket


def _subject(wanted: Wanted) -> LoginSubject:
    return LoginSubject(wanted.server, wanted.tenant, wanted.user)


def _too_many(wanted: Wanted) -> Fault:
    return _refused(f"many people are logging in to {wanted.server}; open the link again later")


def _refused(why: str) -> Fault:
    return Fault(Reason.INVALID_REQUEST, f"The login failed: {why}.")
