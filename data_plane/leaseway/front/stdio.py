"""MCP over stdin and stdout, for one client, in whichever era it speaks.

Stdout carries the protocol alone. The client's session is the connection: what it leases is given
back when it hangs up.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import os
import secrets
import threading
from queue import SimpleQueue
from typing import Any, Final

import msgspec
from mcp.shared.inbound import InboundLadderRejection, classify_inbound_request
from mcp_types.jsonrpc import INTERNAL_ERROR, INVALID_PARAMS, INVALID_REQUEST

from leaseway.front.calling.handles import HANDLE_KEY, LEADS_NOWHERE, carried_in_meta
from leaseway.front.calling.relay import Listener
from leaseway.front.calling.sealing import SealedSession
from leaseway.front.calling.sessions import LiveSession, answered
from leaseway.front.catalog import Catalog
from leaseway.front.greeting import MAX_LINE, MODERN_MARK, Greeter, initialize_result, negotiated
from leaseway.front.messages import (
    Message,
    RpcError,
    cancelled_request,
    decode,
    encode,
    error_message,
    read_message,
    result_message,
)
from leaseway.front.methods import (
    Methods,
    Request,
    changed_notification,
)
from leaseway.sdk import AsyncClient
from leaseway.wire.bounds import MIB

_MOST_AT_ONCE: Final = 256
"""Requests under way; a client that sends more is read no further until one has ended."""
_MOST_WAITING: Final = 16 * MIB
"""Bytes that wait for a client which does not read; beyond it progress and logs are dropped."""
_MOST_HANDLES: Final = 256
"""Handles that a client holds at once."""
_LAST: Final = 1.0
"""Seconds in which what runs when the client hangs up may still end."""
_UNFINISHED: Final = RpcError(
    INTERNAL_ERROR,
    "The input ended before this was answered. If nothing is ever answered, check that a control "
    "plane runs at --address.",
)

_log = logging.getLogger("leaseway.front")


class StdioFront:
    """Serves the client at the other end of stdin and stdout.

    Args:
        client: Whose tools it sees.
        catalog: Its lists.
        methods: Answers its requests.
        tenant: Whose client it is.
        scope: The server that it sees; empty means all.
        greeter: Reads its lines, and may have answered the first of them.
    """

    def __init__(
        self,
        client: AsyncClient,
        catalog: Catalog,
        methods: Methods,
        tenant: str,
        *,
        scope: str = "",
        greeter: Greeter,
    ) -> None:
        self._client = client
        self._catalog = catalog
        self._methods = methods
        self._scope = scope
        self._tenant = tenant
        self._key = f"mcp-{secrets.token_hex(12)}"
        self._greeter = greeter
        self._lines: asyncio.Queue[bytes | None] = asyncio.Queue(maxsize=16)
        self._writer = _Writer(greeter.target)
        self._live = self._session({})
        self._handles: dict[str, LiveSession] = {}
        self._initialized = False
        self._tasks: set[asyncio.Task[None]] = set()
        self._room = asyncio.Semaphore(_MOST_AT_ONCE)

    async def serve(self) -> None:
        """Serve until the client hangs up; then nothing of it runs any more."""
        unfollow = self._catalog.follow(self._list_changed)
        loop = asyncio.get_running_loop()

        def take(line: bytes | None) -> None:
            asyncio.run_coroutine_threadsafe(self._lines.put(line), loop).result()

        greeted = self._greeter.hand_over(take)
        if greeted is not None:
            await self._initialize(read_message(greeted), is_answered=True)
        try:
            while (line := await self._lines.get()) is not None:
                if line.strip():
                    await self._take(line)
            if self._tasks:
                await asyncio.wait(self._tasks, timeout=_LAST)
        finally:
            unfollow()
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)
            for live in (self._live, *self._handles.values()):
                await live.end()
            await self._writer.close()

    def begin_handle(self, scope: str) -> LiveSession:
        """Begin a session beside the connection's own; it lasts no longer than that one."""
        if len(self._handles) >= _MOST_HANDLES:
            raise RpcError(
                INTERNAL_ERROR, f"There are {_MOST_HANDLES} handles already; release one first."
            )
        key = f"mcp-{secrets.token_hex(12)}"
        sealed = SealedSession(key, self._tenant, scope, "", {}, 0.0)
        handle = secrets.token_urlsafe(24)
        live = LiveSession(sealed, handle, self._client.session(key, idle=math.inf))
        self._handles[handle] = live
        return live

    def find_handle(self, handle: str, scope: str) -> LiveSession | None:
        """Return the session of a handle that was given on this connection."""
        return self._handles.get(handle)

    async def end_handle(self, live: LiveSession) -> None:
        """End a handle's session and give back what it leases."""
        self._handles.pop(live.id, None)
        await live.give_back()

    def _session(self, capabilities: dict[str, Any]) -> LiveSession:
        sealed = SealedSession(self._key, self._tenant, self._scope, "", capabilities, 0.0)
        live = LiveSession(sealed, "", self._client.session(self._key, idle=math.inf))
        live.push = self._push
        return live

    async def _take(self, line: bytes) -> None:
        try:
            if len(line) > MAX_LINE:
                raise RpcError(INVALID_REQUEST, f"A message has at most {MAX_LINE} bytes.")
            message = read_message(line)
        except RpcError as error:
            self._writer.write(error_message(b"", error))
            return
        if message.method is None:
            if not self._live.answer(message):
                _log.debug("The client answered what nobody asks any more.")
        elif not message.request_id:
            if message.method == "notifications/cancelled":
                self._live.cancel(cancelled_request(message))
        elif message.method == "initialize" and MODERN_MARK not in line:
            await self._initialize(message)
        else:
            await self._room.acquire()
            task = asyncio.create_task(self._answer(message, MODERN_MARK in line))
            self._tasks.add(task)
            task.add_done_callback(self._answered)

    def _answered(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        self._room.release()

    async def _initialize(self, message: Message, *, is_answered: bool = False) -> None:
        with contextlib.suppress(msgspec.DecodeError):
            params = decode(message.params)
            capabilities = params.get("capabilities") if isinstance(params, dict) else None
            await self._live.end()
            self._live = self._session(capabilities if isinstance(capabilities, dict) else {})
            self._initialized = True
            if not is_answered:
                result = initialize_result(negotiated(params.get("protocolVersion")))
                self._writer.write(result_message(message.request_id, result))
            return
        error = RpcError(INVALID_PARAMS, "The params of initialize are a JSON object.")
        self._writer.write(error_message(message.request_id, error))

    async def _answer(self, message: Message, modern: bool) -> None:
        live, request_id = self._live, message.request_id
        with live.running(request_id):
            try:
                request = self._request(message, modern, live)
                answer = result_message(request_id, await self._methods.answer(request))
            except RpcError as error:
                answer = error_message(request_id, error)
            except asyncio.CancelledError:
                if live.was_cancelled():
                    return  # a request that was cancelled has no response
                self._writer.write(error_message(request_id, _UNFINISHED))
                raise
            except Exception:
                _log.exception("A request of the MCP client failed: %s", message.method)
                failure = RpcError(INTERNAL_ERROR, "The front failed; its log says why.")
                answer = error_message(request_id, failure)
        self._writer.write(answer)

    def _request(self, message: Message, modern: bool, live: LiveSession) -> Request:
        listener = Listener(self._offer)
        if modern:
            listener.answers = answered(_capabilities(message))
            listener.passes_input = True
            session = self._carried(message) or live
            return Request(message, listener, True, self._scope, session, handles=self)
        if not self._initialized and message.method != "ping":
            raise RpcError(INVALID_REQUEST, "Begin with initialize.")
        listener.log_level = live.log_level
        listener.answers = live.answers
        listener.ask = lambda question: live.ask(question, self._writer.write)
        listener.withdraw = lambda question: live.withdraw(question, self._writer.write)
        return Request(message, listener, False, self._scope, live)

    def _carried(self, message: Message) -> LiveSession | None:
        """Return the session whose handle a modern request carries, or None if it carries none.

        Raises:
            RpcError: The handle has ended, or was not given on this connection.
        """
        if HANDLE_KEY.encode() not in bytes(message.params):
            return None
        handle = carried_in_meta(encode(decode(message.params).get("_meta")))
        if handle is None:
            return None
        live = self.find_handle(handle, self._scope)
        if live is None:
            raise RpcError(INVALID_PARAMS, LEADS_NOWHERE)
        return live

    def _offer(self, message: bytes) -> None:
        self._writer.offer(message)

    def _push(self, message: bytes) -> bool:
        return self._writer.offer(message)

    def _list_changed(self, kind: str, servers: frozenset[str]) -> None:
        # A modern client asks for this with a stream of its own.
        if self._initialized and (not self._scope or self._scope in servers):
            self._push(changed_notification(kind))


class _Writer:
    """Writes lines in a thread, so that a client which does not read stalls nobody else."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._loop = asyncio.get_running_loop()
        self._waiting: SimpleQueue[bytes | None] = SimpleQueue()
        self._size = 0
        self._dropped = 0
        self._thread = threading.Thread(target=self._run, name="stdout", daemon=True)
        self._thread.start()

    def write(self, message: bytes) -> None:
        if b"\n" in message or b"\r" in message:
            message = message.replace(b"\n", b" ").replace(b"\r", b" ")
        self._size += len(message)
        self._waiting.put(message + b"\n")

    def offer(self, message: bytes) -> bool:
        """Queue a message unless too much waits; return whether it is."""
        if self._size > _MOST_WAITING:
            self._dropped += 1
            return False
        self.write(message)
        return True

    async def close(self) -> None:
        """Write what waits, for a moment at most."""
        self._waiting.put(None)
        await asyncio.to_thread(self._thread.join, _LAST)
        if self._dropped:
            _log.warning("%d messages were dropped: the client did not read.", self._dropped)

    def _run(self) -> None:
        while (message := self._waiting.get()) is not None:
            view = memoryview(message)
            try:
                while view:
                    view = view[os.write(self._descriptor, view) :]
            except OSError:
                return  # the client has gone
            with contextlib.suppress(RuntimeError):  # the loop has ended
                self._loop.call_soon_threadsafe(self._written, len(message) - 1)

    def _written(self, size: int) -> None:
        self._size -= size


def _capabilities(message: Message) -> dict[str, Any]:
    """Return what a modern client says that it answers.

    Raises:
        RpcError: Its request lacks what each has to say, or speaks a version that is not known.
    """
    try:
        params = decode(message.params) if message.params else None
    except msgspec.DecodeError:
        params = None
    route = classify_inbound_request({"method": message.method, "params": params})
    if isinstance(route, InboundLadderRejection):
        raise RpcError(route.code, route.message, route.data)
    capabilities = route.client_capabilities
    return capabilities if isinstance(capabilities, dict) else {}
