"""What a server's refusal of a request in a session says about the session.

Servers that have lost a session say so in many ways: any status, a JSON-RPC error, an empty body.
So no wording decides, but a cheap request in the same session: if it is refused, too, the session
is given up. Refusals that a cheap request has shown to concern only their own request are known for
a while, so that tool errors do not cause one cheap request each.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from http import HTTPStatus
from typing import Final, TypeGuard

from mcp.shared.exceptions import MCPError
from mcp_types import INTERNAL_ERROR, REQUEST_TIMEOUT

from leaseway.data_plane.kinds.remote.http.endpoint import SessionForgotten
from leaseway.data_plane.mcp.protocol.messages.codec import JsonRpcMessage
from leaseway.data_plane.mcp.protocol.messages.pending import (
    ConnectionLost,
    InvalidResponse,
    Pending,
    RawRequest,
    http_status,
    is_rate_limit,
    read_error,
)
from leaseway.wire.errors import OF_AUTHORIZATION, Fault, Reason
from leaseway.wire.secrets.redaction import redact
from leaseway.wire.sharing.newest import Newest

_TRUSTED_FOR: Final = 0.5
"""Seconds in which equal refusals need no cheap request of their own."""

_MAX_TRUSTED: Final = 64


class ErrorAnswer(Exception):
    """A JSON-RPC error as the answer to a request in a session, with its HTTP status."""

    def __init__(self, message: JsonRpcMessage, status: int) -> None:
        super().__init__()
        self.message = message
        self.status = status


@dataclass(frozen=True)
class Refusal:
    """A request in a session that did not get a result.

    Attributes:
        session: The number of its session.
        fault: Why, if there is no JSON-RPC error.
        answer: The JSON-RPC error, or None.
        forgotten: Whether the server says that it does not know the session, by HTTP 404.
        transient: Whether this may be a short fault of the server or the network. Such a request
            may have started.
        words: What the server said: equal for equal refusals.
        rejects: Whether equal words for a cheap request mean that this request did not start.
    """

    session: int
    fault: Fault | None = None
    answer: JsonRpcMessage | None = None
    forgotten: bool = False
    transient: bool = False
    words: str = ""
    rejects: bool = False

    @property
    def is_barred(self) -> bool:
        """Whether something bars the worker (HTTP 403): often a firewall, and for a while."""
        return self.fault is not None and http_status(self.fault) == HTTPStatus.FORBIDDEN

    def deliver(self, entry: Pending) -> None:
        """End the request as the server has answered it."""
        if self.answer is not None:
            entry.resolve(self.answer)
        elif self.fault is not None:
            entry.fail(self.fault)

    def as_fault(self, server: str) -> Fault:
        """Return the refusal as a fault."""
        if self.fault is not None:
            return self.fault
        text = f"The server {server} answered with {self.words.rstrip('.')}."
        return Fault(Reason.SERVER_ERROR, text, "yes", {"server": server})


NO_REFUSAL: Final = Refusal(-1)


def asks_to_wait(fault: Fault) -> bool:
    """Return whether the server has done nothing, and wants the same request later.

    What the authorization server answers is no answer of the server: the call or start fails.
    """
    if fault.reason in OF_AUTHORIZATION:
        return False
    return is_rate_limit(fault) or (fault.started == "no" and fault.retry_delay is not None)


def may_wait(entry: Pending, fault: Fault) -> TypeGuard[RawRequest]:
    """Return whether a request waits as the server wants it later: a call's caller decides that."""
    return isinstance(entry, RawRequest) and entry.may_wait and asks_to_wait(fault)


def of_fault(session: int, fault: Fault) -> Refusal | None:
    """Return a fault as a refusal, or None if it says nothing of the session."""
    if fault.reason not in (Reason.SERVER_ERROR, Reason.SERVER_LOST):
        return None
    if is_rate_limit(fault) or (fault.reason is Reason.SERVER_LOST and fault.started == "no"):
        return None
    status = http_status(fault)
    transient = not status or status >= 500
    rejects = not transient and status >= 300
    return Refusal(session, fault, transient=transient, words=fault.message, rejects=rejects)


def is_transient(error: MCPError) -> bool:
    """Return whether a failed handshake may be a short fault of the server or the network."""
    if isinstance(error, InvalidResponse):
        refusal = of_fault(0, error.fault)
        return refusal is not None and refusal.transient
    return isinstance(error, ConnectionLost) or error.code == REQUEST_TIMEOUT


def of_unknown_session(session: int, error: SessionForgotten) -> Refusal:
    """Return the refusal that HTTP status 404 is."""
    return Refusal(session, error.fault, forgotten=True, words=error.fault.message, rejects=True)


def of_answer(session: int, error: ErrorAnswer) -> Refusal:
    """Return the refusal that a JSON-RPC error is."""
    said = read_error(error.message.error)
    return Refusal(
        session,
        answer=error.message,
        transient=error.status >= 500,
        words=f"error {said.code}: {redact(said.message)[:500]}",
        rejects=error.status < 500 and said.code != INTERNAL_ERROR,
    )


def session_gone(server: str, refusal: Refusal) -> Fault:
    """Return the fault for a call whose session is gone, and which may have started before."""
    words = refusal.words.removeprefix(f"The server {server} ").rstrip(".")
    return Fault(
        Reason.SERVER_LOST,
        f"The server {server} refuses everything in its MCP session, which is given up. It said: "
        f"{words[:500]}.",
        "unknown",
        {"server": server},
    )


class SessionProbe(RawRequest):
    """A cheap request that asks whether the server serves its session now.

    Attributes:
        refusal: Why it does not, if that is known better than by the error; or None.
    """

    __slots__ = ("refusal",)

    def __init__(self) -> None:
        super().__init__(max_wait=0)
        self.refusal: Refusal | None = None

    def refuse(self, refusal: Refusal) -> None:
        """End it as refused."""
        self.refusal = refusal
        refusal.deliver(self)


class SessionCheck:
    """Sends cheap requests for refused ones: at most one at a time, whoever waits for it.

    Args:
        probe: Sends one; returns why it was refused, or None.
    """

    def __init__(self, probe: Callable[[], Awaitable[Refusal | None]]) -> None:
        self._probe = probe
        self._running: asyncio.Task[Refusal | None] | None = None
        self._trusted: Newest[str, float] = Newest(_MAX_TRUSTED)

    def trusts(self, refusal: Refusal) -> bool:
        """Return whether an equal refusal has just been one of its own request only."""
        return time.monotonic() - self._trusted.get(refusal.words, -_TRUSTED_FOR) < _TRUSTED_FOR

    async def check(self, refusal: Refusal) -> Refusal | None:
        """Return why a cheap request was refused as well, or None if only this one is."""
        if self.trusts(refusal):
            return None
        if self._running is None:
            self._running = asyncio.ensure_future(self._probe())
            self._running.add_done_callback(self._ended)
        verdict = await asyncio.shield(self._running)
        if verdict is None:
            self._trusted[refusal.words] = time.monotonic()
        return verdict

    def _ended(self, _task: object) -> None:
        self._running = None

    async def aclose(self) -> None:
        if self._running is not None:
            self._running.cancel()
            await asyncio.wait([self._running])
