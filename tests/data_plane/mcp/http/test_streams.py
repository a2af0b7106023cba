"""Streams that break or are refused are asked for again, unless the server has none."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from typing import Any, cast

import aiohttp
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer
from tests.conftest import BOUND

from leaseway.data_plane.kinds.remote.http import errors, responses
from leaseway.data_plane.kinds.remote.http.endpoint import HttpEndpoint
from leaseway.data_plane.kinds.remote.http.responses import EventReader, GetStream, Unanswered
from leaseway.data_plane.kinds.remote.http.sse_parser import SseEvent
from leaseway.data_plane.mcp.host import http_client
from leaseway.data_plane.mcp.protocol.messages.codec import JsonRpcMessage
from leaseway.data_plane.outgoing import Outgoing
from leaseway.wire.errors import Fault, Reason
from leaseway.wire.timing.backoff import Backoff


class Streams:
    """A server that answers GET by the statuses that are planned, one each, the last for ever.

    A stream of status 200 has one event and ends.
    """

    def __init__(self) -> None:
        self.plan: list[int] = []
        self.asked = 0
        self.events: asyncio.Queue[bytes] = asyncio.Queue()
        self.expired = self.refused = 0

    async def get(self, request: web.Request) -> web.StreamResponse:
        """Answer as planned."""
        status = self.plan[min(self.asked, len(self.plan) - 1)]
        self.asked += 1
        if status != 200:
            return web.Response(status=status)
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        await response.write(f"data: {self.asked}\n\n".encode())
        return response

    async def receive(self, event: SseEvent) -> None:
        """Take an event of the client."""
        self.events.put_nowait(event.data)

    def expire(self) -> None:
        """Count that the session may be unknown."""
        self.expired += 1

    def refuse(self) -> None:
        """Count a refusal."""
        self.refused += 1


@pytest.fixture
async def streams(request: pytest.FixtureRequest) -> Streams:
    made: Streams = getattr(request, "param", Streams)()
    return made


@pytest.fixture
async def stream(streams: Streams) -> AsyncIterator[GetStream]:
    """Return the client's side of the server's streams."""
    app = web.Application()
    app.router.add_get("/mcp", streams.get, allow_head=False)
    async with TestServer(app) as running, aiohttp.ClientSession() as http:
        url = str(running.make_url("/mcp"))
        yield GetStream(
            "remote",
            HttpEndpoint("remote", url, http, {}, "session-1", Outgoing()),
            {},
            streams.receive,
            lambda: None,
            lambda: None,
            streams.expire,
            streams.refuse,
            Backoff(initial=0.001, maximum=0.01),
        )


@pytest.mark.parametrize("status", [400, 401, 404, 405, 409, 429, 503])
async def test_a_server_that_had_the_stream_is_asked_again_however_it_refuses_it(
    streams: Streams, stream: GetStream, status: int
) -> None:
    streams.plan = [200, status, status, 200]
    async with asyncio.timeout(BOUND):
        running = asyncio.ensure_future(stream.run())
        assert [await streams.events.get(), await streams.events.get()] == [b"1", b"4"]
        running.cancel()
        await asyncio.wait([running])
    assert (streams.expired, streams.refused) == ((2, 0) if status == 404 else (0, 2))


@pytest.mark.parametrize("status", [408, 409, 425, 429, 502])
async def test_a_stream_that_is_refused_for_a_while_opens_later(
    streams: Streams, stream: GetStream, status: int
) -> None:
    streams.plan = [status, status, 200]
    async with asyncio.timeout(BOUND):
        running = asyncio.ensure_future(stream.run())
        assert await streams.events.get() == b"3"
        running.cancel()
        await asyncio.wait([running])
    assert (streams.expired, streams.refused) == (0, 0)


@pytest.mark.parametrize("status", [400, 401, 404, 405])
async def test_a_server_without_the_stream_is_asked_once(
    streams: Streams, stream: GetStream, status: int
) -> None:
    streams.plan = [status]
    async with asyncio.timeout(BOUND):
        await stream.run()
    assert streams.asked == 1


class Served:
    """The response of an endpoint whose server cuts its first stream, and resumes it by GET.

    Args:
        failures: The tries to resume that do not reach the server.
    """

    content_type = "text/event-stream"
    status = 200

    def __init__(self, failures: int) -> None:
        self.content = self
        self.asked: list[str] = []
        self._failures = failures

    async def request(self, _method: str, headers: dict[str, str]) -> Served:
        """Resume the stream."""
        self.asked.append(headers["last-event-id"])
        if len(self.asked) <= self._failures:
            raise ConnectionRefusedError
        return self

    async def __aenter__(self) -> Served:
        return self

    async def __aexit__(self, *_: object) -> None:
        """Close the response."""

    def is_eof(self) -> bool:
        """Return whether nothing follows."""
        return True

    def at_eof(self) -> bool:
        """Return whether everything was read."""
        return False

    async def iter_any(self) -> AsyncIterator[bytes]:
        """Yield an event without a message, or the answer."""
        if not self.asked:
            yield b"id: 1\nretry: 1\ndata: \n\n"
        else:
            yield b'id: 2\ndata: {"jsonrpc":"2.0","id":7,"result":{}}\n\n'


def reader(served: Served, answers: list[JsonRpcMessage]) -> EventReader:
    return EventReader(
        "remote",
        cast("Any", served),
        lambda _, message: answers.append(message),
        lambda _: not answers,
        lambda: None,
        lambda: False,
    )


async def test_a_stream_is_resumed_after_a_try_that_did_not_reach_the_server() -> None:
    served, answers = Served(failures=1), list[JsonRpcMessage]()
    async with asyncio.timeout(BOUND):
        await reader(served, answers).read(7, cast("Any", served), {}, resumable=True)
    assert [answer.id for answer in answers] == [7]
    assert served.asked == ["1", "1"]


async def test_a_stream_that_no_try_resumes_fails_by_the_last_error() -> None:
    served = Served(failures=5)
    async with asyncio.timeout(BOUND):
        with pytest.raises(ConnectionRefusedError):
            await reader(served, []).read(7, cast("Any", served), {}, resumable=True)
    assert len(served.asked) == 2


class LoggedOut(Served):
    """Loses its login before the stream is resumed."""

    async def request(self, _method: str, headers: dict[str, str]) -> Served:
        raise Fault(Reason.LOGIN_REQUIRED, "The login has expired.")


async def test_a_request_whose_stream_cannot_be_resumed_without_a_login_has_started() -> None:
    served = LoggedOut(failures=0)
    async with asyncio.timeout(BOUND):
        with pytest.raises(Fault, match="expired") as caught:
            await reader(served, []).read(7, cast("Any", served), {}, resumable=True)
    assert caught.value.started == "yes"


class Refusing(Served):
    """Refuses to resume the stream, by an error whose body does not end."""

    async def request(self, method: str, headers: dict[str, str]) -> Served:
        self.status = 410
        return await super().request(method, headers)

    async def iter_any(self) -> AsyncIterator[bytes]:
        if self.asked:
            yield b"That event is too old."
            await asyncio.Event().wait()
        async for data in super().iter_any():
            yield data


async def test_a_refusal_to_continue_a_stream_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(errors, "_ERROR_TIME", 0.01)
    served = Refusing(failures=0)
    async with asyncio.timeout(BOUND):
        with pytest.raises(Fault, match=r"status 410 \(That event is too old\.\)") as caught:
            await reader(served, []).read(7, cast("Any", served), {}, resumable=True)
    assert (caught.value.reason, caught.value.started) == (Reason.SERVER_LOST, "yes")
    assert len(served.asked) == 2


class Breaking(Served):
    """Breaks a resumed stream after a new event."""

    async def iter_any(self) -> AsyncIterator[bytes]:
        if len(self.asked) == 2:
            yield b"id: 2\nretry: 1\ndata: \n\n"
            raise ConnectionResetError
        async for data in super().iter_any():
            yield data


async def test_a_stream_that_breaks_after_a_new_event_is_resumed_from_it() -> None:
    served, answers = Breaking(failures=1), list[JsonRpcMessage]()
    async with asyncio.timeout(BOUND):
        await reader(served, answers).read(7, cast("Any", served), {}, resumable=True)
    assert [answer.id for answer in answers] == [7]
    assert served.asked == ["1", "1", "2"]


async def test_what_is_no_message_in_a_batch_does_not_hide_the_answer_beside_it() -> None:
    answers: list[JsonRpcMessage] = []
    with pytest.raises(Unanswered):
        await reader(Served(failures=0), answers).handle_body(
            7, b'[{"type":"heartbeat"},{"jsonrpc":"2.0","id":7,"result":{}}]'
        )
    assert [answer.id for answer in answers] == [7]


async def test_others_have_their_turn_while_a_whole_stream_of_many_lines_is_read() -> None:
    answers: list[JsonRpcMessage] = []
    answer = b'data: {"jsonrpc":"2.0","id":7,"result":{}}\n\n'
    reading = asyncio.ensure_future(
        reader(Served(failures=0), answers).handle_events(7, b":\n" * 10_000 + answer)
    )
    await asyncio.sleep(0)
    assert not reading.done()
    async with asyncio.timeout(BOUND):
        await reading
    assert [answer.id for answer in answers] == [7]


class Held(Served):
    """Lets three resumed streams end without an event."""

    async def iter_any(self) -> AsyncIterator[bytes]:
        if not 1 <= len(self.asked) <= 3:
            async for data in super().iter_any():
                yield data


@pytest.mark.parametrize(("held", "tries"), [(-1.0, 4), (BOUND, 2)])
async def test_a_stream_that_was_held_open_in_vain_is_resumed_as_often_as_needed(
    monkeypatch: pytest.MonkeyPatch, held: float, tries: int
) -> None:
    monkeypatch.setattr(responses, "_HELD", held)
    served, answers = Held(failures=0), list[JsonRpcMessage]()
    async with asyncio.timeout(BOUND):
        await reader(served, answers).read(7, cast("Any", served), {}, resumable=True)
    assert len(served.asked) == tries
    assert bool(answers) == (tries == 4)


class Lingering(Served):
    """Ends its stream some time after the answer, or never."""

    def __init__(self, *, ends: bool) -> None:
        super().__init__(failures=0)
        self.has_ended = False
        self._ends = ends

    def is_eof(self) -> bool:
        return False

    async def iter_any(self) -> AsyncIterator[bytes]:
        if not self.asked:
            self.asked.append("")
            async for data in super().iter_any():
                yield data
        await (asyncio.sleep(0) if self._ends else asyncio.Event().wait())
        self.has_ended = True


@pytest.mark.parametrize(("ends", "end"), [(True, BOUND), (False, 0.0)])
async def test_a_stream_is_read_to_its_end_if_that_follows_the_answer_soon(
    monkeypatch: pytest.MonkeyPatch, ends: bool, end: float
) -> None:
    # Otherwise its connection is closed, and the next call needs a new one.
    monkeypatch.setattr(responses, "_END", end)
    served, answers = Lingering(ends=ends), list[JsonRpcMessage]()
    async with asyncio.timeout(BOUND):
        await reader(served, answers).read(7, cast("Any", served), {}, resumable=True)
    assert [answer.id for answer in answers] == [7]
    assert served.has_ended == ends


@pytest.fixture
async def begun() -> AsyncIterator[tuple[aiohttp.ClientResponse, asyncio.Event]]:
    """Return a response that has begun, and what ends it by a page without the form of a chunk."""
    ends = asyncio.Event()

    async def serve(_: asyncio.StreamReader, response: asyncio.StreamWriter) -> None:
        response.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\n:\r\n")
        await ends.wait()
        response.write(b"<html>502 Bad Gateway</html>\r\n")
        response.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/mcp"
    async with server, http_client() as http, http.get(url) as response:
        yield response, ends
        ends.set()


async def test_a_body_that_breaks_the_rules_of_http_fails_whoever_reads_it(
    begun: tuple[aiohttp.ClientResponse, asyncio.Event],
) -> None:
    response, ends = begun
    async with asyncio.timeout(BOUND):
        assert await response.content.readany() == b":"
        ends.set()
        with pytest.raises(aiohttp.ClientPayloadError):
            await response.content.readany()


async def test_a_connection_that_a_gateway_may_forget_is_probed_while_it_is_silent(
    begun: tuple[aiohttp.ClientResponse, asyncio.Event],
) -> None:
    connection = begun[0].connection
    assert connection is not None
    assert connection.transport is not None
    opened = connection.transport.get_extra_info("socket")
    assert opened.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
    if hasattr(socket, "TCP_KEEPIDLE"):
        assert opened.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE) <= 60


class Forgetful(Streams):
    """A server that knows no event any more: it refuses to continue after one, or has nothing.

    Attributes:
        status: What it says then.
        asked_for: The ids of events that it was to continue after.
    """

    status = 200

    def __init__(self) -> None:
        super().__init__()
        self.asked_for: list[str | None] = []

    async def get(self, request: web.Request) -> web.StreamResponse:
        """Answer with an event, unless it is to continue."""
        last_id = request.headers.get("last-event-id")
        self.asked_for.append(last_id)
        if self.status != 200 and last_id is not None:
            return web.Response(status=self.status)
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        if last_id is None:
            await response.write(b"id: e1\ndata: 1\n\n")
        return response


@pytest.mark.parametrize("status", [200, 400, 404])
@pytest.mark.parametrize("streams", [Forgetful], indirect=True)
async def test_a_stream_that_does_not_continue_after_an_event_is_opened_anew(
    streams: Forgetful, stream: GetStream, status: int
) -> None:
    streams.status = status
    async with asyncio.timeout(BOUND):
        running = asyncio.ensure_future(stream.run())
        assert [await streams.events.get(), await streams.events.get()] == [b"1", b"1"]
        running.cancel()
        await asyncio.wait([running])
    assert streams.asked_for[:4] == [None, "e1", "e1", None]
