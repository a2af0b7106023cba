"""The HTTP callers of this front: each credential gets an `HttpFront` with its own SDK client.

That client sends the caller's own credential to the planes, which decide what it may do, so the
front has no more rights than its caller.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
from collections import Counter, OrderedDict
from collections.abc import AsyncIterator, Callable
from typing import Final

from leaseway.front.http.streamable import HttpFront
from leaseway.identity.authenticator import Authenticator
from leaseway.identity.principal import Principal, Role
from leaseway.wire import bounds
from leaseway.wire.channels.auth import bearer_credential
from leaseway.wire.names import check_caller_names
from leaseway.wire.sharing.fair_shares import Holder, who_gives_way
from leaseway.wire.timing.running_tasks import keep_running

FrontBuilder = Callable[[str, str, str | None, str, str], HttpFront]
"""Builds the front of a tenant, an agent, a key, a principal, whose name is empty if clients are
not told apart, and the user that the principal names, or empty."""
_EVERYBODY: Final = Holder("everybody", "")
_CallerKey = tuple[str, str, bytes, str]
"""The tenant, the agent, the credential's digest and the named user."""


class TooManyCallers(Exception):
    """The front has reached its limit of callers."""


class Callers:
    """The fronts of all callers.

    Args:
        build_front: Builds the front of a caller.
        tenant: The tenant of credentials that name none.
        agent: The agent of credentials that name none.
        key: The key to send to the planes if there is no authenticator.
        authenticator: Checks credentials; None means that all clients are one caller.
        is_watched: Whether somebody else already follows changes of credentials.
        limit: The maximum number of callers.
    """

    def __init__(
        self,
        build_front: FrontBuilder,
        tenant: str,
        agent: str,
        key: str | None,
        authenticator: Authenticator | None,
        *,
        is_watched: bool = False,
        limit: int = bounds.MAX_FRONT_CALLERS,
    ) -> None:
        self._build_front = build_front
        self._tenant = tenant
        self._agent = agent
        self._key = key
        self._authenticator = authenticator
        self._is_watched = is_watched
        self._limit = limit
        self._fronts: OrderedDict[_CallerKey, HttpFront] = OrderedDict()
        self._holders: dict[_CallerKey, Holder] = {}
        self._guards: dict[_CallerKey, asyncio.Task[None]] = {}
        self._closing: set[asyncio.Task[None]] = set()

    def __len__(self) -> int:
        return len(self._fronts)

    @property
    def sessions(self) -> int:
        return sum(front.sessions for front in self._fronts.values())

    @property
    def issuers(self) -> tuple[str, ...]:
        """The issuers of accepted tokens."""
        return self._authenticator.issuers if self._authenticator is not None else ()

    @property
    def scopes(self) -> tuple[str, ...]:
        """The scopes that clients are told to request of them."""
        return self._authenticator.scopes if self._authenticator is not None else ()

    async def identify(
        self, authorization: str | None, user: str = ""
    ) -> tuple[HttpFront, Holder | None]:
        """Return the front of the caller with an `Authorization` header, and who it is.

        The latter is None if all clients are one caller.

        Args:
            authorization: The header.
            user: The user for whom the request is, or empty; only delegates name one.

        Raises:
            Fault: The credential is invalid, lacks the role caller, or may not name the user.
            TooManyCallers: There are too many other callers.
        """
        check_caller_names(user=user)
        if self._authenticator is None:
            key = (self._tenant, self._agent, b"", user)
            return self._front(key, self._key, _EVERYBODY), None
        principal = await self._authenticator.principal(authorization)
        principal.check_roles({Role.CALLER}, "MCP")
        credential = bearer_credential(authorization or "")
        tenant = self._tenant if principal.tenant is None else principal.tenant
        digest = hashlib.sha256(credential.encode()).digest()
        named = principal.user_for(user) if user else ""
        key = (tenant, principal.agent_for(self._agent), digest, named)
        holder = Holder(tenant, principal.name)
        front = self._front(key, credential, holder)
        if key not in self._guards:
            guard = self._drop_when_revoked(key, self._authenticator, authorization, principal)
            self._guards[key] = asyncio.create_task(guard, name="front guard")
        return front, holder

    def make_room_for_session(self, newcomer: HttpFront) -> bool:
        """Forget an unused session of whoever has the most; return whether there was one.

        Its client can go on with it: this front or another one opens it again by its id.
        """
        counts: Counter[Holder] = Counter()
        holder = None
        for key, front in self._fronts.items():
            counts[self._holders[key]] += front.sessions
            if front is newcomer:
                holder = self._holders[key]
        payer = who_gives_way(+counts, holder) if holder is not None else None
        if payer is None:
            return False
        fronts = [held for key, held in self._fronts.items() if self._holders[key] == payer.holder]
        return any(front.forget_session() for front in fronts)

    def end_streams(self) -> None:
        for front in self._fronts.values():
            front.end_streams()

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Watch credentials while the block runs; then close all fronts."""
        watching = (
            asyncio.create_task(
                keep_running(self._authenticator.run, "follow credentials"),
                name="front credentials",
            )
            if self._authenticator is not None and not self._is_watched
            else None
        )
        try:
            yield
        finally:
            if watching is not None:
                watching.cancel()
                await asyncio.gather(watching, return_exceptions=True)
            await self.close()

    async def close(self) -> None:
        """Close all fronts; requests in flight get an error."""
        for key in tuple(self._fronts):
            self._drop(key)
        await asyncio.gather(*self._closing, return_exceptions=True)

    def _front(self, key: _CallerKey, credential: str | None, holder: Holder) -> HttpFront:
        front = self._fronts.get(key)
        if front is None:
            self._make_room(holder)
            tenant, agent, _, user = key
            principal = "" if holder is _EVERYBODY else holder.principal
            front = self._fronts[key] = self._build_front(
                tenant, agent, credential, principal, user
            )
            self._holders[key] = holder
            front.start()
        self._fronts.move_to_end(key)
        return front

    def _make_room(self, newcomer: Holder) -> None:
        """Make room for a new credential.

        An idle one is dropped, or else one of whoever has the most. Its sessions go on with the
        next request that carries their ids.

        Raises:
            TooManyCallers: Nobody has more than the newcomer, whose own ones are in use.
        """
        if len(self._fronts) < self._limit:
            return
        victim = next((key for key, front in self._fronts.items() if front.is_idle), None)
        if victim is None:
            payer = who_gives_way(Counter(self._holders.values()), newcomer)
            if payer is not None:
                held = [key for key in self._fronts if self._holders[key] == payer.holder]
                victim = next((key for key in held if not _is_busy(self._fronts[key])), None)
                if victim is None and payer.at_once:
                    victim = held[0]
        if victim is None:
            raise TooManyCallers(
                f"This front has reached its limit of {self._limit} credentials; try again later, "
                "or use another front."
            )
        self._drop(victim)

    async def _drop_when_revoked(
        self,
        key: _CallerKey,
        authenticator: Authenticator,
        authorization: str | None,
        principal: Principal,
    ) -> None:
        with authenticator.watch(authorization, None, principal) as revoked:
            await revoked
        del self._guards[key]  # this task
        self._drop(key)

    def _drop(self, key: _CallerKey) -> None:
        front = self._fronts.pop(key)
        self._holders.pop(key, None)
        guard = self._guards.pop(key, None)
        if guard is not None:
            guard.cancel()
        task = asyncio.create_task(front.close(), name="front caller ends")
        self._closing.add(task)
        task.add_done_callback(self._closing.discard)


def _is_busy(front: HttpFront) -> bool:
    """Return whether a front that is not idle handles requests, or only keeps sessions."""
    return front.is_busy if front.sessions else not front.is_idle
