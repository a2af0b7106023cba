"""Where HTTP requests come in: who may ask is settled here, the caller's own front answers."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator
from functools import partial
from typing import Any, Final

from aiohttp import web

from leaseway.front.http.admission import Admission
from leaseway.front.http.callers import Callers, TooManyCallers
from leaseway.front.http.connection import Connection, Connections
from leaseway.front.http.streamable import KNOWN, MAX_BODY, refusal
from leaseway.wire.errors import Fault, Reason

_NEVER: Final = 1e7
"""Seconds; connections that wait too long are closed by `Connections`."""
_MOST_CONNECTIONS: Final = 20_000
_LAST: Final = 1.0
_METADATA: Final = "/.well-known/oauth-protected-resource"
"""Where a client that has no token finds out who gives it one (RFC 9728)."""

_log = logging.getLogger("leaseway.front")


class Door:
    """Serves HTTP.

    Args:
        admission: Where requests may come from.
        callers: Answer them, each its own.
        public_url: By which clients reach the front, where a proxy is between; empty means that
            it is as their requests say.
    """

    def __init__(self, admission: Admission, callers: Callers, public_url: str = "") -> None:
        self._admission = admission
        self._callers = callers
        self._public_url = public_url.rstrip("/")
        self._connections = Connections()

    @contextlib.asynccontextmanager
    async def serving(self, listener: Any, tls: Any = None) -> AsyncIterator[None]:
        """Serve a bound socket while the block runs."""
        server = web.Server(
            self._handle,
            request_factory=_make_request,
            handler_cancellation=True,
            access_log=None,
            keepalive_timeout=_NEVER,
        )
        connect = partial(self._connect, server)
        bound = await asyncio.get_running_loop().create_server(connect, sock=listener, ssl=tls)
        looking = asyncio.create_task(self._connections.look(), name="front connections")
        try:
            yield
        finally:
            bound.close()
            looking.cancel()
            self._callers.end_streams()
            await self._connections.end(_LAST)
            await server.shutdown(_LAST)

    def _connect(self, server: web.Server) -> asyncio.Protocol:
        """Return what serves a new connection; beyond the bound, what closes it."""
        if len(self._connections) >= _MOST_CONNECTIONS:
            return _Closed()
        return Connection(server(), self._connections)

    async def _handle(self, http: web.BaseRequest) -> web.StreamResponse:
        connection = self._connections.of(http)
        if connection is None:
            raise ConnectionResetError("The client has gone.")
        stream = connection.claimed()
        connection.handling(1)
        try:
            response = await (stream.write(http) if stream is not None else self._answer(http))
            await connection.answered(http, response, http.get(KNOWN))
        finally:
            connection.handling(-1)
        return response

    async def _answer(self, http: web.BaseRequest) -> web.StreamResponse:
        if http.path.rstrip("/") == "/healthz" and http.method == "GET":
            return web.Response(text="ok\n")
        refused = self._admission.refusal(http.headers)
        if refused is not None:
            return refusal(refused.status, refused.message, refused.headers)
        if http.method == "GET" and http.path.startswith(_METADATA) and self._callers.issuers:
            return self._metadata(http)
        try:
            caller = await self._callers.of(http.headers.get("Authorization"))
        except TooManyCallers as error:
            return refusal(503, str(error), {"Retry-After": "10"})
        except Fault as fault:
            if fault.reason == Reason.UNAUTHENTICATED:
                return refusal(401, fault.message, self._challenge(http))
            status = 403 if fault.reason == Reason.PERMISSION_DENIED else 503
            return refusal(status, fault.message, {})
        except Exception:
            _log.exception("The credential of an MCP client could not be checked.")
            return refusal(500, "The front failed; its log says why.", {})
        return await caller.front.answer(http)

    def _challenge(self, http: web.BaseRequest) -> dict[str, str]:
        """Return what tells a client which credential to send."""
        challenge = 'Bearer realm="leaseway"'
        if "Authorization" in http.headers:
            challenge += ', error="invalid_token"'
        if self._callers.issuers:
            path = http.path.rstrip("/").replace('"', "")
            challenge += f', resource_metadata="{self._base(http)}{_METADATA}{path}"'
        return {"WWW-Authenticate": challenge}

    def _metadata(self, http: web.BaseRequest) -> web.Response:
        """Return who gives tokens for what the front serves."""
        path = http.path.removeprefix(_METADATA).rstrip("/") or "/mcp"
        if path != "/mcp" and not path.startswith("/mcp/"):
            return refusal(404, "MCP is at /mcp, and at /mcp/SERVER for one server.", {})
        metadata = {
            "resource": f"{self._base(http)}{path}",
            "authorization_servers": list(self._callers.issuers),
            "bearer_methods_supported": ["header"],
            "resource_name": "Leaseway",
        }
        # Pages that are MCP clients read it, too, and it is no secret.
        return web.json_response(metadata, headers={"Access-Control-Allow-Origin": "*"})

    def _base(self, http: web.BaseRequest) -> str:
        return self._public_url or f"{http.scheme}://{http.host}".replace('"', "")


def _make_request(
    message: Any, payload: Any, protocol: Any, writer: Any, task: asyncio.Task[None]
) -> web.BaseRequest:
    loop = asyncio.get_running_loop()
    return web.BaseRequest(message, payload, protocol, writer, task, loop, client_max_size=MAX_BODY)


class _Closed(asyncio.Protocol):
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        transport.close()
