"""An exchange stream that fails on the client's own side."""

from __future__ import annotations

import asyncio
from typing import NoReturn

import pytest
from tests.sdk.fakes import BOUND, FakeWorker

from leaseway.sdk import AsyncClient
from leaseway.sdk.transport.workers import WorkerRun


def fail() -> NoReturn:
    raise RuntimeError("no bytes today")


@pytest.mark.usefixtures("plane")
async def test_calls_go_on_over_another_stream_where_writing_failed(
    client: AsyncClient,
    worker: FakeWorker,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    await client.call_tool("time_now")
    ref = worker.ref
    link = client._runtime().pool.link(WorkerRun(ref.id, ref.incarnation, ref.address))
    broken = link.exchange
    monkeypatch.setattr(broken._outbox, "next_batch", fail)
    async with asyncio.timeout(BOUND):
        assert (await client.call_tool("time_now", timeout=BOUND)).text == "{}"
    assert broken.ended
    assert link.exchange is not broken
    assert "The stream to worker w1 failed in this client." in caplog.text
