"""The HTTP server: checks access, authenticates the caller, and passes requests to its front."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Mapping
from functools import partial
from typing import Any, Final
from urllib.parse import urlsplit

from aiohttp import web

from leaseway.front.draining import Drain
from leaseway.front.http.callers import Callers, TooManyCallers
from leaseway.front.http.connection import FrontConnection, FrontConnections
from leaseway.front.http.cookies import BELOW_PREFIX
from leaseway.front.http.pages import ORIGIN, is_preflight, let_page_read, preflight_response
from leaseway.front.http.request_checks import (
    MAX_BODY,
    AccessCheck,
    HttpError,
    accepts_json,
    in_accepted_form,
    speaks_modern,
)
from leaseway.front.http.streamable import HEAD_HANDLER, HttpFront
from leaseway.front.http.streams import HOLDING, RESOURCE_METADATA
from leaseway.telemetry.http_listener import CHALLENGE, HTTP_OPTIONS, refusal_of
from leaseway.wire.errors import Fault
from leaseway.wire.names import KEY_RULE, is_text, is_valid_key
from leaseway.wire.sharing.fair_shares import Holder
from leaseway.wire.timing.running_tasks import keep_running

_NEVER: Final = 1e7
"""Seconds; `FrontConnections` closes idle connections instead of aiohttp."""
_SHUTDOWN_TIMEOUT: Final = 1.0
_METADATA: Final = "/.well-known/oauth-protected-resource"
"""The path of the OAuth protected resource metadata (RFC 9728)."""
_REGISTRATION: Final = "/register"
"""Where clients register at a front that names no authorization server (MCP 2025-03-26)."""
_USER: Final = "Leaseway-User"
"""The header with the user for whom a request is, if its credential may name users."""

_log = logging.getLogger("leaseway.front")


class HttpServer:
    """Serves MCP over HTTP for all callers.

    Args:
        access: Checks origin, host and the shared key.
        callers: Authenticates callers.
        public_url: The front's URL behind a proxy; empty means the URL of each request.
        drain: How the front ends; None means at once.
    """

    def __init__(
        self,
        access: AccessCheck,
        callers: Callers,
        public_url: str = "",
        drain: Drain | None = None,
    ) -> None:
        self._access = access
        self._callers = callers
        self._public_url = public_url.rstrip("/")
        self._is_below_prefix = urlsplit(self._public_url).path != ""
        self._drain = drain or Drain()
        self._connections = FrontConnections()

    @contextlib.asynccontextmanager
    async def serving(self, listener: Any, tls: Any = None) -> AsyncIterator[None]:
        """Serve a bound socket while the block runs."""
        server = web.Server(
            self._handle,
            request_factory=_make_request,
            handler_cancellation=True,
            access_log=None,
            keepalive_timeout=_NEVER,
            **HTTP_OPTIONS,
        )
        connect = partial(self._connect, server)
        bound = await asyncio.get_running_loop().create_server(connect, sock=listener, ssl=tls)
        watch = keep_running(self._connections.watch, "watch connections")
        watching = asyncio.create_task(watch, name="front connections")
        try:
            yield
        finally:
            bound.close()
            watching.cancel()
            self._callers.end_streams()
            await self._connections.drain(_SHUTDOWN_TIMEOUT)
            await server.shutdown(_SHUTDOWN_TIMEOUT)

    async def drain(self) -> None:
        """Finish the requests in flight, which may still exchange messages with their clients.

        The listener stays open for those. Streams for notifications end, idle connections are
        closed, and other new requests are refused.
        """
        self._callers.end_streams()
        self._connections.close_idle()
        await self._drain.wait_for_requests(lambda: self._connections.busy)
        if self._connections.busy:  # their clients must know that no response will come
            await self._callers.close()

    def _connect(self, server: web.Server) -> asyncio.Protocol:
        return FrontConnection(server(), self._connections)

    async def _handle(self, http: web.BaseRequest) -> web.StreamResponse:
        connection = self._connections.get(http.protocol)
        if connection is None:
            raise ConnectionResetError("The client has disconnected.")
        http[HOLDING] = connection.holding
        http[BELOW_PREFIX] = self._is_below_prefix
        stream = connection.pop_stream()
        connection.count_handlers(1)
        try:
            response = await (stream.write(http) if stream is not None else self._respond(http))
            if self._drain.started.is_set() and not response.prepared:
                response.force_close()
            response = in_accepted_form(http, response)
            let_page_read(http, response)
            # Responses of the fast path are JSON, and have no headers for pages.
            is_plain = ORIGIN not in http and accepts_json(http)
            handler = http.get(HEAD_HANDLER) if is_plain else None
            await connection.finish(http, response, handler)
        finally:
            connection.count_handlers(-1)
        return response

    async def _respond(self, http: web.BaseRequest) -> web.StreamResponse:
        if http.path.rstrip("/") == "/healthz" and http.method in ("GET", "HEAD"):
            if self._drain.started.is_set():
                return web.Response(status=503, text="draining\n")
            return web.Response(text="ok\n")
        try:
            self._access.check_sender(http.headers)
            if self._access.lets_read(http.headers):
                http[ORIGIN] = http.headers["Origin"]
                if is_preflight(http):  # a browser sends no credential with it
                    return preflight_response(http)
            self._access.check_key(http.headers)
            if http.method == "GET" and http.path.startswith(_METADATA) and self._callers.issuers:
                return self._metadata(http)
            front, holder = await self._authenticate(http)
            if self._callers.issuers:
                http[RESOURCE_METADATA] = self._metadata_url(http)
            connection = self._connections.get(http.protocol)
            if holder is not None and connection is not None:
                self._connections.set_holder(connection, holder)
        except HttpError as error:
            if http.path == _REGISTRATION:
                return error.refused_registration()
            return error.response(modern=speaks_modern(http))
        return await front.respond(http)

    async def _authenticate(self, http: web.BaseRequest) -> tuple[HttpFront, Holder | None]:
        """Return the front of the caller, and who it is if it has proved that."""
        try:
            return await self._callers.identify(
                http.headers.get("Authorization"), _user_of(http.headers)
            )
        except HttpError:
            raise
        except TooManyCallers as error:
            raise HttpError(503, str(error), {"Retry-After": "10"}) from None
        except Fault as fault:
            refusal = refusal_of(fault)
            headers = self._challenge(http) if refusal.status == 401 else refusal.headers
            raise HttpError(refusal.status, fault.message, headers) from None
        except Exception:  # noqa: BLE001 - one request's fault ends that request
            _log.exception("The credential of an MCP client could not be checked.")
            raise HttpError(500, "The front failed; see its log.") from None

    def _challenge(self, http: web.BaseRequest) -> dict[str, str]:
        """Return the `WWW-Authenticate` header of a 401 response."""
        challenge = CHALLENGE
        if "Authorization" in http.headers:
            challenge += ', error="invalid_token"'
        if self._callers.issuers:
            challenge += f', resource_metadata="{self._metadata_url(http)}"'
        return {"WWW-Authenticate": challenge}

    def _metadata(self, http: web.BaseRequest) -> web.Response:
        """Return the protected resource metadata, which names the authorization servers."""
        path = http.path.removeprefix(_METADATA)
        path = "/mcp" if path in ("", "/") else path  # a slash at its end is part of the resource
        if path != "/mcp" and not path.startswith("/mcp/"):
            raise HttpError(404, "MCP is at /mcp, and at /mcp/SERVER for one server.")
        metadata = {
            "resource": f"{self._base_url(http)}{path}",
            "authorization_servers": list(self._callers.issuers),
            "bearer_methods_supported": ["header"],
            "resource_name": "Leaseway",
        }
        if self._callers.scopes:
            metadata["scopes_supported"] = list(self._callers.scopes)
        # Public, and read by MCP clients in web pages, too.
        return web.json_response(metadata, headers={"Access-Control-Allow-Origin": "*"})

    def _metadata_url(self, http: web.BaseRequest) -> str:
        path = http.path.replace('"', "")
        return f"{self._base_url(http)}{_METADATA}{path}"

    def _base_url(self, http: web.BaseRequest) -> str:
        return self._public_url or f"{http.scheme}://{http.host}".replace('"', "")


def _user_of(headers: Mapping[str, str]) -> str:
    """Return the user that a request names, or empty.

    Raises:
        HttpError: It names several, or one with a name that nobody can have.
    """
    users = [value for name, value in headers.items() if name.lower() == _USER.lower()]
    if not users:
        return ""
    if len(users) > 1 or not is_valid_key(users[0]) or not is_text(users[0]):
        raise HttpError(400, f"The header {_USER} names one user, with {KEY_RULE}.")
    return users[0]


def _make_request(
    message: Any, payload: Any, protocol: Any, writer: Any, task: asyncio.Task[None]
) -> web.BaseRequest:
    loop = asyncio.get_running_loop()
    return web.BaseRequest(message, payload, protocol, writer, task, loop, client_max_size=MAX_BODY)
