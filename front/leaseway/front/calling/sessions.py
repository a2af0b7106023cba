"""The MCP sessions of this front: running requests, server requests, subscriptions.

Session ids are sealed, so any front can open a session that another one created. A session that was
unused for the idle limit is forgotten: its leases are no longer renewed, and end unless another
front renews them. The leases of sessions of a front that stops are kept for the idle limit.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import secrets
import time
from collections import OrderedDict
from collections.abc import Callable, Container, Iterator
from itertools import islice
from typing import Any, Final

from mcp_types.jsonrpc import INTERNAL_ERROR, INVALID_PARAMS
from mcp_types.version import LATEST_MODERN_VERSION

from leaseway.front.calling.ended_sessions import EndedSessions, SharedEnds
from leaseway.front.calling.sealing import (
    InvalidSessionId,
    Owner,
    SealedSession,
    Sealer,
    input_capabilities,
    is_handle,
)
from leaseway.front.messages import JsonRpcError, Message, encode, notification, request_message
from leaseway.sdk import AsyncClient, AsyncSession, LeasewayError
from leaseway.sdk.relay import ServerRequest, leave_leases
from leaseway.wire.bounds import LEASE_TTL, MIN_LEASE_TTL
from leaseway.wire.errors import Reason
from leaseway.wire.messages.mcp import ELICIT, ROOTS, SAMPLE

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
_MAX_AGE: Final = 7 * 24 * 3600.0
"""Seconds until a session id expires."""
_MAX_SUBSCRIPTIONS: Final = 256
_MAX_CLIENT: Final = 64
"""Characters of a client's name that are kept."""

_METHODS: Final = {"elicitation": ELICIT, "sampling": SAMPLE, "roots": ROOTS}

_log = logging.getLogger("leaseway.front")


class TooManySessions(JsonRpcError):
    """The front has reached its limit of sessions."""


def answered_methods(capabilities: object) -> tuple[str, ...]:
    """Return the methods of server requests that a client with these capabilities answers."""
    if not isinstance(capabilities, dict):
        return ()
    return tuple(
        method for name, method in _METHODS.items() if isinstance(capabilities.get(name), dict)
    )


class EndedConversation(JsonRpcError):
    """The session of a conversation has ended, which is told once; the next call starts anew."""

    def __init__(self) -> None:
        super().__init__(
            INVALID_PARAMS,
            "The session of this conversation has ended, because it was not used for too long or "
            "had to make room for another one. Its state is lost. Call again to start anew.",
            {"reason": str(Reason.LEASE_EXPIRED), "started": "no"},
        )


class ResourceSubscription:
    """A subscription to updates of one resource, until `stop`.

    Args:
        session: The session, or client, that subscribes.
        uri: The URI of the resource.
        server: The id of its server, or None.
        on_updated: Called with the URI of an updated resource; must not block.
    """

    def __init__(
        self,
        session: AsyncSession | AsyncClient,
        uri: str,
        server: str | None,
        on_updated: Callable[[str], None],
    ) -> None:
        self._session = session
        self._uri = uri
        self._server = server
        self._on_updated = on_updated
        self._confirmed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._task = asyncio.create_task(self._run(), name=f"front subscribes {uri[:80]}")

    @property
    def has_ended(self) -> bool:
        return self._task.done()

    async def confirmed(self) -> None:
        """Wait until the server has confirmed; raises `LeasewayError` if it did not."""
        await asyncio.shield(self._confirmed)

    async def stop(self) -> None:
        self._task.cancel()
        await asyncio.wait([self._task])

    async def _run(self) -> None:
        try:
            updates = self._session.subscribe_resource(self._uri, server=self._server)
            async with updates:
                self._confirmed.set_result(None)
                async for uri in updates:
                    self._on_updated(uri)
        except LeasewayError as error:
            if self._confirmed.done():
                _log.info("The subscription to %s has ended: %s", self._uri[:200], error)
                self._on_updated(self._uri)  # reading it shows the reason
            else:
                self._confirmed.set_exception(error)
                with contextlib.suppress(LeasewayError):
                    self._confirmed.exception()  # mark as retrieved, in case nothing waits
        finally:
            self._confirmed.cancel()


class _Running:
    """Registers the current task as a request of a session; cheaper than a generator."""

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


class _Calling:
    """Counts a call in a session; cheaper than a generator."""

    __slots__ = ("_live",)

    def __init__(self, live: LiveSession) -> None:
        self._live = live

    def __enter__(self) -> None:
        self._live.calls += 1
        self._live.calls_in_flight += 1

    def __exit__(self, *_: object) -> None:
        self._live.calls_in_flight -= 1
        self._live.last_used = time.monotonic()


class LiveSession:
    """An MCP session with its state on this front.

    Args:
        sealed: The contents of its id.
        session_id: The id that the client sends; empty on stdio.
        sdk: Its SDK session.
        lease_ttl: The time to live of its leases in seconds.
        is_derived: Whether its key is derived from what the client sends, so that it can start
            anew after it has ended.

    Attributes:
        calls: Calls that may have used its leases.
        calls_in_flight: Those that have not ended.
        log_level: The lowest level of log messages that the client requested, or empty.
        last_used: Monotonic time of the last request.
        answers: The methods of server requests that the client answers.
        push: Sends a notification outside of a request; returns False if no stream accepts it.
    """

    def __init__(
        self,
        sealed: SealedSession,
        session_id: str,
        sdk: AsyncSession,
        lease_ttl: float = LEASE_TTL,
        *,
        is_derived: bool = False,
    ) -> None:
        self.sealed = sealed
        self.lease_ttl = lease_ttl
        self.is_derived = is_derived
        self.calls = 0
        self.calls_in_flight = 0
        self.id = session_id
        self.sdk = sdk
        self.scope = sealed.scope
        self.answers = answered_methods(sealed.capabilities)
        self.log_level = ""
        self.last_used = time.monotonic()
        self.push: Callable[[bytes], bool] = lambda _message: False
        self._running: dict[bytes, asyncio.Task[Any]] = {}
        self._cancelled: set[asyncio.Task[Any]] = set()
        self._server_requests: dict[bytes, ServerRequest] = {}
        self._subscriptions: dict[str, ResourceSubscription] = {}

    @property
    def is_busy(self) -> bool:
        return bool(self._running or self.calls_in_flight)

    def calling(self) -> _Calling:
        """Count a call that may use its leases, while the block runs."""
        return _Calling(self)

    def running(self, request_id: bytes) -> _Running:
        """Let the client cancel the current task by its request id while the block runs."""
        return _Running(self, self._running, request_id)

    def cancel(self, request_id: bytes) -> None:
        """Cancel a request for the client; ignore an unknown id."""
        task = self._running.get(request_id)
        if task is not None:
            self._cancelled.add(task)
            task.cancel()

    def was_cancelled(self) -> bool:
        """Return, once, whether the client cancelled the current task (and not the shutdown)."""
        task = asyncio.current_task()
        if task is None or task not in self._cancelled:
            return False
        self._cancelled.discard(task)
        task.uncancel()
        return True

    def ask(self, server_request: ServerRequest, send: Callable[[bytes], None]) -> None:
        """Send a server request to the client; its response must be passed to `answer`."""
        request_id = b'"leaseway-%b"' % secrets.token_hex(8).encode()
        self._server_requests[request_id] = server_request
        send(request_message(request_id, server_request.method, server_request.params_json))

    def withdraw(self, server_request: ServerRequest, send: Callable[[bytes], None]) -> None:
        """Cancel a server request at the client."""
        for request_id, asked in tuple(self._server_requests.items()):
            if asked is server_request:
                del self._server_requests[request_id]
                params = b'{"requestId":%b,"reason":"Its parent request has ended."}' % request_id
                send(notification("notifications/cancelled", params))

    def answer(self, message: Message) -> bool:
        """Handle the client's response to a server request; return False if none is open."""
        server_request = self._server_requests.pop(message.request_id, None)
        if server_request is None:
            return False
        if bytes(message.result):
            server_request.answer(bytes(message.result))
        else:
            server_request.reject(f"The client refused: {bytes(message.error).decode()[:2000]}")
        return True

    async def subscribe(self, uri: str, sdk: AsyncSession) -> None:
        """Push updates of a resource until `unsubscribe`.

        Args:
            uri: The URI of the resource.
            sdk: The session that has the leases of the client's calls.

        Raises:
            LeasewayError: Its server refused.
            JsonRpcError: The session has too many subscriptions.
        """
        subscription = self._subscriptions.get(uri)
        if subscription is None or subscription.has_ended:
            if len(self._subscriptions) >= _MAX_SUBSCRIPTIONS:
                raise JsonRpcError(
                    INVALID_PARAMS,
                    f"A session has at most {_MAX_SUBSCRIPTIONS} subscriptions; unsubscribe one.",
                )
            subscription = ResourceSubscription(sdk, uri, self.scope or None, self._on_updated)
            self._subscriptions[uri] = subscription
        try:
            await subscription.confirmed()
        except BaseException:
            await self.unsubscribe(uri)
            raise

    def _on_updated(self, uri: str) -> None:
        self.push(notification("notifications/resources/updated", encode({"uri": uri})))

    async def unsubscribe(self, uri: str) -> None:
        subscription = self._subscriptions.pop(uri, None)
        if subscription is not None:
            await subscription.stop()

    async def stop(self) -> None:
        """Cancel its requests, server requests and subscriptions."""
        tasks = set(self._running.values()) - {asyncio.current_task()}
        for task in tasks:
            self._cancelled.add(task)
            task.cancel()
        self._server_requests.clear()
        subscriptions, self._subscriptions = self._subscriptions, {}
        for subscription in subscriptions.values():
            await subscription.stop()
        if tasks:
            await asyncio.wait(tasks)
        self._cancelled.clear()

    async def release(self) -> None:
        """Stop it and release its leases; one whose worker does not answer expires."""
        await self.stop()
        for server in {lease.server_id for lease in self.sdk.leases()}:
            try:
                await self.sdk.release(server)
            except LeasewayError as error:
                _log.warning("A lease of an ended MCP session expires by itself: %s", error)


class SessionTable:
    """The sessions of one caller.

    Args:
        client: The SDK client of the sessions.
        sealer: Seals and opens session ids.
        owner: Whom the sessions belong to.
        idle: Seconds after which an unused session is forgotten.
        limit: The limit of sessions over all callers.
        count: Counts the sessions of all callers; None means only those of this table.
        ended: The ended sessions of all callers.
        ends: Shares ended sessions with other fronts; None means that this one is alone.
        make_room: Forgets an unused session of some caller at the limit, and returns whether it
            could; None means that the limit is final.
    """

    def __init__(
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
        make_room: Callable[[], bool] | None = None,
    ) -> None:
        self._client = client
        self._sealer = sealer
        self._owner = owner
        self._idle = idle
        self._limit = limit
        self._count = count or self.__len__
        self._ends = ends
        self._make_room = make_room
        self._leaving: set[asyncio.Task[None]] = set()
        self._live: OrderedDict[str, LiveSession] = OrderedDict()
        self._ended = ended if ended is not None else EndedSessions()
        self._forgotten = EndedSessions()

    def __len__(self) -> int:
        return len(self._live)

    def __iter__(self) -> Iterator[LiveSession]:
        return iter(list(self._live.values()))

    def create(
        self, scope: str, version: str, capabilities: object, client: str = ""
    ) -> LiveSession:
        """Create a session of a client with `initialize`; raises `TooManySessions`."""
        self._check_limit()
        key = f"mcp-{secrets.token_hex(12)}"
        known = input_capabilities(capabilities)
        sealed = self._sealed(key, scope, client, version, known, time.time() + _MAX_AGE)
        return self._add(sealed, self._sealer.seal(sealed))

    def create_handle(self, scope: str, client: str = "") -> LiveSession:
        """Create a session whose id is short; raises `TooManySessions`."""
        self._check_limit()
        handle = self._sealer.make_handle(self._owner, scope, time.time() + _MAX_AGE)
        return self._add(self._open_id(handle, scope, client), handle)

    def find(self, session_id: str, scope: str) -> LiveSession | None:
        """Return the session of an id from any front, or None if it has ended or is invalid."""
        live = self._live.get(session_id)
        if live is not None and live.sealed.key in self._ended:
            return None  # ended with another credential; `expire_idle` removes it
        if live is None:
            try:
                sealed = self._open_id(session_id, scope)
            except InvalidSessionId:
                return None
            if sealed.key in self._ended or sealed.key in self._forgotten:
                return None
            self._check_limit()
            live = self._add(sealed, session_id)
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
            sealed = self._sealed(key, scope, client, LATEST_MODERN_VERSION, {}, math.inf)
            live = self._add(sealed, key, is_derived=True)
        live.last_used = time.monotonic()
        self._live.move_to_end(key)
        return live

    def _open_id(self, session_id: str, scope: str, client: str = "") -> SealedSession:
        """Return the session in an id of this owner; raises `InvalidSessionId`."""
        if is_handle(session_id):
            key, expires = self._sealer.open_handle(session_id, self._owner, scope, time.time())
            return self._sealed(key, scope, client, LATEST_MODERN_VERSION, {}, expires)
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
    ) -> SealedSession:
        tenant, principal = self._owner
        client = client[:_MAX_CLIENT]
        return SealedSession(key, tenant, scope, version, capabilities, expires, principal, client)

    def find_live(self, session_id: str, scope: str) -> LiveSession | None:
        """Return the session of an id if this front serves it already."""
        return self.find(session_id, scope) if session_id in self._live else None

    async def open(self, session_id: str, scope: str) -> LiveSession | None:
        """Like `find`, but ask whether the session has ended on another front before opening it."""
        if self._ends is not None and session_id not in self._live:
            try:
                sealed = self._open_id(session_id, scope)
            except InvalidSessionId:
                return None
            if await self._ends.has_ended(sealed.key):
                return None
        return self.find(session_id, scope)

    async def end(self, live: LiveSession) -> None:
        """End a session permanently, on all fronts, and release its leases.

        One with a derived key can start anew.
        """
        self._live.pop(live.id, None)
        if live.is_derived:
            await live.release()
            return
        self._ended.add(live.sealed.key)
        await live.release()
        if self._ends is not None:
            await self._ends.end(live.sealed.key)

    async def close(self) -> None:
        """Stop all sessions without releasing their leases: another front may continue them."""
        with contextlib.suppress(TimeoutError):  # what is not left expires by itself
            async with asyncio.timeout(_LEAVE_TIMEOUT):
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
        task = asyncio.create_task(self._leave(live), name="front session leaves")
        self._leaving.add(task)
        task.add_done_callback(self._leaving.discard)
        return True

    async def expire_idle(self) -> None:
        """Forget idle and ended sessions until cancelled."""
        checked = time.monotonic()
        while True:
            await asyncio.sleep(min(self._idle / 4, _CHECK_INTERVAL))
            now = time.monotonic()
            if self._ends is not None:
                used = [live.sealed.key for live in self if live.last_used >= checked]
                if used or self._ends.has_own:
                    await self._ends.exchange(used)
            checked = now
            for live in self:
                is_idle = now - live.last_used > self._idle and not live.is_busy
                if is_idle or live.sealed.key in self._ended:
                    self._live.pop(live.id, None)
                    self._forgotten.add(live.sealed.key)
                    await live.stop()
                    await leave_leases(live.sdk, _UNUSED)

    async def _leave(self, live: LiveSession) -> None:
        await live.stop()
        await leave_leases(live.sdk, self._idle)

    def _add(
        self, sealed: SealedSession, session_id: str, *, is_derived: bool = False
    ) -> LiveSession:
        # Leases must not outlive a session that expires sooner than the usual lease.
        ttl = min(LEASE_TTL, max(MIN_LEASE_TTL, self._idle))
        sdk = self._client.session(sealed.key, idle=math.inf)
        live = LiveSession(sealed, session_id, sdk, ttl, is_derived=is_derived)
        self._live[session_id] = live
        return live

    def _check_limit(self) -> None:
        if self._count() < self._limit or (self._make_room is not None and self._make_room()):
            return
        raise TooManySessions(
            INTERNAL_ERROR,
            f"This front has reached its limit of {self._limit} sessions; try again later, or use "
            "another front.",
        )
