"""Requests passed on through the SDK: JSON in, JSON out, and what servers say on the way.

It takes the SDK below its surface, where arguments and results are bytes: what a client sent goes
on as it came, and so does what its server answers.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any

from leaseway.front.messages import encode, notification
from leaseway.sdk import AsyncClient, AsyncSession
from leaseway.sdk.calls.requests import McpRequest
from leaseway.sdk.calls.results import ToolResult
from leaseway.sdk.errors import error_from_fault
from leaseway.sdk.leases.manager import LEASE_ENDED
from leaseway.sdk.runtime import Runtime
from leaseway.sdk.transport.events import CallEvents
from leaseway.sdk.transport.server_requests import ServerRequest
from leaseway.v1 import execution_pb2
from leaseway.wire.bounds import LEASE_TTL, MAX_ASKS
from leaseway.wire.errors import Fault


class Listener(CallEvents):
    """The client's side of one request under way: what its server says goes on to it at once.

    Args:
        send: As the attribute.

    Attributes:
        token: The client's progress token as JSON; empty where it wants no progress.
        log_level: The least level of log messages that it wants, or empty for none.
        answers: The MCP methods that it answers.
        send: Takes a notification for the client; never waits, and drops what finds no room.
        ask: Has a question answered.
        withdraw: Takes a question back.
        passes_input: Whether `input_required` results are passed on to the client.
        input: Its answers to one of them, as a JSON object; empty without.
        meta: What of its `_meta` is for the server, as a JSON object; empty without.
        lease_ttl: Seconds that a lease lives which the request acquires.
    """

    # Most requests ask for nothing beside their result; what all have in common stands here.
    token = b""
    log_level = ""
    answers: tuple[str, ...] = ()
    ask: Callable[[ServerRequest], None] | None = None
    withdraw: Callable[[ServerRequest], None] | None = None
    wants_progress = False
    inline_media = True
    lease_ttl: float = LEASE_TTL

    def __init__(self, send: Callable[[bytes], None]) -> None:
        self.send = send
        self._open: dict[int, ServerRequest] | None = None

    def handle_progress(self, frame: execution_pb2.Progress) -> None:
        """Pass a report on; who goes on with a call may want none."""
        if not self.token:
            return
        parts = [b'{"progressToken":%b,"progress":%b' % (self.token, _number(frame))]
        if frame.HasField("total"):
            parts.append(b',"total":%b' % _json_number(frame.total))
        if frame.message:
            parts.append(b',"message":%b' % encode(frame.message))
        self.send(notification("notifications/progress", b"".join(parts) + b"}"))

    def handle_log(self, frame: execution_pb2.LogMessage) -> None:
        logger = b',"logger":%b' % encode(frame.logger) if frame.logger else b""
        parts = (encode(frame.level), logger, frame.data or b"null")
        self.send(notification("notifications/message", b'{"level":%b%b,"data":%b}' % parts))

    def handle_request(self, question: ServerRequest) -> None:
        """Ask the client."""
        ask = self.ask
        if self._open is None:
            self._open = {}
        if ask is None or question.method not in self.answers:
            question.reject(f"This client does not answer {question.method}.")
        elif len(self._open) >= MAX_ASKS:
            question.reject(f"{MAX_ASKS} questions of this request wait for answers already.")
        else:
            self._open[question.ask_id] = question
            ask(question)

    def handle_withdrawal(self, ask_id: int) -> None:
        """Notify the client that its server has withdrawn a question."""
        question = self._open.pop(ask_id, None) if self._open else None
        if question is not None and self.withdraw is not None:
            self.withdraw(question)

    def reset(self) -> None:
        """Withdraw what a failed try asked; another try follows."""
        if self._open:
            for ask_id in tuple(self._open):
                self.handle_withdrawal(ask_id)


async def call_tool(
    session: AsyncSession | AsyncClient, name: str, arguments: bytes, listener: Listener
) -> ToolResult:
    """Call a tool with arguments as JSON.

    Raises:
        LeasewayError: It failed.
    """
    runtime, key = session._at()
    call = runtime.caller.relay(key, name, arguments, None, listener)
    return await _settled(runtime, key, listener, call)


async def send_request(
    session: AsyncSession | AsyncClient, request: McpRequest, listener: Listener
) -> ToolResult:
    """Send a request about a prompt or a resource.

    Raises:
        LeasewayError: It failed.
    """
    runtime, key = session._at()
    call = runtime.caller.request(key, request, None, listener)
    return await _settled(runtime, key, listener, call)


def forget_leases(session: AsyncSession) -> None:
    """Renew a session's leases no longer; they end by themselves, unless others renew them."""
    runtime, key = session._at()
    for held in runtime.leases.book.held_leases(key):
        runtime.leases.book.forget(held.key)
    runtime.leases.book.forget_session(key)


async def _settled(
    runtime: Runtime, session: str, listener: Listener, call: Coroutine[Any, Any, ToolResult]
) -> ToolResult:
    try:
        return await call
    except Fault as fault:
        if fault.reason in LEASE_ENDED:
            # MCP has no word for acquiring: the client is told once, and its next call begins anew.
            runtime.leases.book.forget_end(session, fault.metadata.get("lease", ""))
        raise error_from_fault(fault) from None
    finally:
        listener.reset()


def _number(frame: execution_pb2.Progress) -> bytes:
    return _json_number(frame.progress)


def _json_number(value: float) -> bytes:
    """Return a number as most servers write it: a whole one without a fraction."""
    return b"%d" % value if value.is_integer() else encode(value)
