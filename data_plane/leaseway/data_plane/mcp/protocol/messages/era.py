"""Protocol eras, and calls without a connection. Does not import the official package."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final

import msgspec

from leaseway.data_plane.core.calls.call import Answers, Outcome, PendingCall
from leaseway.wire.clients.mcp_client import McpClient
from leaseway.wire.errors import Fault


def _no_meta(_client: McpClient) -> bytes:
    return b""


@dataclass(frozen=True)
class Era:
    """What every request must carry at a protocol version.

    Attributes:
        version: Such as `2025-11-25`; empty before negotiation.
        modern: Whether it has no handshake and no sessions (2026-07-28 and later).
        meta: Members of `_meta` as JSON without the braces, or empty.
        answering: `meta` for calls whose callers answer server requests, by their methods.
        meta_for: Returns `meta` for calls of an MCP client.
        own: `meta` for our own requests, such as listings, which are for all callers.
    """

    version: str = ""
    modern: bool = False
    meta: bytes = b""
    headers: Mapping[str, str] = field(default_factory=dict)
    answering: Mapping[Answers, bytes] = field(default_factory=dict)
    meta_for: Callable[[McpClient], bytes] = _no_meta
    own: bytes = b""


LEGACY: Final = Era()
"""Before negotiation: requests carry nothing."""


def params_head(tool_name: str) -> bytes:
    """Return the start of a call's `params` for a tool, up to its arguments."""
    return b'"name":' + msgspec.json.encode(tool_name) + b',"arguments":'


class _RejectedCall:
    """A call that fails without being sent."""

    written = False

    def __init__(self, done: Callable[[Outcome], None], fault: Fault) -> None:
        loop = asyncio.get_running_loop()
        self._handle = loop.call_soon(done, Outcome(b"", fault=fault))

    def cancel(self, reason: str) -> None:
        self._handle.cancel()


def reject_call(done: Callable[[Outcome], None], fault: Fault) -> PendingCall:
    """Return a call that fails in the loop's next iteration."""
    return _RejectedCall(done, fault)
