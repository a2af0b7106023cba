"""What the head of an HTTP request says, read and checked once for all requests that have it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from leaseway.front.calling.conversations import Carried
from leaseway.front.calling.media import MediaMode
from leaseway.front.http.streams import OpenStream
from leaseway.front.sessions.live_session import LiveSession
from leaseway.wire.clients.mcp_client import McpClient


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


@dataclass(frozen=True, slots=True)
class ModernHead:
    """The head of a request of a modern client, and what its `_meta` declares.

    Attributes:
        scope: The server in the URL, or empty.
        carried: What tells the session of its calls.
        headers: The headers.
        client: What the client declares.
        name: The `name` in the params of its requests, or None.
        media: How it wants images and audio; None means the default.
    """

    scope: str
    carried: Carried
    headers: Mapping[str, str]
    client: McpClient
    name: str | None
    media: MediaMode | None
