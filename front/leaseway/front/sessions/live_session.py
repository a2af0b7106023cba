"""One MCP session on this front: running requests, server requests, subscriptions."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
import time
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any, Final, Protocol, assert_never
from weakref import WeakSet

import msgspec

from leaseway.front.lists.ui_resources import ServerResource
from leaseway.front.protocol.envelope import Notification, Refusal, Response
from leaseway.front.protocol.handshake import DEFAULT_LOG_LEVEL, Declared
from leaseway.front.protocol.messages import (
    JsonRpcError,
    encode,
    notification,
    read_cancellation,
    request_message,
)
from leaseway.front.sessions.listener import Listener
from leaseway.front.sessions.own_lists import (
    CHANGED_LISTS,
    ChangedList,
    OwnLists,
    ToldDigests,
    changed_notification,
    may_tell,
)
from leaseway.front.sessions.roots import ChangedRoots
from leaseway.front.sessions.sealing import SealedSession, is_handle
from leaseway.sdk import AsyncClient, AsyncSession, LeasewayError
from leaseway.sdk.relay import ServerRequest, hear_servers, leased_servers, speak_for
from leaseway.wire.bounds import LEASE_TTL, MAX_SUBSCRIPTIONS
from leaseway.wire.clients.mcp_client import McpClient
from leaseway.wire.messages.mcp import INVALID_PARAMS, LOG_LEVELS, ROOTS_CHANGED, TOOLS_CHANGED

_MAX_COMPLETIONS: Final = 256
"""Completed elicitations that a session keeps until a stream takes them; the oldest go first."""

_log = logging.getLogger("leaseway.front")


class SessionState(msgspec.Struct):
    """What another front needs to continue a session.

    Attributes:
        log_level: The lowest level of log messages that the client hears.
        subscriptions: The resources that it subscribed to, by the URIs that it knows.
    """

    log_level: str
    subscriptions: dict[str, ServerResource]


class _Log(msgspec.Struct):
    """The part of a log message that decides whether the client gets it."""

    level: str = "info"


_decode_own: Final = msgspec.json.Decoder(ToldDigests).decode
_decode_log: Final = msgspec.json.Decoder(_Log).decode
_decode_state: Final = msgspec.json.Decoder(SessionState).decode


class ResourceSubscription:
    """A subscription to updates of one resource, until `stop`.

    Args:
        session: The session, or client, that subscribes.
        resource: The resource as its server knows it.
        on_updated: Called with the URI of an updated resource as the client knows it; must not
            block.
        is_restored: Whether another front had it, so that updates may have been missed.
    """

    def __init__(
        self,
        session: AsyncSession | AsyncClient,
        resource: ServerResource,
        on_updated: Callable[[str], None],
        *,
        is_restored: bool = False,
    ) -> None:
        self.resource = resource
        self._session = session
        self._is_restored = is_restored
        self._on_updated = on_updated
        self._confirmed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._task = asyncio.create_task(self._run(), name=f"front subscribes {resource.uri[:80]}")
        self._task.add_done_callback(self._on_end)  # also of a task that never begins

    @property
    def has_ended(self) -> bool:
        return self._task.done()

    async def confirmed(self) -> None:
        """Wait until the server has confirmed.

        Raises:
            LeasewayError: It did not.
            JsonRpcError: The subscription was stopped before that.
        """
        await asyncio.wait([self._confirmed])
        if self._confirmed.cancelled():  # which must not look as if the waiting request were
            raise _unsubscribed()
        self._confirmed.result()

    async def stop(self) -> None:
        self._task.cancel()
        await asyncio.wait([self._task])

    async def _run(self) -> None:
        try:
            resource = self.resource
            updates = self._session.subscribe_resource(resource.uri, server=resource.server)
            async with updates:
                self._confirmed.set_result(None)
                if self._is_restored:
                    self._on_updated(resource.for_client(resource.uri))
                async for uri in updates:
                    self._on_updated(resource.for_client(uri))
        except LeasewayError as error:
            if self._confirmed.done() or self._is_restored:
                _log.info("The subscription to %s has ended: %s", resource.uri[:200], error)
                self._on_updated(resource.for_client(resource.uri))  # reading it shows the reason
            else:
                self._confirmed.set_exception(error)
                with contextlib.suppress(LeasewayError):
                    self._confirmed.exception()  # mark as retrieved, in case nothing waits

    def _on_end(self, _task: asyncio.Task[None]) -> None:
        self._confirmed.cancel()


class Taskless(Protocol):
    """A request that is handled without a task."""

    def cancel_for_client(self) -> None:
        """Cancel it: its client has, or its session ends."""


RunningRequest = tuple[asyncio.Task[Any] | Taskless, Listener]
"""A request of a session's client, in flight: its task, and the client's side of it."""


class ClientRequests:
    """Asks the client of a session, by default in the stream of one of its requests.

    Args:
        live: The session.
        send: Sends the client a message; returns False if there is no way.
    """

    def __init__(self, live: LiveSession, send: Callable[[bytes], object]) -> None:
        self._live = live
        self._send = send

    def ask(self, server_request: ServerRequest) -> None:
        """Send a server request to the client."""
        self._live.ask(server_request, self._send)

    def withdraw(self, server_request: ServerRequest) -> None:
        """Cancel a server request at the client."""
        self._live.withdraw(server_request, self._send)


class LiveSession:
    """An MCP session with its state on this front.

    Args:
        sealed: The contents of its id.
        session_id: The id that the client sends; empty on stdio.
        sdk: Its SDK session.
        on_lists: Called with a leased server and a `ListedToClient`, as JSON.
        lease_ttl: The time to live of its leases in seconds.
        is_derived: Whether its key is derived from what the client sends, so that it can start
            anew after it has ended.

    Attributes:
        calls: Calls that may have used its leases.
        calls_in_flight: Those that have not ended.
        has_ended: Whether it has been stopped, which ends its requests.
        streams: Queue messages outside of requests, each on one open stream; return False if it
            takes none.
        on_stop: Called when it is stopped: each ends an open stream, which gets nothing more.
        on_idle: Called when none is in flight any more; None before it is admitted to leases.
        outlet: The session of the protocol whose client made the newest call, if that is another
            one: it has the streams for notifications.
        renews: Whether its client may leave it for a new one after a call, so that results say a
            handle.
        has_told: Whether a result has said it.
        is_continued: Whether another front, or an earlier run, has begun it.
        place: The handle of the session that has its leases; empty if it has them itself.
        placed: That session, once a request has needed it here.
        requests: Requests of its client.
        log_level: The lowest level of log messages that the client hears, or empty for none.
        last_used: Monotonic time of the last request.
        declared: What `initialize` declared to the client; None if another front answered it.
        waits_until: Monotonic time until which its client may answer its server.
        client: What its client has declared.
        own_lists: In what its leased servers list otherwise.
        on_lists_changed: Called with a list of these that has changed, for streams of modern
            clients.
        answers: The methods of server requests that the client answers.
    """

    def __init__(
        self,
        sealed: SealedSession,
        session_id: str,
        sdk: AsyncSession,
        on_lists: Callable[[str, bytes], None],
        lease_ttl: float = LEASE_TTL,
        *,
        is_derived: bool = False,
    ) -> None:
        self.sealed = sealed
        self.lease_ttl = lease_ttl
        self.is_derived = is_derived
        self.calls = 0
        self.calls_in_flight = 0
        self.has_ended = False
        self.streams: list[Callable[[bytes], bool]] = []
        self.on_stop: list[Callable[[], None]] = []
        self.on_idle: Callable[[], None] | None = None
        self.outlet: LiveSession | None = None
        self.renews = bool(sealed.handle)
        self.has_told = self.is_continued = False
        self.place = sealed.handle
        self.placed: LiveSession | None = None
        self.requests = 0
        self.id = session_id
        self.sdk = sdk
        self.scope = sealed.scope
        self.client = McpClient(sealed.version, sealed.capabilities, sealed.info)
        self.answers = self.client.answers
        self.declared: Declared | None = None
        self.log_level = DEFAULT_LOG_LEVEL if self.client.is_legacy else ""
        self.waits_until = 0.0
        self.last_used = time.monotonic()
        self.own_lists = OwnLists()
        self.on_lists_changed: list[Callable[[ChangedList], object]] = []
        self._missed_lists: set[str] = set()
        self._on_lists = on_lists
        self._running: dict[bytes, RunningRequest] = {}
        self._cancelled: set[asyncio.Task[Any]] = set()
        self._server_requests: dict[bytes, ServerRequest] = {}
        self._subscriptions: dict[str, ResourceSubscription] = {}
        self._missed: dict[str, None] = {}
        self._missed_completions: deque[bytes] = deque(maxlen=_MAX_COMPLETIONS)
        self._stop_hearing: Callable[[], None] | None = None
        self._conversations: WeakSet[LiveSession] = WeakSet()
        self._roots = ChangedRoots(self.client, self._leasing, ClientRequests(self, self.push))

    @property
    def is_handle(self) -> bool:
        """Whether its id is one that models pass."""
        return is_handle(self.id)

    @property
    def is_busy(self) -> bool:
        return bool(self._running or self.calls_in_flight)

    @property
    def has_leases(self) -> bool:
        """Whether it, or the session that has them for it, may have leases on this front."""
        return self.on_idle is not None or self.placed is not None

    def let_out(self, conversation: LiveSession) -> None:
        """Let another session, of which its client has made a call, reach the client here."""
        if conversation.outlet is not self:
            conversation.outlet = self
            self._conversations.add(conversation)

    @property
    def is_outlet(self) -> bool:
        """Whether its client makes calls of other sessions, such as of its conversations."""
        return any(live.outlet is self for live in self._conversations)

    def _leasing(self) -> list[AsyncSession]:
        others = [live.sdk for live in self._conversations if live.outlet is self]
        return [self.sdk, *others]

    def push(self, message: bytes) -> bool:
        """Send a message outside of requests on the first stream that takes it."""
        return any(put(message) for put in self.streams)

    def begin_call(self) -> None:
        """Count a call that may use its leases, until `end_call`."""
        if self._stop_hearing is None:
            self._stop_hearing = hear_servers(self.sdk, self._hear, self.forget_own_lists)
        self.calls += 1
        self.calls_in_flight += 1

    def end_call(self) -> None:
        """Note the end of a call that has begun."""
        self.calls_in_flight -= 1
        self.last_used = time.monotonic()
        if self.on_idle is not None and not self.calls_in_flight:
            self.on_idle()

    def begin_request(self, request_id: bytes, listener: Listener) -> RunningRequest:
        """Let the client cancel the current task by its request id, until `end_request`."""
        task = asyncio.current_task()
        assert task is not None
        running = self._running[request_id] = (task, listener)
        self.requests += 1
        return running

    def begin_taskless(
        self, request_id: bytes, request: Taskless, listener: Listener
    ) -> RunningRequest:
        """Like `begin_request` and `begin_call`, for a request that has no task."""
        if self._stop_hearing is None:
            self._stop_hearing = hear_servers(self.sdk, self._hear, self.forget_own_lists)
        self.calls += 1
        self.calls_in_flight += 1
        self.requests += 1
        running = self._running[request_id] = (request, listener)
        return running

    def end_taskless(self, request_id: bytes, running: RunningRequest) -> None:
        """Like `end_request` and `end_call`, for a request that has no task."""
        if self._running.get(request_id) is running:
            del self._running[request_id]
        # `end_call`, without a function call
        self.calls_in_flight -= 1
        self.last_used = time.monotonic()
        if self.on_idle is not None and not self.calls_in_flight:
            self.on_idle()

    def end_request(self, request_id: bytes, running: RunningRequest) -> None:
        """Note the end of a request that has begun, unless a newer one has taken its id."""
        if self._running.get(request_id) is running:
            del self._running[request_id]
        self.last_used = time.monotonic()

    def cancel(self, request_id: bytes, reason: str = "") -> None:
        """Cancel a request for the client, whose reason its server is told; ignore unknown ids."""
        running = self._running.get(request_id)
        if running is not None:
            task, listener = running
            if reason:
                listener.cancel_reason = reason
            self._cancel(task)

    def _cancel(self, request: asyncio.Task[Any] | Taskless) -> None:
        if isinstance(request, asyncio.Task):
            self._cancelled.add(request)
            request.cancel()
        else:
            request.cancel_for_client()

    def handle_other(self, message: Notification | Response | Refusal) -> None:
        """Handle what its client has sent beside requests; ignore what nothing here waits for."""
        match message:
            case Notification(method="notifications/cancelled"):
                self.cancel(*read_cancellation(message))
            case Notification():
                if message.method == ROOTS_CHANGED:
                    self._roots.announce()
            case Response():
                self._handle_response(message)
            case Refusal():  # a server that waits for this answer waits no longer
                asked = self._server_requests.pop(message.answers, None)
                if asked is not None:
                    asked.reject(f"The client's answer is invalid: {message.text}")
            case _:
                assert_never(message)

    def was_cancelled(self) -> bool:
        """Return, once, whether the client cancelled the current task (and not the shutdown)."""
        task = asyncio.current_task()
        if task is None or task not in self._cancelled:
            return False
        self._cancelled.discard(task)
        task.uncancel()
        return True

    def admit(self, on_idle: Callable[[], None]) -> None:
        """Let it have leases; `on_idle` is called when no call is in flight any more."""
        self.on_idle = on_idle

    def leave(self) -> None:
        """Let it have no leases until it is admitted again."""
        self.on_idle = None

    def ask(self, server_request: ServerRequest, send: Callable[[bytes], object]) -> None:
        """Send a server request to the client; its response must be passed to `handle_other`."""
        request_id = b'"leaseway-%b"' % secrets.token_hex(8).encode()
        self._server_requests[request_id] = server_request
        message = request_message(request_id, server_request.method, server_request.params_json)
        if send(message) is False:
            del self._server_requests[request_id]
            server_request.reject("The client has no stream on which it can be asked now.")

    def withdraw(self, server_request: ServerRequest, send: Callable[[bytes], object]) -> None:
        """Cancel a server request at the client."""
        for request_id, asked in tuple(self._server_requests.items()):
            if asked is server_request:
                del self._server_requests[request_id]
                params = b'{"requestId":%b,"reason":"Its parent request has ended."}' % request_id
                send(notification("notifications/cancelled", params))

    def _handle_response(self, response: Response) -> None:
        server_request = self._server_requests.pop(response.id, None)
        if server_request is None:
            _log.debug("A client answered an unknown or closed server request.")
        elif response.result:
            server_request.answer(response.result)
        else:
            server_request.pass_error(response.error)

    async def subscribe(self, uri: str, sdk: AsyncSession, at_server: ServerResource) -> None:
        """Push updates of a resource until `unsubscribe`.

        Args:
            uri: The URI by which the client knows the resource.
            sdk: The session that has the leases of the client's calls.
            at_server: The resource as its server knows it.

        Raises:
            LeasewayError: Its server refused.
            JsonRpcError: The session has too many subscriptions, or it has unsubscribed meanwhile.
        """
        subscription = self._subscriptions.get(uri)
        if subscription is None or subscription.has_ended:
            if uri not in self._subscriptions and len(self._subscriptions) >= MAX_SUBSCRIPTIONS:
                raise JsonRpcError(
                    INVALID_PARAMS,
                    f"A session has at most {MAX_SUBSCRIPTIONS} subscriptions; unsubscribe one.",
                )
            speak_for(sdk, self.client.encoded)
            subscription = ResourceSubscription(sdk, at_server, self._on_updated)
            self._subscriptions[uri] = subscription
        try:
            await subscription.confirmed()
        except BaseException:
            if self._subscriptions.get(uri) is subscription:  # not a newer one
                await self.unsubscribe(uri)
            raise

    def _on_updated(self, uri: str) -> None:
        message = notification("notifications/resources/updated", encode({"uri": uri}))
        if not self.push(message) and len(self._missed) < MAX_SUBSCRIPTIONS:
            self._missed[uri] = None

    def _hear(self, server: str, method: str, params: bytes) -> None:
        if method == TOOLS_CHANGED:
            self._on_lists(server, params)
            for kind in self.own_lists.learn(server, _decode_own(params)):
                self._tell_own_list(kind)
        else:
            (self.outlet or self).tell(method, params)

    def forget_own_lists(self) -> None:
        """Tell the client that it sees what all sessions see: a lease has ended."""
        for kind in self.own_lists.forget({lease.server_id for lease in self.sdk.leases()}):
            self._tell_own_list(kind)

    def _tell_own_list(self, kind: ChangedList) -> None:
        self.tell_changed_list(kind)
        if self.outlet is not None and self.outlet is not self:
            self.outlet.tell_changed_list(kind)

    def tell_changed_list(self, kind: ChangedList) -> None:
        """Tell the client that a server lists something else to this session."""
        for tell in tuple(self.on_lists_changed):
            tell(kind)
        self.push_changed_list(kind)

    def push_changed_list(self, kind: str) -> None:
        """Push that a list has changed.

        Without a stream, the next one tells it, unless the client has read the list by then.
        """
        if self.client.is_legacy and may_tell(self.declared, kind):
            self._missed_lists.discard(kind)
            if not self.push(changed_notification(kind)):
                self._missed_lists.add(kind)

    @contextlib.contextmanager
    def reads(self, kind: str) -> Iterator[None]:
        """Note that the client reads a list from its begin, and so what it has missed of it.

        What changes while it reads is missed again.
        """
        was_missed = kind in self._missed_lists
        self._missed_lists.discard(kind)
        try:
            yield
        except BaseException:
            if was_missed:
                self._missed_lists.add(kind)
            raise

    def tell(self, method: str, params: bytes) -> None:
        """Push what a leased server says outside of the session's calls.

        A log message passes from the session's level. That an elicitation is complete waits for
        a stream, because the client waits for it.
        """
        message = notification(method, params)
        if method == "notifications/message":
            if self.log_level and _rank(_decode_log(params).level) >= _rank(self.log_level):
                self.push(message)
        elif not self.push(message):
            self._missed_completions.append(message)

    def state(self) -> bytes:
        """Return what another front needs to continue the session."""
        resources = {uri: item.resource for uri, item in self._subscriptions.items()}
        return encode(SessionState(self.log_level, resources))

    def miss_all_lists(self) -> None:
        """Count each list as changed: the client was at another front, or before its restart."""
        self._missed_lists.update(CHANGED_LISTS)

    def restore(self, state: bytes) -> None:
        """Continue with the log level and the subscriptions that another front has recorded.

        Each resource counts as updated: the client may have missed something in between.
        """
        known = _decode_state(state)
        self.log_level = known.log_level
        for uri, resource in known.subscriptions.items():
            if uri not in self._subscriptions:
                speak_for(self.sdk, self.client.encoded)
                self._subscriptions[uri] = ResourceSubscription(
                    self.sdk, resource, self._on_updated, is_restored=True
                )

    def push_missed(self) -> None:
        """Push the changes, updates and completed elicitations that no stream took."""
        missed_lists, self._missed_lists = self._missed_lists, set()
        for kind in {CHANGED_LISTS[kind]: kind for kind in missed_lists}.values():
            self.push_changed_list(kind)
        missed, self._missed = self._missed, {}
        for uri in missed:
            self._on_updated(uri)
        for message in tuple(self._missed_completions):
            if self.push(message):
                self._missed_completions.remove(message)

    async def unsubscribe(self, uri: str) -> None:
        subscription = self._subscriptions.pop(uri, None)
        if subscription is not None:
            await subscription.stop()

    async def stop(self) -> None:
        """Cancel its requests, server requests and subscriptions; end its streams.

        Its servers are not heard.
        """
        for end_stream in self.on_stop:
            end_stream()
        if self._stop_hearing is not None:
            self._stop_hearing()
            self._stop_hearing = None
        await self._roots.stop()
        self.has_ended = True
        requests = {request for request, _ in self._running.values()} - {asyncio.current_task()}
        for request in requests:
            self._cancel(request)
        tasks = [request for request in requests if isinstance(request, asyncio.Task)]
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
        for server in leased_servers(self.sdk):
            try:
                await self.sdk.release(server)
            except LeasewayError as error:
                _log.warning("A lease of an ended MCP session expires by itself: %s", error)


def _unsubscribed() -> JsonRpcError:
    text = "The subscription was ended before its server had confirmed it. Subscribe again."
    return JsonRpcError(INVALID_PARAMS, text)


def _rank(level: str) -> int:
    return LOG_LEVELS.index(level) if level in LOG_LEVELS else 0
