"""The HTTP+SSE transport of MCP 2024-11-05: one event stream that answers, a POST each message.

POSTs are made concurrently over the worker's pool; one that fails fails its own request. When the
stream ends, the connection does: such servers keep their session with the stream.

`mcp` has a client of this transport, and it is not used: with mcp 2.3 under the pull adapter, 14 of
27 tests failed, as a POST that fails goes to its log and not to its request, a refusal loses its
status, and no message has a bound.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Mapping
from typing import Final

import aiohttp
from yarl import URL

from leaseway.data_plane.background import shielded
from leaseway.data_plane.mcp.http import errors as answers
from leaseway.data_plane.mcp.http.endpoint import HttpEndpoint, RequestBody
from leaseway.data_plane.mcp.http.get_stream import BROKEN
from leaseway.data_plane.mcp.http.sse_parser import SseEvent, SseParser, SseTooLarge
from leaseway.data_plane.mcp.protocol.transport import Receipt, Receiver, Transport
from leaseway.wire import bounds
from leaseway.wire.errors import Fault, Reason, Started

_logger = logging.getLogger(__name__)
_POSTING: Final = 600.0
"""Seconds that a server may leave a POST unanswered, whose answer is on the stream."""

_POST_COST: Final = 8 * bounds.KIB
"""Bytes that a POST under way counts for at least: there are 1,024 at most."""

_FAREWELL: Final = 2.0
_MAX_ENDPOINT: Final = 8 * bounds.KIB
_REFUSED: Final = frozenset({400, 401, 403, 404, 405, 413, 415, 421, 429})
"""Statuses by which a server says that it did not take a message."""


class SseTransport(Transport):
    """An event stream and where it says that messages are to be sent.

    Args:
        server: The server's id, for messages.
        url: The stream's address.
        http: The worker's pooled client.
        headers: Configured headers, resolved; sent with every request.

    Raises:
        Fault: SERVER_NOT_READY: the URL is none, or a header can't be sent.
    """

    def __init__(
        self, server: str, url: str, http: aiohttp.ClientSession, headers: Mapping[str, str]
    ) -> None:
        self._server = server
        self._stream = HttpEndpoint(server, url, http, headers, "")
        self._http = http
        self._headers = headers
        self._posts: HttpEndpoint | None = None
        self._receiver: Receiver
        self._parser = SseParser(bounds.MAX_LINE)
        self._reading: asyncio.Task[None] | None = None
        self._posting: dict[Receipt, asyncio.Task[None]] = {}
        self._waiting = 0
        self._over = False
        self._closing: asyncio.Task[None] | None = None

    @property
    def transport_type(self) -> str:
        return "sse"

    async def connect(self, receiver: Receiver) -> None:
        """Open the stream and wait until it names its endpoint.

        Raises:
            Fault: SERVER_LOST or SERVER_ERROR with what the server, or the network, answered.
        """
        self._receiver = receiver
        loop = asyncio.get_running_loop()
        named: asyncio.Future[None] = loop.create_future()
        self._reading = loop.create_task(self._read(named))
        await named

    async def disconnect(self, *, hurry: bool = False) -> None:
        """End the stream and what is being sent."""
        self._over = True
        if self._closing is None:
            self._closing = asyncio.get_running_loop().create_task(self._say_farewell())
        await shielded(self._closing)

    # Sending.

    def waiting(self) -> int:
        """Return the bytes of all POSTs under way, 8 KiB each at least."""
        return self._waiting

    @property
    def stuck(self) -> bool:
        """True: what was not sent yet waits for a connection to the server."""
        return True

    def send(self, message: bytes, receipt: Receipt) -> None:
        """Post a message, beside all others."""
        if self._over or self._posts is None:
            return
        cost = max(len(message), _POST_COST)
        self._waiting += cost
        task = asyncio.get_running_loop().create_task(self._post(self._posts, message, receipt))
        before = self._posting.pop(receipt, None)
        if before is not None:
            before.cancel()  # the stream has answered it already: the call is made again
        self._posting[receipt] = task
        task.add_done_callback(lambda done: self._posted(done, receipt, cost))

    def withdraw(self, receipt: Receipt) -> bool:
        """Stop posting a message; nobody needs the answer to its POST either."""
        task = self._posting.get(receipt)
        if task is None or task.done():
            return False
        task.cancel()
        return not receipt.written

    def _posted(self, done: asyncio.Task[None], receipt: Receipt, cost: int) -> None:
        self._waiting -= cost
        if self._posting.get(receipt) is done:
            del self._posting[receipt]

    async def _post(self, endpoint: HttpEndpoint, message: bytes, receipt: Receipt) -> None:
        try:
            async with (
                asyncio.timeout(_POSTING),
                await endpoint.request("POST", {}, RequestBody(message, receipt)) as response,
            ):
                if response.status >= 400:
                    raise self._refused(response)
        except Fault as fault:
            self._failed(receipt, fault)
        except BROKEN as error:
            if not (isinstance(error, TimeoutError) and receipt.written):
                broken = answers.broken(self._server, endpoint.url, error, receipt, False)
                self._failed(receipt, broken)
        except Exception:  # whoever waits must learn that it is in vain
            _logger.exception("A message to the server %s failed unexpectedly.", self._server)
            self._failed(receipt, answers.unexpected(self._server, receipt))

    def _refused(self, response: aiohttp.ClientResponse) -> Fault:
        fault = answers.status_fault(self._server, response.status, response.headers, response.url)
        started: Started = "no" if response.status in _REFUSED else "unknown"
        fault.started = "no" if fault.started == "no" else started
        return fault

    def _failed(self, receipt: Receipt, fault: Fault) -> None:
        if not self._over:
            self._receiver.failed(receipt, fault)

    # Receiving.

    async def _read(self, named: asyncio.Future[None]) -> None:
        """Read the stream to its end; tell who waits for its endpoint, then the receiver."""
        try:
            async with await self._stream.request("GET", {}) as response:
                self._check(response)
                async for data in response.content.iter_any():
                    self._take(self._parser.feed(data), response.url, named)
            fault = self._lost("ended its event stream")
        except SseTooLarge:
            self._receiver.overlong(b"", b"", bounds.MAX_LINE)
            fault = self._lost("sent an event that is too large")
        except Fault as error:
            fault = error
        except BROKEN as error:
            fault = self._broken(error, named.done())
        except Exception:
            _logger.exception("Reading from the server %s failed unexpectedly.", self._server)
            fault = self._lost("sent what can't be read (the worker's log says more)")
        self._end(fault, named)

    def _check(self, response: aiohttp.ClientResponse) -> None:
        if response.status >= 400:
            raise answers.status_fault(
                self._server, response.status, response.headers, response.url
            )
        if response.content_type != "text/event-stream":
            what = f"HTTP status {response.status} and content type {response.content_type}"
            raise answers.unreadable(self._server, what)

    def _take(self, events: Iterable[SseEvent], stream: URL, named: asyncio.Future[None]) -> None:
        messages = []
        for event in events:
            if event.event == "message":
                messages.append(event.data)
            elif event.event == "endpoint" and self._posts is None:
                target = self._endpoint_of(event.data, stream)
                self._posts = HttpEndpoint(self._server, str(target), self._http, self._headers, "")
                if not named.done():
                    named.set_result(None)
        # Comments that keep the stream open are signs of life, too.
        self._receiver.receive(messages)

    def _endpoint_of(self, data: bytes, stream: URL) -> URL:
        try:
            if len(data) > _MAX_ENDPOINT:
                raise ValueError
            target = stream.join(URL(data.decode().strip()))
            named = target.origin()
        except ValueError:
            raise answers.unreadable(self._server, "an endpoint that is no URL") from None
        if answers.same_origin(stream, target):
            return target
        raise Fault(
            Reason.SERVER_ERROR,
            f"The server {self._server} wants its messages sent to {named}, which is "
            f"not the origin of its url, {stream.origin()}: its headers may hold credentials, so "
            "nothing is sent there. Use a url of that origin if it is the intended server.",
            metadata={"server": self._server},
        )

    def _end(self, fault: Fault, named: asyncio.Future[None]) -> None:
        if not named.done():
            named.set_exception(fault)
            named.exception()  # nobody may be waiting for it any more
        elif not self._over:
            self._over = True
            self._receiver.lost(fault)

    def _lost(self, what: str) -> Fault:
        text = f"The server {self._server} {what}, and with it its session."
        return Fault(Reason.SERVER_LOST, text, metadata={"server": self._server})

    def _broken(self, error: Exception, was_open: bool) -> Fault:
        if not was_open:
            return answers.unreachable(self._server, self._stream.url, error)
        origin = self._stream.url.origin()
        text = (
            f"The event stream of the server {self._server} at {origin} broke: "
            f"{answers.what_broke(error)}."
        )
        return Fault(Reason.SERVER_LOST, text, metadata={"server": self._server})

    async def _say_farewell(self) -> None:
        tasks = [*self._posting.values()]
        if self._reading is not None:
            tasks.append(self._reading)
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks, timeout=_FAREWELL)
