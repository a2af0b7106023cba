"""Who asks over HTTP, each with a front of its own.

A caller is a tenant, an agent and the credential that says so. Its client sends that very
credential on, so that the planes decide what it may: the front can do nothing that its caller may
not.
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
from leaseway.wire.errors import Fault, Reason

MAX_CALLERS: Final = 256
"""Credentials that one front serves at once; each has a client with connections of its own."""

Make = Callable[[str, str, str | None], HttpFront]
"""Makes the front of a tenant, an agent and a key."""


class TooManyCallers(Exception):
    """No room for another caller."""


class Caller:
    """One caller.

    Args:
        front: Answers its requests.
    """

    def __init__(self, front: HttpFront) -> None:
        self.front = front
        self.guard: asyncio.Task[None] | None = None


class Callers:
    """The callers that this front serves.

    Args:
        make: Makes the front of one.
        tenant: Whose tools those see whose credential names no tenant.
        agent: What those are called whose credential names no agent.
        key: What the front sends where there is no authenticator.
        authenticator: Says who callers are; None means that all are one.
        limit: The most of them.
    """

    def __init__(
        self,
        make: Make,
        tenant: str,
        agent: str,
        key: str | None,
        authenticator: Authenticator | None,
        *,
        limit: int = MAX_CALLERS,
    ) -> None:
        self._make = make
        self._tenant = tenant
        self._agent = agent
        self._key = key
        self._authenticator = authenticator
        self._limit = limit
        self._callers: OrderedDict[tuple[str, str, bytes], Caller] = OrderedDict()
        self._closing: set[asyncio.Task[None]] = set()

    def __len__(self) -> int:
        return len(self._callers)

    @property
    def sessions(self) -> int:
        return sum(caller.front.sessions for caller in self._callers.values())

    @property
    def issuers(self) -> tuple[str, ...]:
        """Whose tokens callers may send."""
        return self._authenticator.issuers if self._authenticator is not None else ()

    async def of(self, authorization: str | None) -> Caller:
        """Return who sent a request.

        Args:
            authorization: Its `Authorization` header, or None.

        Raises:
            Fault: Its credential is not good, or not for calls.
            TooManyCallers: There is no room for another one.
        """
        if self._authenticator is None:
            return self._caller((self._tenant, self._agent, b""), self._key)
        who = await self._authenticator.principal(authorization)
        if not who.has({Role.CALLER}):
            raise Fault(
                Reason.PERMISSION_DENIED,
                f"MCP is for the role caller; this credential ({who.name}) has "
                f"{', '.join(sorted(who.roles))}.",
            )
        credential = (authorization or "").partition(" ")[2].strip()
        tenant = self._tenant if who.tenant is None else who.tenant
        name = (tenant, who.agent_for(self._agent), hashlib.sha256(credential.encode()).digest())
        caller = self._caller(name, credential)
        if caller.guard is None:
            watching = self._watch(name, self._authenticator, authorization, who)
            caller.guard = asyncio.create_task(watching, name="front guard")
        return caller

    def end_streams(self) -> None:
        for caller in self._callers.values():
            caller.front.end_streams()

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Follow credentials while the block runs; in the end, close all callers."""
        looking = (
            asyncio.create_task(self._authenticator.run(), name="front credentials")
            if self._authenticator is not None
            else None
        )
        try:
            yield
        finally:
            if looking is not None:
                looking.cancel()
                await asyncio.gather(looking, return_exceptions=True)
            for name in tuple(self._callers):
                self._drop(name)
            await asyncio.gather(*self._closing, return_exceptions=True)

    def _caller(self, name: tuple[str, str, bytes], key: str | None) -> Caller:
        caller = self._callers.get(name)
        if caller is None:
            self._make_room()
            tenant, agent, _ = name
            caller = self._callers[name] = Caller(self._make(tenant, agent, key))
            caller.front.start()
        self._callers.move_to_end(name)
        return caller

    def _make_room(self) -> None:
        if len(self._callers) < self._limit:
            return
        idle = next((name for name, each in self._callers.items() if each.front.is_idle), None)
        if idle is None:
            raise TooManyCallers(
                f"This front serves {self._limit} credentials already; try again later, or another "
                "front."
            )
        self._drop(idle)

    async def _watch(
        self,
        name: tuple[str, str, bytes],
        authenticator: Authenticator,
        authorization: str | None,
        who: Principal,
    ) -> None:
        """Drop a caller as soon as its credential is no longer good."""
        with authenticator.watch(authorization, None, who) as ended:
            await ended
        self._drop(name, guarded=True)

    def _drop(self, name: tuple[str, str, bytes], *, guarded: bool = False) -> None:
        caller = self._callers.pop(name)
        if caller.guard is not None and not guarded:
            caller.guard.cancel()
        task = asyncio.create_task(caller.front.close(), name="front caller ends")
        self._closing.add(task)
        task.add_done_callback(self._closing.discard)
