"""Requests of web pages of other origins (Fetch standard, CORS protocol).

A browser asks before it sends such a request, and shows the page a response only if its headers
permit that. Cookies are never permitted: a page names its session in a header.
"""

from __future__ import annotations

from typing import Final

from aiohttp import web

from leaseway.wire.clients.mcp_headers import SESSION_HEADER, VERSION_HEADER
from leaseway.wire.messages.mcp import TRACEPARENT, TRACESTATE

ORIGIN: Final = web.RequestKey("origin", str)
"""The origin of a page that may use the front, on its request."""

_METHODS: Final = "GET, POST, DELETE"
_REQUEST_HEADERS: Final = frozenset(
    {
        "accept",
        "authorization",
        "content-type",
        "last-event-id",
        "leaseway-conversation",
        "leaseway-session",
        TRACEPARENT,
        TRACESTATE,
    }
)
_EXPOSED: Final = f"{SESSION_HEADER}, {VERSION_HEADER}, WWW-Authenticate, Retry-After"
_MAX_AGE: Final = "600"


def is_preflight(http: web.BaseRequest) -> bool:
    """Return whether a browser asks if a page may send a request."""
    return http.method == "OPTIONS" and "Access-Control-Request-Method" in http.headers


def preflight_response(http: web.BaseRequest) -> web.Response:
    """Return what a page may send: the methods and headers of MCP."""
    asked = http.headers.get("Access-Control-Request-Headers", "").lower().split(",")
    names = [name.strip() for name in asked]
    allowed = [
        name
        for name in names
        # Servers name headers for arguments (`Mcp-Param-…`), so that MCP's have no fixed list.
        if name in _REQUEST_HEADERS or (name.startswith("mcp-") and name.replace("-", "").isalnum())
    ]
    headers = {
        "Access-Control-Allow-Methods": _METHODS,
        "Access-Control-Allow-Headers": ", ".join(allowed),
        "Access-Control-Max-Age": _MAX_AGE,
    }
    if http.headers.get("Access-Control-Request-Private-Network") == "true":
        headers["Access-Control-Allow-Private-Network"] = "true"
    return web.Response(status=204, headers=headers)


def let_page_read(http: web.BaseRequest, response: web.StreamResponse) -> None:
    """Permit the page that sent a request to read its response."""
    origin = http.get(ORIGIN)
    if origin is not None:
        response.headers["Access-Control-Allow-Origin"] = origin
        response.headers["Access-Control-Expose-Headers"] = _EXPOSED
        response.headers["Vary"] = "Origin"
