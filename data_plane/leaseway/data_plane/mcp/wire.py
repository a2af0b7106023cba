"""What a tool call looks like to those who make one, whichever transport carries it.

Two implementations of `Connection`: `stream_peer.StreamPeer` and `http.HttpConnection`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final, Protocol

import msgspec

from leaseway.data_plane.mcp.asks import NO_ANSWERS, Answers, OnAsk
from leaseway.wire.fault import Fault

__all__ = ["LEGACY", "Connection", "Era", "Outcome", "PendingCall", "ToolRequest", "params_head"]

OnProgress = Callable[[float, float | None, str], None]
"""(progress, total where known, message or empty); runs on the loop and must not block."""

OnLog = Callable[[str, str, bytes], None]
"""(level, logger or empty, data as JSON); runs on the loop and must not block."""

OnUpdate = Callable[[str], None]
"""(URI of what changed, or empty once a subscription holds); runs on the loop, must not block."""


@dataclass(slots=True)
class Outcome:
    """How a tool call ended.

    Attributes:
        payload: The MCP `result` object exactly as the server sent it; empty with a fault.
        is_error: What the tool said about itself: `isError` of the payload.
        fault: Why there is no result, or None.
    """

    payload: bytes
    is_error: bool = False
    fault: Fault | None = None


@dataclass(slots=True)
class ToolRequest:
    """One `tools/call`, or another request of a caller.

    Attributes:
        name: The tool's original name; of another `method` what it names, for messages.
        params_head: What `params_head` made of the name, once for all calls of the tool.
        arguments: A valid JSON object; empty means `{}`.
        meta: More keys for `_meta`, `traceparent` say, or None.
        on_progress: Gets the server's progress reports. None asks for none.
        on_log: Gets the server's log messages of this call. None asks for none.
        log_level: The least level for `on_log`.
        param_headers: `Mcp-Param-*` headers that the caller computed itself; those that the
            tool's schema asks for are added by the instance. Only HTTP sends them.
        on_ask: Gets what the server asks of the caller. None where `answers` is empty.
        answers: The methods that the caller answers.
        continuation: More members of `params`, with a comma before each: the answers to what a
            modern server asked when the call was made before.
        method: The MCP method; empty means `tools/call`. Of others, `arguments` are all params
            but `_meta`: an object on one line with at least one member.
    """

    name: str
    params_head: bytes
    arguments: bytes
    meta: dict[str, object] | None = None
    on_progress: OnProgress | None = None
    on_log: OnLog | None = None
    log_level: str = "info"
    param_headers: Mapping[str, str] = field(default_factory=dict)
    on_ask: OnAsk | None = None
    answers: Answers = NO_ANSWERS
    continuation: bytes = b""
    method: str = ""


@dataclass(frozen=True)
class Era:
    """What every request must carry once a protocol version is agreed on.

    Attributes:
        version: The version, such as `2025-11-25`; empty before negotiation.
        modern: Whether it has no handshake and no sessions (2026-07-28 and later).
        meta: Members of `_meta` as JSON without the braces, or empty.
        answering: The same for calls whose callers answer what servers ask, by what they answer.
        headers: HTTP headers.
    """

    version: str = ""
    modern: bool = False
    meta: bytes = b""
    headers: Mapping[str, str] = field(default_factory=dict)
    answering: Mapping[Answers, bytes] = field(default_factory=dict)


LEGACY: Final = Era()
"""Before negotiation: nothing to carry."""


class PendingCall(Protocol):
    """A call under way."""

    @property
    def written(self) -> bool:
        """Whether its bytes were handed to the server's pipe or socket."""

    def cancel(self, reason: str) -> None:
        """Stop waiting and tell the server. `done` is not called any more. Idempotent."""


class Connection(Protocol):
    """One MCP connection, as far as calls are concerned."""

    era: Era

    @property
    def in_flight(self) -> int:
        """Tool calls that have not ended."""

    def call(self, request: ToolRequest, done: Callable[[Outcome], None]) -> PendingCall:
        """Start a call; never blocks and never raises.

        `done` runs on the loop exactly once, after this method has returned, unless the call
        is cancelled before.
        """


def params_head(tool_name: str) -> bytes:
    """Return the start of a call's `params` for a tool, up to its arguments."""
    return b'"name":' + msgspec.json.encode(tool_name) + b',"arguments":'
