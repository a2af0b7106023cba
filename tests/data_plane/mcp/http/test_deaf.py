"""A server over HTTP that takes requests and never answers what needs no answer."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING

import pytest
from tests.conftest import BOUND

from leaseway.data_plane.mcp.http import notifications
from leaseway.data_plane.mcp.http.connection import HttpConnection

if TYPE_CHECKING:
    from tests.data_plane.mcp.conftest import Bench

PONG = b'{"jsonrpc":"2.0","id":1,"result":{}}'


@pytest.fixture
async def deaf(bench: Bench) -> AsyncIterator[HttpConnection]:
    """A connection to a server that accepts and stays silent."""
    writers: list[asyncio.StreamWriter] = []
    server = await asyncio.start_server(lambda _, writer: writers.append(writer), "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    connection = HttpConnection("deaf", f"http://127.0.0.1:{port}/mcp", bench.http)
    try:
        yield connection
    finally:
        await connection.aclose()
        server.close()
        for writer in writers:
            writer.close()


async def test_what_a_server_does_not_take_is_given_up(
    deaf: HttpConnection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(notifications, "_POST_TIMEOUT", 0.05)
    deaf._answer(PONG)
    (task,) = deaf._background
    async with asyncio.timeout(BOUND):
        await task
        await deaf.notify("notifications/initialized", None)


async def test_a_flood_of_pings_has_no_more_answers_under_way_than_the_bound(
    deaf: HttpConnection, caplog: pytest.LogCaptureFixture
) -> None:
    for _ in range(200):
        deaf._answer(PONG)
    assert len(deaf._background) == 64
    assert caplog.text.count("does not take what it is told") == 1
