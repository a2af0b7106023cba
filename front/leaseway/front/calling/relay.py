"""The relay between MCP clients and the SDK: JSON in, JSON out, notifications in between.

It uses the SDK's internal layer, where arguments and results are bytes, so that both are relayed
unchanged.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any

from leaseway.front.messages import encode, notification
from leaseway.sdk import AsyncClient, AsyncSession
from leaseway.sdk.calls.requests import McpRequest
from leaseway.sdk.calls.results import ToolResult
from leaseway.sdk.errors import error_from_fault
from leaseway.sdk.leases.releases import LEASE_ENDED
from leaseway.sdk.runtime import Runtime
from leaseway.sdk.transport.events import CallEvents
from leaseway.sdk.transport.server_requests import ServerRequest
from leaseway.v1 import execution_pb2
from leaseway.wire.bounds import LEASE_TTL, MAX_ASKS
from leaseway.wire.errors import Fault


class Listener(CallEvents):
    """The client's side of an in-flight request: relays its server's messages to the client.

    Attributes:
        token: The client's progress token as JSON, or empty if it requested no progress.
        log_level: The lowest level of log messages that it requested, or empty for none.
        answers: The methods of server requests that it answers.
        send: Sends a notification to the client; never waits, drops it if the queue is full.
        ask: Sends a server request to the client.
        withdraw: Cancels a server request at the client.
        passes_input: Whether `input_required` results are passed on to the client.
        input: The client's answers to such a result, as a JSON object, or empty.
        meta: The part of `_meta` for the server, as a JSON object, or empty.
        lease_ttl: The time to live in seconds of a lease that the request acquires.
    """

    # Class attributes, because most requests use the defaults.
    token = b""
    log_level = ""
    answers: tuple[str, ...] = ()
    ask: Callable[[ServerRequest], None] | None = None
    withdraw: Callable[[ServerRequest], None] | None = None
    wants_progress = False
    inline_media = True
    lease_ttl: float = LEASE_TTL

    def __init__(self, send: Callable[[bytes], object]) -> None:
        self.send = send
        self._open: dict[int, ServerRequest] | None = None

    def handle_progress(self, frame: execution_pb2.Progress) -> None:
        """Relay progress, unless the request that resumed the call has no progress token."""
        if not self.token:
            return
        progress = _json_number(frame.progress)
        parts = [b'{"progressToken":%b,"progress":%b' % (self.token, progress)]
        if frame.HasField("total"):
            parts.append(b',"total":%b' % _json_number(frame.total))
        if frame.message:
            parts.append(b',"message":%b' % encode(frame.message))
        self.send(notification("notifications/progress", b"".join(parts) + b"}"))

    def handle_log(self, frame: execution_pb2.LogMessage) -> None:
        logger = b',"logger":%b' % encode(frame.logger) if frame.logger else b""
        parts = (encode(frame.level), logger, frame.data or b"null")
        self.send(notification("notifications/message", b'{"level":%b%b,"data":%b}' % parts))

    def handle_request(self, server_request: ServerRequest) -> None:
        """Relay a server request to the client, or reject it."""
        ask = self.ask
        if self._open is None:
            self._open = {}
        if ask is None or server_request.method not in self.answers:
            server_request.reject(f"This client does not answer {server_request.method}.")
        elif len(self._open) >= MAX_ASKS:
            server_request.reject(f"{MAX_ASKS} requests to this client already wait.")
        else:
            self._open[server_request.ask_id] = server_request
            ask(server_request)

    def handle_withdrawal(self, ask_id: int) -> None:
        """Cancel a server request at the client, because its server withdrew it."""
        server_request = self._open.pop(ask_id, None) if self._open else None
        if server_request is not None and self.withdraw is not None:
            self.withdraw(server_request)

    def reset(self) -> None:
        """Cancel the open server requests of a failed attempt or of an ended call."""
        if self._open:
            for ask_id in tuple(self._open):
                self.handle_withdrawal(ask_id)


async def call_tool(
    session: AsyncSession | AsyncClient, name: str, arguments: bytes, listener: Listener
) -> ToolResult:
    """Call a tool with JSON arguments; raises `LeasewayError`."""
    runtime, key = session._scope()
    call = runtime.caller.relay(key, name, arguments, None, listener)
    return await _finish(runtime, key, listener, call)


async def send_request(
    session: AsyncSession | AsyncClient, request: McpRequest, listener: Listener
) -> ToolResult:
    """Send a request about a prompt or a resource; raises `LeasewayError`."""
    runtime, key = session._scope()
    call = runtime.caller.request(key, request, None, listener)
    return await _finish(runtime, key, listener, call)


async def leave_leases(session: AsyncSession, keep: float) -> None:
    """Stop renewing a session's leases, which live until no call has run for `keep` seconds.

    Another front may continue the session until then.
    """
    runtime, key = session._scope()
    await runtime.leases.leave_session(key, keep)


async def _finish(
    runtime: Runtime, session: str, listener: Listener, call: Coroutine[Any, Any, ToolResult]
) -> ToolResult:
    try:
        return await call
    except Fault as fault:
        if fault.reason in LEASE_ENDED:
            # MCP has no acquire: report the loss once; the client's next call gets a new lease.
            runtime.leases.book.forget_end(session, fault.metadata.get("lease", ""))
        raise error_from_fault(fault) from None
    finally:
        listener.reset()


def _json_number(value: float) -> bytes:
    """Encode a number; integers without a fraction, as most servers write them."""
    return b"%d" % value if value.is_integer() else encode(value)
