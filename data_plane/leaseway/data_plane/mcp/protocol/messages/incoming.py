"""Handles a server's requests and notifications, such as progress and logs.

The methods are called on the receive loop and return at once. Each request is handled in its own
task. The official session gets requests and the events of its `subscriptions/listen`, but no other
notifications: it would only validate them, and log each one that is malformed with what it says.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Collection, Mapping
from itertools import islice
from typing import Any, Final, Protocol

import anyio
import anyio.abc
import msgspec
from mcp.shared.dispatcher import CallOptions, OnNotifyIntercept, OnRequest
from mcp.shared.dispatcher import run_notify_intercept as intercepted
from mcp.shared.exceptions import MCPError, NoBackChannelError
from mcp.shared.transport_context import TransportContext
from mcp_types import INTERNAL_ERROR, INVALID_PARAMS, INVALID_REQUEST, METHOD_NOT_FOUND, RequestId
from mcp_types.methods import SERVER_REQUESTS, SPEC_CLIENT_METHODS

from leaseway.data_plane.background import LightEvent
from leaseway.data_plane.core.calls.call import CALL_ENDED, SERVER_METHODS, Ask, ToolRequest
from leaseway.data_plane.mcp.protocol.messages.codec import (
    JsonRpcMessage,
    encode_answer,
    encode_error,
    encode_result,
    request_key,
)
from leaseway.data_plane.mcp.protocol.messages.notifications import (
    decode_log,
    read_log,
    read_progress,
)
from leaseway.data_plane.mcp.protocol.messages.pending import ToolCall
from leaseway.data_plane.mcp.protocol.messages.server_requests import (
    parse_params,
    unanswered_text,
    undeclared_text,
)
from leaseway.wire import bounds
from leaseway.wire.messages.mcp import ROOTS
from leaseway.wire.signals import Signal
from leaseway.wire.timing.running_tasks import RunningTasks

_logger = logging.getLogger(__name__)

MAX_REQUESTS: Final = 64
_MAX_GUESSES: Final = 64
"""Calls of which one is chosen to be asked."""
_MAX_MOVES: Final = 4
"""Calls that one request is moved to, each after another has ended, until it is refused."""
_MAX_PROGRESS_TEXT: Final = 4096
"""Characters of a progress message that are passed on."""

_MAX_LOGGER: Final = 256
_MAX_LEVEL: Final = 32
REQUESTS_OF_CLIENTS: Final = SPEC_CLIENT_METHODS - {method for method, _ in SERVER_REQUESTS}
"""Requests that no server sends. A terminal between the two sends back what a client has sent."""
_LIST_CHANGED: Final = frozenset(
    f"notifications/{kind}/list_changed" for kind in ("tools", "prompts", "resources")
)


class Asked(Protocol):
    """A call, or a notification of a client, whose sender a server asks."""

    @property
    def id(self) -> int:
        """The id of its request."""

    @property
    def request(self) -> ToolRequest:
        """What it says, and what its sender answers."""


SendAnswer = Callable[[bytes, Asked | None], None]
"""Sends a response to the server's request; with the call that the request belongs to, if known."""

_AMBIGUOUS: Final = (
    "Several callers share this connection, and a request does not tell which call it belongs to: "
    "run the server with truely-stateless: false, or over streamable HTTP."
)
_NO_CALL: Final = "No call is in flight, and callers are asked only during their calls."


class _Completion(msgspec.Struct, gc=False):
    elicitationId: str  # noqa: N815 - MCP's name


_OUTSIDE: Final[Mapping[str, Callable[[msgspec.Raw], object]]] = {
    "notifications/message": decode_log,
    "notifications/elicitation/complete": msgspec.json.Decoder(_Completion).decode,
}
"""Decoders of the params of notifications that may belong to no call."""
_MAX_OUTSIDE: Final = 256 * bounds.KIB
"""Bytes of the params of such a notification; longer ones are dropped."""


def _no_asks(_call: Asked) -> int:
    return 0


def find_asked_call(
    calls: Collection[ToolCall],
    method: str,
    *,
    shared: bool = False,
    asks_of: Callable[[Asked], int] = _no_asks,
) -> ToolCall | str:
    """Return the call that a server request belongs to, or why there is none.

    Of several it is the one with the fewest open requests, and of these the oldest: most servers
    handle calls in their order, so that only the oldest ones are looked at.

    Args:
        calls: The calls in flight, the oldest first.
        method: The method of the request.
        shared: Whether the calls are of different callers, so that the right one is unknown.
        asks_of: Returns the number of open requests of a call.
    """
    if not calls:
        return _NO_CALL
    if shared:
        return _AMBIGUOUS
    answering = (call for call in calls if method in call.request.callbacks.answers)
    asked = min(islice(answering, _MAX_GUESSES), key=asks_of, default=None)
    if asked is not None:
        return asked
    callbacks = next(iter(calls)).request.callbacks
    if callbacks.client is None:
        return unanswered_text(method)
    return undeclared_text(callbacks.lacking(method, b"{}"))


class LegacyServerRequests:
    """The unanswered server requests of one connection.

    Args:
        send: Sends a response.
        find_another: Returns the call for a method if the one that was asked has ended, or why
            there is none: another caller must never get the question.
        asking: Told whether any request is open, whenever one is passed on or ends.
    """

    def __init__(
        self, send: SendAnswer, find_another: Callable[[str], Asked | str], asking: Signal[bool]
    ) -> None:
        self._send = send
        self._find_another = find_another
        self._asking = asking
        self._open: dict[object, Ask] = {}
        self._asked: dict[object, Asked] = {}
        self._counts: Counter[int] = Counter()  # by the identity of what is in `_asked`

    def __len__(self) -> int:
        return len(self._open)

    def asks_of(self, call: Asked) -> int:
        """Return the number of open requests that were passed on to a call."""
        return self._counts[id(call)]

    def handle(
        self,
        message: JsonRpcMessage,
        call: Asked | str,
        related_call: ToolCall | None = None,
        moves: int = 0,
    ) -> None:
        """Pass a request on to its call, or reject it with the reason why there is none.

        Args:
            message: The request.
            call: The call, or the reason.
            related_call: The call on whose stream it was received, if known. Otherwise `call` is a
                guess: if it ends before the answer, another one is asked.
            moves: How often that has happened.
        """
        key = request_key(message.id)
        if isinstance(call, str):
            self._send(encode_error(message.id, METHOD_NOT_FOUND, call), related_call)
        elif key in self._open:
            # Repeated on a resumed stream, say; it gets one response.
            _logger.debug("A server request was repeated while it was open.")
        elif call.request.callbacks.on_ask is not None:
            params = parse_params(message.params)
            if params is None:
                text = "The params are not a JSON object in UTF-8."
                self._send(encode_error(message.id, INVALID_PARAMS, text), call)
                return
            lacking = call.request.callbacks.lacking(message.method or "", params)
            if lacking:
                text = undeclared_text(lacking)
                self._send(encode_error(message.id, INVALID_PARAMS, text), call)
                return
            moves = _MAX_MOVES if related_call is not None else moves
            ask = self._open[key] = self._build_ask(message, key, params, call, moves)
            self._asked[key] = call
            self._counts[id(call)] += 1
            self._asking.emit(True)
            call.request.callbacks.on_ask(ask)

    def _build_ask(
        self, message: JsonRpcMessage, key: object, params: bytes, call: Asked, moves: int
    ) -> Ask:
        method = message.method or ""

        def answer(result: bytes) -> None:
            self._close(key)
            self._send(encode_answer(message.id, result), call)

        def refuse(code: int, text: str, data: bytes) -> None:
            self._close(key)
            self._send(encode_error(message.id, code, text, data), call)

        def ask_another() -> None:
            self._close(key)
            other = self._find_another(method)
            if isinstance(other, str):
                self._send(encode_error(message.id, INTERNAL_ERROR, CALL_ENDED), call)
            else:
                self.handle(message, other, moves=moves + 1)

        may_move = moves < _MAX_MOVES
        return Ask(method, params, answer, refuse, ask_another if may_move else None)

    def _close(self, key: object) -> None:
        del self._open[key]
        call = id(self._asked[key])
        self._counts[call] -= 1
        if not self._counts[call]:
            del self._counts[call]
        del self._asked[key]
        self._asking.emit(bool(self._open))

    def withdraw(self, request_id: object) -> None:
        """Withdraw a request that the server has cancelled."""
        if isinstance(request_id, int | str | float):
            key = request_key(request_id)
            ask = self._open.get(key)
            if ask is not None:
                self._close(key)
                ask.withdraw()


class Inbox:
    """Dispatches a server's requests and notifications.

    Args:
        kind: The transport's name, for handlers.
        answer: Sends a line to the server.
        find_call: Returns the call in flight with a request id, or None.
        find_asked_call: Returns the call that a server request belongs to, or why there is none,
            from the related call (if certain) and the method.
        find_another_call: Returns the call to ask if that one has ended, or why there is none,
            from the method.
        on_tools_changed: Called when the server notifies of a changed list.

    Attributes:
        resource_updated: The URI of a changed resource.
        outside: The method and the params, as JSON, of a notification for the server's client that
            belongs to no call.
        asking: Whether the server waits for an answer of a client, whenever that may have changed.
        roots: The answer to roots requests, or None if callers answer them.
    """

    def __init__(
        self,
        server: str,
        kind: str,
        answer: Callable[[bytes], None],
        find_call: Callable[[object], ToolCall | None],
        find_asked_call: Callable[[ToolCall | None, str], Asked | str],
        find_another_call: Callable[[str], Asked | str],
        on_tools_changed: Callable[[], None],
    ) -> None:
        self._server = server
        self._kind = kind
        self._respond = answer
        self._find_call = find_call
        self._find_asked_call = find_asked_call
        self._find_another_call = find_another_call
        self.asking = Signal[bool]()
        self._server_requests = LegacyServerRequests(
            lambda line, _call: answer(line), find_another_call, self.asking
        )
        self._on_tools_changed = on_tools_changed
        self.resource_updated = Signal[str]()
        self.outside = Signal[str, bytes]()
        self.roots: bytes | None = None
        self._on_request: OnRequest | None = None
        self._intercept: OnNotifyIntercept | None = None
        self._handlers: RunningTasks[object] = RunningTasks()
        self._closed = LightEvent()

    def handle(self, message: JsonRpcMessage, related_call: ToolCall | None) -> None:
        """Dispatch a request or notification, with the call that it belongs to, if certain."""
        method = message.method or ""
        if message.was_cut:
            _logger.debug(
                "The server %s sent a %s that is nested too deeply.", self._server, method
            )
            if message.id is not None:
                text = "The params are nested too deeply."
                self._respond(encode_error(message.id, INVALID_PARAMS, text))
            return
        try:
            if message.id is not None:
                if method == ROOTS and self.roots is not None:
                    self._respond(encode_answer(message.id, self.roots))
                elif method in SERVER_METHODS:
                    self._server_requests.handle(
                        message, self._find_asked_call(related_call, method), related_call
                    )
                else:
                    self._handle_request(message, method)
            elif method == "notifications/progress":
                self._handle_progress(message)
            elif method == "notifications/message" and related_call is not None:
                self._handle_log(message, related_call)
            elif method in _OUTSIDE:
                self._handle_outside(method, message)
            else:
                self._handle_notification(method, _params(message))
        except ValueError:
            _logger.debug("The server %s sent a malformed %s.", self._server, method)
        except Exception:  # a caller's callback failed; the receive loop must continue
            _logger.exception("A callback for %s of the server %s failed.", method, self._server)

    def is_asking(self) -> bool:
        """Return whether the server waits for an answer of a client."""
        return bool(self._server_requests)

    def send_answers_by(self, send: SendAnswer) -> None:
        """Send answers of callers by another function. Call it before the first request."""
        self._server_requests = LegacyServerRequests(send, self._find_another_call, self.asking)

    def asks_of(self, call: Asked) -> int:
        """Return the number of open server requests that were passed on to a call."""
        return self._server_requests.asks_of(call)

    async def run(
        self,
        on_request: OnRequest,
        intercept: OnNotifyIntercept | None,
        task_status: anyio.abc.TaskStatus[None],
    ) -> None:
        """Handle requests and the events of `subscriptions/listen` until `close`."""
        self._on_request, self._intercept = on_request, intercept
        task_status.started()
        try:
            await self._closed.wait()
        finally:
            self._on_request = None
            for task in self._handlers.values():
                task.cancel()

    def close(self) -> None:
        self._closed.set()

    def _handle_request(self, message: JsonRpcMessage, method: str) -> None:
        if method == "ping":
            self._respond(encode_result(message.id, {}))
        elif self._on_request is None:
            self._respond(encode_error(message.id, METHOD_NOT_FOUND, "Method not found"))
        elif len(self._handlers) >= MAX_REQUESTS:
            self._respond(encode_error(message.id, INTERNAL_ERROR, "Too many requests at once"))
        else:
            key = request_key(message.id)
            task = asyncio.get_running_loop().create_task(
                self._run_handler(self._on_request, message.id, method, _params(message))
            )
            self._handlers.add(key, task)

    async def _run_handler(
        self,
        on_request: OnRequest,
        message_id: float | str | None,
        method: str,
        params: Mapping[str, Any] | None,
    ) -> None:
        request_id = message_id if isinstance(message_id, int | str) else str(message_id)
        try:
            result = await on_request(_MessageContext(self._kind, request_id), method, params)
            answer = encode_result(message_id, result)
        except MCPError as error:
            answer = encode_error(message_id, error.error.code, error.error.message)
        except ValueError:
            answer = encode_error(message_id, INVALID_REQUEST, "Invalid request")
        except Exception:
            _logger.exception("Answering %s of the server %s failed.", method, self._server)
            answer = encode_error(message_id, INTERNAL_ERROR, "Internal error")
        self._respond(answer)

    def _handle_progress(self, message: JsonRpcMessage) -> None:
        report, extra = read_progress(message.params)
        call = self._find_call(request_key(report.progressToken))
        on_progress = call.request.callbacks.on_progress if call is not None else None
        if on_progress is not None:
            text = (report.message or "")[:_MAX_PROGRESS_TEXT]
            on_progress(report.progress, report.total, text, extra)

    def _handle_log(self, message: JsonRpcMessage, related_call: ToolCall) -> None:
        log, extra = read_log(message.params)
        level, logger = log.level[:_MAX_LEVEL], (log.logger or "")[:_MAX_LOGGER]
        related_call.log(level, logger, bytes(log.data), extra)

    def _handle_outside(self, method: str, message: JsonRpcMessage) -> None:
        params = bytes(message.params)
        if len(params) > _MAX_OUTSIDE:
            _logger.warning("The server %s sent a %s that is too long.", self._server, method)
            return
        _OUTSIDE[method](message.params)
        self.outside.emit(method, params)

    def _handle_update(self, params: Mapping[str, Any] | None) -> None:
        uri = (params or {}).get("uri")
        if isinstance(uri, str) and 0 < len(uri) <= bounds.MAX_URI:
            self.resource_updated.emit(uri)

    def _handle_cancelled(self, request_id: object) -> None:
        self._server_requests.withdraw(request_id)
        if isinstance(request_id, int | str | float):
            handler = self._handlers.get(request_key(request_id))
            if handler is not None:
                handler.cancel()

    def _handle_notification(self, method: str, params: Mapping[str, Any] | None) -> None:
        if method == "notifications/cancelled":
            self._handle_cancelled((params or {}).get("requestId"))
        elif method in _LIST_CHANGED:
            self._on_tools_changed()
        elif method == "notifications/resources/updated":
            self._handle_update(params)
        intercepted(self._intercept, method, params)


def _params(message: JsonRpcMessage) -> Mapping[str, Any] | None:
    if not memoryview(message.params):
        return None
    params = msgspec.json.decode(message.params)
    return params if isinstance(params, dict) else None


class _MessageContext:
    """The context of a server's message, for the official session."""

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
        """Not supported: clients report no progress (deprecated as of 2026-07-28)."""
