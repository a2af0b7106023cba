"""Pending requests: tool calls with a callback, all other requests with a future."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import replace
from http import HTTPStatus
from typing import Any, Final, Protocol

import msgspec
from mcp.shared.exceptions import MCPError
from mcp_types import CONNECTION_CLOSED, INTERNAL_ERROR, URL_ELICITATION_REQUIRED

from leaseway.data_plane.core.artifacts.media import may_hold_media
from leaseway.data_plane.core.calls.call import Outcome, ToolRequest, too_large
from leaseway.data_plane.core.definitions import completions
from leaseway.data_plane.core.definitions.results import REQUIRED, without_type
from leaseway.data_plane.mcp.protocol.messages.codec import (
    JsonRpcMessage,
    ResponseError,
)
from leaseway.data_plane.mcp.protocol.messages.era import Era
from leaseway.data_plane.mcp.protocol.messages.liveness import Refusals
from leaseway.data_plane.mcp.protocol.messages.reading import has_endless_integer
from leaseway.data_plane.mcp.protocol.messages.results import (
    Flags,
    SeenResponse,
    read_result,
)
from leaseway.data_plane.mcp.protocol.messages.server_requests import (
    InputRounds,
    input_required_fault,
    missing_method,
    unanswerable,
    url_elicitations,
)
from leaseway.wire import bounds
from leaseway.wire.errors import Fault, Reason
from leaseway.wire.messages.mcp import ELICIT, HEADER_MISMATCH, LOG_LEVELS
from leaseway.wire.secrets.redaction import redact

_logger = logging.getLogger(__name__)
_MAX_TEXT: Final = 2048
_decode_error: Final = msgspec.json.Decoder(ResponseError).decode
_URL_MODE: Final = b'{"mode":"url"}'
_NO_BACK_CHANNEL: Final = b"no back-channel for server-initiated requests"
"""Part of the official package's error text in a server whose protocol has no server requests."""
_COMPLETE: Final = (None, "complete")
LEVELS: Final = {name: rank for rank, name in enumerate(LOG_LEVELS)}


class ConnectionLost(MCPError):
    """A request failed because of its connection, not because of the server."""

    def __init__(self, fault: Fault) -> None:
        super().__init__(code=CONNECTION_CLOSED, message=fault.message)
        self.fault = fault


class InvalidResponse(MCPError):
    """The response is not JSON-RPC, such as a plain HTTP status; we choose its error code."""

    def __init__(self, fault: Fault) -> None:
        code = int(fault.metadata.get("code", INTERNAL_ERROR))
        super().__init__(code=code, message=fault.message)
        self.fault = fault


class _Postponed(Exception):
    """What the server said to a request that was given up while it waited; the cause of that."""


def postponement(error: BaseException) -> str:
    """Return what the server said to the request that a timeout ended, if it wanted it later."""
    cause: BaseException | None = error
    while cause is not None and not isinstance(cause, _Postponed):
        cause = cause.__cause__
    return "" if cause is None else str(cause)


def http_status(fault: Fault) -> int:
    """Return the HTTP status that a server answered with; 0 if it did not answer with one."""
    return int(fault.metadata.get("http_status", 0))


def is_rate_limit(fault: Fault) -> bool:
    """Return whether the server only wants fewer requests: no sign of anything else."""
    return http_status(fault) == HTTPStatus.TOO_MANY_REQUESTS


class Pending(Protocol):
    """A request without a response yet."""

    written: bool

    def resolve(self, answer: JsonRpcMessage) -> None:
        """Handle the response."""

    def fail(self, fault: Fault) -> None:
        """End without a response."""


class _Connection(Protocol):
    era: Era
    refusals: Refusals

    def cancel_call(self, call: ToolCall, reason: str) -> None: ...

    def on_tools_changed(self) -> None: ...

    def warn_no_back_channel(self) -> None: ...

    def log_repair(self, what: str, how: str) -> None: ...

    def request_input(
        self, call: ToolCall, result: bytes, declined: Fault | None = None
    ) -> None: ...


class ToolCall:
    """A tool call in flight on a connection; a `PendingCall`.

    Attributes:
        id: Its request's id, a new one in each round.
        request: The call.
        rounds: Its input rounds, or None if the server has not asked for input.
        written: Whether its bytes were handed to the server's pipe or socket.
    """

    __slots__ = ("_connection", "_done", "_server", "id", "request", "rounds", "written")

    def __init__(
        self,
        connection: _Connection,
        server: str,
        call_id: int,
        request: ToolRequest,
        done: Callable[[Outcome], None],
    ) -> None:
        self._connection = connection
        self._server = server
        self._done: Callable[[Outcome], None] | None = done
        self.id = call_id
        self.request = request
        self.rounds: InputRounds | None = None
        self.written = False

    def begin_rounds(self, rounds: InputRounds) -> None:
        """Ask the caller for input from now on."""
        self.rounds = rounds

    def cancel(self, reason: str) -> None:
        """Cancel the call, also at the server."""
        if self._done is not None:
            self._done = None
            self._connection.cancel_call(self, reason)

    def resolve(self, answer: JsonRpcMessage) -> None:
        """Handle the response; it may be a request for input instead of the outcome."""
        outcome = self._outcome(answer)
        if outcome is not None:
            self._end(outcome)

    def fail(self, fault: Fault) -> None:
        """End without a response."""
        if fault.reason is Reason.SERVER_ERROR or fault.started == "unknown":
            self._connection.refusals.add()
        self._end(Outcome(b"", fault=fault))

    def log(self, level: str, logger: str, data: bytes, extra: bytes) -> None:
        """Pass on a log message if the caller wants its level."""
        caller = self.request.callbacks
        threshold = LEVELS.get(caller.log_level, 0)
        if caller.on_log is not None and LEVELS.get(level, 0) >= threshold:
            caller.on_log(level, logger, data, extra)

    def _outcome(self, answer: JsonRpcMessage) -> Outcome | None:
        """Return the outcome, or None if the caller is asked for input first."""
        if answer.was_cut:
            return Outcome(b"", fault=invalid_result(self._server))
        if answer.has_error:
            return self._outcome_of_error(read_error(answer.error))
        payload = bytes(answer.result)
        lacks_media = False
        if isinstance(answer, SeenResponse):
            flags: Flags = answer.look
            lacks_media = not answer.look.has_media
        else:
            try:
                payload, flags, changes = read_result(
                    payload, for_client=self.request.callbacks.client is not None
                )
            except ValueError:
                return Outcome(b"", fault=invalid_result(self._server))
            if changes:
                self._connection.log_repair("results that are not MCP's", changes)
        if len(payload) > bounds.MAX_RESULT and (lacks_media or not may_hold_media(payload)):
            return Outcome(b"", fault=too_large(self._server, len(payload)))
        if has_endless_integer(payload):
            return Outcome(b"", fault=invalid_result(self._server))
        self._connection.refusals.in_row = 0
        if flags.isError is True and _NO_BACK_CHANNEL in payload and self._connection.era.modern:
            self._connection.warn_no_back_channel()
        if flags.resultType not in _COMPLETE:
            if self._connection.era.modern:
                return self._outcome_of_type(flags.resultType, payload)
            # Of the server's own: it must not say to newer clients that the result is another.
            payload = without_type(payload)
            self._connection.log_repair("results with a resultType", "it is dropped")
        if self.request.method or flags.content is msgspec.UNSET:
            payload = self._completed(payload, flags)
        return Outcome(payload, flags.isError is True, lacks_media=lacks_media)

    def _completed(self, payload: bytes, flags: Flags) -> bytes:
        """Return a result with what its method requires."""
        required = REQUIRED.get(self.request.method)
        if required is not None and getattr(flags, required[0]) is msgspec.UNSET:
            member, add = required
            payload = add(payload)
            self._connection.log_repair(f"results without {member}", "it has what they say")
        if self.request.method == completions.METHOD:
            payload, given = completions.corrected_completion(payload), payload
            if payload is not given:
                self._connection.log_repair("completions that are not MCP's", "clients reject them")
        return payload

    def _outcome_of_type(self, result_type: object, payload: bytes) -> Outcome | None:
        if result_type == "input_required" and self.request.callbacks.passes_input:
            fault = unanswerable(self._server, self.request, payload)
            return Outcome(payload) if fault is None else Outcome(b"", fault=fault)
        if result_type != "input_required":  # MCP: clients must treat unknown types as invalid
            return Outcome(b"", fault=_unknown_result_type(self._server, result_type))
        self._connection.request_input(self, payload)
        return None

    def _outcome_of_error(self, error: ResponseError) -> Outcome | None:
        fault = _fault_of_error(self._server, self.request, error)
        if _NO_BACK_CHANNEL.decode() in error.message and self._connection.era.modern:
            self._connection.warn_no_back_channel()
        if error.code == HEADER_MISMATCH and self._connection.era.modern:
            fault = self._headers_refused(fault)
        if error.code == URL_ELICITATION_REQUIRED and self.rounds is None:
            can_open = not self.request.callbacks.lacking(ELICIT, _URL_MODE)
            result = (
                url_elicitations(error.data, self.request.callbacks.answers) if can_open else None
            )
            if result is not None:
                self._connection.request_input(self, result, declined=fault)
                return None
        self._connection.refusals.add()
        return Outcome(b"", fault=fault)

    def _headers_refused(self, fault: Fault) -> Fault:
        """Have the tools listed anew: the schema of this one may demand other headers by now."""
        if self.request.method:
            return fault
        self._connection.on_tools_changed()
        text = f"{fault.message.rstrip('.')}. Its tools are listed anew; then call the tool again."
        started = fault.started if self.rounds is not None else "no"
        return replace(fault, message=text, started=started)

    def _end(self, outcome: Outcome) -> None:
        done, self._done = self._done, None
        if done is None:
            return
        try:
            done(outcome)
        except Exception:  # a caller's bug must not break the connection
            _logger.exception("The callback of a call to the server %s failed.", self._server)


class RawRequest:
    """A request of ours, whose response a coroutine awaits.

    A server may want it later. Then it waits and is sent again, until its sender gives it up.

    Args:
        answers_within: Seconds in which the server must answer it, or want it later; None if only
            its sender limits that.

    Attributes:
        max_wait: Seconds that all its waits may take together; 0 for one that asks about now.
        postponed: What the server said when it last wanted it later; empty if it never did.
    """

    __slots__ = ("_answers_within", "_limit", "answer", "max_wait", "postponed", "written")

    def __init__(
        self,
        *,
        max_wait: float = bounds.STARTUP_TIMEOUT,
        answers_within: float | None = None,
    ) -> None:
        self._answers_within = answers_within
        self._limit: asyncio.Timeout | None = None
        self.answer: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        self.max_wait = max_wait
        self.postponed = ""
        self.written = False

    @property
    def may_wait(self) -> bool:
        """Whether it waits if the server wants it later."""
        return self.max_wait > 0 and not self.answer.done()

    def postpone(self, said: str) -> None:
        """Record what the server said that wants it later; it has met `answers_within` by that."""
        self.postponed = said
        self._answers_within = None
        if self._limit is not None and not self.answer.done():
            self._limit.reschedule(None)

    async def answered(self) -> bytes:
        """Return the response.

        Raises:
            TimeoutError: The server neither answered it in time nor wanted it later.
            MCPError: It answered with an error, or not with JSON-RPC.
            ConnectionLost: The connection ended.
        """
        try:
            async with asyncio.timeout(self._answers_within) as self._limit:
                return await self.answer
        except asyncio.CancelledError as given_up:
            if self.postponed:  # who sets a timeout sees only this error, as the timeout's cause
                raise given_up from _Postponed(self.postponed)
            raise

    def resolve(self, answer: JsonRpcMessage) -> None:
        """Handle the response."""
        if self.answer.done():
            return
        if answer.has_error:
            self.answer.set_exception(_mcp_error(answer.error))
        else:
            self.answer.set_result(bytes(answer.result))

    def fail(self, fault: Fault) -> None:
        """End without a response."""
        if self.answer.done():
            return
        if fault.reason is Reason.SERVER_ERROR:
            error: MCPError = InvalidResponse(fault)
        else:
            error = ConnectionLost(fault)
        self.answer.set_exception(error)


def _fault_of_error(server: str, request: ToolRequest, error: ResponseError) -> Fault:
    """Return the fault for a JSON-RPC error."""
    message = redact(error.message)[:_MAX_TEXT]
    metadata = {"server": server, "code": str(error.code), "message": message}
    data = bytes(error.data)
    if data and len(data) <= _MAX_TEXT:
        metadata["data"] = data.decode(errors="replace")
    callbacks = request.callbacks
    method = missing_method(error.code, error.data, callbacks.answers)
    if error.code == URL_ELICITATION_REQUIRED and callbacks.client is not None:
        method = None  # the error names the URLs, which the person at an MCP client can open
    if method is not None:
        lacking = callbacks.lacking(method, b"{}") if callbacks.client is not None else ""
        return input_required_fault(server, request.name, method, metadata, capability=lacking)
    text = f"The server {server} answered with error {error.code}: {message or 'no message'}"
    return Fault(Reason.SERVER_ERROR, text, "yes", metadata)


def read_error(error: msgspec.Raw) -> ResponseError:
    """Return a response's error; one that is not JSON-RPC's says so."""
    try:
        return _decode_error(error)
    except (ValueError, RecursionError):
        text = bytes(error)[:_MAX_TEXT].decode(errors="replace")
        return ResponseError(message=f"an error that does not conform to JSON-RPC: {text}")


def _mcp_error(error: msgspec.Raw) -> MCPError:
    parsed = read_error(error)
    return MCPError(code=parsed.code, message=parsed.message, data=_data_of(parsed))


def _data_of(error: ResponseError) -> Any:
    try:
        return msgspec.json.decode(error.data) if memoryview(error.data) else None
    except (ValueError, RecursionError):  # an integer with thousands of digits, say
        return None


def _unknown_result_type(server: str, result_type: object) -> Fault:
    return Fault(
        Reason.SERVER_ERROR,
        f"The server {server} answered a tool call with the unknown resultType "
        f"{str(result_type)[:64]!a}, which is neither complete nor input_required; report it to "
        "the server's maintainer.",
        started="yes",
        metadata={"server": server, "code": str(INTERNAL_ERROR)},
    )


def invalid_result(server: str) -> Fault:
    """Return the fault for a response that is not an MCP result."""
    return Fault(
        Reason.SERVER_ERROR,
        f"The server {server} answered a request with something that is not an MCP result: it must "
        "be a JSON object whose isError, if present, is true or false, with less than 1,000 levels "
        "and without integers of more than 4,300 digits.",
        started="yes",
        metadata={"server": server, "code": str(INTERNAL_ERROR)},
    )


def invalid_arguments(server: str, tool: str) -> Fault:
    """Return the fault for arguments that no call can carry."""
    return Fault(
        Reason.INVALID_ARGUMENTS,
        f"The arguments for the tool {tool} of the server {server} are not a JSON object.",
        metadata={"server": server},
    )
