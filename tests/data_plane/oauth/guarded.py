"""An MCP server and its authorization server, on the test's loop; both count what they are asked.

It guards streamable HTTP (`/mcp`), SSE (`/sse`), a websocket (`/ws`) and a plain API (`/api`).
"""

from __future__ import annotations

import asyncio
import itertools
import json
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from aiohttp import web
from aiohttp.test_utils import TestServer

TOOL = {"name": "whoami", "inputSchema": {"type": "object"}, "annotations": {"readOnlyHint": True}}
Answer = Callable[[Mapping[str, str]], Awaitable[web.Response]]


class Guarded:
    """The server, and what it has seen.

    Attributes:
        accepted: The access tokens that it accepts, with their scopes.
        granted: The forms of all token requests.
        clients: The `Authorization` headers of the token requests.
        asked: The paths of all requests for metadata.
        refused: How many requests had no accepted token.
        needed: The scope that a call needs.
        lifetime: Of a token, in seconds; None is not told.
        answer: Answers a token request instead, if set.
        metadata: Overrides members of the authorization server's metadata.
        challenge: Whether it says where its metadata is.
        status: Of the plain API.
        unknown: The status of requests without any token.
        invalid: The status of requests with a token that it does not accept.
        says: The body of such refusals.
        pushed: What logins sent before their page, with the `Authorization` headers.
        registered: What clients have been registered with.
        registration: More members of the answers to registrations.
        unknown_clients: Clients that it has forgotten.
        only_scopes: The scopes that a client may be registered with; None for all.
        refusal: The error of a registration with others.
        protected: Overrides members of the resource's metadata.
    """

    def __init__(self) -> None:
        self.accepted: dict[str, set[str]] = {}
        self.granted: list[dict[str, str]] = []
        self.clients: list[str | None] = []
        self.asked: list[str] = []
        self.refused = 0
        self.called = 0
        self.needed = ""
        self.lifetime: float | None = 3_600
        self.answer: Answer | None = None
        self.metadata: dict[str, Any] = {}
        self.protected: dict[str, Any] = {}
        self.challenge = True
        self.status = 200
        self.unknown = 401
        self.invalid = 401
        self.says = ""
        self.pushed: list[tuple[dict[str, str], str | None]] = []
        self.registered: list[dict[str, Any]] = []
        self.registration: dict[str, Any] = {}
        self.unknown_clients: set[str] = set()
        self.only_scopes: set[str] | None = None
        self.refusal = "invalid_client_metadata"
        self.tokens = itertools.count(1)
        self.base = ""

    async def start(self) -> TestServer:
        app = web.Application()
        app.router.add_get("/.well-known/oauth-protected-resource/{path:.*}", self._protected)
        app.router.add_get("/.well-known/oauth-authorization-server", self._metadata)
        app.router.add_post("/token", self._token)
        app.router.add_post("/device", self._device)
        app.router.add_post("/par", self._push)
        app.router.add_post("/register", self._register)
        app.router.add_route("*", "/mcp", self._mcp)
        app.router.add_get("/ws", self._websocket)
        app.router.add_get("/sse", self._sse)
        app.router.add_post("/messages", self._message)
        app.router.add_get("/api/whoami", self._api)
        app.on_response_prepare.append(self.prepare)
        server = TestServer(app)
        await server.start_server()
        self.base = f"http://127.0.0.1:{server.port}"
        return server

    async def prepare(self, request: web.Request, response: web.StreamResponse) -> None:
        """Change the headers of a response."""

    # The authorization server.

    async def _protected(self, request: web.Request) -> web.Response:
        self.asked.append(request.path)
        path = request.match_info["path"]
        return web.json_response(
            {
                "resource": f"{self.base}/{path}",
                "authorization_servers": [self.base],
                "scopes_supported": ["tools"],
                **self.protected,
            }
        )

    async def _metadata(self, request: web.Request) -> web.Response:
        self.asked.append(request.path)
        return web.json_response(
            {
                "issuer": self.base,
                "token_endpoint": f"{self.base}/token",
                "authorization_endpoint": f"{self.base}/authorize",
                "token_endpoint_auth_methods_supported": [
                    "client_secret_basic",
                    "private_key_jwt",
                ],
                **self.metadata,
            }
        )

    async def _token(self, request: web.Request) -> web.Response:
        form = {name: str(value) for name, value in (await request.post()).items()}
        self.granted.append(form)
        self.clients.append(request.headers.get("Authorization"))
        if form.get("client_id") in self.unknown_clients:
            return web.json_response({"error": "invalid_client"}, status=401)
        if self.answer is not None:
            return await self.answer(form)
        return self.grant(form)

    async def _register(self, request: web.Request) -> web.Response:
        wanted = await request.json()
        if self.only_scopes is not None and not set(wanted.get("scope", "").split()) <= (
            self.only_scopes
        ):
            return web.json_response({"error": self.refusal}, status=400)
        if fault := self.check_registration(wanted):
            return web.json_response({"error": fault}, status=400)
        self.registered.append(wanted)
        client = {"client_id": f"registered-{len(self.registered)}", **self.registration}
        return web.json_response(client, status=201)

    def check_registration(self, wanted: dict[str, Any]) -> str:
        """Return the code with which a registration is refused, or empty."""
        return ""

    async def _push(self, request: web.Request) -> web.Response:
        form = {name: str(value) for name, value in (await request.post()).items()}
        if form.get("client_id") in self.unknown_clients:
            return web.json_response({"error": "invalid_client"}, status=401)
        self.pushed.append((form, request.headers.get("Authorization")))
        reference = f"urn:pushed:{len(self.pushed)}"
        return web.json_response({"request_uri": reference, "expires_in": 60}, status=201)

    async def _device(self, request: web.Request) -> web.Response:
        if (await request.post()).get("client_id") in self.unknown_clients:
            return web.json_response({"error": "invalid_client"}, status=401)
        said = {"verification_uri": f"{self.base}/enter", "interval": 1, "expires_in": 60}
        return web.json_response({"device_code": "planted-device", "user_code": "AB-CD", **said})

    def grant(self, form: Mapping[str, str]) -> web.Response:
        token = f"planted-access-{next(self.tokens)}-Zk3vQ9"
        self.accepted[token] = set(form.get("scope", "").split())
        told = {} if self.lifetime is None else {"expires_in": self.lifetime}
        return web.json_response({"access_token": token, "token_type": "bearer", **told})

    # The server.

    def scopes_of(self, token: str) -> set[str] | None:
        """Return the scopes of a token, or None if it is not accepted."""
        return self.accepted.get(token)

    def name_of(self, token: str) -> str:
        """Return what the tool answers to the holder of a token."""
        return token

    def tools_for(self, token: str) -> list[dict[str, Any]]:
        """Return what is listed to the holder of a token."""
        return [{**TOOL, "description": f"For {token}."}]

    def others_for(self, token: str) -> dict[str, list[dict[str, Any]]]:
        """Return what else is listed to the holder of a token, by kind."""
        return {}

    def _refusal(self, request: web.Request, path: str, method: str = "") -> web.Response | None:
        token = request.headers.get("Authorization", "").removeprefix("Bearer ")
        metadata = f'resource_metadata="{self.base}/.well-known/oauth-protected-resource/{path}"'
        scopes = self.scopes_of(token)
        if scopes is None:
            self.refused += 1
            headers = {"WWW-Authenticate": f'Bearer error="invalid_token", {metadata}'}
            status = self.invalid if token else self.unknown
            headers = headers if self.challenge else {}
            return web.Response(status=status, headers=headers, text=self.says)
        if method == "tools/call" and not {self.needed} <= {"", *scopes}:
            self.refused += 1
            said = f'Bearer error="insufficient_scope", scope="{self.needed}", {metadata}'
            return web.Response(status=403, headers={"WWW-Authenticate": said})
        return None

    def _reply(self, message: dict[str, Any], token: str) -> dict[str, Any] | None:
        result: dict[str, Any]
        others = self.others_for(token.removeprefix("Bearer "))
        match message.get("method"):
            case "initialize":
                result = {
                    "protocolVersion": "2025-11-25",
                    "capabilities": {"tools": {}, **{kind: {} for kind in others}},
                    "serverInfo": {"name": "guarded", "version": "1"},
                }
            case "tools/list":
                result = {"tools": self.tools_for(token.removeprefix("Bearer "))}
            case "tools/call":
                self.called += 1
                text = self.name_of(token.removeprefix("Bearer "))
                result = {"content": [{"type": "text", "text": text}]}
            case "prompts/list" | "resources/list" as method if others:
                kind = method.partition("/")[0]
                result = {kind: others.get(kind, [])}
            case "ping":
                result = {}
            case None | "notifications/initialized" | "notifications/cancelled":
                return None
            case _:
                error = {"code": -32601, "message": "unknown method"}
                return {"jsonrpc": "2.0", "id": message["id"], "error": error}
        return {"jsonrpc": "2.0", "id": message["id"], "result": result}

    async def _mcp(self, request: web.Request) -> web.Response:
        message = await request.json() if request.method == "POST" else {}
        refusal = self._refusal(request, "mcp", message.get("method", ""))
        if refusal is not None:
            return refusal
        if request.method != "POST":
            return web.Response(status=405)
        reply = self._reply(message, request.headers["Authorization"])
        return web.Response(status=202) if reply is None else web.json_response(reply)

    async def _websocket(self, request: web.Request) -> web.StreamResponse:
        refusal = self._refusal(request, "ws")
        if refusal is not None:
            return refusal
        socket = web.WebSocketResponse(protocols=("mcp",))
        await socket.prepare(request)
        async for frame in socket:
            reply = self._reply(json.loads(frame.data), request.headers["Authorization"])
            if reply is not None:
                await socket.send_json(reply)
        return socket

    async def _sse(self, request: web.Request) -> web.StreamResponse:
        refusal = self._refusal(request, "sse")
        if refusal is not None:
            return refusal
        stream = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await stream.prepare(request)
        await stream.write(b"event: endpoint\ndata: /messages\n\n")
        self.stream = stream
        self.closed = asyncio.Event()
        await self.closed.wait()
        return stream

    async def _message(self, request: web.Request) -> web.Response:
        refusal = self._refusal(request, "sse")
        if refusal is not None:
            return refusal
        reply = self._reply(await request.json(), request.headers["Authorization"])
        if reply is not None:
            await self.stream.write(f"data: {json.dumps(reply)}\n\n".encode())
        return web.Response(status=202)

    async def _api(self, request: web.Request) -> web.Response:
        refusal = self._refusal(request, "api")
        self.called += refusal is None
        if refusal is not None:
            return refusal
        token = request.headers.get("Authorization", "")
        said = {"said": token, "by": self.name_of(token.removeprefix("Bearer "))}
        return web.json_response(said, status=self.status)
