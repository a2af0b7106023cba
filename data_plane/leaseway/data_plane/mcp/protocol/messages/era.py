"""What carries calls, whichever transport it is.

Two implementations of `Connection`: `stream_peer.StreamPeer` and `http.HttpConnection`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final, Protocol

import msgspec

from leaseway.data_plane.core.calls.call import Answers, Outcome, PendingCall, ToolRequest
from leaseway.wire.errors import Fault


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


class _Refused:
    """A call that never began."""

    written = False

    def __init__(self, done: Callable[[Outcome], None], fault: Fault) -> None:
        loop = asyncio.get_running_loop()
        self._handle = loop.call_soon(done, Outcome(b"", fault=fault))

    def cancel(self, reason: str) -> None:
        self._handle.cancel()


def refuse(done: Callable[[Outcome], None], fault: Fault) -> PendingCall:
    """Return a call that fails at once; its `done` runs in the loop's next turn."""
    return _Refused(done, fault)
