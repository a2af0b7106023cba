"""The heads of requests: read and checked once for all requests that have them.

Only the headers that repeat arguments of a tool (`x-mcp-header`) are checked with each call.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import msgspec

from leaseway.front.calling.conversations import Carried
from leaseway.front.calling.handles import may_have_handle
from leaseway.front.calling.media import MediaMode
from leaseway.front.http.streams import OpenStream, Reply
from leaseway.front.lists.definitions import header_arguments
from leaseway.front.methods import Methods
from leaseway.front.protocol.envelope import ABSENT, VERSION_KEY, RequestMessage
from leaseway.front.protocol.handshake import CAPABILITIES_KEY, INFO_KEY
from leaseway.front.protocol.messages import JsonRpcError, decode, unknown_client
from leaseway.front.sessions.listener import Listener
from leaseway.front.sessions.live_session import ClientRequests, LiveSession
from leaseway.sdk import LeasewayError, Tool
from leaseway.wire.clients.mcp_client import McpClient
from leaseway.wire.clients.mcp_headers import ArgumentHeader, Path, argument_mismatch
from leaseway.wire.messages.mcp import HANDSHAKE_VERSIONS, HEADER_MISMATCH

_MAX_CACHED: Final = 10_000


@dataclass(frozen=True, slots=True)
class LegacyHead:
    """The head of a request of a client with `initialize`.

    Attributes:
        scope: The server in the URL, or empty.
        carried: What tells the session of its calls.
        live: The session of the protocol, or None.
        media: How the client wants images and audio; None means the default.
        has_session: Whether it has a session id, beside a cookie.
        version: Its protocol version, or None.
        open_stream: Opens the stream of a reply, for a request of a session.
    """

    scope: str
    carried: Carried
    live: LiveSession | None
    media: MediaMode | None
    has_session: bool
    version: str | None
    open_stream: OpenStream | None

    def listener(self, reply: Reply) -> Listener:
        """Return the client's side of a request."""
        live = self.live
        listener = Listener(reply.send)
        if live is None:
            listener.mcp_client = unknown_client(self.version or HANDSHAKE_VERSIONS[-1])
            return listener
        listener.lease_ttl = live.lease_ttl
        listener.mcp_client = live.client.encoded
        if reply.accepts_stream and self.open_stream is not None:
            listener.log_level = live.log_level
            reply.open_by(self.open_stream)
            if live.answers:
                listener.answers = live.answers
                listener.ask_through(ClientRequests(live, reply.ask))
        return listener


class _Declared(msgspec.Struct):
    """The members of `_meta` by which a modern request declares its client."""

    version: msgspec.Raw = msgspec.field(default=ABSENT, name=VERSION_KEY)
    info: msgspec.Raw = msgspec.field(default=ABSENT, name=INFO_KEY)
    capabilities: msgspec.Raw = msgspec.field(default=ABSENT, name=CAPABILITIES_KEY)


_decode_declared: Final = msgspec.json.Decoder(_Declared).decode


@dataclass(frozen=True, slots=True)
class ModernHead:
    """The head of a request of a modern client, and what its `_meta` declares.

    Attributes:
        scope: The server in the URL, or empty.
        carried: What tells the session of its calls.
        headers: The headers.
        client: What the client declares.
        name: The `name` in the params of its requests, or None.
        meta: The `_meta` in which it has declared that, as JSON. With more than `MAX_META` bytes,
            the head is not remembered: it lives as long as its connection.
        media: How it wants images and audio; None means the default.
    """

    scope: str
    carried: Carried
    headers: Mapping[str, str]
    client: McpClient
    name: str | None
    meta: bytes
    media: MediaMode | None

    def listener(self, reply: Reply) -> Listener:
        """Return the client's side of a request."""
        listener = Listener(reply.send)
        listener.answers = self.client.answers
        listener.mcp_client = self.client.encoded
        listener.passes_input = True
        return listener

    def covers(self, name: str | None, meta: bytes) -> bool:
        """Return whether a call with this head passes the checks that its first request passed.

        Progress tokens and trace contexts differ from call to call; what declares the client must
        not, and what may say a session is read anew.

        Args:
            name: The `name` in its params, or None.
            meta: Its `_meta` as JSON, or empty.
        """
        if name != self.name:
            return False
        if meta == self.meta:
            return True
        if may_have_handle(meta) or may_have_handle(self.meta):
            return False
        try:
            return _decode_declared(meta) == _decode_declared(self.meta)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            return False


class ParamHeaders:
    """Checks the calls of one caller.

    Args:
        methods: Knows its tools.
    """

    def __init__(self, methods: Methods) -> None:
        self._methods = methods
        # Each with its tool, whose id is no other's as long as it is here.
        self._header_tools: dict[int, tuple[Tool, dict[Path, ArgumentHeader]]] = {}

    async def check(
        self, headers: Mapping[str, str], scope: str, name: str | None, message: RequestMessage
    ) -> JsonRpcError | None:
        """Return an error if headers do not match the arguments that the tool `name` maps to them.

        Args:
            headers: The headers of the call.
            scope: The server that the client sees; empty means all.
            name: The name in its params, or None.
            message: The call.
        """
        if name is None:
            return None
        try:
            tool = await self._methods.tool(name, scope)
        except LeasewayError:
            return None  # the call reports the error
        if tool is None:
            return None
        demanded = self._demanded(tool)
        if not demanded:
            return None
        arguments = decode(message.params).get("arguments")
        if not isinstance(arguments or {}, dict):
            return None
        problem = argument_mismatch(demanded, arguments or {}, headers)
        return JsonRpcError(HEADER_MISMATCH, problem) if problem else None

    def _demanded(self, tool: Tool) -> dict[Path, ArgumentHeader]:
        cached = self._header_tools.get(id(tool))
        if cached is None:
            if len(self._header_tools) > _MAX_CACHED:
                self._header_tools.clear()
            cached = self._header_tools[id(tool)] = tool, header_arguments(tool)
        return cached[1]
