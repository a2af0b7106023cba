"""What waits for an answer: tool calls with a callback, all other requests with a future."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Any, Final, Protocol

import msgspec
from mcp.shared.exceptions import MCPError
from mcp_types import CONNECTION_CLOSED, INTERNAL_ERROR, URL_ELICITATION_REQUIRED

from leaseway.data_plane.core.artifacts.media import may_hold_media
from leaseway.data_plane.core.calls.call import Outcome, ToolRequest, too_large
from leaseway.data_plane.mcp.protocol.messages.codec import Envelope, RpcError, read_flags
from leaseway.data_plane.mcp.protocol.messages.era import Era
from leaseway.data_plane.mcp.protocol.messages.server_requests import (
    input_required,
    lacking,
    url_questions,
)
from leaseway.data_plane.mcp.protocol.messages.server_requests_modern import Rounds
from leaseway.wire import bounds
from leaseway.wire.errors import Fault, Reason
from leaseway.wire.messages.mcp import LOG_LEVELS
from leaseway.wire.secrets.redaction import redact

_logger = logging.getLogger(__name__)
_MAX_TEXT: Final = 2048
_decode_error: Final = msgspec.json.Decoder(RpcError).decode
_NO_BACK_CHANNEL: Final = b"no back-channel for server-initiated requests"
"""What the official package says in a server that asks, of a protocol without such requests."""
_FINISHED: Final = (None, "complete")
_LEVELS: Final = {name: rank for rank, name in enumerate(LOG_LEVELS)}


class ConnectionLost(MCPError):
    """The connection, not the server, failed a request."""

    def __init__(self, fault: Fault) -> None:
        super().__init__(code=CONNECTION_CLOSED, message=fault.message)
        self.fault = fault


class Unanswered(MCPError):
    """What was answered is no JSON-RPC, such as a mere HTTP status; its code is our choice."""

    def __init__(self, fault: Fault) -> None:
        code = int(fault.metadata.get("code", INTERNAL_ERROR))
        super().__init__(code=code, message=fault.message)
        self.fault = fault


class Pending(Protocol):
    """A request that was sent, or waits to be."""

    written: bool

    def resolve(self, answer: Envelope) -> None:
        """Receive the server's answer."""

    def fail(self, fault: Fault) -> None:
        """Called when none will come."""


class _Calls(Protocol):
    era: Era

    def cancel_call(self, call: ToolCall, reason: str) -> None: ...

    def lacks_back_channel(self) -> None: ...

    def ask_first(self, call: ToolCall, wanted: bytes, otherwise: Fault | None = None) -> None: ...


class ToolCall:
    """A tool call under way on a connection; a `PendingCall`.

    Attributes:
        id: Its request's id, another one in each round.
        request: What was asked.
        rounds: What its server has wanted of the caller so far, or None.
        written: Whether its bytes were handed to the server's pipe or socket.
    """

    __slots__ = ("_connection", "_done", "_server", "id", "request", "rounds", "written")

    def __init__(
        self,
        connection: _Calls,
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
        self.rounds: Rounds | None = None
        self.written = False

    def cancel(self, reason: str) -> None:
        """Stop waiting and tell the server."""
        if self._done is not None:
            self._done = None
            self._connection.cancel_call(self, reason)

    def resolve(self, answer: Envelope) -> None:
        """Receive the server's answer; one that wants input first is not the end."""
        outcome = self._outcome(answer)
        if outcome is not None:
            self._end(outcome)

    def fail(self, fault: Fault) -> None:
        """Called when none will come."""
        self._end(Outcome(b"", fault=fault))

    def log(self, level: str, logger: str, data: bytes) -> None:
        """Pass a log message on, where the caller wants its level."""
        request = self.request
        least = _LEVELS.get(request.log_level, 0)
        if request.on_log is not None and _LEVELS.get(level, 0) >= least:
            request.on_log(level, logger, data)

    def _outcome(self, answer: Envelope) -> Outcome | None:
        """Return what the answer means, or None where the caller is asked something first."""
        if memoryview(answer.error):
            return self._outcome_of_error(_parse_error(answer.error))
        payload = bytes(answer.result)
        if len(payload) > bounds.MAX_RESULT and not may_hold_media(payload):
            return Outcome(b"", fault=too_large(self._server, len(payload)))
        try:
            flags = read_flags(answer.result)
            if not payload.isascii():
                payload.decode()
        except ValueError:  # msgspec's DecodeError and UnicodeDecodeError are both
            return Outcome(b"", fault=no_result(self._server))
        if flags.isError is True and _NO_BACK_CHANNEL in payload and self._connection.era.modern:
            self._connection.lacks_back_channel()
        if flags.resultType not in _FINISHED and self._connection.era.modern:
            return self._outcome_of_kind(flags.resultType, payload)
        return Outcome(payload, flags.isError is True)

    def _outcome_of_kind(self, kind: object, payload: bytes) -> Outcome | None:
        if kind == "input_required" and self.request.passes_input:
            return Outcome(payload)
        if kind != "input_required":  # MCP has a client take what it does not know for invalid
            return Outcome(b"", fault=_unknown_kind(self._server, kind))
        self._connection.ask_first(self, payload)
        return None

    def _outcome_of_error(self, error: RpcError) -> Outcome | None:
        fault = _fault_of_error(self._server, self.request, error)
        if _NO_BACK_CHANNEL.decode() in error.message and self._connection.era.modern:
            self._connection.lacks_back_channel()
        if error.code == URL_ELICITATION_REQUIRED and self.rounds is None:
            wanted = url_questions(error.data, self.request.answers)
            if wanted is not None:
                self._connection.ask_first(self, wanted, otherwise=fault)
                return None
        return Outcome(b"", fault=fault)

    def _end(self, outcome: Outcome) -> None:
        done, self._done = self._done, None
        if done is None:
            return
        try:
            done(outcome)
        except Exception:  # a caller's bug must not take the connection with it
            _logger.exception("The callback of a call to the server %s failed.", self._server)


class RawRequest:
    """A request whose answer a coroutine awaits."""

    __slots__ = ("_server", "answer", "written")

    def __init__(self, server: str) -> None:
        self._server = server
        self.answer: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        self.written = False

    def resolve(self, answer: Envelope) -> None:
        """Receive the server's answer."""
        if self.answer.done():
            return
        if memoryview(answer.error):
            self.answer.set_exception(_mcp_error(answer.error))
        else:
            self.answer.set_result(bytes(answer.result))

    def fail(self, fault: Fault) -> None:
        """Called when none will come."""
        if self.answer.done():
            return
        if fault.reason is Reason.SERVER_ERROR:
            error: MCPError = Unanswered(fault)
        else:
            error = ConnectionLost(fault)
        self.answer.set_exception(error)


def _fault_of_error(server: str, request: ToolRequest, error: RpcError) -> Fault:
    """Return the fault that a JSON-RPC error means."""
    message = redact(error.message)[:_MAX_TEXT]
    metadata = {"server": server, "code": str(error.code), "message": message}
    data = bytes(error.data)
    if data and len(data) <= _MAX_TEXT:
        metadata["data"] = data.decode(errors="replace")
    method = lacking(error.code, error.data, request.answers)
    if method is not None:
        return input_required(server, request.name, method, metadata)
    text = f"The server {server} answered with error {error.code}: {message or 'no message'}"
    return Fault(Reason.SERVER_ERROR, text, "yes", metadata)


def _parse_error(error: msgspec.Raw) -> RpcError:
    try:
        return _decode_error(error)
    except ValueError:
        return RpcError(message="an error that does not follow JSON-RPC")


def _mcp_error(error: msgspec.Raw) -> MCPError:
    parsed = _parse_error(error)
    return MCPError(code=parsed.code, message=parsed.message, data=_data_of(parsed))


def _data_of(error: RpcError) -> Any:
    try:
        return msgspec.json.decode(error.data) if memoryview(error.data) else None
    except ValueError:  # an integer of thousands of digits, say
        return None


def _unknown_kind(server: str, kind: object) -> Fault:
    return Fault(
        Reason.SERVER_ERROR,
        f"The server {server} answered a tool call with a result of the kind {str(kind)[:64]!a} "
        "(resultType), which is neither complete nor input_required; report it to the server's "
        "maintainer.",
        started="yes",
        metadata={"server": server, "code": str(INTERNAL_ERROR)},
    )


def no_result(server: str) -> Fault:
    """Return the fault for an answer that can't be a result."""
    return Fault(
        Reason.SERVER_ERROR,
        f"The server {server} answered a request with something that is no MCP result: it must "
        "be a JSON object in UTF-8, without halves of surrogate pairs, whose isError, if there, is "
        "true or false.",
        started="yes",
        metadata={"server": server, "code": str(INTERNAL_ERROR)},
    )
