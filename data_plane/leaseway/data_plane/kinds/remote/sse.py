"""The HTTP+SSE transport of MCP 2024-11-05: an event stream for responses, a POST per message.

POSTs run concurrently over the worker's pool; one that fails affects its own request only. The end
of the stream ends the connection: such servers tie the session to the stream.

The client of `mcp` is not used: with mcp 2.3 under the pull adapter, 14 of 27 tests failed, because
it only logs failed POSTs, drops HTTP statuses, and does not limit the size of messages.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from typing import Final

import aiohttp
from yarl import URL

from leaseway.data_plane.background import shielded
from leaseway.data_plane.core.origin import meant, same_origin
from leaseway.data_plane.kinds.remote.http import errors
from leaseway.data_plane.kinds.remote.http.endpoint import HttpEndpoint, RequestBody
from leaseway.data_plane.kinds.remote.http.sse_parser import (
    SseEvent,
    SseParser,
    SseTooLarge,
    turns,
)
from leaseway.data_plane.mcp.protocol.transport import Receipt, Receiver, Transport
from leaseway.data_plane.outgoing import Outgoing
from leaseway.wire import bounds
from leaseway.wire.errors import Fault, Reason, Started

_logger = logging.getLogger(__name__)
_POST_TIMEOUT: Final = 600.0
"""Seconds for the response of a POST, which servers may delay until the stream has the result."""

_MIN_POST_COST: Final = 8 * bounds.KIB
"""Minimum bytes that a POST counts in the queue: this limits POSTs to 1,024."""

_CLOSE_TIMEOUT: Final = 2.0
_MAX_ENDPOINT: Final = 8 * bounds.KIB
_NOT_ACCEPTED: Final = frozenset({400, 401, 403, 404, 405, 413, 415, 421, 429})
"""Statuses of messages that the server has not accepted."""

_NOT_THERE: Final = frozenset({404, 405})
_MAX_PREFIXES: Final = 4


class SseTransport(Transport):
    """An event stream, and the URL for POSTs that the stream names.

    Raises:
        Fault: SERVER_NOT_READY: the URL or a header is invalid.
    """

    transport_type = "sse"
    stuck = True  # unsent messages wait for a connection to the server

    def __init__(
        self,
        server: str,
        url: str,
        http: aiohttp.ClientSession,
        headers: Mapping[str, str],
        outgoing: Outgoing,
    ) -> None:
        self._server = server
        self._outgoing = outgoing
        self._stream = HttpEndpoint(server, url, http, headers, "", self._outgoing)
        self._http = http
        self._headers = headers
        self._posts: tuple[HttpEndpoint, ...] = ()
        """Where messages may be posted; only the first one once it has accepted one."""
        self._receiver: Receiver
        self._parser = SseParser(bounds.MAX_LINE)
        self._reading: asyncio.Task[None] | None = None
        self._posting: dict[Receipt, asyncio.Task[None]] = {}
        self._waiting = 0
        self._closed = False
        self._closing: asyncio.Task[None] | None = None

    async def connect(self, receiver: Receiver) -> None:
        """Open the stream and wait until it names its endpoint.

        Raises:
            Fault: SERVER_LOST or SERVER_ERROR with the error of the server or the network.
        """
        self._receiver = receiver
        loop = asyncio.get_running_loop()
        endpoint_known: asyncio.Future[None] = loop.create_future()
        self._reading = loop.create_task(self._read(endpoint_known))
        await endpoint_known

    async def disconnect(self, *, hurry: bool = False) -> None:
        """Cancel the stream and all POSTs."""
        self._closed = True
        if self._closing is None:
            self._closing = asyncio.get_running_loop().create_task(self._close())
        await shielded(self._closing)

    # Sending.

    def waiting(self) -> int:
        """Return the bytes of all POSTs in flight, at least 8 KiB each."""
        return self._waiting

    @property
    def lacks_token(self) -> bool:
        return any(endpoint.lacks_token for endpoint in self._posts)

    def send(self, message: bytes, receipt: Receipt) -> None:
        """Post a message concurrently."""
        if self._closed or not self._posts:
            return
        cost = max(len(message), _MIN_POST_COST)
        self._waiting += cost
        task = asyncio.get_running_loop().create_task(self._post(message, receipt))
        before = self._posting.pop(receipt, None)
        if before is not None:
            before.cancel()  # answered on the stream: this is the next round of the call
        self._posting[receipt] = task
        task.add_done_callback(partial(self._posted, receipt, cost))

    def withdraw(self, receipt: Receipt) -> bool:
        """Cancel the POST of a message."""
        task = self._posting.get(receipt)
        if task is None or task.done():
            return False
        task.cancel()
        return not receipt.written

    def _posted(self, receipt: Receipt, cost: int, done: asyncio.Task[None]) -> None:
        self._waiting -= cost
        if self._posting.get(receipt) is done:
            del self._posting[receipt]

    async def _post(self, message: bytes, receipt: Receipt) -> None:
        try:
            async with asyncio.timeout(_POST_TIMEOUT):
                await self._post_somewhere(message, receipt)
        except Fault as fault:
            self._fail(receipt, fault)
        except errors.CONNECTION_ERRORS as error:
            if not (isinstance(error, TimeoutError) and receipt.written):
                broken = errors.broken(self._server, self._stream.url, error, receipt, False)
                self._fail(receipt, broken)
        except Exception:  # the request must be notified of any failure
            _logger.exception("A message to the server %s failed unexpectedly.", self._server)
            self._fail(receipt, errors.unexpected(self._server, receipt))

    async def _post_somewhere(self, message: bytes, receipt: Receipt) -> None:
        """Post a message to the first of the possible endpoints that there is.

        Raises:
            Fault: The message was not accepted.
        """
        endpoints = self._posts
        for endpoint in endpoints:
            body = RequestBody(message, receipt)
            async with await endpoint.request("POST", {}, body) as response:
                if response.status in _NOT_THERE and endpoint is not endpoints[-1]:
                    receipt.written = False
                    continue
                if response.status >= 400:
                    raise await self._post_fault(response)
                self._posts = (endpoint,)
                return

    async def _post_fault(self, response: aiohttp.ClientResponse) -> Fault:
        body = await errors.read_error(self._server, response)
        fault = errors.status_fault(
            self._server, response.status, response.headers, response.url, body
        )
        started: Started = "no" if response.status in _NOT_ACCEPTED else "unknown"
        fault.started = "no" if fault.started == "no" else started
        return fault

    def _fail(self, receipt: Receipt, fault: Fault) -> None:
        if not self._closed:
            self._receiver.failed(receipt, fault)

    # Receiving.

    async def _read(self, endpoint_known: asyncio.Future[None]) -> None:
        """Read the stream to its end; report its endpoint, then its messages."""
        try:
            async with await self._stream.request("GET", {}) as response:
                await self._check(response)
                async for data in response.content.iter_any():
                    for piece in turns(data):
                        events = self._parser.feed(piece)
                        self._handle_events(events, response.url, endpoint_known)
                        if piece is not data:
                            await asyncio.sleep(0)
            fault = self._lost_fault("ended its event stream")
        except SseTooLarge:
            self._receiver.overlong(b"", b"", bounds.MAX_LINE)
            fault = self._lost_fault("sent an event that is too large")
        except Fault as error:
            fault = error
        except errors.CONNECTION_ERRORS as error:
            fault = self._broken(error, endpoint_known.done())
        except Exception:
            _logger.exception("Reading from the server %s failed unexpectedly.", self._server)
            fault = self._lost_fault("sent something unreadable (see the worker's log)")
        self._end(fault, endpoint_known)

    async def _check(self, response: aiohttp.ClientResponse) -> None:
        if response.status >= 400:
            body = await errors.read_error(self._server, response)
            raise errors.status_fault(
                self._server, response.status, response.headers, response.url, body
            )
        if response.content_type != "text/event-stream":
            raise errors.of_unexpected_type(self._server, response)

    def _handle_events(
        self, events: Iterable[SseEvent], stream: URL, endpoint_known: asyncio.Future[None]
    ) -> None:
        messages = []
        for event in events:
            if event.event == "message":
                messages.append(event.data)
            elif event.event == "endpoint" and not self._posts:
                named = self._endpoint_of(event.data, stream)
                self._posts = tuple(
                    HttpEndpoint(
                        self._server, str(target), self._http, self._headers, "", self._outgoing
                    )
                    for target in (named, *_below_prefixes(named, stream))
                )
                if not endpoint_known.done():
                    endpoint_known.set_result(None)
        # Also without messages: comments that keep the stream open are signs of life.
        self._receiver.receive(messages)

    def _endpoint_of(self, data: bytes, stream: URL) -> URL:
        try:
            if len(data) > _MAX_ENDPOINT:
                raise ValueError
            target = meant(stream, stream.join(URL(data.decode().strip())))
            origin = target.origin()
        except ValueError:
            raise errors.unreadable(self._server, "an endpoint that is not a URL") from None
        if same_origin(stream, target):
            return target
        raise Fault(
            Reason.SERVER_ERROR,
            f"The server {self._server} requests messages at {origin}, which is not the origin of "
            f"its url, {stream.origin()}: the headers may contain credentials, so nothing is sent "
            "there. Use a url of that origin if it is the intended server, or let a server "
            "behind a proxy know its public address.",
            metadata={"server": self._server},
        )

    def _end(self, fault: Fault, endpoint_known: asyncio.Future[None]) -> None:
        if not endpoint_known.done():
            endpoint_known.set_exception(fault)
            endpoint_known.exception()  # `connect` may have been cancelled
        elif not self._closed:
            self._closed = True
            self._receiver.lost(fault)

    def _lost_fault(self, problem: str) -> Fault:
        text = f"The server {self._server} {problem}, which ended its session."
        return Fault(Reason.SERVER_LOST, text, metadata={"server": self._server})

    def _broken(self, error: Exception, was_open: bool) -> Fault:
        if not was_open:
            return errors.unreachable(self._server, self._stream.url, error)
        origin = self._stream.url.origin()
        text = (
            f"The event stream of the server {self._server} at {origin} broke: "
            f"{errors.describe_error(error)}."
        )
        return Fault(Reason.SERVER_LOST, text, metadata={"server": self._server})

    async def _close(self) -> None:
        tasks = [*self._posting.values()]
        if self._reading is not None:
            tasks.append(self._reading)
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks, timeout=_CLOSE_TIMEOUT)


def _below_prefixes(named: URL, stream: URL) -> Iterator[URL]:
    """Yield an endpoint below the folders of its stream's path.

    A server behind a proxy that takes a prefix off its paths does not know of it: at `/api/sse` it
    names `/messages`, which is `/api/messages`.
    """
    folders = stream.raw_path.split("/")[1:-1]
    for end in range(len(folders), max(len(folders) - _MAX_PREFIXES, 0), -1):
        prefix = "/" + "/".join(folders[:end])
        if not named.raw_path.startswith(f"{prefix}/"):
            yield URL(f"{named.origin()}{prefix}{named.raw_path_qs}", encoded=True)
