"""Requests with a known head: what it says, and its calls that run without a task.

A head is read and checked once for all requests that have it. A call that needs no wait
(`calling.plain_calls`) is sent while its request is read, and its response is written while its
result arrives. Whatever else happens, such as a fault, goes on in a task, which handles the call as
if it had begun it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass
from typing import Any, Final

from mcp_types.version import HANDSHAKE_PROTOCOL_VERSIONS

from leaseway.front.calling.conversations import Carried
from leaseway.front.calling.media import MediaMode
from leaseway.front.calling.plain_calls import PlainCalls, PlainTool
from leaseway.front.envelope import RequestMessage
from leaseway.front.http.streams import HttpReply, OpenStream, Reply, TaskOwner
from leaseway.front.messages import error_message, internal_error, result_message, unknown_client
from leaseway.front.sessions.listener import Listener
from leaseway.front.sessions.live_session import ClientRequests, LiveSession, RunningRequest
from leaseway.sdk.relay import BegunCall, CallWay, begin_call
from leaseway.wire.clients.mcp_client import McpClient

_MAX_WAYS: Final = 1024
"""Tools whose calls one head remembers; beyond it, it starts anew."""
_log: Final = logging.getLogger("leaseway.front")


@dataclass(frozen=True, slots=True)
class LegacyHead:
    """The head of a request of a client with `initialize`.

    Attributes:
        scope: The server in the URL, or empty.
        carried: What tells the session of its calls.
        live: The session of the protocol, or None.
        media: How the client wants images and audio; None means the default.
        has_session: Whether it has a session id, beside a cookie.
        version: Its protocol version, or None.
        open_stream: Opens the stream of a reply, for a request of a session.
    """

    scope: str
    carried: Carried
    live: LiveSession | None
    media: MediaMode | None
    has_session: bool
    version: str | None
    open_stream: OpenStream | None

    def listener(self, reply: Reply) -> Listener:
        """Return the client's side of a request."""
        live = self.live
        listener = Listener(reply.send)
        if live is None:
            listener.mcp_client = unknown_client(self.version or HANDSHAKE_PROTOCOL_VERSIONS[-1])
            return listener
        if live.log_level:
            listener.log_level = live.log_level
        listener.lease_ttl = live.lease_ttl
        listener.mcp_client = live.client.encoded
        if reply.accepts_stream and self.open_stream is not None:
            reply.open_by(self.open_stream)
            if live.answers:
                listener.answers = live.answers
                listener.ask_through(ClientRequests(live, reply.ask))
        return listener


@dataclass(frozen=True, slots=True)
class ModernHead:
    """The head of a request of a modern client, and what its `_meta` declares.

    Attributes:
        scope: The server in the URL, or empty.
        carried: What tells the session of its calls.
        headers: The headers.
        client: What the client declares.
        name: The `name` in the params of its requests, or None.
        media: How it wants images and audio; None means the default.
    """

    scope: str
    carried: Carried
    headers: Mapping[str, str]
    client: McpClient
    name: str | None
    media: MediaMode | None


GoOn = Callable[[LegacyHead, HttpReply, RequestMessage, "DirectCall"], Coroutine[Any, Any, None]]
"""Handles a request whose call goes on in a task."""


class DirectCalls:
    """The direct calls of requests with one head.

    Args:
        plain: Tells which calls can be direct.
        head: The head, which names a session.
        live: That session.
        running: The requests in flight of the front.
        go_on: Handles a call that goes on.
    """

    def __init__(
        self,
        plain: PlainCalls,
        head: LegacyHead,
        live: LiveSession,
        running: set[Any],
        go_on: GoOn,
    ) -> None:
        self.head = head
        self.live = live
        self.running = running
        self.go_on = go_on
        self._find = plain.find
        self._ways: dict[str, CallWay] = {}

    @classmethod
    def of(
        cls, plain: PlainCalls, head: LegacyHead, running: set[Any], go_on: GoOn
    ) -> DirectCalls | None:
        """Return the direct calls of a head; None if it has none."""
        live = head.live
        if live is None or not head.has_session or head.carried.handle or head.media == "links":
            return None
        return cls(plain, head, live, running, go_on)

    def begin(self, message: RequestMessage, reply: HttpReply) -> DirectCall | None:
        """Begin the call of a `tools/call` without `_meta`; None if it needs a task."""
        live, owner = self.live, reply.owner
        found = self._find(live, self.head.scope, message.params)
        if found is None or owner is None:
            return None
        known, name, arguments = found
        listener = self.head.listener(reply)
        way = self._ways.get(name)
        if way is None:
            if len(self._ways) >= _MAX_WAYS:
                self._ways.clear()
            way = self._ways[name] = CallWay(live.sdk.key, name)
        call = DirectCall(way, arguments, listener)
        call.calls, call.known, call.message = self, known, message
        call.reply_to, call.owner, call.is_given_up = reply, owner, False
        request_id = message.id
        # Before it is sent: in this process its result may be there at once.
        call.registered = running = live.begin_taskless(request_id, call, listener)
        self.running.add(call)
        try:
            if begin_call(live.sdk, call):
                return call
        except Exception:  # noqa: BLE001 - its task meets it again, and responds with it
            _log.debug("A call could not begin without a task.", exc_info=True)
        self.running.discard(call)
        live.calls -= 1  # its task counts it
        live.end_taskless(request_id, running)
        return None


class DirectCall(BegunCall):
    """A `tools/call` in flight without a task.

    Attributes:
        calls: Those of its head.
        known: The tool.
        message: The request.
        reply_to: The reply to it.
        owner: Knows that it is in flight.
        registered: How its session knows it.
        is_given_up: Whether it was cancelled before its task has started.
    """

    __slots__ = ("calls", "is_given_up", "known", "message", "owner", "registered", "reply_to")
    # Set by `DirectCalls.begin`: parameters of a constructor take longer.
    events: Listener
    calls: DirectCalls
    known: PlainTool
    message: RequestMessage
    reply_to: HttpReply
    owner: TaskOwner
    registered: RunningRequest
    is_given_up: bool

    def on_payload(self, payload: bytes) -> None:
        """Send the response."""
        request_id, calls = self.message.id, self.calls
        try:
            message = result_message(request_id, self.known.result(payload))
        except Exception:  # noqa: BLE001 - the exchange that delivers it serves other calls, too
            _log.exception("A request of an MCP client failed: %s", self.message.method)
            message = error_message(request_id, internal_error())
        self.events.reset()
        calls.running.discard(self)
        calls.live.end_taskless(request_id, self.registered)
        self.reply_to.finish(message)
        self.owner.end_direct()

    def on_other(self) -> None:
        """Go on in a task."""
        calls = self.calls
        calls.running.discard(self)
        task = self.owner.go_on_in(self._go_on())
        calls.running.add(task)
        task.add_done_callback(calls.running.discard)

    async def _go_on(self) -> None:
        live, request_id = self.calls.live, self.message.id
        if self.is_given_up:
            self.events.reset()
            live.end_taskless(request_id, self.registered)
            self.reply_to.abandon()
            return
        await self.calls.go_on(self.calls.head, self.reply_to, self.message, self)

    def cancel_for_client(self) -> None:
        """Cancel it: its client has, or its session ends."""
        if self.done():
            self.is_given_up = True  # its task has not started yet
            return
        self.cancel(self.events.cancel_reason)
        self.events.reset()
        calls = self.calls
        calls.running.discard(self)
        calls.live.end_taskless(self.message.id, self.registered)
        self.reply_to.abandon()
        self.owner.end_direct()
