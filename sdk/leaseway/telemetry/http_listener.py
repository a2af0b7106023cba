"""HTTP ports that are bound before they are served, so that a used port fails at start-up."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import socket
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Any, ClassVar, Final

from leaseway.wire.bounds import KIB
from leaseway.wire.channels.auth import check_listen
from leaseway.wire.channels.endpoint import Endpoint, is_local_host
from leaseway.wire.channels.tls import read_tls, server_context
from leaseway.wire.errors import Fault, Reason
from leaseway.wire.sharing.fair_shares import Holder, who_gives_way

if TYPE_CHECKING:
    from aiohttp import web

_MAX_CONNECTIONS: Final = 256
_OLDEST: Final = 64
"""Connections of an address, the oldest, of which an idle one is closed for a new connection."""
_SHUTDOWN: Final = 1.0
"""Seconds that open requests have to finish when the listener stops."""
_PATIENCE: Final = 10.0
"""Seconds after which a connection is closed whose client does not read."""

_log = logging.getLogger("leaseway.http")


class _PrivateLogger(logging.Logger):
    """Logs errors of aiohttp without what a client sent.

    The error of a malformed request quotes the header, which may hold a credential.
    """

    def exception(self, msg: object, *args: object, exc_info: Any = True, **_: Any) -> None:
        if isinstance(exc_info, _http_errors()):
            where = str(msg) % args if args else str(msg)
            _log.info("%s: malformed HTTP (%s).", where, type(exc_info).__name__)
        else:
            _log.exception(msg, *args, exc_info=exc_info)

    def debug(self, *_: object, **__: Any) -> None:
        """Drop the message: it quotes what the client sent."""


def _http_errors() -> tuple[type[Exception], ...]:
    from aiohttp.http_exceptions import HttpProcessingError

    return (HttpProcessingError,)


HTTP_OPTIONS: Final[Mapping[str, Any]] = {
    "logger": _PrivateLogger("leaseway.http.private"),
    # A token has up to 16 KiB, and a header has its scheme before it.
    "max_field_size": 17 * KIB,
    "max_line_size": 17 * KIB,
    # aiohttp decompresses a body even if nobody reads it, and after its request was refused: a few
    # kilobytes would keep the event loop at work for as long as hundreds of megabytes.
    "auto_decompress": False,
}
"""Options of aiohttp for every server of Leaseway."""

Admit = Callable[[str | None], Awaitable[object]]
"""Checks an `Authorization` header, or None; raises a `Fault` if it is not sufficient."""


CHALLENGE: Final = 'Bearer realm="leaseway"'
"""The `WWW-Authenticate` header of a refused request (RFC 6750, section 3)."""


class HttpRefusal(Exception):
    """A request that is refused before its path is looked at.

    Attributes:
        status: The HTTP status.
        headers: Headers of the response.
    """

    def __init__(self, status: int, message: str, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.headers = headers or {}


def refusal_of(fault: Fault) -> HttpRefusal:
    """Return how HTTP says that a credential was not accepted (RFC 9110, sections 11 and 15)."""
    if fault.reason is Reason.UNAUTHENTICATED:
        return HttpRefusal(401, fault.message, {"WWW-Authenticate": CHALLENGE})
    if fault.reason is Reason.PERMISSION_DENIED:
        return HttpRefusal(403, fault.message)
    wait = math.ceil(max(fault.retry_delay or 0.0, 1.0))  # it could not be checked
    return HttpRefusal(503, fault.message, {"Retry-After": str(wait)})


async def check_request(
    admit: Admit | None, host: str, authorization: str | None, noun: str
) -> object | None:
    """Return who sent a request; None if no credentials are required.

    A page of another site can reach this machine through a name of its own that resolves to it
    (DNS rebinding), but the browser sends that name. If credentials are required, such a page has
    none, and any name is accepted.

    Args:
        admit: Authenticates the sender, or None.
        host: The `Host` header; empty for none.
        authorization: The `Authorization` header.
        noun: What is served, for messages.

    Raises:
        HttpRefusal: The host or the credential is not accepted.
    """
    if admit is None:
        if host and not is_local_host(host):
            raise HttpRefusal(403, f"Request {noun} from localhost or 127.0.0.1.")
        return None
    try:
        return await admit(authorization)
    except Fault as fault:
        raise refusal_of(fault) from None


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

    @contextlib.asynccontextmanager
    async def serve(
        self, app: web.Application, *, idle: float, patience: float = _PATIENCE
    ) -> AsyncIterator[None]:
        """Serve an application while the block runs.

        Beyond the limit of connections, the address with the most loses its oldest idle one.

        Args:
            idle: Seconds after which a connection without a request is closed.
            patience: Seconds after which a connection is closed whose client does not read.
        """
        from aiohttp import web

        runner = web.AppRunner(
            app,
            access_log=None,
            shutdown_timeout=_SHUTDOWN,
            keepalive_timeout=idle,
            **HTTP_OPTIONS,
        )
        await runner.setup()
        accept = runner.server
        assert accept is not None
        connections = _Connections()
        server = await asyncio.get_running_loop().create_server(
            lambda: _Connection(accept(), connections, patience),
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


class _Connections(dict["_Connection", Holder]):
    """The open connections with their addresses, the oldest first."""

    def admit(self, newcomer: Holder) -> bool:
        """Return whether there is room for a connection, after closing another one if needed."""
        if len(self) < _MAX_CONNECTIONS:
            return True
        payer = who_gives_way(Counter(self.values()), newcomer)
        if payer is None:
            return False
        oldest = [opened for opened, holder in self.items() if holder == payer.holder][:_OLDEST]
        victim = next((connection for connection in oldest if connection.is_idle), None)
        if victim is None and payer.at_once:
            victim = oldest[0]
        if victim is None:
            return False
        victim.close()
        return True


class _Connection(asyncio.Protocol):
    """A connection that is counted for its address.

    Args:
        inner: aiohttp's protocol of the connection.
        connections: All connections, to which it adds itself.
        patience: Seconds to wait for a client that does not read.
    """

    def __init__(self, inner: Any, connections: _Connections, patience: float) -> None:
        self._inner = inner
        self._connections = connections
        self._patience = patience
        self._transport: Any = None
        self._wait: asyncio.TimerHandle | None = None

    @property
    def is_idle(self) -> bool:
        """Whether no request is handled."""
        return self._inner._current_request is None

    def close(self) -> None:
        self._connections.pop(self, None)
        self._stop_waiting()
        self._transport.abort()

    def _stop_waiting(self) -> None:
        if self._wait is not None:
            self._wait.cancel()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport
        newcomer = address_of(transport)
        if not self._connections.admit(newcomer):
            self._inner = None
            transport.close()
            return
        self._connections[self] = newcomer
        self._inner.connection_made(transport)

    def connection_lost(self, exc: BaseException | None) -> None:
        self._connections.pop(self, None)
        self._stop_waiting()
        if self._inner is not None:
            self._inner.connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self._inner is not None:
            self._inner.data_received(data)

    def eof_received(self) -> bool | None:
        stay_open: bool | None = self._inner.eof_received() if self._inner is not None else None
        return stay_open

    def pause_writing(self) -> None:
        self._inner.pause_writing()
        self._wait = asyncio.get_running_loop().call_later(self._patience, self.close)

    def resume_writing(self) -> None:
        self._stop_waiting()
        self._inner.resume_writing()


def address_of(transport: asyncio.BaseTransport) -> Holder:
    """Return the holder of a connection whose caller has no proven identity."""
    peer = transport.get_extra_info("peername")
    return Holder("", str(peer[0]) if isinstance(peer, tuple) and peer else "local")


class ArtifactsListener(HttpListener):
    """The port where web pages read a worker's images and audio."""

    noun = "artifacts"
    option = "--artifacts-http"
    path = "/artifacts/"
