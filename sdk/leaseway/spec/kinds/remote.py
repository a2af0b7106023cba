"""Servers of MCP on a network (`streamable_http`, `sse` and `websocket`). Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Literal, get_args

from leaseway.spec.keys import setting
from leaseway.spec.kinds.shared import HTTP_SCHEMES, SESSION_ID, URL, McpPart, RequestPart

RemoteTransport = Literal["streamable_http", "sse", "websocket"]


@dataclass(frozen=True)
class RemotePart(RequestPart, McpPart):
    """A server that runs elsewhere and has an address.

    Attributes:
        session_id: The MCP session to join; empty means a new one.
    """

    transports: ClassVar[tuple[str, ...]] = get_args(RemoteTransport)
    synonyms: ClassVar[Mapping[str, str]] = {
        "http": "streamable_http",
        "https": "streamable_http",
        "streamablehttp": "streamable_http",
        "streamable": "streamable_http",
        "httpstream": "streamable_http",
        "httpstreamable": "streamable_http",
        "ws": "websocket",
        "wss": "websocket",
    }
    implied_by: ClassVar[tuple[str, ...]] = ("url",)

    url: str = setting("", URL)
    session_id: str = setting("", SESSION_ID)

    @classmethod
    def implied_transport(cls, text: str) -> str:
        if text.startswith(("ws://", "wss://")):
            return "websocket"
        is_sse = text.partition("?")[0].rstrip("/").endswith("/sse")
        return "sse" if is_sse else "streamable_http"

    @classmethod
    def schemes(cls, transport: str) -> tuple[str, ...]:
        return ("ws", "wss") if transport == "websocket" else HTTP_SCHEMES
