"""The HTTP callers of this front: each credential gets an `HttpFront` with its own SDK client.

That client sends the caller's own credential to the planes, which decide what it may do, so the
front has no more rights than its caller.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable
from typing import Final

from leaseway.front.http.streamable import HttpFront
from leaseway.identity.authenticator import Authenticator
from leaseway.identity.principal import Principal, Role

MAX_CALLERS: Final = 256
"""Credentials that one front serves; each has an SDK client with its own connections."""

FrontBuilder = Callable[[str, str, str | None], HttpFront]
"""Builds the front of a tenant, an agent and a key."""
_CallerKey = tuple[str, str, bytes]
"""The tenant, the agent and the credential's digest."""


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
        limit: int = MAX_CALLERS,
    ) -> None:
        self._build_front = build_front
        self._tenant = tenant
        self._agent = agent
        self._key = key
        self._authenticator = authenticator
        self._limit = limit
        self._fronts: OrderedDict[_CallerKey, HttpFront] = OrderedDict()
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

    async def authenticate(self, authorization: str | None) -> HttpFront:
        """Return the front of the caller with an `Authorization` header.

        Raises:
            Fault: The credential is invalid, or lacks the role caller.
            TooManyCallers: There are too many other callers.
        """
        if self._authenticator is None:
            return self._front((self._tenant, self._agent, b""), self._key)
        principal = await self._authenticator.principal(authorization)
        principal.check_roles({Role.CALLER}, "MCP")
        credential = (authorization or "").partition(" ")[2].strip()
        tenant = self._tenant if principal.tenant is None else principal.tenant
        digest = hashlib.sha256(credential.encode()).digest()
        key = (tenant, principal.agent_for(self._agent), digest)
        front = self._front(key, credential)
        if key not in self._guards:
            guard = self._drop_when_revoked(key, self._authenticator, authorization, principal)
            self._guards[key] = asyncio.create_task(guard, name="front guard")
        return front

    def end_streams(self) -> None:
        for front in self._fronts.values():
            front.end_streams()

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Watch credentials while the block runs; then close all fronts."""
        watching = (
            asyncio.create_task(self._authenticator.run(), name="front credentials")
            if self._authenticator is not None
            else None
        )
        try:
            yield
        finally:
            if watching is not None:
                watching.cancel()
                await asyncio.gather(watching, return_exceptions=True)
            for key in tuple(self._fronts):
                self._drop(key)
            await asyncio.gather(*self._closing, return_exceptions=True)

    def _front(self, key: _CallerKey, credential: str | None) -> HttpFront:
        front = self._fronts.get(key)
        if front is None:
            self._evict_idle()
            tenant, agent, _ = key
            front = self._fronts[key] = self._build_front(tenant, agent, credential)
            front.start()
        self._fronts.move_to_end(key)
        return front

    def _evict_idle(self) -> None:
        """Make room for a new caller; raises `TooManyCallers` if none is idle."""
        if len(self._fronts) < self._limit:
            return
        idle = next((key for key, front in self._fronts.items() if front.is_idle), None)
        if idle is None:
            raise TooManyCallers(
                f"This front has reached its limit of {self._limit} credentials; try again later, "
                "or use another front."
            )
        self._drop(idle)

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
        guard = self._guards.pop(key, None)
        if guard is not None:
            guard.cancel()
        task = asyncio.create_task(front.close(), name="front caller ends")
        self._closing.add(task)
        task.add_done_callback(self._closing.discard)
