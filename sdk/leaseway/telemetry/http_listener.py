"""HTTP ports that are bound before they are served, so that a used port fails at start-up."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import TYPE_CHECKING, ClassVar, Final

from leaseway.wire.channels.auth import check_listen
from leaseway.wire.channels.endpoint import Endpoint, is_local_host
from leaseway.wire.channels.tls import read_tls, server_context

if TYPE_CHECKING:
    from aiohttp import web

_MAX_CONNECTIONS: Final = 256
_SHUTDOWN: Final = 1.0
"""Seconds that open requests have to finish when the listener stops."""

Admit = Callable[[str | None], Awaitable[object]]
"""Checks an `Authorization` header, or None; raises a `Fault` if it is not sufficient."""

ARTIFACTS_LABEL: Final = "artifacts-http"
"""The worker label with the URL of its artifacts."""


class HttpListener:
    """A bound HTTP port.

    Args:
        endpoint: The address; port 0 means any free port.
        admit: Authenticates a request or rejects it; None admits every request.

    Raises:
        ValueError: Other machines can reach it without credentials, or the
            certificate is unusable.
        OSError: The address is unusable.
    """

    noun: ClassVar[str]
    """The name of what it serves, for messages."""
    option: ClassVar[str]
    """The command-line option of the port."""
    path: ClassVar[str]
    """The path of everything that it serves."""

    def __init__(self, endpoint: Endpoint, admit: Admit | None) -> None:
        check_listen(endpoint, admit)
        self.admit = admit
        tls = read_tls()
        self.tls = server_context(tls) if tls.serves else None
        family = socket.AF_INET6 if ":" in endpoint.host else socket.AF_INET
        try:
            self.socket = socket.create_server((endpoint.host, endpoint.port), family=family)
        except OSError as error:
            raise OSError(
                f"Cannot serve {self.noun} on {endpoint}: {error.strerror or error}. Choose "
                f"another port for {self.option}, or port 0 for any free port."
            ) from None
        self.endpoint = Endpoint(endpoint.host, self.socket.getsockname()[1])

    @property
    def url(self) -> str:
        scheme = "http" if self.tls is None else "https"
        return f"{scheme}://{self.endpoint}{self.path}"

    def accepts_host(self, header: str) -> bool:
        """Return whether a request's `Host` header is acceptable.

        A page of another site can reach this machine through a name of its own that resolves to it
        (DNS rebinding), but the browser sends that name. If credentials are required, such a page
        has none.
        """
        return self.admit is not None or not header or is_local_host(header)

    @contextlib.asynccontextmanager
    async def serve(self, app: web.Application, *, idle: float) -> AsyncIterator[None]:
        """Serve an application while the block runs. Connections beyond the limit are closed.

        Args:
            app: The application.
            idle: Seconds after which a connection without a request is closed.
        """
        from aiohttp import web

        runner = web.AppRunner(
            app, access_log=None, shutdown_timeout=_SHUTDOWN, keepalive_timeout=idle
        )
        await runner.setup()
        accept = runner.server
        assert accept is not None
        server = await asyncio.get_running_loop().create_server(
            lambda: (
                accept() if len(accept.connections) < _MAX_CONNECTIONS else _RejectedConnection()
            ),
            sock=self.socket,
            ssl=self.tls,
        )
        try:
            yield
        finally:
            server.close()
            await runner.cleanup()

    def close(self) -> None:
        """Release the port; harmless if it is served or closed already."""
        self.socket.close()


class _RejectedConnection(asyncio.Protocol):
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        transport.close()


class ArtifactsListener(HttpListener):
    """The port where web pages read a worker's images and audio."""

    noun = "artifacts"
    option = "--artifacts-http"
    path = "/artifacts/"
