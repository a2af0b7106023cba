"""Reads HTTP responses: JSON, event streams, which may be resumed, and errors.

Also keeps open the GET stream on which a legacy server sends its own requests and notifications.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Final, NamedTuple

import aiohttp
import msgspec
from mcp_types import INVALID_PARAMS, METHOD_NOT_FOUND

from leaseway.data_plane.kinds.remote.http import errors
from leaseway.data_plane.kinds.remote.http.endpoint import (
    HttpEndpoint,
    SessionForgotten,
)
from leaseway.data_plane.kinds.remote.http.refusals import ErrorAnswer, asks_to_wait
from leaseway.data_plane.kinds.remote.http.sse_parser import (
    SseEvent,
    SseParser,
    SseTooLarge,
    is_event_stream,
    is_json,
    turns,
)
from leaseway.data_plane.mcp.protocol.messages.codec import JsonRpcMessage, request_key
from leaseway.data_plane.mcp.protocol.messages.era import Era
from leaseway.data_plane.mcp.protocol.messages.pending import read_error
from leaseway.data_plane.mcp.protocol.messages.reading import (
    SMALL,
    read_body,
    read_repaired,
    response_key,
)
from leaseway.wire.clients.mcp_headers import SESSION_HEADER
from leaseway.wire.errors import Fault
from leaseway.wire.timing.backoff import REOPEN, STEADY_STREAM, Backoff
from leaseway.wire.timing.retry_after import retry_delay

_logger = logging.getLogger(__name__)
_MAX_RESUMES: Final = 2
"""Tries in a row to resume a stream from one event that bring no other, and none that lasts."""

_HELD: Final = 5.0
"""Seconds after which a resumed stream that ends was no failed try: proxies end silent ones."""

_MIN_PAUSE: Final = 0.1
"""Minimum seconds before a stream is resumed."""

_END: Final = 1.0
"""Seconds in which a stream ends after the answer: otherwise its connection is closed."""

_LATE: Final = 2.0
"""Seconds in which an answer comes on another stream that was sent there before."""

_HEAD: Final = 1024
"""Bytes at the start and the end of an event in which an id is looked for."""

_OF_REQUESTS: Final = frozenset({METHOD_NOT_FOUND, INVALID_PARAMS})
_NOT_NOW: Final = frozenset({408, 409, 425, 429})
"""Statuses of a stream that the server may have at another time."""


class EventReader:
    """Reads response streams of one connection, and resumes them.

    `on_message` handles a message for a pending request, given its key. `on_repaired` is called
    when a message had to be repaired, `on_stray` for an event that is none; it returns whether to
    log that.
    """

    def __init__(
        self,
        server: str,
        endpoint: HttpEndpoint,
        on_message: Callable[[object, JsonRpcMessage], None],
        is_pending: Callable[[object], bool],
        on_repaired: Callable[[], None],
        on_stray: Callable[[], bool],
    ) -> None:
        self._server = server
        self._endpoint = endpoint
        self._on_message = on_message
        self._is_pending = is_pending
        self._on_repaired = on_repaired
        self._on_stray = on_stray

    async def read(
        self,
        key: object,
        response: aiohttp.ClientResponse,
        headers: Mapping[str, str],
        *,
        resumable: bool,
    ) -> None:
        """Read until the request is resolved or the stream ends.

        If resumable, the server may close the stream and let us resume it, as often as it likes
        while each stream has a new event or lasts for a while.

        Raises:
            Fault: An event is too large, or not JSON-RPC; or the server refuses to continue.
            aiohttp.ClientError: The stream broke and can't be resumed.
        """
        parser = SseParser(errors.MAX_BODY)
        await self._read_stream(key, response, parser, resumable)
        resumes = 0
        while resumable and resumes < _MAX_RESUMES and self._is_pending(key):
            last_id = parser.last_id
            if last_id is None:
                return
            pause = 1.0 if parser.retry is None else min(parser.retry, 60.0)
            await asyncio.sleep(max(pause, _MIN_PAUSE))
            resume_headers = {**headers, "last-event-id": last_id}
            opened = float("inf")
            try:
                async with await self._endpoint.request("GET", resume_headers) as resumed_stream:
                    if resumed_stream.status >= 400:
                        if resumes + 1 == _MAX_RESUMES:
                            raise await errors.not_continued(self._server, resumed_stream)
                    elif resumed_stream.content_type == "text/event-stream":
                        opened = time.monotonic()
                        await self._read_stream(key, resumed_stream, parser, resumable)
            except errors.CONNECTION_ERRORS:
                if not _has_helped(parser, last_id, opened) and resumes + 1 == _MAX_RESUMES:
                    raise
            except Fault as fault:  # of another request than the one that the server has
                raise replace(fault, started="yes") from None
            resumes = 0 if _has_helped(parser, last_id, opened) else resumes + 1

    async def _read_stream(
        self, key: object, response: aiohttp.ClientResponse, parser: SseParser, resumable: bool
    ) -> None:
        parser.restart()
        try:
            async for data in response.content.iter_any():
                if parser.begins and is_json(data):
                    rest = await errors.read_body(self._server, response)
                    await self.handle_body(key, data + rest)
                    return
                await self._feed(key, parser, data)
                if not self._is_pending(key):
                    await _read_to_end(response)
                    return
            self._handle_last(key, parser.finish())
        except SseTooLarge:
            raise errors.body_too_large(self._server) from None
        except aiohttp.ClientPayloadError:
            if parser.last_id is None or not resumable:
                raise

    async def handle_events(self, key: object, stream: bytes) -> None:
        """Handle the messages of a whole event stream.

        Raises:
            Fault: An event answers the request, but is not JSON-RPC.
        """
        parser = SseParser(errors.MAX_BODY)
        await self._feed(key, parser, stream)
        self._handle_last(key, parser.finish())

    async def _feed(self, key: object, parser: SseParser, data: bytes) -> None:
        """Handle the messages of a part of a stream, in turns with everything else."""
        for piece in turns(data):
            for event in parser.feed(piece):
                await self.handle_event(key, event)
            if piece is not data:
                await asyncio.sleep(0)

    def _handle_last(self, key: object, data: bytes) -> None:
        """Handle the last event of a stream, without the empty line after it, if it is whole."""
        try:
            messages = read_body(data)
        except (ValueError, RecursionError):
            return
        for message in messages:
            if not message.is_none:
                self._on_message(key, message)

    async def handle_event(self, key: object, event: SseEvent) -> None:
        """Handle the message of an event; skip what is none, such as a sign of life.

        Raises:
            Fault: It answers the request, but is not JSON-RPC.
        """
        data = event.data
        if event.event != "message" or not data.strip():
            return
        try:
            messages = await self._read_messages(data)
        except ValueError:
            if key is None or response_key(data[:_HEAD], data[-_HEAD:]) != key:
                self._skip_stray()
                return
            raise errors.unreadable(self._server, "an event that is not JSON-RPC") from None
        for message in messages:
            if message.is_none and (key is None or request_key(message.id) != key):
                self._skip_stray()
            else:
                self._on_message(key, message)

    def _skip_stray(self) -> None:
        if self._on_stray():
            _logger.warning(
                "The server %s sends events that are not JSON-RPC; they are ignored. Signs of life "
                "belong in comments.",
                self._server,
            )

    async def handle_body(self, key: object, data: bytes) -> None:
        """Handle the message, or those of a batch, that are the body of a response.

        Raises:
            Fault: It is not JSON-RPC.
            Unanswered: It is JSON, but no message, such as `{"accepted": true}`.
        """
        try:
            messages = await self._read_messages(data)
        except ValueError:
            raise errors.unreadable(self._server, "a body that is not JSON-RPC") from None
        for message in messages:
            if not message.is_none:
                self._on_message(key, message)
        if any(message.is_none for message in messages):
            fault = errors.unreadable(self._server, "a message that is not JSON-RPC")
            raise Unanswered(fault, is_final=True)

    async def _read_messages(self, data: bytes) -> Sequence[JsonRpcMessage]:
        """Read a message, or those of a batch.

        What must be repaired and is large is read in a thread, so that no other server waits.

        Raises:
            ValueError: It is not JSON-RPC.
        """
        try:
            return read_body(data)
        except (ValueError, RecursionError):
            is_small = len(data) <= SMALL
            repaired = (
                read_repaired(data) if is_small else await asyncio.to_thread(read_repaired, data)
            )
            self._on_repaired()
            return repaired


def _has_helped(parser: SseParser, last_id: str, opened: float) -> bool:
    """Return whether a try to resume a stream brought an event, or a stream that lasted."""
    return parser.last_id != last_id or time.monotonic() - opened > _HELD


class Unanswered(Exception):
    """A request has no answer in its response, and perhaps in another stream.

    Servers on the first versions of the official packages for Ruby and Rust send answers on the GET
    stream, if there is one.

    Attributes:
        fault: That of the request if no stream has the answer.
        is_final: Whether the server has sent the answer before this response.
    """

    def __init__(self, fault: Fault, *, is_final: bool = False) -> None:
        super().__init__()
        self.fault = fault
        self.is_final = is_final


class AnswersElsewhere:
    """Requests whose answers the GET stream must bring while it is open.

    Args:
        is_pending: Whether a request, given its key, has no answer yet.
        fail: Ends a request without one.
        on_failed: Called when requests were ended: the server may no longer know the session.

    Attributes:
        stream: The stream, or None if there is none.
    """

    def __init__(
        self,
        is_pending: Callable[[object], bool],
        fail: Callable[[object, Fault], None],
        on_failed: Callable[[], None],
    ) -> None:
        self.stream: GetStream | None = None
        self._is_pending = is_pending
        self._fail = fail
        self._on_failed = on_failed
        self._faults: dict[object, Fault] = {}

    def expect(self, key: object, unanswered: Unanswered) -> bool:
        """Leave a request pending until the stream ends; return False if it is not open."""
        if not self._is_pending(key):
            return True  # its answer has come before this response
        if self.stream is None or not self.stream.is_open:
            return False
        open_ones = {one: fault for one, fault in self._faults.items() if self._is_pending(one)}
        self._faults = {**open_ones, key: unanswered.fault}
        if unanswered.is_final:
            asyncio.get_running_loop().call_later(_LATE, self._give_up, key)
        return True

    def give_up(self) -> None:
        """End all such requests: the stream has ended."""
        for key in tuple(self._faults):
            self._give_up(key)

    def _give_up(self, key: object) -> None:
        fault = self._faults.pop(key, None)
        if fault is not None and self._is_pending(key):
            self._fail(key, fault)
            self._on_failed()


async def _read_to_end(response: aiohttp.ClientResponse) -> None:
    """Read what follows the answer, for most servers only the end of the stream.

    A connection whose response was not read to its end can't be used for further requests.
    """
    if response.content.is_eof():
        return
    with suppress(TimeoutError, aiohttp.ClientError):
        async with asyncio.timeout(_END):
            async for _ in response.content.iter_any():
                pass


class PostedRequest(NamedTuple):
    """A posted request.

    Attributes:
        session: Its session, or empty if it opens one; the connection may have another one when it
            is answered.
        opens_session: Whether its response may open a session.
        in_session: Whether a refusal may concern the session instead of the request.
    """

    key: object
    headers: Mapping[str, str]
    session: str
    opens_session: bool = False
    in_session: bool = False


class ResponseReader:
    """Reads the HTTP responses of one connection.

    `on_message` handles a message for a pending request, given its key.
    """

    def __init__(
        self,
        server: str,
        endpoint: HttpEndpoint,
        events: EventReader,
        on_message: Callable[[object, JsonRpcMessage], None],
        is_pending: Callable[[object], bool],
    ) -> None:
        self._server = server
        self._endpoint = endpoint
        self._events = events
        self._on_message = on_message
        self._is_pending = is_pending

    async def read(self, posted: PostedRequest, response: aiohttp.ClientResponse, era: Era) -> None:
        """Read a response to its end, or until its request is no longer pending.

        Raises:
            Fault: It is an error, unreadable, or incomplete.
            Unanswered: It is empty, or only confirms the request.
            SessionForgotten: The server does not know the session.
            aiohttp.ClientError: The connection broke.
        """
        if response.status >= 400:
            await self._read_error(posted, response, era)
            return
        if posted.opens_session and SESSION_HEADER in response.headers:
            self._endpoint.open_session(response.headers[SESSION_HEADER])
        if response.content_type == "text/event-stream":
            resumable = not era.modern
            await self._events.read(posted.key, response, posted.headers, resumable=resumable)
        elif response.status == 202 and response.content_type != "application/json":
            raise Unanswered(errors.of_unexpected_type(self._server, response))
        else:
            body = await errors.read_body(self._server, response)
            if is_event_stream(body):
                await self._events.handle_events(posted.key, body)
            elif response.status == 202 and not _has_response(body):
                raise Unanswered(errors.of_unexpected_type(self._server, response))
            elif response.content_type != "application/json" and not _has_response(body):
                raise errors.of_unexpected_type(self._server, response)
            else:
                await self._events.handle_body(posted.key, body)
        if self._is_pending(posted.key):
            fault = errors.ended_early(self._server)
            raise fault if response.content.total_bytes else Unanswered(fault)

    async def _read_error(
        self, posted: PostedRequest, response: aiohttp.ClientResponse, era: Era
    ) -> None:
        body = await errors.read_error(self._server, response)
        message = errors.rpc_error(body)
        if posted.session and _is_unknown_session(response.status, message):
            raise SessionForgotten(errors.not_found(self._server, body))
        fault = errors.status_fault(
            self._server, response.status, response.headers, response.url, body
        )
        if asks_to_wait(fault):
            raise fault  # what is asked for is time, whatever the body calls it
        # Before the end of the handshake, the status is more helpful than the JSON-RPC error.
        unauthorized = response.status in (401, 403) and not era.version
        if message is not None and posted.in_session:
            raise ErrorAnswer(message, response.status)
        if message is not None and not unauthorized:
            # Whatever id it has: official servers say "server-error" for each.
            self._on_message(posted.key, msgspec.structs.replace(message, id=None))
            return
        raise fault


def _has_response(body: bytes) -> bool:
    """Return whether a body is JSON-RPC, whatever its type: many servers state another, or none."""
    try:
        return any(message.is_response for message in read_body(body))
    except (ValueError, RecursionError):
        return False


def _is_unknown_session(status: int, message: JsonRpcMessage | None) -> bool:
    """Return whether an error certainly means an unknown session, as MCP defines: 404.

    Some servers also answer 404 to an unknown method or tool, with the JSON-RPC error.
    """
    if status != 404:
        return False
    return message is None or read_error(message.error).code not in _OF_REQUESTS


class GetStream:
    """Keeps the GET stream of one session open, if the server has one.

    A server that once had the stream is asked for it again however it refuses that: many count a
    stream that a proxy has cut as open for a while, and refuse a second one (409, 400).

    `on_gap` is called when the stream opens and does not continue an earlier one, `on_end` when it
    ends or does not open, `on_expired` when the server may no longer know the session, `on_refused`
    when it refuses a stream that it had.
    `pauses` are those before it is opened again.

    Attributes:
        is_open: Whether it is open, or opens for the first time.
    """

    def __init__(  # noqa: PLR0913 - all that a stream may tell
        self,
        server: str,
        endpoint: HttpEndpoint,
        headers: Mapping[str, str],
        on_event: Callable[[SseEvent], Awaitable[None]],
        on_gap: Callable[[], None],
        on_end: Callable[[], None],
        on_expired: Callable[[], None],
        on_refused: Callable[[], None],
        pauses: Backoff = REOPEN,
    ) -> None:
        self._server = server
        self._endpoint = endpoint
        self._headers = headers
        self._on_event = on_event
        self._on_gap = on_gap
        self._on_end = on_end
        self._on_expired = on_expired
        self._on_refused = on_refused
        self._pauses = pauses
        self.is_open = True
        self._parser = SseParser(errors.MAX_BODY)
        self._was_open = False
        self._is_decided = False
        self._asked_pause = 0.0

    async def run(self) -> None:
        """Read the stream until the server turns out to have none."""
        failures = in_vain = 0
        while True:
            opened, last_id = time.monotonic(), self._parser.last_id
            try:
                if not await self._read_once():
                    return
            except (*errors.CONNECTION_ERRORS, Fault, SseTooLarge) as error:
                _logger.debug("The GET stream of the server %s broke: %s", self._server, error)
            finally:
                self.is_open = False
                self._on_end()
            lasted = time.monotonic() - opened
            failures = 0 if lasted > STEADY_STREAM else failures + 1
            is_vain = self._is_decided and lasted < _HELD and self._parser.last_id == last_id
            in_vain = in_vain + 1 if is_vain else 0
            if in_vain == _MAX_RESUMES:  # the server may no longer know what follows that event
                in_vain, self._parser.last_id = 0, None
            asked = max(self._parser.retry or 0.0, self._asked_pause)
            await asyncio.sleep(max(asked, self._pauses.ceiling(failures)))

    async def _read_once(self) -> bool:
        """Read one stream to its end; return whether to reopen it."""
        parser = self._parser
        self._is_decided = False
        resumed = {"last-event-id": parser.last_id} if parser.last_id is not None else {}
        async with await self._endpoint.request("GET", {**self._headers, **resumed}) as response:
            self._is_decided = response.status < 500 and response.status not in _NOT_NOW
            if response.status == 404 and self._was_open:
                self._on_expired()
            elif response.status >= 400 and self._was_open:
                self._on_refused()
            if response.status >= 400:
                self._asked_pause = min(retry_delay(response.headers) or 0.0, self._pauses.maximum)
                has_stream = self._was_open or response.status in _NOT_NOW
                return has_stream or response.status >= 500
            if response.content_type != "text/event-stream":
                return False
            self.is_open = self._was_open = True
            self._asked_pause = 0.0
            if not resumed:
                self._on_gap()
            parser.restart()
            async for data in response.content.iter_any():
                for piece in turns(data):
                    for event in parser.feed(piece):
                        await self._on_event(event)
                    if piece is not data:
                        await asyncio.sleep(0)
        return True
