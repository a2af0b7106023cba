"""Connections to the control plane and to workers: credentials, rejections, closing."""

from __future__ import annotations

import asyncio

import pytest
from tests.sdk.fakes import BOUND, FakeControlPlane, FakeWorker, never, until

from leaseway.sdk import (
    AsyncClient,
    Cancelled,
    ControlPlaneUnavailable,
    IncompatibleVersion,
    Unauthenticated,
)
from leaseway.sdk.transport.identity import ClientIdentity
from leaseway.sdk.transport.workers import WorkerPool, WorkerRun
from leaseway.wire.errors import Fault, Reason


async def test_the_key_is_sent_with_every_rpc(plane: FakeControlPlane, worker: FakeWorker) -> None:
    async with AsyncClient(plane.address, key="s3cret") as client:
        await client.list_tools()
        await client.call_tool("time_now")
        assert "s3cret" not in repr(client)
    assert plane.metadata[-1]["authorization"] == "Bearer s3cret"
    assert worker.metadata["authorization"] == "Bearer s3cret"


async def test_a_rejected_stream_gives_the_reason(client: AsyncClient, worker: FakeWorker) -> None:
    worker.stream_fault = Fault(Reason.UNAUTHENTICATED, "The key is wrong.")
    with pytest.raises(Unauthenticated, match="key is wrong"):
        await client.call_tool("time_now")


async def test_another_protocol_version_is_rejected(
    client: AsyncClient, worker: FakeWorker
) -> None:
    worker.protocol_version = 99
    worker.answer = never
    with pytest.raises(IncompatibleVersion, match="99"):
        await client.call_tool("time_now")


async def test_closing_fails_calls_in_flight_as_cancelled(
    plane: FakeControlPlane, worker: FakeWorker
) -> None:
    client = AsyncClient(plane.address)
    worker.answer = never
    task = asyncio.create_task(client.call_tool("time_now"))
    await until(lambda: worker.calls)
    await client.close()
    with pytest.raises(Cancelled):
        await task
    await until(lambda: worker.open_streams == 0)


async def test_closing_fails_what_waits_for_a_plane_as_cancelled(
    plane: FakeControlPlane, worker: FakeWorker
) -> None:
    client = AsyncClient(plane.address)
    acquiring = asyncio.create_task(client.session("one").acquire("desk"))
    worker.answers_acquires.clear()
    await until(lambda: worker.acquires)
    plane.hold_place, plane.mute = asyncio.Event(), True
    placed = len(plane.places)
    calling = asyncio.create_task(client.session("two").call_tool("desk_open"))
    asking, asked = asyncio.create_task(client.status()), asyncio.Event()
    plane.on_status = asked.set
    await until(lambda: len(plane.places) > placed)
    await asked.wait()
    await client.close()
    for waiting in (acquiring, calling, asking):
        with pytest.raises(Cancelled, match="The client was closed"):
            await waiting
    worker.answers_acquires.set()


async def test_known_tools_are_called_without_a_control_plane(
    client: AsyncClient, plane: FakeControlPlane
) -> None:
    await client.call_tool("time_now")
    await plane.stop()
    for _ in range(3):
        assert (await client.call_tool("time_now")).text == "{}"
    loop = asyncio.get_running_loop()
    begun = loop.time()
    with pytest.raises(ControlPlaneUnavailable, match="cannot be reached"):
        await client.call_tool("time:now", timeout=2 * BOUND)
    assert loop.time() - begun < BOUND


async def test_an_unreachable_control_plane_is_named() -> None:
    async with AsyncClient("127.0.0.1:1") as client:
        with pytest.raises(ControlPlaneUnavailable, match=r"127\.0\.0\.1:1 .*LEASEWAY_ADDRESS"):
            await client.call_tool("time_now", timeout=BOUND)


async def test_a_closed_pool_opens_no_stream_for_a_late_call() -> None:
    """A call that waited while its client was closed fails at once, not at its timeout."""
    pool = WorkerPool(ClientIdentity("127.0.0.1:1", "", "", None))
    worker = WorkerRun("w1", "run", "127.0.0.1:1")
    link = pool.link(worker)

    await pool.close()

    for open_stream in (lambda: pool.link(worker), lambda: link.exchange):
        with pytest.raises(Fault) as raised:
            open_stream()
        assert (raised.value.reason, raised.value.started) == (Reason.CANCELLED, "no")


async def test_a_replaced_stream_forgets_nothing_of_its_worker() -> None:
    pool = WorkerPool(ClientIdentity("127.0.0.1:1", "", "", None))
    try:
        link = pool.link(WorkerRun("w1", "run", "127.0.0.1:1"))
        deadline = asyncio.get_running_loop().time() + BOUND
        call = asyncio.create_task(link.exchange.call(b"", b"{}", deadline, "tool 'now'"))
        await asyncio.sleep(0)
        link.exchange.suspect = True
        pool.replace_streams()
        assert (link.suspect, link.load) == (True, 1)
        latest = link.exchange
        latest.going_away = True
        pool.replace_streams()
        assert link.draining
        assert link.exchange is latest
    finally:
        await pool.close()
    with pytest.raises(Fault):
        await call
