"""The MCP sessions that this front serves: who they are, what runs in them, when they end.

A session's id is sealed, so one that another front began is known here as soon as its client comes.
One that nobody used for the idle bound is forgotten: its leases are no longer renewed, and end by
themselves unless another front renews them.
"""

from __future__ import annotations

import asyncio
import math
import secrets
import time
from collections import OrderedDict
from collections.abc import Callable
from typing import Any, Final

from leaseway.front.calling.relay import forget_leases
from leaseway.front.calling.sealing import BrokenSeal, SealedSession, Sealer, known_capabilities
from leaseway.front.calling.subscriptions import FollowedResource
from leaseway.front.messages import Message, encode, notification, request_message
from leaseway.sdk import AsyncClient, AsyncSession
from leaseway.sdk.transport.server_requests import ServerRequest
from leaseway.wire.bounds import LEASE_TTL, MIN_LEASE_TTL
from leaseway.wire.messages.mcp import ELICIT, ROOTS, SAMPLE

IDLE: Final = 30 * 60.0
"""Seconds after which a session is forgotten that nobody uses."""
MAX_SESSIONS: Final = 10_000
"""Sessions that one front serves at once."""
_LONGEST: Final = 7 * 24 * 3600.0
"""Seconds that a session's id is good for."""
_MOST_SUBSCRIPTIONS: Final = 256
_MOST_ENDED: Final = 100_000
"""Ended sessions that are remembered, so that their ids are refused."""

_METHODS: Final = {"elicitation": ELICIT, "sampling": SAMPLE, "roots": ROOTS}


class TooManySessions(Exception):
    """No room for another session."""


class TooManySubscriptions(Exception):
    """A session follows as many resources as it may."""


def answered(capabilities: dict[str, Any]) -> tuple[str, ...]:
    """Return the MCP methods that a client with these capabilities answers."""
    return tuple(
        method for name, method in _METHODS.items() if isinstance(capabilities.get(name), dict)
    )


class _Running:
    """One request of a session, in a `with` block; each has one, so it is no generator."""

    __slots__ = ("_id", "_live", "_running", "_task")

    def __init__(
        self, live: LiveSession, running: dict[bytes, asyncio.Task[Any]], request_id: bytes
    ) -> None:
        self._live = live
        self._running = running
        self._id = request_id

    def __enter__(self) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._running[self._id] = self._task = task

    def __exit__(self, *_: object) -> None:
        if self._running.get(self._id) is self._task:
            del self._running[self._id]
        self._live.last_used = time.monotonic()


class LiveSession:
    """One MCP session, as this front knows it.

    Args:
        sealed: What its id says.
        session_id: The id, as its client sends it; empty on a connection that needs none.
        sdk: The session of the SDK behind it.
        lease_ttl: Seconds that its leases live after they were renewed last.

    Attributes:
        log_level: The least level of log messages that its client asked for, or empty.
        last_used: When something of it came last, on the monotonic clock.
        answers: The MCP methods that its client answers.
        push: Takes a notification that belongs to no request; returns whether it found a stream.
    """

    def __init__(
        self,
        sealed: SealedSession,
        session_id: str,
        sdk: AsyncSession,
        lease_ttl: float = LEASE_TTL,
    ) -> None:
        self.sealed = sealed
        self.lease_ttl = lease_ttl
        self.id = session_id
        self.sdk = sdk
        self.scope = sealed.scope
        self.answers = answered(sealed.capabilities)
        self.log_level = ""
        self.last_used = time.monotonic()
        self.push: Callable[[bytes], bool] = lambda _message: False
        self._running: dict[bytes, asyncio.Task[Any]] = {}
        self._cancelled: set[asyncio.Task[Any]] = set()
        self._questions: dict[bytes, ServerRequest] = {}
        self._followed: dict[str, FollowedResource] = {}

    @property
    def busy(self) -> bool:
        """Whether a request is under way."""
        return bool(self._running)

    def running(self, request_id: bytes) -> _Running:
        """Let the client cancel this task by its request's id while the block runs."""
        return _Running(self, self._running, request_id)

    def cancel(self, request_id: bytes) -> None:
        """Cancel a request that its client does not want any more; an unknown one is ignored."""
        task = self._running.get(request_id)
        if task is not None:
            self._cancelled.add(task)
            task.cancel()

    def was_cancelled(self) -> bool:
        """Say, once, whether this task was cancelled by its client and not with its server."""
        task = asyncio.current_task()
        if task is None or task not in self._cancelled:
            return False
        self._cancelled.discard(task)
        task.uncancel()
        return True

    def ask(self, question: ServerRequest, send: Callable[[bytes], None]) -> None:
        """Send a question to the client; `answer` takes what comes back."""
        request_id = b'"leaseway-%b"' % secrets.token_hex(8).encode()
        self._questions[request_id] = question
        send(request_message(request_id, question.method, question.params_json))

    def withdraw(self, question: ServerRequest, send: Callable[[bytes], None]) -> None:
        """Tell the client that a question needs no answer any more."""
        for request_id, asked in tuple(self._questions.items()):
            if asked is question:
                del self._questions[request_id]
                why = b'{"requestId":%b,"reason":"The request that it belongs to has ended."}'
                send(notification("notifications/cancelled", why % request_id))

    def answer(self, message: Message) -> bool:
        """Pass a client's answer on; say whether anybody waited for it."""
        question = self._questions.pop(message.request_id, None)
        if question is None:
            return False
        if bytes(message.result):
            question.answer(bytes(message.result))
        else:
            question.reject(f"The client refused: {bytes(message.error).decode()[:2000]}")
        return True

    async def subscribe(self, uri: str) -> None:
        """Follow a resource until it is unsubscribed; `push` gets what changes.

        Raises:
            LeasewayError: Its server refused.
            TooManySubscriptions: The session follows as many as it may.
        """
        followed = self._followed.get(uri)
        if followed is None or followed.ended:
            if len(self._followed) >= _MOST_SUBSCRIPTIONS:
                raise TooManySubscriptions(
                    f"A session follows at most {_MOST_SUBSCRIPTIONS} resources; unsubscribe one."
                )
            followed = FollowedResource(self.sdk, uri, self.scope or None, self._changed)
            self._followed[uri] = followed
        try:
            await followed.holds()
        except BaseException:
            await self.unsubscribe(uri)
            raise

    def _changed(self, uri: str) -> None:
        self.push(notification("notifications/resources/updated", encode({"uri": uri})))

    async def unsubscribe(self, uri: str) -> None:
        followed = self._followed.pop(uri, None)
        if followed is not None:
            await followed.end()

    async def end(self) -> None:
        """Stop all that runs in it."""
        tasks = set(self._running.values()) - {asyncio.current_task()}
        for task in tasks:
            self._cancelled.add(task)
            task.cancel()
        self._questions.clear()
        followed, self._followed = self._followed, {}
        for each in followed.values():
            await each.end()
        if tasks:
            await asyncio.wait(tasks)
        self._cancelled.clear()

    async def give_back(self) -> None:
        """Stop all that runs in it, and release what it leases."""
        await self.end()
        for server in {lease.server_id for lease in self.sdk.leases()}:
            await self.sdk.release(server)


class EndedSessions:
    """Sessions that must not come back, by key; the newest 100,000."""

    def __init__(self) -> None:
        self._keys: OrderedDict[str, None] = OrderedDict()

    def __contains__(self, key: object) -> bool:
        return key in self._keys

    def add(self, key: str) -> None:
        self._keys[key] = None
        while len(self._keys) > _MOST_ENDED:
            self._keys.popitem(last=False)


class SessionTable:
    """The sessions that this front serves.

    Args:
        client: The client in whose sessions they run.
        sealer: Makes and opens their ids.
        tenant: Whose client it is.
        idle: Seconds after which an unused one is forgotten.
        limit: The most of them.
        count: How many there are, with those of other tables that share the limit.
        ended: Those that clients ended, also in other tables.
    """

    def __init__(
        self,
        client: AsyncClient,
        sealer: Sealer,
        tenant: str,
        *,
        idle: float = IDLE,
        limit: int = MAX_SESSIONS,
        count: Callable[[], int] | None = None,
        ended: EndedSessions | None = None,
    ) -> None:
        self._client = client
        self._sealer = sealer
        self._tenant = tenant
        self._idle = idle
        self._limit = limit
        self._count = count or self.__len__
        self._live: OrderedDict[str, LiveSession] = OrderedDict()
        self._ended = ended if ended is not None else EndedSessions()
        self._forgotten = EndedSessions()

    def __len__(self) -> int:
        return len(self._live)

    def begin(self, scope: str, version: str, capabilities: dict[str, Any]) -> LiveSession:
        """Begin a session.

        Raises:
            TooManySessions: There are too many.
        """
        self._make_room()
        sealed = SealedSession(
            f"mcp-{secrets.token_hex(12)}",
            self._tenant,
            scope,
            version,
            known_capabilities(capabilities),
            time.time() + _LONGEST,
        )
        return self._add(sealed, self._sealer.seal(sealed))

    def find(self, session_id: str, scope: str) -> LiveSession | None:
        """Return a session by its id, from whichever front that is; None where it has ended."""
        live = self._live.get(session_id)
        if live is not None and live.sealed.key in self._ended:
            return None  # it was ended with another credential; `reap` takes it away
        if live is None:
            try:
                sealed = self._sealer.open(session_id, time.time())
            except BrokenSeal:
                return None
            if sealed.key in self._ended or sealed.key in self._forgotten:
                return None
            if sealed.tenant != self._tenant:
                return None
            self._make_room()
            live = self._add(sealed, session_id)
        if live.scope != scope:
            return None
        live.last_used = time.monotonic()
        self._live.move_to_end(session_id)
        return live

    def live(self) -> list[LiveSession]:
        return list(self._live.values())

    async def end(self, live: LiveSession) -> None:
        """End a session for good and give its leases back."""
        self._live.pop(live.id, None)
        self._ended.add(live.sealed.key)
        await live.give_back()

    async def leave(self) -> None:
        """Stop all that runs, and renew no lease any more: the sessions may go on elsewhere."""
        for live in self.live():
            await live.end()
            forget_leases(live.sdk)

    async def reap(self) -> None:
        """Forget sessions that nobody used for the idle bound, for as long as this runs."""
        while True:
            await asyncio.sleep(min(self._idle / 4, 10.0))
            now = time.monotonic()
            for live in self.live():
                is_unused = now - live.last_used > self._idle and not live.busy
                if is_unused or live.sealed.key in self._ended:
                    self._live.pop(live.id, None)
                    self._forgotten.add(live.sealed.key)
                    await live.end()
                    forget_leases(live.sdk)

    def _add(self, sealed: SealedSession, session_id: str) -> LiveSession:
        # Where sessions end sooner than leases usually do, their leases do so, too.
        ttl = min(LEASE_TTL, max(MIN_LEASE_TTL, self._idle))
        sdk = self._client.session(sealed.key, idle=math.inf)
        live = LiveSession(sealed, session_id, sdk, ttl)
        self._live[session_id] = live
        return live

    def _make_room(self) -> None:
        if self._count() >= self._limit:
            raise TooManySessions(
                f"This front serves {self._limit} sessions already; try again later, or another "
                "front."
            )
