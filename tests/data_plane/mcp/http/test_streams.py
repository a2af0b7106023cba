"""Streams that break or are refused are asked for again, unless the server has none."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any, cast

import aiohttp
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer
from tests.conftest import BOUND

from leaseway.data_plane.kinds.remote.http import responses
from leaseway.data_plane.kinds.remote.http.endpoint import HttpEndpoint
from leaseway.data_plane.kinds.remote.http.responses import EventReader, GetStream, Unanswered
from leaseway.data_plane.kinds.remote.http.sse_parser import SseEvent
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
