"""A server with sessions that it can forget, and the ways in which servers refuse requests."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import Any

from aiohttp import web

Refuse = Callable[[web.Request, dict[str, Any]], Awaitable[web.StreamResponse]]
TOOLS = [{"name": "echo", "inputSchema": {"type": "object"}}]
CACHE: dict[str, Any] = {"ttlMs": 0, "cacheScope": "private", "resultType": "complete"}


def status(code: int, body: str = "", kind: str = "text/plain") -> Refuse:
    """Refuse by a status."""

    async def refuse(_: web.Request, __: dict[str, Any]) -> web.StreamResponse:
        return web.Response(status=code, text=body, content_type=kind)

    return refuse


def rpc(code: int, message: str, http: int = 200, *, has_id: bool = True) -> Refuse:
    """Refuse by a JSON-RPC error."""

    async def refuse(_: web.Request, request: dict[str, Any]) -> web.StreamResponse:
        error = {"code": code, "message": message}
        key = request["id"] if has_id else None
        return web.json_response({"jsonrpc": "2.0", "id": key, "error": error}, status=http)

    return refuse


async def event_error(request: web.Request, message: dict[str, Any]) -> web.StreamResponse:
    """Refuse by an error in an event stream."""
    error = {"code": -32000, "message": "unknown connection"}
    answer = json.dumps({"jsonrpc": "2.0", "id": message["id"], "error": error})
    response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
    await response.prepare(request)
    await response.write(f"event: message\ndata: {answer}\n\n".encode())
    return response


async def log_in(_: web.Request, __: dict[str, Any]) -> web.StreamResponse:
    """Send the client to a page for people."""
    return web.Response(status=302, headers={"Location": "http://127.0.0.2:1/login"})


async def text_error(_: web.Request, __: dict[str, Any]) -> web.StreamResponse:
    """Answer with an error that is not JSON-RPC."""
    return web.json_response({"error": "no such session"})


async def error_event(request: web.Request, _: dict[str, Any]) -> web.StreamResponse:
    """Send an event of a type that MCP does not have."""
    response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
    await response.prepare(request)
    await response.write(b"event: error\ndata: session not found\n\n")
    return response


async def empty_stream(request: web.Request, _: dict[str, Any]) -> web.StreamResponse:
    """End the stream without an answer."""
    response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
    await response.prepare(request)
    return response


async def cut(request: web.Request, _: dict[str, Any]) -> web.StreamResponse:
    """Cut the connection."""
    assert request.transport is not None
    request.transport.close()
    return web.Response()


async def hang(_: web.Request, __: dict[str, Any]) -> web.StreamResponse:
    """Never answer."""
    await asyncio.sleep(600)
    raise AssertionError


REJECTIONS = {
    "404": status(404),
    "400 session id": rpc(-32000, "Bad Request: No valid session ID provided", 400, has_id=False),
    "400 not initialized": rpc(-32000, "Bad Request: Server not initialized", 400, has_id=False),
    "401": status(401, '{"error":"invalid_session"}', "application/json"),
    "403": status(403, "Forbidden"),
    "410": status(410),
    "409": status(409, "stale"),
    "422": status(422, "<html>unprocessable</html>", "text/html"),
    "-32000 with 200": rpc(-32000, "Session terminated"),
    "-32600 with 200": rpc(-32600, "Session not found"),
    "-32602 with 200": rpc(-32602, "Invalid request parameters"),
    "-32001 with 200": rpc(-32001, "Session expired"),
    "-32601 with 404": rpc(-32601, "no such session", 404),
    "an event": event_error,
    "a redirect": log_in,
}
"""Refusals after which the call is sent again: it certainly did not start."""

DOUBTS = {
    "500": status(500, "Internal Server Error"),
    "500 with JSON-RPC": rpc(-32603, "boom", 500),
    "502": status(502, "<html>bad gateway</html>", "text/html"),
    "503": status(503),
    "-32603 with 200": rpc(-32603, "Internal error"),
    "an empty body": status(200, "", "application/json"),
    "202": status(202),
    "204": status(204),
    "a page": status(200, "<html>log in</html>", "text/html"),
    "an empty stream": empty_stream,
    "an error without JSON-RPC": text_error,
    "an event of another type": error_event,
    "206 with a page": status(206, "<p>", "text/html"),
    "a cut connection": cut,
}
"""Refusals of which nobody knows whether the call had started."""

RATE_LIMITS = {
    "a text": status(429, "slow down"),
    "JSON-RPC": rpc(-32004, "slow down", 429),
    "JSON-RPC without an id": rpc(-32004, "slow down", 429, has_id=False),
}
"""What servers answer that want fewer requests."""


def later(code: int, *, has_rpc: bool = True) -> Refuse:
    """Refuse until later."""

    async def refuse(_: web.Request, request: dict[str, Any]) -> web.StreamResponse:
        error = {"code": -32004, "message": "later"}
        answer = {"jsonrpc": "2.0", "id": request["id"], "error": error}
        text = json.dumps(answer) if has_rpc else "later"
        return web.Response(status=code, text=text, headers={"Retry-After": "0"})

    return refuse


class Server:
    """A server with sessions; a legacy one, unless it becomes modern."""

    def __init__(self) -> None:
        self.refuse: Refuse = status(404)
        self.current = ""
        self.opened = 0
        self.requests: list[str] = []
        self.called: list[str] = []
        self.refuses_lists = False
        self.refuses_initialize: Refuse | None = None
        self.refuses_discover: Refuse | None = None
        self.is_modern = False
        self.keeps_sessions = True
        self.misrouted = 0
        self.lists_in_any_session = False
        self.has_ids = True
        self.capabilities: dict[str, Any] = {"tools": {}}

    def becomes_modern(self) -> None:
        """Serve without `initialize` and sessions."""
        self.is_modern, self.has_ids, self.current = True, False, "any"

    def forget(self) -> None:
        """Restart the server, as its client sees it."""
        self.current = ""

    async def post(self, request: web.Request) -> web.StreamResponse:
        """Answer a message."""
        message = await request.json()
        method, key = message["method"], message.get("id")
        self.requests.append(method)
        if method == "initialize":
            return await self.initialize(request, message)
        if key is None:
            return web.Response(status=202)
        if method == "server/discover":
            return await self.discover(request, message)
        if method == "tools/call" and self.misrouted:
            self.misrouted -= 1
            return web.Response(status=404, text="default backend")
        known = request.headers.get("mcp-session-id") == self.current or not self.has_ids
        if method == "tools/list" and self.lists_in_any_session:
            return self.result(key, {"tools": TOOLS, **CACHE})
        if not known or not self.current:
            return await self.refuse(request, message)
        if method == "tools/list" and self.refuses_lists:
            return await self.refuse(request, message)
        if method == "tools/list":
            return self.result(key, {"tools": TOOLS, **CACHE})
        if method == "tools/call":
            said = message["params"]["arguments"].get("text", "")
            if said == "missing":
                return web.Response(status=404, text="no such document")
            if said == "bad":
                return await rpc(-32602, "Invalid request parameters")(request, message)
            self.called.append(said)
            return self.result(key, {"content": [{"type": "text", "text": said}]})
        return self.result(key, {})

    async def discover(self, request: web.Request, message: dict[str, Any]) -> web.StreamResponse:
        """Answer the greeting of the modern era, the second time if it is refused first."""
        refuse, self.refuses_discover = self.refuses_discover, None
        if refuse is None and not self.is_modern:
            refuse = rpc(-32601, "Method not found")
        if refuse is not None:
            return await refuse(request, message)
        result = {"supportedVersions": ["2026-07-28"], "capabilities": self.capabilities, **CACHE}
        return self.result(message["id"], result)

    async def initialize(self, request: web.Request, message: dict[str, Any]) -> web.StreamResponse:
        """Open a session."""
        if self.refuses_initialize is not None:
            return await self.refuses_initialize(request, message)
        self.opened += 1
        name = f"session-{self.opened}"
        self.current = name if self.keeps_sessions or self.opened == 1 else "another"
        info = {"capabilities": self.capabilities, "serverInfo": {"name": "s", "version": "0"}}
        response = self.result(message["id"], {"protocolVersion": "2025-06-18", **info})
        if self.has_ids:
            response.headers["mcp-session-id"] = name
        return response

    def result(self, key: object, result: dict[str, Any]) -> web.Response:
        """Return a result."""
        return web.json_response({"jsonrpc": "2.0", "id": key, "result": result})
