"""What clients' HTTP libraries do, and what clients say by it, beside MCP itself."""

from __future__ import annotations

import asyncio
import gc
import json
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any
from urllib.parse import urlsplit

import pytest
from tests.conftest import BOUND
from tests.front.harness import INFO, MODERN, front, host

from leaseway.front.http.request_checks import HttpError
from leaseway.sdk.testing import FakeLeaseway

STREAMS_ONLY = {"Accept": "text/event-stream", "Content-Type": "application/json"}
PING = b'{"jsonrpc":"2.0","id":1,"method":"ping"}'


@pytest.fixture
def fake() -> Iterator[FakeLeaseway]:
    with FakeLeaseway() as fake:
        server = fake.server("shared")

        @server.tool
        def greet() -> str:
            """Greet."""
            return "Hello."

        yield fake


def _message(method: str, **params: Any) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}


async def test_a_client_that_accepts_only_streams_gets_each_result_as_one(
    fake: FakeLeaseway,
) -> None:
    hello = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": INFO}
    async with front(fake) as url, host(url) as client:
        session: dict[str, str] = {}
        for message in (
            _message("initialize", **hello),
            _message("tools/list"),
            _message("tools/call", name="greet"),
            _message("tools/call", name="greet"),  # whose head is known
        ):
            headers = {**STREAMS_ONLY, **session}
            async with client.http.post(url, json=message, headers=headers) as answer:
                assert answer.content_type == "text/event-stream"
                event, data, *rest = (await answer.text()).split("\n")
                if message["method"] == "initialize":
                    session = {"Mcp-Session-Id": answer.headers["Mcp-Session-Id"]}
            assert (answer.status, event, rest) == (200, "event: message", ["", ""])
            assert "result" in json.loads(data.removeprefix("data: "))


async def test_a_client_that_accepts_only_streams_reads_a_refusal_by_its_status(
    fake: FakeLeaseway,
) -> None:
    async with front(fake) as url, host(url) as client:
        headers = {**STREAMS_ONLY, "Mcp-Session-Id": "gone"}
        async with client.http.post(url, data=PING, headers=headers) as answer:
            assert (answer.status, answer.content_type) == (404, "application/json")


async def test_a_client_whose_session_has_ended_reads_an_error_by_which_it_begins_another(
    fake: FakeLeaseway,
) -> None:
    async with front(fake) as url, host(url) as client:
        session = await client.initialize()
        async with client.http.delete(url, headers=session) as ended:
            assert ended.status == 204
        for method in ("POST", "GET", "DELETE"):
            headers = {**STREAMS_ONLY, **session}
            async with client.http.request(method, url, data=PING, headers=headers) as answer:
                body = await answer.json()
                assert (answer.status, body["error"]["code"], body["id"]) == (404, -32001, None)


async def test_a_request_whose_session_is_not_found_is_kept_by_no_cycle(fake: FakeLeaseway) -> None:
    wrong: tuple[tuple[str, dict[str, Any]], ...] = (
        ("Mcp-Session-Id", {}),
        ("Leaseway-Session", {"_meta": MODERN}),
    )
    async with front(fake) as url, host(url) as client:
        gc.collect()
        gc.disable()
        try:
            for name, params in wrong:
                with pytest.raises(LookupError, match=r"[Uu]nknown"):
                    await client.send("ping", params, {name: "x"})
            assert not [held for held in gc.get_objects() if isinstance(held, HttpError)]
        finally:
            gc.enable()


async def test_a_session_goes_on_if_its_client_sends_the_newest_version_that_it_knows(
    fake: FakeLeaseway,
) -> None:
    async with front(fake) as url, host(url) as client:
        newest = {**await client.initialize(), "MCP-Protocol-Version": "2026-07-28"}
        for _ in range(2):  # also with a head that is known
            headers = {**STREAMS_ONLY, **newest}
            async with client.http.post(url, data=PING, headers=headers) as answer:
                assert "result" in await answer.text()
        stream = {"Accept": "text/event-stream", **newest}
        async with client.http.get(url, headers=stream) as opened:
            assert opened.status == 200
        async with client.http.delete(url, headers=newest) as ended:
            assert ended.status == 204


async def test_a_stream_for_notifications_begins_at_once_for_proxies_that_hold_heads(
    fake: FakeLeaseway,
) -> None:
    async with front(fake) as url, host(url) as client:
        headers = {"Accept": "text/event-stream", **await client.initialize()}
        async with asyncio.timeout(BOUND), client.http.get(url, headers=headers) as stream:
            assert await stream.content.readuntil(b"\n\n") == b": ping\n\n"


class Wire:
    """A connection to a front."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer

    def send(self, *headers: str, body: bytes = b"") -> None:
        """Send the head of a POST with the length of a ping, and a body or nothing."""
        lines = ["POST /mcp HTTP/1.1", "Host: localhost", "Content-Type: application/json"]
        head = "\r\n".join([*lines, f"Content-Length: {len(PING)}", *headers, "", ""])
        self._writer.write(head.encode() + body)

    def send_body(self) -> None:
        self._writer.write(PING)

    async def read(self) -> bytes:
        """Return the status line of the next response, of which the rest is read."""
        async with asyncio.timeout(BOUND):
            head = await self._reader.readuntil(b"\r\n\r\n")
            for line in head.lower().split(b"\r\n"):
                if line.startswith(b"content-length:"):
                    await self._reader.readexactly(int(line.split(b":")[1]))
        return head.partition(b"\r\n")[0]


@asynccontextmanager
async def _wire(url: str) -> AsyncIterator[Wire]:
    address = urlsplit(url)
    reader, writer = await asyncio.open_connection(address.hostname, address.port)
    try:
        yield Wire(reader, writer)
    finally:
        writer.close()


async def test_a_client_that_waits_to_send_its_body_is_told_to(fake: FakeLeaseway) -> None:
    async with front(fake) as url, _wire(url) as wire:
        for _ in range(2):  # also with a head that is known
            wire.send("Expect: 100-Continue")
            assert await wire.read() == b"HTTP/1.1 100 Continue"
            wire.send_body()
            assert await wire.read() == b"HTTP/1.1 200 OK"
        wire.send(body=PING)
        assert await wire.read() == b"HTTP/1.1 200 OK"


async def test_a_client_that_waits_to_send_its_body_is_refused_without_it(
    fake: FakeLeaseway,
) -> None:
    async with front(fake, key="k") as url, _wire(url) as wire:
        wire.send("Expect: 100-continue")
        assert (await wire.read()).startswith(b"HTTP/1.1 401 ")


async def test_another_expectation_is_refused(fake: FakeLeaseway) -> None:
    async with front(fake) as url, _wire(url) as wire:
        wire.send("Expect: 200-ok", body=PING)
        assert (await wire.read()).startswith(b"HTTP/1.1 417 ")
