"""MCP over streamable HTTP, both eras.

Each request is a POST of its own in a task of its own: what fails there fails that request only.
Connections come from the worker's one pool. Legacy servers may add a GET stream for what they
send of their own accord, and may continue a broken response stream there.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Coroutine, Mapping
from typing import Any, Final

import aiohttp
import msgspec
from mcp.shared.dispatcher import CallOptions
from mcp.shared.inbound import (
    encode_header_value,
    find_invalid_x_mcp_header,
    mcp_param_headers,
    x_mcp_header_map,
)

from leaseway.data_plane.mcp import http_answers as answers
from leaseway.data_plane.mcp.codec import Envelope, decode, encode_notification, request_key
from leaseway.data_plane.mcp.http_endpoint import (
    SESSION_ID,
    HttpEndpoint,
    RequestBody,
    http_client,
)
from leaseway.data_plane.mcp.peer import Peer
from leaseway.data_plane.mcp.pending import Pending
from leaseway.data_plane.mcp.sse import SseEvent, SseParser, SseTooLarge
from leaseway.data_plane.mcp.uninterrupted import uninterrupted
from leaseway.data_plane.mcp.wire import ToolRequest
from leaseway.wire.backoff import Backoff
from leaseway.wire.fault import Fault

__all__ = ["HttpConnection", "http_client"]

_logger = logging.getLogger(__name__)
_FAREWELL: Final = 2.0
"""Seconds for the DELETE that ends a session."""

_RECONNECT: Final = Backoff(initial=1.0, maximum=60.0)
_TELLING: Final = 10.0
"""Seconds for a POST that has no answer."""

_MAX_BACKGROUND: Final = 64
"""Tasks of a connection that nobody waits for; what a server is to be told beyond is dropped."""

_STEADY: Final = 30.0
"""A GET stream that lived so long, in seconds, was not a failure."""

_RESUME_TRIES: Final = 2
_BROKEN: Final = (aiohttp.ClientError, OSError, TimeoutError)


class HttpConnection(Peer):
    """One MCP connection to a URL.

    Args:
        server: The server's id, for messages.
        url: The endpoint.
        http: The worker's pooled client.
        headers: Configured headers, resolved.
        session_id: A session that exists already, or empty. It is sent from the first request
            on; the handshake is made all the same, and the session is not ended at close.
        on_tools_changed: Called when the server says that its tools changed.

    Raises:
        Fault: SERVER_NOT_READY: the URL is none.
    """

    kind = "streamable-http"

    def __init__(
        self,
        server: str,
        url: str,
        http: aiohttp.ClientSession,
        *,
        headers: Mapping[str, str] | None = None,
        session_id: str = "",
        on_tools_changed: Callable[[], None] = lambda: None,
    ) -> None:
        super().__init__(server, on_tools_changed)
        self._endpoint = HttpEndpoint(server, url, http, headers or {}, session_id)
        self._initializing = False
        self._tasks: dict[object, asyncio.Task[None]] = {}
        self._background: set[asyncio.Task[None]] = set()
        self._param_paths: dict[str, dict[tuple[str, ...], str]] = {}
        self._followed = False
        self._untold = 0
        self._closing: asyncio.Task[None] | None = None

    def accept(self, tools: dict[str, bytes]) -> dict[str, bytes]:
        """Note which arguments go into headers; refuse tools that ask for impossible ones."""
        if not self.era.modern:
            return tools
        schemas = {name: _input_schema(definition) for name, definition in tools.items()}
        invalid = {name: find_invalid_x_mcp_header(schema) for name, schema in schemas.items()}
        for name, why in invalid.items():
            if why is not None:
                _logger.warning(
                    "The tool %s of the server %s is left out: %s", name, self.server, why
                )
        kept = {name: tools[name] for name, why in invalid.items() if why is None}
        paths = {name: x_mcp_header_map(schemas[name]) for name in kept}
        self._param_paths = {name: found for name, found in paths.items() if found}
        return kept

    async def aclose(self, *, hurry: bool = False) -> None:
        """End what is under way, and the session where it is ours. Idempotent."""
        if self._closing is None:
            self._end(self.fault)
            self._closing = asyncio.get_running_loop().create_task(self._say_farewell())
        await uninterrupted(self._closing)

    # Sending.

    def _refusal(self, size: int) -> Fault | None:
        return self._ended_fault("no") if self.closed.is_set() else None

    def _call_headers(self, request: ToolRequest) -> Mapping[str, str]:
        if not self.era.modern:
            return self.era.headers
        headers = {
            **self.era.headers,
            "mcp-method": "tools/call",
            "mcp-name": encode_header_value(request.name),
            **request.param_headers,
        }
        paths = self._param_paths.get(request.name)
        if paths:
            arguments = msgspec.json.decode(request.arguments or b"{}")
            headers.update(mcp_param_headers(paths, arguments))
        return headers

    def _send(self, key: object, line: bytes, headers: Mapping[str, str], entry: Pending) -> None:
        task = asyncio.get_running_loop().create_task(self._exchange(key, line, headers, entry))
        self._tasks[key] = task

    def _answer(self, line: bytes) -> None:
        self._tell_later(line)

    async def send_raw_request(
        self, method: str, params: Mapping[str, Any] | None, opts: CallOptions | None = None
    ) -> dict[str, Any]:
        """Send any request (see `Peer`); the answer to `initialize` may open a session."""
        self._initializing = method == "initialize"
        try:
            return await super().send_raw_request(method, params, opts)
        finally:
            self._initializing = False

    async def notify(
        self, method: str, params: Mapping[str, Any] | None, opts: CallOptions | None = None
    ) -> None:
        """Send a notification; after `initialized`, the server may talk of its own accord."""
        await super().notify(method, params, opts)
        if method == "notifications/initialized" and self._endpoint.session_id:
            self._spawn(self._follow((opts or {}).get("headers") or {}))

    async def _notify(self, line: bytes, headers: Mapping[str, str] | None) -> None:
        await self._tell(line, headers or self.era.headers)

    def _abandon(self, key: object, entry: Pending, reason: str, tell: bool) -> None:
        task = self._tasks.pop(key, None)
        if task is not None:
            task.cancel()  # closes the response stream, which is how modern servers are told
        if tell and entry.written and not self.era.modern and not self.closed.is_set():
            params = {"requestId": key, "reason": reason}
            line = encode_notification("notifications/cancelled", params)
            self._tell_later(line)

    def _tell_later(self, line: bytes) -> None:
        if len(self._background) < _MAX_BACKGROUND:
            self._spawn(self._tell(line, self.era.headers))
            return
        self._untold += 1
        if self._untold == 1:
            _logger.warning(
                "The server %s does not take what it is told: %s answers and notifications wait "
                "for it, and further ones are dropped.",
                self.server,
                _MAX_BACKGROUND,
            )

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._background.add(task)
        task.add_done_callback(self._background.discard)

    async def _tell(self, line: bytes, headers: Mapping[str, str]) -> None:
        """Post what has no answer; a failure is none of the caller's business."""
        try:
            async with (
                asyncio.timeout(_TELLING),
                await self._endpoint.request("POST", headers, RequestBody(line)) as response,
            ):
                if response.status >= 400:
                    _logger.debug(
                        "The server %s answered a notification with HTTP status %s.",
                        self.server,
                        response.status,
                    )
        except (*_BROKEN, Fault) as error:
            _logger.debug("The server %s was not told: %s", self.server, error)

    # One request's answer.

    async def _exchange(
        self, key: object, line: bytes, headers: Mapping[str, str], entry: Pending
    ) -> None:
        answered = False
        body = RequestBody(line, entry)
        try:
            async with await self._endpoint.request("POST", headers, body) as response:
                answered = True
                await self._read_answer(key, response, headers)
        except Fault as fault:
            self._fail(key, fault)
        except _BROKEN as error:
            self._fail(key, answers.broken(self.server, self._endpoint.url, error, entry, answered))
        except Exception:  # whoever waits must learn that it is in vain
            _logger.exception("A request to the server %s failed unexpectedly.", self.server)
            self._fail(key, answers.unexpected(self.server, entry))
        finally:
            self._tasks.pop(key, None)

    async def _read_answer(
        self, key: object, response: aiohttp.ClientResponse, headers: Mapping[str, str]
    ) -> None:
        if response.status >= 400:
            await self._read_refusal(key, response)
            return
        if self._initializing and SESSION_ID in response.headers:
            self._endpoint.open_session(response.headers[SESSION_ID])
        if response.content_type == "application/json" and response.status != 202:
            self._read_json(key, await answers.read_body(self.server, response))
        elif response.content_type == "text/event-stream":
            await self._read_events(key, response, headers)
        else:
            what = f"HTTP status {response.status} and content type {response.content_type}"
            raise answers.unreadable(self.server, what)
        if self._waits(key):
            raise answers.ended_early(self.server)

    async def _read_refusal(self, key: object, response: aiohttp.ClientResponse) -> None:
        body = await answers.read_body(self.server, response)
        in_session = self._endpoint.session_id and self.era.version and not self.era.modern
        if in_session and _names_session(response.status, body):
            fault = answers.session_gone(self.server)
            self._fail(key, fault)
            self._end(fault)
            return
        message = answers.rpc_error(body)
        if message is not None:
            self._take(key, message)
            return
        raise answers.status_fault(self.server, response.status, response.headers)

    def _read_json(self, key: object, body: bytes) -> None:
        try:
            messages = answers.decode_body(body)
        except ValueError:
            raise answers.unreadable(self.server, "a body that is no JSON-RPC") from None
        for message in messages:
            self._take(key, message)

    async def _read_events(
        self, key: object, response: aiohttp.ClientResponse, headers: Mapping[str, str]
    ) -> None:
        parser = SseParser(answers.MAX_ANSWER)
        await self._read_stream(key, response, parser)
        for _ in range(_RESUME_TRIES):
            # A legacy server may hang up and have the rest fetched later.
            if not self._waits(key) or self.era.modern or parser.last_id is None:
                return
            await asyncio.sleep(1.0 if parser.retry is None else min(parser.retry, 60.0))
            resumed = {**headers, "last-event-id": parser.last_id}
            async with await self._endpoint.request("GET", resumed) as again:
                if again.content_type == "text/event-stream":
                    await self._read_stream(key, again, parser)

    async def _read_stream(
        self, key: object, response: aiohttp.ClientResponse, parser: SseParser
    ) -> None:
        parser.restart()
        try:
            async for data in response.content.iter_any():
                for event in parser.feed(data):
                    self._take_event(key, event)
                if not self._waits(key):
                    return
        except SseTooLarge:
            raise answers.body_too_large(self.server) from None
        except aiohttp.ClientPayloadError:
            if parser.last_id is None or self.era.modern:
                raise

    def _take_event(self, key: object, event: SseEvent) -> None:
        if event.event != "message" or not event.data.strip():
            return
        try:
            self._take(key, decode(event.data))
        except ValueError:
            raise answers.unreadable(self.server, "an event that is no JSON-RPC") from None

    def _take(self, key: object, message: Envelope) -> None:
        if message.method is not None:
            self._inbox.take(message, self._calls.get(key))
        elif not message.is_response:
            raise answers.unreadable(self.server, "a message that is no JSON-RPC")
        elif message.id is None or request_key(message.id) == key:
            entry: Pending | None = self._forget(key) or self._requests.pop(key, None)
            if entry is not None:
                entry.resolve(message)
        else:
            self._settle(message)

    def _waits(self, key: object) -> bool:
        return key in self._calls or key in self._requests

    def _fail(self, key: object, fault: Fault) -> None:
        entry: Pending | None = self._forget(key) or self._requests.pop(key, None)
        if entry is not None:
            entry.fail(fault)

    # What a legacy server says of its own accord.

    async def _follow(self, headers: Mapping[str, str]) -> None:
        """Keep a GET stream open, where the server offers one."""
        parser = SseParser(answers.MAX_ANSWER)
        failures = 0
        while not self.closed.is_set():
            opened = time.monotonic()
            try:
                if not await self._follow_once(headers, parser):
                    return
            except (*_BROKEN, Fault, SseTooLarge) as error:
                _logger.debug("The GET stream of the server %s broke: %s", self.server, error)
            steady = time.monotonic() - opened > _STEADY
            failures = 0 if steady else failures + 1
            await asyncio.sleep(max(parser.retry or 0.0, _RECONNECT.ceiling(failures)))

    async def _follow_once(self, headers: Mapping[str, str], parser: SseParser) -> bool:
        """Read one GET stream to its end; say whether another try makes sense."""
        resumed = {"last-event-id": parser.last_id} if parser.last_id is not None else {}
        async with await self._endpoint.request("GET", {**headers, **resumed}) as response:
            if response.status == 404 and self._followed:
                self._end(answers.session_gone(self.server))
            if response.status >= 500:
                return True
            if response.status >= 400 or response.content_type != "text/event-stream":
                return False
            self._followed = True
            parser.restart()
            async for data in response.content.iter_any():
                for event in parser.feed(data):
                    self._take_event(None, event)
        return True

    # The end.

    async def _say_farewell(self) -> None:
        tasks = [*self._tasks.values(), *self._background]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks, timeout=_FAREWELL)
        if self._endpoint.session_is_ours and self.fault is None:
            try:
                async with asyncio.timeout(_FAREWELL):
                    (await self._endpoint.request("DELETE", self.era.headers)).release()
            except (*_BROKEN, Fault) as error:
                _logger.debug("The session of the server %s was not ended: %s", self.server, error)


def _input_schema(definition: bytes) -> object:
    return msgspec.json.decode(definition).get("inputSchema")


def _names_session(status: int, body: bytes) -> bool:
    """Say whether a refusal means an unknown session: 404, or 400 with words as some put it."""
    return status == 404 or (status == 400 and b"session id" in body[:1024].lower())
