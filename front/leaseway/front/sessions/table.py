"""The MCP sessions of this front: how they begin, are found again, and end.

Session ids are sealed, so any front can open a session that another one created. A session that was
unused for the idle limit is forgotten: its leases are no longer renewed, and end unless another
front renews them. The leases of sessions of a front that stops are kept for the idle limit.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import secrets
import time
from collections import OrderedDict
from collections.abc import Callable, Container, Iterator
from itertools import islice
from typing import Any, Final

from leaseway.front.protocol.messages import JsonRpcError, encode
from leaseway.front.sessions.ended import EndedSessions, SharedEnds
from leaseway.front.sessions.limits import SessionLimits
from leaseway.front.sessions.live_session import LiveSession
from leaseway.front.sessions.renewals import Renewals
from leaseway.front.sessions.sealing import (
    InvalidSessionId,
    Owner,
    SealedSession,
    Sealer,
    is_handle,
)
from leaseway.sdk import AsyncClient
from leaseway.sdk.relay import leave_leases
from leaseway.wire.bounds import LEASE_TTL, MIN_LEASE_TTL, SESSION_AGE
from leaseway.wire.clients.mcp_client import McpClient
from leaseway.wire.errors import Reason
from leaseway.wire.messages.mcp import INTERNAL_ERROR, INVALID_PARAMS, MODERN_VERSIONS
from leaseway.wire.signals import Signal

IDLE: Final = 30 * 60.0
"""Seconds after which an unused session is forgotten."""
_OLDEST: Final = 256
"""Sessions, the longest unused, of which one is forgotten for a new one."""
MAX_SESSIONS: Final = 10_000
"""Sessions of one front."""
_UNUSED: Final = LEASE_TTL
"""Seconds for which another front may still continue a session that was unused here."""
_LEAVE_TIMEOUT: Final = 5.0
"""Seconds in which the leases of all sessions are left when the front stops."""
_CHECK_INTERVAL: Final = 10.0
"""Seconds between checks for idle sessions, and for sessions that have ended on other fronts."""
_MAX_CLIENT: Final = 64
"""Characters of a client's name that are kept."""


class TooManySessions(JsonRpcError):
    """The front has reached its limit of sessions."""


class EndedConversation(JsonRpcError):
    """The session of a conversation has ended, which is told once; the next call starts anew."""

    def __init__(self) -> None:
        super().__init__(
            INVALID_PARAMS,
            "The session of this conversation has ended, because it was not used for too long or "
            "had to make room for another one. Its state is lost. Call again to start anew.",
            {"reason": str(Reason.LEASE_EXPIRED), "started": "no"},
        )


class SessionTable:
    """The sessions of one caller.

    Attributes:
        lists_told: A leased server, and as JSON the `ListedToClient` of its instance.

    Args:
        client: The SDK client of the sessions.
        sealer: Seals and opens session ids.
        owner: Whom the sessions belong to.
        idle: Seconds after which an unused session is forgotten.
        limit: The limit of sessions over all callers.
        count: Counts the sessions of all callers; None means only those of this table.
        ended: The ended sessions of all callers.
        ends: Shares ended sessions with other fronts; None means that this one is alone.
        limits: Bounds the sessions with leases of each client; None means only of this table.
        make_room: Forgets an unused session of some caller at the limit, and returns whether it
            could; None means that the limit is final.
    """

    def __init__(  # noqa: PLR0913 - what a session depends on
        self,
        client: AsyncClient,
        sealer: Sealer,
        owner: Owner,
        *,
        idle: float = IDLE,
        limit: int = MAX_SESSIONS,
        count: Callable[[], int] | None = None,
        ended: EndedSessions | None = None,
        ends: SharedEnds | None = None,
        limits: SessionLimits | None = None,
        make_room: Callable[[], bool] | None = None,
    ) -> None:
        self._client = client
        self._sealer = sealer
        self._owner = owner
        self._idle = idle
        self._limit = limit
        self._count = count or self.__len__
        self._ends = ends
        self._limits = limits or SessionLimits()
        self._make_room = make_room
        self._leaving: set[asyncio.Task[None]] = set()
        self._live: OrderedDict[str, LiveSession] = OrderedDict()
        self._ended = ended if ended is not None else EndedSessions()
        self._forgotten = EndedSessions()
        self._renewals = Renewals()
        self._has_begun = asyncio.Event()
        self.lists_told = Signal[str, bytes]()

    def __len__(self) -> int:
        return len(self._live)

    def __iter__(self) -> Iterator[LiveSession]:
        return iter(list(self._live.values()))

    async def begin(
        self, scope: str, version: str, capabilities: object, info: object
    ) -> LiveSession:
        """Create a session as `create`, with what other fronts know of the client's program."""
        program = _program(McpClient(version, capabilities, info))
        was_known = self._renewals.knows(program)
        if self._ends is not None and program not in self._renewals:
            was_known = bool(await self._ends.ask(self._program_key(program)))
            if was_known:
                self._renewals.learn(program)
        live = self.create(scope, version, capabilities, info)
        if live.renews and not was_known:
            await self._share_renewal(program, b"1")
        return live

    def create(
        self, scope: str, version: str, capabilities: object, info: object = None
    ) -> LiveSession:
        """Create a session of a client with `initialize`; raises `TooManySessions`."""
        self._check_limit()
        key = f"mcp-{secrets.token_hex(12)}"
        client = McpClient(version, capabilities, info)
        renews = _program(client) in self._renewals
        sealed = self._sealed(
            key,
            scope,
            client.info.get("name", ""),
            version,
            client.capabilities,
            time.time() + SESSION_AGE,
            client.info,
            self._make_handle(scope) if renews else "",
        )
        live = self._add(sealed, self._sealer.seal(sealed))
        self._renewals.see(live)
        return live

    def placed(self, live: LiveSession, *, tells_end: bool = True) -> LiveSession:
        """Return the session, with a handle, that has the leases of one whose client may leave it.

        Raises:
            EndedConversation: It has ended, and `tells_end` is set; told once.
            TooManySessions: There are too many.
        """
        before = live.placed
        found = self.find(live.place, live.scope, live.sealed.client)
        if found is None and not tells_end:
            return live
        live.placed = found
        if found is not None:
            live.let_out(found)
            return found
        live.place, live.renews = "", False
        if before is None or before.calls:
            raise EndedConversation
        return live

    async def keep(self, live: LiveSession) -> None:
        """Note that the client of a session continues it, so that it needs no handle."""
        live.renews = False
        if self._renewals.knows(live.sealed.client):
            self._renewals.forget(live.sealed.client)
            await self._share_renewal(live.sealed.client, b"")

    def _program_key(self, program: str) -> str:
        return self._sealer.derive_key(self._owner, "", "renews", program)

    async def _share_renewal(self, program: str, state: bytes) -> None:
        """Let other fronts know that a program renews its sessions, or that it does not."""
        if self._ends is not None:
            await self._ends.save(self._program_key(program), state)

    async def _see(self, live: LiveSession) -> None:
        """Note a session that a client continues here, and what that shows of its program."""
        program = live.sealed.client
        was_known = live.renews or self._renewals.knows(program)
        is_known = program in self._renewals
        self._renewals.see(live)
        if is_known and not was_known:
            await self._share_renewal(program, b"1")

    def _make_handle(self, scope: str) -> str:
        return self._sealer.make_handle(self._owner, scope, time.time() + SESSION_AGE)

    def create_handle(self, scope: str, client: str = "") -> LiveSession:
        """Create a session whose id is short; raises `TooManySessions`."""
        self._check_limit()
        handle = self._make_handle(scope)
        return self._add(self._open_id(handle, scope, client), handle)

    def find(self, session_id: str, scope: str, client: str = "") -> LiveSession | None:
        """Return the session of an id from any front, or None if it has ended or is invalid."""
        live = self._live.get(session_id)
        if live is not None and live.sealed.key in self._ended:
            return None  # ended with another credential; `expire_idle` removes it
        if live is None:
            try:
                sealed = self._open_id(session_id, scope, client)
            except InvalidSessionId:
                return None
            if sealed.key in self._ended or sealed.key in self._forgotten:
                return None
            self._check_limit()
            live = self._add(sealed, session_id)
            live.miss_all_lists()
        if live.scope != scope or live.is_derived:
            return None
        live.last_used = time.monotonic()
        self._live.move_to_end(session_id)
        return live

    def conversation(
        self, scope: str, client: str, words: tuple[str, ...], *, tells_end: bool = True
    ) -> LiveSession | None:
        """Return the session that the owner's client names by words of its own.

        Returns:
            None if it has ended and `tells_end` is not set.

        Raises:
            EndedConversation: It has ended since its last call, which is told once.
            TooManySessions: There are too many.
        """
        key = self._sealer.derive_key(self._owner, scope, *words)
        live = self._live.get(key)
        if live is None:
            if key in self._forgotten and not tells_end:
                return None
            if self._forgotten.discard(key):
                raise EndedConversation
            self._check_limit()
            sealed = self._sealed(key, scope, client, MODERN_VERSIONS[-1], {}, math.inf)
            live = self._add(sealed, key, is_derived=True)
        live.last_used = time.monotonic()
        self._live.move_to_end(key)
        return live

    def _open_id(self, session_id: str, scope: str, client: str = "") -> SealedSession:
        """Return the session in an id of this owner; raises `InvalidSessionId`."""
        if is_handle(session_id):
            key, expires = self._sealer.open_handle(session_id, self._owner, scope, time.time())
            return self._sealed(key, scope, client, MODERN_VERSIONS[-1], {}, expires)
        sealed = self._sealer.open(session_id, time.time())
        if sealed.owner != self._owner:
            raise InvalidSessionId
        return sealed

    def _sealed(
        self,
        key: str,
        scope: str,
        client: str,
        version: str,
        capabilities: dict[str, Any],
        expires: float,
        info: dict[str, str] | None = None,
        handle: str = "",
    ) -> SealedSession:
        tenant, principal = self._owner
        client = client[:_MAX_CLIENT]
        return SealedSession(
            key=key,
            tenant=tenant,
            scope=scope,
            version=version,
            capabilities=capabilities,
            expires=expires,
            principal=principal,
            client=client,
            info=info or {},
            handle=handle,
        )

    def seal_text(self, text: bytes, bound: bytes) -> str:
        """Return a text that only this caller can hand back, at any front with the same key."""
        return self._sealer.seal_text(text, encode(self._owner) + bound)

    def open_text(self, sealed: str, bound: bytes) -> bytes:
        """Return a sealed text of this caller; raises `InvalidSessionId`."""
        return self._sealer.open_text(sealed, encode(self._owner) + bound)

    def use(self, live: LiveSession) -> bool:
        """Note the use of a session that was found before; return whether it still goes on."""
        if self._live.get(live.id) is not live or live.sealed.key in self._ended:
            return False
        live.last_used = time.monotonic()
        self._live.move_to_end(live.id)
        return True

    def opened(self, session_id: str, scope: str) -> LiveSession | None:
        """Return what `open` returns for a session that is open here, or None for others."""
        return self.find(session_id, scope) if session_id in self._live else None

    async def open(self, session_id: str, scope: str) -> LiveSession | None:
        """Like `find`, but ask whether the session has ended on another front before opening it."""
        if self._ends is not None and session_id not in self._live:
            try:
                sealed = self._open_id(session_id, scope)
            except InvalidSessionId:
                return None
            others = self._placed_keys(sealed)
            state = await self._ends.ask(sealed.key, *others)
            # Another request may have opened it meanwhile, and changed what is recorded of it.
            is_open = session_id in self._live
            live = self.find(session_id, scope) if state is not None else None
            if live is not None and not is_open:
                live.is_continued = True
                if state:
                    live.restore(state)
            if live is not None and not live.is_handle:
                await self._see(live)
            return live
        return self.find(session_id, scope)

    def _placed_keys(self, sealed: SealedSession) -> tuple[str, ...]:
        """Return the key of the session that has the leases of another one, if there is one."""
        if not sealed.handle:
            return ()
        try:
            return (self._open_id(sealed.handle, sealed.scope).key,)
        except InvalidSessionId:  # it is about to expire
            return ()

    async def save(self, live: LiveSession) -> None:
        """Let other fronts know what they need to continue a session."""
        if self._ends is not None:
            await self._ends.save(live.sealed.key, live.state())

    async def admit(self, live: LiveSession) -> None:
        """Admit a session to leases, for which the longest idle one of its client may end.

        Raises:
            JsonRpcError: All sessions of its client have calls in flight, for too long, or it has
                ended meanwhile.
        """
        if live.on_idle is None:
            await self._limits.admit(live, self._evict)
            if self._live.get(live.id) is not live:
                self._limits.remove(live)
                raise EndedConversation

    async def _evict(self, live: LiveSession) -> None:
        """End a session whose client does not know that yet."""
        if live.is_derived:
            self._forgotten.add(live.sealed.key)
        await self.end(live)

    async def end(self, live: LiveSession) -> None:
        """End a session permanently, on all fronts, and release its leases.

        One with a derived key can start anew.
        """
        if not live.is_derived:
            self._ended.add(live.sealed.key)
            if self._ends is not None:  # first: the leases may be on a worker that does not answer
                await self._ends.end(live.sealed.key)
        await self._release(live)

    async def _release(self, live: LiveSession) -> None:
        """Forget a session that has ended, and release its leases."""
        self._live.pop(live.id, None)
        self._renewals.end(live)
        await live.release()
        self._limits.remove(live)
        if live.placed is not None and live.placed.outlet is live:  # no other session has taken it
            await self.end(live.placed)

    async def close(self) -> None:
        """Stop all sessions without releasing their leases: another front may continue them."""
        with contextlib.suppress(TimeoutError):  # what is not left expires by itself
            async with asyncio.timeout(_LEAVE_TIMEOUT):
                for live in self:
                    self._limits.remove(live)
                await asyncio.gather(*self._leaving, *map(self._leave, self))

    def forget_oldest(self, avoid: Container[LiveSession] = ()) -> bool:
        """Forget the session that has been unused for longest; return False if all are in use.

        It goes on with the next request that carries its id, on any front.

        Args:
            avoid: Sessions to forget only if there are no others.
        """
        unused = [live for live in islice(self._live.values(), _OLDEST) if not live.is_busy]
        live = next((live for live in unused if live not in avoid), unused[0] if unused else None)
        if live is None:
            return False
        del self._live[live.id]
        self._renewals.end(live)
        self._limits.remove(live)
        task = asyncio.create_task(self._leave(live), name="front session leaves")
        self._leaving.add(task)
        task.add_done_callback(self._leaving.discard)
        return True

    async def expire_idle(self) -> None:
        """Check the sessions from time to time, until cancelled."""
        checked = time.monotonic()
        while True:
            await self._hear_ends(min(self._idle / 4, _CHECK_INTERVAL))
            now = time.monotonic()
            await self.check(checked)
            checked = now

    async def _hear_ends(self, seconds: float) -> None:
        """Wait, and hear meanwhile which sessions end on other fronts: `find` refuses them."""
        until = time.monotonic() + seconds
        if self._ends is not None:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(seconds):
                    await self._has_begun.wait()
                    await self._ends.hear(until - time.monotonic())
        await asyncio.sleep(until - time.monotonic())

    async def check(self, since: float) -> None:
        """Forget idle sessions and those that have ended on other fronts; end superseded ones.

        Args:
            since: The monotonic time of the last check.
        """
        if self._ends is not None:
            asked = [live.sealed.key for live in self if live.last_used >= since or live.has_leases]
            if asked or self._ends.has_own:
                await self._ends.exchange(asked)
        superseded = [live for live in self if self._limits.is_superseded(live)]
        await asyncio.gather(*map(self._evict, superseded))
        now = time.monotonic()
        if not self._live:
            self._has_begun.clear()
        for live in self:
            if self._live.get(live.id) is not live:
                continue  # it was forgotten meanwhile, and perhaps opened anew
            if live.sealed.key in self._ended:
                await self._release(live)
            elif now - live.last_used > self._idle and not live.is_busy:
                del self._live[live.id]
                self._renewals.end(live)
                self._limits.remove(live)
                self._forgotten.add(live.sealed.key)
                await live.stop()
                await leave_leases(live.sdk, min(_UNUSED, self._idle))

    async def _leave(self, live: LiveSession) -> None:
        await live.stop()
        await leave_leases(live.sdk, self._idle)

    def _add(
        self, sealed: SealedSession, session_id: str, *, is_derived: bool = False
    ) -> LiveSession:
        # Leases must not outlive a session that expires sooner than the usual lease.
        ttl = min(LEASE_TTL, max(MIN_LEASE_TTL, self._idle))
        sdk = self._client.session(sealed.key, idle=math.inf)
        on_lists = self.lists_told.emit
        live = LiveSession(sealed, session_id, sdk, on_lists, ttl, is_derived=is_derived)
        self._live[session_id] = live
        self._has_begun.set()
        return live

    def _check_limit(self) -> None:
        if self._count() < self._limit or (self._make_room is not None and self._make_room()):
            return
        raise TooManySessions(
            INTERNAL_ERROR,
            f"This front has reached its limit of {self._limit} sessions; try again later, or use "
            "another front.",
        )


def _program(client: McpClient) -> str:
    return client.info.get("name", "")[:_MAX_CLIENT]
