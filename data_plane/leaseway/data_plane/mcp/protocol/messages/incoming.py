"""What a server sends of its own accord: requests, notifications, progress, logs.

Everything here is called on the read path and returns at once. Requests are handled in tasks of
their own, notifications by one consumer behind a bounded queue, oldest dropped first.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any, Final

import anyio
import anyio.abc
import msgspec
from mcp.shared.dispatcher import CallOptions, OnNotify, OnNotifyIntercept, OnRequest
from mcp.shared.dispatcher import run_notify_intercept as intercepted
from mcp.shared.exceptions import MCPError, NoBackChannelError
from mcp.shared.transport_context import TransportContext
from mcp_types import INTERNAL_ERROR, INVALID_REQUEST, METHOD_NOT_FOUND, RequestId

from leaseway.data_plane.core.calls.call import SERVER_METHODS, OnUpdate
from leaseway.data_plane.mcp.protocol.messages.codec import (
    Envelope,
    encode_answer,
    encode_error,
    encode_result,
    request_key,
)
from leaseway.data_plane.mcp.protocol.messages.pending import ToolCall
from leaseway.data_plane.mcp.protocol.messages.server_requests_legacy import LegacyAsks, SendAnswer
from leaseway.wire import bounds
from leaseway.wire.messages.mcp import ROOTS

_logger = logging.getLogger(__name__)
MAX_NOTIFICATIONS: Final = 256
MAX_REQUESTS: Final = 64
_MAX_PROGRESS_TEXT: Final = 4096
"""Characters of a progress message that are passed on; the rest is cut."""

_MAX_LOGGER: Final = 256
_MAX_LEVEL: Final = 32
_LIST_CHANGED: Final = frozenset(
    f"notifications/{kind}/list_changed" for kind in ("tools", "prompts", "resources")
)


class _Progress(msgspec.Struct, gc=False):
    progressToken: int | str | float | None = None  # noqa: N815 - MCP's name
    progress: float = 0.0
    total: float | None = None
    message: str | None = None


class _Log(msgspec.Struct, gc=False):
    level: str = "info"
    logger: str | None = None
    data: msgspec.Raw = msgspec.Raw(b"null")


_decode_progress: Final = msgspec.json.Decoder(_Progress).decode
_decode_log: Final = msgspec.json.Decoder(_Log).decode


class Inbox:
    """Sorts what a server sends of its own accord.

    Args:
        server: The server's id, for messages.
        kind: The transport's name, for handlers.
        answer: Sends a line to the server.
        find_call: Returns the tool call with a request id, if it is under way.
        asked: Returns the call that a question belongs to, or why there is none: from the call
            that a message came with, if that is certain, and the method.
        on_tools_changed: Called when the server says that its tools changed, or what else it
            lists.

    Attributes:
        on_update: Told the URI of a resource that changed, or None where nobody follows any.
        roots: The answer to questions for roots, or None where callers answer those.
    """

    def __init__(
        self,
        server: str,
        kind: str,
        answer: Callable[[bytes], None],
        find_call: Callable[[object], ToolCall | None],
        asked: Callable[[ToolCall | None, str], ToolCall | str],
        on_tools_changed: Callable[[], None],
    ) -> None:
        self._server = server
        self._kind = kind
        self._answer = answer
        self._find_call = find_call
        self._asked = asked
        self._asks = LegacyAsks(lambda line, _call: answer(line))
        self._on_tools_changed = on_tools_changed
        self.on_update: OnUpdate | None = None
        self.roots: bytes | None = None
        self._on_request: OnRequest | None = None
        self._intercept: OnNotifyIntercept | None = None
        self._handlers: dict[object, asyncio.Task[None]] = {}
        self._queue: deque[tuple[str, Mapping[str, Any] | None]] = deque()
        self._wake = asyncio.Event()
        self._closed = False
        self.dropped = 0

    def take(self, message: Envelope, near: ToolCall | None) -> None:
        """Sort one message.

        Args:
            message: A request or notification.
            near: The call that it belongs to, if that is certain.
        """
        method = message.method or ""
        try:
            if message.id is not None:
                if method == ROOTS and self.roots is not None:
                    self._answer(encode_answer(message.id, self.roots))
                elif method in SERVER_METHODS:
                    self._asks.take(message, self._asked(near, method), near)
                else:
                    self._take_request(message, method)
            elif method == "notifications/progress":
                self._take_progress(message)
            elif method == "notifications/message" and near is not None:
                self._take_log(_decode_log(message.params), near)
            else:
                self._take_notification(method, _params(message))
        except ValueError:
            _logger.debug("The server %s sent a malformed %s.", self._server, method)
        except Exception:  # a caller's callback failed; the read path goes on
            _logger.exception("A callback for %s of the server %s failed.", method, self._server)

    def answer_asks_by(self, send: SendAnswer) -> None:
        """Send answers to questions another way than all others; before there are any."""
        self._asks = LegacyAsks(send)

    async def run(
        self,
        on_request: OnRequest,
        on_notify: OnNotify,
        intercept: OnNotifyIntercept | None,
        task_status: anyio.abc.TaskStatus[None],
    ) -> None:
        """Deliver notifications until `close`; requests are answered while this runs."""
        self._on_request, self._intercept = on_request, intercept
        task_status.started()
        try:
            while not self._closed:
                await self._wake.wait()
                self._wake.clear()
                await self._deliver(on_notify)
        finally:
            self._on_request = None
            for task in self._handlers.values():
                task.cancel()

    def close(self) -> None:
        self._closed = True
        self._wake.set()

    async def _deliver(self, on_notify: OnNotify) -> None:
        while self._queue:
            method, params = self._queue.popleft()
            try:
                await on_notify(_Context(self._kind, None), method, params)
            except Exception:
                _logger.exception("Handling %s of the server %s failed.", method, self._server)

    def _take_request(self, message: Envelope, method: str) -> None:
        if method == "ping":
            self._answer(encode_result(message.id, {}))
        elif self._on_request is None:
            self._answer(encode_error(message.id, METHOD_NOT_FOUND, "Method not found"))
        elif len(self._handlers) >= MAX_REQUESTS:
            self._answer(encode_error(message.id, INTERNAL_ERROR, "Too many requests at once"))
        else:
            key = request_key(message.id)
            task = asyncio.get_running_loop().create_task(
                self._handle(self._on_request, message.id, method, _params(message))
            )
            self._handlers[key] = task
            task.add_done_callback(lambda _: self._handlers.pop(key, None))

    async def _handle(
        self,
        on_request: OnRequest,
        message_id: float | str | None,
        method: str,
        params: Mapping[str, Any] | None,
    ) -> None:
        request_id = message_id if isinstance(message_id, int | str) else str(message_id)
        try:
            result = await on_request(_Context(self._kind, request_id), method, params)
            answer = encode_result(message_id, result)
        except MCPError as error:
            answer = encode_error(message_id, error.error.code, error.error.message)
        except ValueError:
            answer = encode_error(message_id, INVALID_REQUEST, "Invalid request")
        except Exception:
            _logger.exception("Answering %s of the server %s failed.", method, self._server)
            answer = encode_error(message_id, INTERNAL_ERROR, "Internal error")
        self._answer(answer)

    def _take_progress(self, message: Envelope) -> None:
        report = _decode_progress(message.params)
        call = self._find_call(request_key(report.progressToken))
        on_progress = call.request.on_progress if call is not None else None
        if on_progress is not None:
            on_progress(report.progress, report.total, (report.message or "")[:_MAX_PROGRESS_TEXT])

    def _take_log(self, log: _Log, near: ToolCall) -> None:
        near.log(log.level[:_MAX_LEVEL], (log.logger or "")[:_MAX_LOGGER], bytes(log.data))

    @staticmethod
    def _take_update(on_update: OnUpdate, params: Mapping[str, Any] | None) -> None:
        uri = (params or {}).get("uri")
        if isinstance(uri, str) and 0 < len(uri) <= bounds.MAX_URI:
            on_update(uri)

    def _take_back(self, request_id: object) -> None:
        self._asks.withdraw(request_id)
        if isinstance(request_id, int | str | float):
            handler = self._handlers.get(request_key(request_id))
            if handler is not None:
                handler.cancel()

    def _take_notification(self, method: str, params: Mapping[str, Any] | None) -> None:
        if method == "notifications/cancelled":
            self._take_back((params or {}).get("requestId"))
        elif method in _LIST_CHANGED:
            self._on_tools_changed()
        elif method == "notifications/resources/updated" and self.on_update is not None:
            self._take_update(self.on_update, params)
        if intercepted(self._intercept, method, params):
            return
        if len(self._queue) >= MAX_NOTIFICATIONS:
            self._queue.popleft()
            self.dropped += 1
        self._queue.append((method, params))
        self._wake.set()


def _params(message: Envelope) -> Mapping[str, Any] | None:
    if not memoryview(message.params):
        return None
    params = msgspec.json.decode(message.params)
    return params if isinstance(params, dict) else None


class _Context:
    """What the official session may ask about a server's message."""

    message_metadata = None

    def __init__(self, kind: str, request_id: RequestId | None) -> None:
        self.transport = TransportContext(kind=kind, can_send_request=False)
        self.request_id = request_id
        self.can_send_request = False
        self.cancel_requested = anyio.Event()

    async def send_raw_request(
        self, method: str, params: Mapping[str, Any] | None, opts: CallOptions | None = None
    ) -> dict[str, Any]:
        raise NoBackChannelError(method)

    async def notify(
        self, method: str, params: Mapping[str, Any] | None, opts: CallOptions | None = None
    ) -> None:
        raise NoBackChannelError(method)

    async def progress(
        self, progress: float, total: float | None = None, message: str | None = None
    ) -> None:
        """Clients report no progress (deprecated as of 2026-07-28)."""
