"""Ports for HTTP, bound before anything is served, so that one in use is told at the start."""

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

_MOST_CONNECTIONS: Final = 256
_SHUTDOWN: Final = 1.0
"""Seconds that requests have to end once the listener stops."""

Admit = Callable[[str | None], Awaitable[object]]
"""Takes an `Authorization` header, or None; raises a `Fault` where it is not good enough."""

ARTIFACTS_LABEL: Final = "artifacts-http"
"""The label in which a worker says where it serves artifacts."""


class HttpListener:
    """A bound port that is not served yet.

    Args:
        endpoint: Where; port 0 lets the system choose.
        admit: Says who sent a request, or refuses it; None where anybody may ask.

    Raises:
        ValueError: Other machines could reach it and there are no credentials, or the
            certificate cannot be used.
        OSError: The address cannot be used.
    """

    noun: ClassVar[str]
    """What it serves, in messages."""
    option: ClassVar[str]
    """The option that names it."""
    path: ClassVar[str]
    """Where everything is that it serves."""

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

    def knows_host(self, header: str) -> bool:
        """Return whether a request's `Host` may be served.

        A page of another site reaches this machine by a name of its own that it points here (DNS
        rebinding), and names it: browsers always do. Where a credential is asked for, it has none.
        """
        return self.admit is not None or not header or is_local_host(header)

    @contextlib.asynccontextmanager
    async def serve(self, app: web.Application, *, idle: float) -> AsyncIterator[None]:
        """Serve an application while the block runs; connections beyond the bound are closed.

        Args:
            app: What answers.
            idle: Seconds that a connection is kept without a request.
        """
        from aiohttp import web

        runner = web.AppRunner(
            app, access_log=None, shutdown_timeout=_SHUTDOWN, keepalive_timeout=idle
        )
        await runner.setup()
        accept = runner.server
        assert accept is not None
        server = await asyncio.get_running_loop().create_server(
            lambda: accept() if len(accept.connections) < _MOST_CONNECTIONS else _Closed(),
            sock=self.socket,
            ssl=self.tls,
        )
        try:
            yield
        finally:
            server.close()
            await runner.cleanup()

    def close(self) -> None:
        """Give the port back; harmless when it is served or closed already."""
        self.socket.close()


class _Closed(asyncio.Protocol):
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        transport.close()


class ArtifactsListener(HttpListener):
    """Where pages ask a worker for the images and sounds that they show."""

    noun = "artifacts"
    option = "--artifacts-http"
    path = "/artifacts/"
