"""Calls of requests with a known head that run without a task.

A call that needs no wait (`calling.plain_calls`) is sent while its request is read, and its
response is written while its result arrives. Its response becomes a stream only once something is
to be sent before it. Whatever else happens, such as a fault, goes on in a task, which handles the
call as if it had begun it.
"""

from __future__ import annotations

import asyncio
import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Coroutine
from typing import Any, Final

from leaseway.front.calling.plain_calls import PlainCalls, PlainMeta, PlainTool
from leaseway.front.http.heads import LegacyHead, ModernHead
from leaseway.front.http.streams import HttpReply, TaskOwner
from leaseway.front.methods import Methods
from leaseway.front.protocol.envelope import RequestMessage
from leaseway.front.protocol.messages import (
    CUT_OFF,
    SESSION_ENDED,
    error_message,
    internal_error,
    result_message,
)
from leaseway.front.protocol.results import result_for_program
from leaseway.front.sessions.listener import Listener
from leaseway.front.sessions.live_session import LiveSession, RunningRequest
from leaseway.sdk.relay import (
    BegunCall,
    CallWay,
    ServerRequest,
    begin_call,
    begin_outside,
    call_way,
)
from leaseway.wire.bounds import MAX_META

_MAX_WAYS: Final = 1024
"""Tools, in a session each, whose calls one head remembers; beyond it, it starts anew."""
_log: Final = logging.getLogger("leaseway.front")

_Key = str | tuple[str, str]
"""The name of a tool; with the key of a session if the head does not say one."""
GoOn = Callable[[HttpReply, RequestMessage, "DirectCall"], Coroutine[Any, Any, None]]
"""Handles a request whose call goes on in a task."""


class DirectCalls(ABC):
    """The direct calls of requests with one head.

    Args:
        plain: Tells which calls can be direct.
        running: The requests in flight of the front.
        go_on: Handles a call that goes on.
    """

    def __init__(self, plain: PlainCalls, running: set[Any], go_on: GoOn) -> None:
        self.running = running
        self.go_on = go_on
        self._plain = plain
        self._ways: dict[_Key, CallWay] = {}
        # The newest `_meta`, and what it says.
        self._meta = b""
        self._read: PlainMeta | None = None

    @abstractmethod
    def begin(self, message: RequestMessage, reply: HttpReply) -> DirectCall | None:
        """Begin the call of a `tools/call`; None if it needs a task, or checks of its head."""

    @abstractmethod
    def result(self, call: DirectCall, payload: bytes) -> bytes:
        """Return the result of a call for the client."""

    @abstractmethod
    def end(self, call: DirectCall) -> None:
        """Note the end of a call."""

    def _read_meta(self, meta: bytes, *, modern: bool) -> PlainMeta | None:
        """Return what a `_meta` says, which often is that of the call before; None as `begin`."""
        if meta != self._meta:
            if len(meta) > MAX_META:
                return None  # it would be kept as long as the connection
            self._read = self._plain.read_meta(meta, modern=modern)
            self._meta = meta
        return self._read

    def _remember(self, key: _Key, way: CallWay) -> CallWay:
        if len(self._ways) >= _MAX_WAYS:
            self._ways.clear()
        self._ways[key] = way
        return way


class SessionCalls(DirectCalls):
    """The direct calls of a client with `initialize`, in the session that its head names.

    Args:
        plain: As for `DirectCalls`.
        head: The head.
        live: Its session.
        running: As for `DirectCalls`.
        go_on: As for `DirectCalls`.
    """

    def __init__(
        self,
        plain: PlainCalls,
        head: LegacyHead,
        live: LiveSession,
        running: set[Any],
        go_on: GoOn,
    ) -> None:
        super().__init__(plain, running, go_on)
        self.head = head
        self.live = live
        self._find = plain.find

    @classmethod
    def of(
        cls, plain: PlainCalls, head: LegacyHead, running: set[Any], go_on: GoOn
    ) -> SessionCalls | None:
        """Return the direct calls of a head; None if it has none."""
        live, carried = head.live, head.carried
        if live is None or not head.has_session or head.media == "links":
            return None
        if carried.handle or carried.conversation:
            return None
        return cls(plain, head, live, running, go_on)

    def begin(self, message: RequestMessage, reply: HttpReply) -> DirectCall | None:
        """Begin the call of a `tools/call`; None if it needs a task, or checks of its head."""
        live, owner = self.live, reply.owner
        found = self._find(live, self.head.scope, message.params)
        if found is None or owner is None:
            return None
        known, name, arguments, meta = found
        listener = self.head.listener(reply)
        call = DirectCall(
            self._ways.get(name) or self._remember(name, CallWay(live.sdk.key, name)),
            arguments,
            listener,
        )
        if meta:
            read = self._read_meta(meta, modern=False)
            if read is None:
                return None
            read.asked.apply(listener)
            call.trace = read.trace
        call.calls, call.known, call.message = self, known, message
        call.reply_to, call.owner, call.live = reply, owner, live
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

    def result(self, call: DirectCall, payload: bytes) -> bytes:
        """Return the result of a call for the client."""
        live = self.live
        return result_for_program(call.known.result(payload, live.id), live.client.info.get("name"))

    def end(self, call: DirectCall) -> None:
        """Note the end of a call."""
        self.running.discard(call)
        self.live.end_taskless(call.message.id, call.registered)


class ModernCalls(DirectCalls):
    """The direct calls of a modern client: of shared servers, or in sessions that they say.

    Args:
        methods: Their client calls; tells which calls can be direct.
        head: The head.
        running: As for `DirectCalls`.
        go_on: As for `DirectCalls`.
    """

    def __init__(self, methods: Methods, head: ModernHead, running: set[Any], go_on: GoOn) -> None:
        super().__init__(methods.plain_calls, running, go_on)
        self.head = head
        self._client = methods.client

    @classmethod
    def of(
        cls, methods: Methods, head: ModernHead, running: set[Any], go_on: GoOn
    ) -> ModernCalls | None:
        """Return the direct calls of a head; None if it has none."""
        return None if head.media == "links" else cls(methods, head, running, go_on)

    def begin(self, message: RequestMessage, reply: HttpReply) -> DirectCall | None:
        """Begin the call of a `tools/call`; None if it needs a task, or checks of its head."""
        head, owner = self.head, reply.owner
        found = self._plain.find_outside(head.carried, head.scope, message.params)
        if found is None or owner is None:
            return None
        known, name, arguments, meta, live = found
        if not head.covers(name, meta):
            return None
        read = self._read_meta(meta, modern=True)
        if read is None:
            return None
        listener = head.listener(reply)
        read.asked.apply(listener)
        caller = self._client if live is None else live.sdk
        key = name if live is None else (live.sdk.key, name)
        way = self._ways.get(key) or self._remember(key, call_way(caller, name))
        call = DirectCall(way, arguments, listener)
        if head.client.answers:
            listener.ask_through(AskedCall(call))
        call.trace = read.trace
        call.calls, call.known, call.message = self, known, message
        call.reply_to, call.owner, call.live = reply, owner, live
        self.running.add(call)
        if live is not None:
            listener.lease_ttl = live.lease_ttl
            live.begin_call()
        try:
            if begin_outside(self._client, call) if live is None else begin_call(live.sdk, call):
                return call
        except Exception:  # noqa: BLE001 - its task meets it again, and responds with it
            _log.debug("A call could not begin without a task.", exc_info=True)
        self.end(call)
        if live is not None:
            live.calls -= 1  # its task counts it
        return None

    def result(self, call: DirectCall, payload: bytes) -> bytes:
        """Return the result of a call for the client."""
        sessions = self.head.carried.sessions
        return call.known.modern_result(payload, sessions, call.message.params)

    def end(self, call: DirectCall) -> None:
        """Note the end of a call."""
        self.running.discard(call)
        call.events.asker = None  # which has the call, and the call has the events
        if call.live is not None:
            call.live.end_call()


class DirectCall(BegunCall):
    """A `tools/call` in flight without a task.

    Attributes:
        calls: Those of its head.
        known: The tool.
        message: The request.
        reply_to: The reply to it.
        owner: Knows that it is in flight.
        live: Its session, or None.
        registered: How the session of the protocol knows it.
        is_given_up: Whether it was cancelled before the task has started in which it goes on.
        has_started: Whether that task has started.
    """

    __slots__ = (
        "calls",
        "has_started",
        "is_given_up",
        "known",
        "live",
        "message",
        "owner",
        "registered",
        "reply_to",
    )
    # Set by `DirectCalls.begin`: parameters of a constructor take longer.
    events: Listener
    calls: DirectCalls
    known: PlainTool
    message: RequestMessage
    reply_to: HttpReply
    owner: TaskOwner
    live: LiveSession | None
    registered: RunningRequest
    is_given_up: bool  # these two by `on_other`
    has_started: bool

    def on_payload(self, payload: bytes) -> None:
        """Send the response."""
        calls = self.calls
        try:
            message = result_message(self.message.id, calls.result(self, payload))
        except Exception:  # noqa: BLE001 - the exchange that delivers it serves other calls, too
            _log.exception("A request of an MCP client failed: %s", self.message.method)
            message = error_message(self.message.id, internal_error())
        self.events.reset()
        calls.end(self)
        self.reply_to.finish(message)
        self.owner.end_direct()

    def on_other(self) -> None:
        """Go on in a task."""
        self.is_given_up = self.has_started = False
        calls = self.calls
        calls.running.discard(self)
        task = self.owner.go_on_in(self._go_on())
        calls.running.add(task)
        task.add_done_callback(calls.running.discard)
        task.add_done_callback(self._on_end)

    def _on_end(self, task: asyncio.Task[None]) -> None:
        if task.cancelled() and not self.has_started:
            self.give_up(self.events.cancel_reason)
            self.calls.end(self)

    async def _go_on(self) -> None:
        self.has_started = True
        if self.is_given_up:
            self.give_up(self.events.cancel_reason)
            self.events.reset()
            self.calls.end(self)
            self._end_without_result()
            return
        await self.calls.go_on(self.reply_to, self.message, self)

    def cancel_for_client(self) -> None:
        """Cancel it: its client has, or has gone, or its session ends."""
        if self.done():
            self.is_given_up = True  # its task has not started yet
            return
        self._withdraw()
        self._end_without_result()
        self.owner.end_direct()

    def _end_without_result(self) -> None:
        """End the reply, with an error if the session has ended: its caller may not know that."""
        if self.live is not None and self.live.has_ended:
            self.reply_to.finish(error_message(self.message.id, SESSION_ENDED))
        else:
            self.reply_to.abandon()

    def cut_off(self) -> None:
        """Cancel it, because the front ends, and tell its client."""
        if not self.done():
            self._withdraw()
            self.reply_to.finish(error_message(self.message.id, CUT_OFF))
            self.owner.end_direct()

    def _withdraw(self) -> None:
        self.cancel(self.events.cancel_reason)
        self.events.reset()
        self.calls.end(self)


class AskedCall:
    """Lets a direct call go on in a task once its server asks a client that answers in a next try.

    The task asks the client what is open then.

    Args:
        call: The call.
    """

    def __init__(self, call: DirectCall) -> None:
        self._call = call

    def ask(self, _server_request: ServerRequest) -> None:
        """Let the call go on in a task."""
        if not self._call.done():
            self._call.detach()
            self._call.on_other()

    def withdraw(self, _server_request: ServerRequest) -> None:
        """Nothing: the client was not asked yet."""
