"""What leased servers tell a client outside of its calls arrives on the client's stream."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import pytest
from tests.conftest import BOUND
from tests.front.harness import Host, front, host

from leaseway.sdk.testing import CallContext, FakeLeaseway

CHANGED = "notifications/tools/list_changed"
COMPLETE = "notifications/elicitation/complete"
LOG = "notifications/message"


def tell(ctx: CallContext, level: str = "", done: str = "") -> str:
    """Tell the client of a log message, or that an elicitation is complete."""
    if level:
        ctx.notify(LOG, {"level": level, "data": level})
    if done:
        ctx.notify(COMPLETE, {"elicitationId": done})
    return ctx.lease_id


@pytest.fixture
def fake() -> Iterator[FakeLeaseway]:
    with FakeLeaseway() as fake:
        fake.server("teller", stateful=True).tool(tell)
        fake.server("shared").tool(name="share")(tell)
        yield fake


@asynccontextmanager
async def stream(client: Host, session: dict[str, str]) -> AsyncIterator[aiohttp.StreamReader]:
    """Open the stream of a session for notifications outside of requests."""
    headers = {"Accept": "text/event-stream", **session}
    async with client.http.get(client.url, headers=headers) as answer:
        assert answer.status == 200
        yield answer.content


async def next_of(events: aiohttp.StreamReader) -> tuple[str, Any]:
    """Return the method and the params of the next notification of a stream."""
    async with asyncio.timeout(BOUND):
        while not (line := await events.readline()).startswith(b"data:"):
            assert line, "the stream has ended"
    message = json.loads(line.removeprefix(b"data:"))
    return message["method"], message["params"]


async def send(client: Host, session: dict[str, str], tool: str = "tell", **arguments: str) -> None:
    result = await client.send("tools/call", {"name": tool, "arguments": arguments}, session)
    assert not result.get("isError"), result


async def test_logs_outside_a_call_reach_their_own_client_from_the_level_that_it_has_set(
    fake: FakeLeaseway,
) -> None:
    async with front(fake) as url, host(url) as client:
        one, other = await client.initialize(), await client.initialize()
        async with stream(client, one) as ones, stream(client, other) as others:
            await send(client, one, level="debug")  # no level is set
            await send(client, one, level="info")
            assert await next_of(ones) == (LOG, {"level": "info", "data": "info"})
            for session in (one, other):
                await client.send("logging/setLevel", {"level": "warning"}, session)
            await send(client, one, level="info")
            await send(client, one, level="error")
            await send(client, other, level="warning")
            assert await next_of(ones) == (LOG, {"level": "error", "data": "error"})
            assert await next_of(others) == (LOG, {"level": "warning", "data": "warning"})


async def test_a_complete_elicitation_waits_for_the_clients_stream(fake: FakeLeaseway) -> None:
    async with front(fake) as url, host(url) as client:
        session = await client.initialize()
        await send(client, session, done="early")
        async with stream(client, session) as events:
            assert await next_of(events) == (COMPLETE, {"elicitationId": "early"})
            await send(client, session, done="late")
            assert await next_of(events) == (COMPLETE, {"elicitationId": "late"})
        async with stream(client, session) as events:
            await send(client, session, done="last")
            assert await next_of(events) == (COMPLETE, {"elicitationId": "last"}), "each once"


async def test_a_changed_list_waits_for_the_clients_stream_unless_it_was_read_since(
    fake: FakeLeaseway,
) -> None:
    async with asyncio.timeout(BOUND), front(fake) as url, host(url) as client:
        away, reading, there = [await client.initialize() for _ in range(3)]
        await client.send("tools/list", {}, there)
        async with stream(client, there) as events:
            fake.server("new").tool(name="fresh")(tell)
            assert (await next_of(events))[0] == CHANGED
        await client.send("tools/list", {}, reading)
        async with stream(client, away) as events:
            assert (await next_of(events))[0] == CHANGED
        async with stream(client, reading) as events:
            await send(client, reading, done="mine")
            assert (await next_of(events))[0] == COMPLETE


async def test_what_a_shared_server_says_outside_a_call_is_nobodys(fake: FakeLeaseway) -> None:
    async with front(fake) as url, host(url) as client:
        session = await client.initialize()
        await client.send("logging/setLevel", {"level": "debug"}, session)
        async with stream(client, session) as events:
            await send(client, session, "share", level="error", done="shared")
            await send(client, session, done="mine")
            assert await next_of(events) == (COMPLETE, {"elicitationId": "mine"})


async def test_a_conversation_of_a_host_is_told_on_the_stream_of_its_connection(
    fake: FakeLeaseway,
) -> None:
    async with front(fake) as url, host(url) as client:
        session = await client.initialize()
        async with stream(client, session) as events:
            params = {"name": "tell", "arguments": {"done": "c"}, "_meta": {"openai/session": "c"}}
            await client.send("tools/call", params, session)
            assert await next_of(events) == (COMPLETE, {"elicitationId": "c"})
