"""A client whose connection was cut continues the stream of its running call."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import pytest
from tests.conftest import BOUND
from tests.front.harness import ACCEPT, Host, front, host

from leaseway.front.http import streams
from leaseway.front.http.resumption import ResumableStream
from leaseway.sdk.testing import CallContext, FakeLeaseway

CALL = {
    "jsonrpc": "2.0",
    "id": 7,
    "method": "tools/call",
    "params": {"name": "work", "arguments": {}, "_meta": {"progressToken": "p"}},
}


class Worker:
    """A server whose tool reports progress and then waits to be let go on."""

    def __init__(self, fake: FakeLeaseway) -> None:
        self.loop = asyncio.get_running_loop()
        self.go_on = asyncio.Event()
        server = fake.server("worker")

        @server.tool
        async def work(ctx: CallContext) -> str:
            """Work."""
            ctx.progress(1, 2)
            await asyncio.wrap_future(
                asyncio.run_coroutine_threadsafe(self.go_on.wait(), self.loop)
            )
            ctx.progress(2, 2)
            return "done"


async def events(answer: aiohttp.ClientResponse) -> AsyncIterator[tuple[str, Any]]:
    """Read the events of a stream: their ids and messages, None for an event without data."""
    event_id, data = "", ""
    async for line in answer.content:
        name, _, value = line.decode().strip().partition(": ")
        if name == "id":
            event_id = value
        elif name == "data":
            data = value
        elif not line.strip() and event_id:
            yield event_id, json.loads(data) if data else None
            data = ""


async def start(client: Host, version: str) -> tuple[dict[str, str], list[tuple[str, Any]]]:
    """Call the tool and cut the connection at its first progress; return the events until then."""
    session = {**ACCEPT, **await client.initialize(version=version)}
    found = []
    async with client.http.post(client.url, json=CALL, headers=session) as answer:
        async for event in events(answer):
            found.append(event)
            if event[1] is not None:
                break
        answer.close()
    return session, found


@pytest.mark.parametrize("version", ["2025-03-26", "2025-06-18", "2025-11-25"])
async def test_a_cut_stream_is_resumed_with_what_was_missed(version: str) -> None:
    with FakeLeaseway() as fake:
        worker = Worker(fake)
        async with asyncio.timeout(BOUND), front(fake) as url, host(url) as client:
            session, found = await start(client, version)
            worker.go_on.set()
            for last_event, _ in found:  # also a second time, and from its begin
                headers = {**session, "Last-Event-ID": last_event}
                async with client.http.get(url, headers=headers) as answer:
                    assert answer.status == 200
                    missed = [data async for _, data in events(answer)]
                assert missed[-1]["result"]["content"][0]["text"] == "done"
            assert [data["params"]["progress"] for data in missed[:-1]] == [2]


async def test_an_event_of_another_session_or_an_unknown_one_resumes_nothing() -> None:
    with FakeLeaseway() as fake:
        worker = Worker(fake)
        async with asyncio.timeout(BOUND), front(fake) as url, host(url) as client:
            session, found = await start(client, "2025-11-25")
            other = {**ACCEPT, **await client.initialize()}
            last_event = found[-1][0]
            attempts = [(other, last_event), (session, "x-1"), (session, f"{last_event}x")]
            for headers, event_id in [*attempts, (session, ""), (session, f"{last_event}-9")]:
                sent = {**headers, "Last-Event-ID": event_id}
                async with client.http.get(url, headers=sent) as answer:
                    assert answer.status == 400
                    assert "not known here" in await answer.text()
            worker.go_on.set()


@pytest.mark.parametrize("version", ["2025-06-18", "2025-11-25"])
async def test_a_stream_that_opens_before_the_first_message_begins_with_an_id(
    version: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(streams, "PING", 0.01)
    with FakeLeaseway() as fake:
        worker = Worker(fake)
        async with asyncio.timeout(BOUND), front(fake) as url, host(url) as client:
            session = {**ACCEPT, **await client.initialize(version=version)}
            call = {**CALL, "params": {"name": "work", "arguments": {}}}
            async with client.http.post(url, json=call, headers=session) as answer:
                worker.go_on.set()
                found = [data async for _, data in events(answer)]
            assert found[-1]["result"]["content"][0]["text"] == "done"
            assert (None in found) == (version == "2025-11-25")


async def test_the_oldest_notifications_make_room_and_no_response_is_lost() -> None:
    stream = ResumableStream("s", primes=False)
    stream.put(b"{}", keep=True)
    for number in range(1000):
        assert stream.put(b'{"n":%d}' % number)
    stream.put(b"x" * 4_000_000, keep=True)
    kept = [item.data for item in stream._events]
    assert b"{}" in kept[0]
    assert kept[-1].endswith(b"x" * 4_000_000 + b"\n\n")
    assert len(kept) <= 257
