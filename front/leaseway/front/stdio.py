"""MCP over stdin and stdout, for one client of any protocol version.

Stdout carries only the protocol. The connection is the client's session: its leases are released
when the client disconnects.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import os
import secrets
import select
import threading
from collections.abc import Callable
from queue import SimpleQueue
from typing import Final

from leaseway.front.calling.conversations import Carried
from leaseway.front.calling.requests import Request
from leaseway.front.draining import DRAINING, Drain
from leaseway.front.methods import Methods
from leaseway.front.protocol.envelope import (
    LONG_TAIL,
    MODERN_MARK,
    Message,
    Refusal,
    RequestMessage,
    is_batch,
    names_version,
    read_batch,
    read_message,
    refuse_long,
)
from leaseway.front.protocol.handshake import (
    initialize_result,
    negotiate_version,
)
from leaseway.front.protocol.messages import (
    UNAVAILABLE,
    JsonRpcError,
    batch_message,
    error_message,
    initialize_params,
    modern_client,
    refusal_message,
    result_message,
)
from leaseway.front.sessions.listener import Listener
from leaseway.front.sessions.live_session import ClientRequests, LiveSession
from leaseway.front.sessions.sealing import Owner, SealedSession, Sealer
from leaseway.front.sessions.table import SessionTable
from leaseway.front.stdio_handshake import MAX_LINE, HandshakeResponder
from leaseway.wire.bounds import KIB, MIB
from leaseway.wire.clients.mcp_client import McpClient
from leaseway.wire.errors import Reason
from leaseway.wire.messages.mcp import INTERNAL_ERROR, INVALID_REQUEST

_MAX_REQUESTS: Final = 256
"""In-flight requests; further ones wait until one has ended."""
_MAX_WAITING: Final = 256
"""Requests that wait so; further ones are refused. Reading does not stop for them: what ends a
request may be the client's next message, a cancellation or an answer."""
_MAX_QUEUED: Final = 16 * MIB
"""Bytes queued for a slow client; beyond it progress and log messages are dropped."""
_MAX_UNREAD: Final = 64 * MIB
"""Bytes of responses that wait for the client to read, after which nothing is read from it."""
_MAX_OUTPUT: Final = 10 * MIB - 128 * KIB
"""Bytes of a message. Official clients for JavaScript (from 1.30) end the connection once they have
10 MiB that are unread, of which a part may be the next message's."""
_MAX_HANDLES: Final = 256
_UNREAD: Final = select.POLLERR | select.POLLHUP
_SHUTDOWN_TIMEOUT: Final = 1.0
"""Seconds that queued output gets after the client disconnected."""
_UNFINISHED: Final = JsonRpcError(
    INTERNAL_ERROR,
    "The input ended before the response. If all requests fail like this, check that a control "
    "plane runs at --address.",
)
_RENEWED: Final = JsonRpcError(
    INTERNAL_ERROR,
    "The client has sent `initialize` again, which ended this request. Send it again if it may be "
    "repeated.",
)
_TOO_MANY: Final = JsonRpcError(
    UNAVAILABLE,
    f"{_MAX_REQUESTS} requests of this connection are in flight, and {_MAX_WAITING} wait for them. "
    "Send this one again when some have ended.",
    {"reason": str(Reason.OVERLOADED), "started": "no", "retryAfter": 1.0},
)
_TOO_LARGE: Final = (
    "The result has {} bytes, and official clients end a connection over stdio at 10 MiB. Ask for"
    " less at a time, start the front with --media links, or connect over HTTP."
)
_DRAINING: Final = JsonRpcError(INTERNAL_ERROR, DRAINING)

_log = logging.getLogger("leaseway.front")


class StdioFront:
    """Serves the client at the other end of stdin and stdout.

    Args:
        methods: Handles the client's requests.
        tenant: The tenant.
        scope: The server that the client sees; empty means all.
        handshake: Reads the client's lines, and may have answered the first ones.
        drain: How the front ends before its client does; None means not at all.
    """

    def __init__(
        self,
        methods: Methods,
        tenant: str,
        scope: str,
        handshake: HandshakeResponder,
        drain: Drain | None = None,
    ) -> None:
        self._methods = methods
        self._scope = scope
        self._tenant = tenant
        self._key = f"mcp-{secrets.token_hex(12)}"
        self._handshake = handshake
        self._drain = drain or Drain()
        self._lines: asyncio.Queue[bytes | None] = asyncio.Queue(maxsize=16)
        self._writer = _StdoutWriter(handshake.target)
        self._live = self._session(McpClient("", {}))
        self._sessions = SessionTable(
            methods.client,
            Sealer(None, "mcp session"),
            Owner(tenant),
            idle=math.inf,
            limit=_MAX_HANDLES,
        )
        self._sessions.lists_told.connect(methods.catalog.learn_lists)
        self._version = ""  # of `initialize`
        self._renews = False
        self._is_modern = False
        self._tasks: set[asyncio.Task[None]] = set()
        self._request_slots = asyncio.Semaphore(_MAX_REQUESTS)

    async def serve(self) -> None:
        """Serve until the client disconnects or the front drains, then stop all its tasks."""
        unsubscribe = self._methods.catalog.subscribe(self._on_list_changed)
        loop = asyncio.get_running_loop()

        def on_line(line: bytes | None) -> None:
            asyncio.run_coroutine_threadsafe(self._lines.put(line), loop).result()

        initialize = self._handshake.connect(on_line)
        if initialize is not None:
            message = read_message(initialize)
            assert isinstance(message, RequestMessage)
            await self._initialize(message, is_answered=True)
        reading = asyncio.create_task(self._handle_lines(), name="front lines")
        draining = asyncio.create_task(self._finish_requests(), name="front drain")
        try:
            await asyncio.wait((reading, draining), return_when=asyncio.FIRST_COMPLETED)
            if reading.done():
                reading.result()
                # The client may still read, as whoever writes all requests into a pipe at once.
                self._drain.request()
                await draining
        finally:
            for task in (reading, draining):
                task.cancel()
            await asyncio.gather(reading, draining, return_exceptions=True)
            unsubscribe()
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)
            ended = (self._live, *self._sessions)
            await asyncio.gather(*(live.release() for live in ended))
            await self._writer.close()

    async def _handle_lines(self) -> None:
        while (line := await self._lines.get()) is not None:
            if line := line.strip():
                await self._writer.has_room.wait()
                await self._handle_line(line)

    async def _finish_requests(self) -> None:
        """Wait until the front drains and its requests have finished."""
        await self._drain.started.wait()
        await self._drain.wait_for_requests(self._unfinished)

    def _unfinished(self) -> int:
        return 0 if self._writer.is_unread() else len(self._tasks)

    def _session(self, client: McpClient) -> LiveSession:
        sealed = SealedSession(
            key=self._key,
            tenant=self._tenant,
            scope=self._scope,
            version=client.version,
            capabilities=client.capabilities,
            expires=0.0,
            info=client.info,
        )
        sdk = self._methods.client.session(self._key, idle=math.inf)
        live = LiveSession(sealed, "", sdk, self._methods.catalog.learn_lists)
        live.streams.append(self._writer.offer)
        return live

    async def _handle_line(self, line: bytes) -> None:
        if len(line) > MAX_LINE:
            message: Message = refuse_long(line, line[-LONG_TAIL:], MAX_LINE)
        elif self._version and is_batch(line):
            batch = read_batch(line, self._version)
            if not isinstance(batch, Refusal):
                await self._handle_batch(batch)
                return
            message = batch
        else:
            message = read_message(line)
        if isinstance(message, Refusal):
            # Its era can only be guessed from an earlier request, or from what it looks like.
            modern = self._is_modern or MODERN_MARK in line
            self._writer.write(refusal_message(message, modern=modern))
        await self._handle_message(message, self._writer.write)

    async def _handle_batch(self, messages: list[Message]) -> None:
        """Handle the messages of a batch; its responses are one message, too."""
        responses: list[bytes] = []
        handling: list[asyncio.Task[None]] = []
        for message in messages:
            if isinstance(message, Refusal):
                responses.append(refusal_message(message))
            if task := await self._handle_message(message, responses.append):
                handling.append(task)

        async def respond() -> None:
            if handling:
                await asyncio.wait(handling)
            if responses:
                self._writer.write(batch_message(responses))

        self._tasks.add(responding := asyncio.create_task(respond()))
        responding.add_done_callback(self._tasks.discard)

    async def _handle_message(
        self, message: Message, write: Callable[[bytes], None]
    ) -> asyncio.Task[None] | None:
        """Handle a message; return the task of a request that is in flight."""
        if not isinstance(message, RequestMessage):
            self._live.handle_other(message)
            return None
        if self._drain.started.is_set():
            write(error_message(message.id, _DRAINING))
            return None
        if message.method == "initialize":
            await self._initialize(message)
            return None
        if len(self._tasks) >= _MAX_REQUESTS + _MAX_WAITING:
            write(error_message(message.id, _TOO_MANY))
            return None
        task = asyncio.create_task(self._respond(message, write))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def _initialize(self, message: RequestMessage, *, is_answered: bool = False) -> None:
        try:
            params = initialize_params(message)
        except JsonRpcError as error:
            self._writer.write(error_message(message.id, error))
            return
        self._renews = True
        await self._live.stop()
        self._renews = False
        version = negotiate_version(params.get("protocolVersion"))
        client = McpClient(version, params.get("capabilities"), params.get("clientInfo"))
        self._live = self._session(client)
        self._version, self._is_modern = version, False
        if not is_answered:
            await asyncio.to_thread(self._handshake.wait_instructed)
            instructions = await self._methods.instructions.text(self._scope)
            declared = self._live.declared = await self._methods.declaring.declared(self._scope)
            result = initialize_result(version, instructions, declared=declared)
            self._writer.write(result_message(message.id, result))

    async def _respond(self, message: RequestMessage, write: Callable[[bytes], None]) -> None:
        live, request_id = self._live, message.id
        listener = Listener(self._writer.offer)
        running = live.begin_request(request_id, listener)
        try:
            async with self._request_slots:
                request = self._request(message, live, listener)
                response = result_message(request_id, await self._methods.handle(request))
        except JsonRpcError as error:
            response = error_message(request_id, error)
        except asyncio.CancelledError:
            if live.was_cancelled():
                if self._renews:  # programs that share one connection wait for their responses
                    write(error_message(request_id, _RENEWED))
                return  # a request that its client has cancelled gets no response
            write(error_message(request_id, _UNFINISHED))
            raise
        except Exception:  # noqa: BLE001 - one request's fault ends that request
            _log.exception("A request of the MCP client failed: %s", message.method)
            failure = JsonRpcError(INTERNAL_ERROR, "The front failed; see its log.")
            response = error_message(request_id, failure)
        finally:
            live.end_request(request_id, running)
        if len(response) > _MAX_OUTPUT:
            said = {"reason": str(Reason.RESULT_TOO_LARGE), "started": "yes"}
            too_large = JsonRpcError(UNAVAILABLE, _TOO_LARGE.format(len(response)), said)
            response = error_message(request_id, too_large)
        write(response)

    def _request(self, message: RequestMessage, live: LiveSession, listener: Listener) -> Request:
        if names_version(message):
            self._is_modern = True
            client = modern_client(message)
            listener.answers = client.answers
            listener.mcp_client = client.encoded
            listener.passes_input = True
            return Request(message, listener, True, self._scope, Carried(self._sessions, live))
        if not self._version and message.method != "ping":
            raise JsonRpcError(INVALID_REQUEST, "Send initialize first.")
        if live.declared is None:
            live.declared = self._handshake.answered
        listener.log_level = live.log_level
        listener.answers = live.answers
        listener.mcp_client = live.client.encoded
        listener.ask_through(ClientRequests(live, self._writer.write))
        carried = Carried(self._sessions, live)
        request = Request(message, listener, False, self._scope, carried)
        request.has_session = True
        return request

    def _on_list_changed(self, kind: str, servers: frozenset[str], client: bytes) -> None:
        if client and client != self._live.client.encoded:
            return
        # A modern client uses subscriptions/listen instead.
        if self._version and (not self._scope or self._scope in servers):
            self._live.push_changed_list(kind)


class _StdoutWriter:
    """Writes lines in a thread, so that a client that does not read never blocks the loop.

    Attributes:
        has_room: Set unless too much waits for the client.
    """

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._loop = asyncio.get_running_loop()
        self._queue: SimpleQueue[bytes | None] = SimpleQueue()
        self._size = 0
        self._dropped = 0
        self.has_room = asyncio.Event()
        self.has_room.set()
        self._poll = select.poll()
        self._poll.register(descriptor, 0)
        self._thread = threading.Thread(target=self._run, name="stdout", daemon=True)
        self._thread.start()

    def write(self, message: bytes) -> None:
        if b"\n" in message or b"\r" in message:
            message = message.replace(b"\n", b" ").replace(b"\r", b" ")
        self._size += len(message)
        if self._size > _MAX_UNREAD:
            self.has_room.clear()
        self._queue.put(message + b"\n")

    def offer(self, message: bytes) -> bool:
        """Queue a message, or drop it and return False if it is too large or the queue is full."""
        if self._size > _MAX_QUEUED or len(message) > _MAX_OUTPUT:
            self._dropped += 1
            return False
        self.write(message)
        return True

    def is_unread(self) -> bool:
        """Return whether nobody reads any more, as of a client that has exited."""
        return any(event & _UNREAD for _, event in self._poll.poll(0))

    async def close(self) -> None:
        """Write the queued messages, with a timeout."""
        self._queue.put(None)
        await asyncio.to_thread(self._thread.join, _SHUTDOWN_TIMEOUT)
        if self._dropped:
            _log.warning("%d messages were dropped: the client read too slowly.", self._dropped)

    def _run(self) -> None:
        is_read = True
        while (message := self._queue.get()) is not None:
            view = memoryview(message)
            try:
                while view and is_read:
                    view = view[os.write(self._descriptor, view) :]
            except OSError:  # the client has disconnected
                is_read = False
            with contextlib.suppress(RuntimeError):  # the loop has ended
                self._loop.call_soon_threadsafe(self._written, len(message) - 1)

    def _written(self, size: int) -> None:
        self._size -= size
        if self._size <= _MAX_UNREAD:
            self.has_room.set()
