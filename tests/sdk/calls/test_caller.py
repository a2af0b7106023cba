"""Calls of shared servers, from name to result, over real streams."""

from __future__ import annotations

import asyncio
import json

import pytest
from tests.calls import ReceivedCall
from tests.sdk.fakes import (
    BOUND,
    FakeControlPlane,
    FakeWorker,
    in_thread,
    never,
    text_result,
    until,
)

from leaseway.sdk import (
    AsyncClient,
    Client,
    DeadlineExceeded,
    InvalidArguments,
    ServerError,
    ServerNotReady,
    ToolNotFound,
)
from leaseway.wire.errors import Fault, Reason


async def test_a_call_returns_the_servers_result(client: AsyncClient, worker: FakeWorker) -> None:
    result = await client.call_tool("time_now", {"zone": "UTC"}, timeout=50)
    assert result.text == '{"zone":"UTC"}'
    assert not result.is_error
    assert result.new_lease is None
    call = worker.calls[0]
    assert (call.server_id, call.tool, call.agent) == ("time", "now", "billing")
    assert call.registry_version == 1
    assert 40_000 < call.timeout_ms <= 50_000


async def test_a_qualified_name_works_too(client: AsyncClient) -> None:
    assert (await client.call_tool("time:now")).text == "{}"


async def test_a_call_without_a_timeout_has_a_minute(
    client: AsyncClient, worker: FakeWorker
) -> None:
    await client.call_tool("time_now")
    assert 50_000 < worker.calls[0].timeout_ms <= 60_000


async def test_a_call_without_a_timeout_has_its_servers(
    client: AsyncClient, plane: FakeControlPlane, worker: FakeWorker
) -> None:
    plane.tools["time_now"].call_timeout = 0.05
    worker.answer = never
    with pytest.raises(DeadlineExceeded):
        await client.call_tool("time_now")
    worker.answer = lambda *_: text_result("late")
    assert (await client.call_tool("time_now", timeout=BOUND)).text == "late"
    assert worker.calls[-1].timeout_ms > 4_000


async def test_a_tool_error_is_a_result(client: AsyncClient, worker: FakeWorker) -> None:
    worker.answer = lambda *_: b'{"content": [], "isError": true}'
    result = await client.call_tool("time_now")
    assert result.is_error
    assert len(worker.calls) == 1


async def test_the_first_message_of_a_stream_identifies_the_client(
    client: AsyncClient, worker: FakeWorker
) -> None:
    await client.call_tool("time_now")
    hello = worker.batches[0].client
    assert (hello.protocol_version, hello.agent) == (1, "billing")
    assert hello.package_version.startswith("leaseway-python/")
    assert not any(batch.HasField("client") for batch in worker.batches[1:])


async def test_calls_of_the_same_moment_share_a_message(
    client: AsyncClient, worker: FakeWorker
) -> None:
    await client.call_tool("time_now")
    before = len(worker.batches)
    await asyncio.gather(*(client.call_tool("time_now", {"n": n}) for n in range(100)))
    assert len(worker.batches) == before + 1
    assert worker.streams == 1


async def test_a_thousand_calls_at_once_each_get_their_own_result(
    client: AsyncClient, worker: FakeWorker
) -> None:
    async def late(fake: FakeWorker, call: ReceivedCall, arguments: bytes) -> bytes:
        for _ in range(call.id % 7):
            await asyncio.sleep(0)
        return text_result(arguments.decode())

    worker.answer = late
    results = await asyncio.gather(
        *(client.call_tool("time_now", {"n": n}, timeout=BOUND) for n in range(1000))
    )
    assert [json.loads(result.text)["n"] for result in results] == list(range(1000))


async def test_an_unknown_tool_is_named_in_the_error(client: AsyncClient) -> None:
    with pytest.raises(ToolNotFound, match="'nope'"):
        await client.call_tool("nope")


async def test_a_server_that_is_not_ready_is_not_retried(
    client: AsyncClient, plane: FakeControlPlane
) -> None:
    fault = Fault(Reason.SERVER_NOT_READY, "Server 'time' does not start: no such file.")
    plane.resolve_faults["time_now"] = fault
    with pytest.raises(ServerNotReady, match="no such file"):
        await client.call_tool("time_now")
    assert len(plane.resolves) == 1


async def test_rejections_reach_the_caller_after_one_try(
    client: AsyncClient, worker: FakeWorker
) -> None:
    worker.faults = [
        Fault(Reason.INVALID_ARGUMENTS, "Bad.", violations=(("zone", "is missing"),)),
        Fault(Reason.SERVER_ERROR, "Failed.", "yes", {"code": "-32000"}),
    ]
    with pytest.raises(InvalidArguments) as rejected:
        await client.call_tool("time_now")
    assert rejected.value.violations[0].field == "zone"
    with pytest.raises(ServerError) as failed:
        await client.call_tool("time_now")
    assert (failed.value.code, failed.value.started) == (-32000, "yes")
    assert len(worker.calls) == 2


async def test_a_cancelled_call_is_cancelled_at_the_worker(
    client: AsyncClient, worker: FakeWorker
) -> None:
    worker.answer = never
    task = asyncio.create_task(client.call_tool("time_now"))
    await until(lambda: worker.calls)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await until(lambda: worker.cancels)
    assert worker.cancels[0].call_id == worker.calls[0].id


async def test_the_timeout_ends_a_call_and_cancels_it_at_the_worker(
    client: AsyncClient, worker: FakeWorker
) -> None:
    await client.call_tool("time_now")  # resolves the name
    worker.answer = never
    with pytest.raises(DeadlineExceeded, match="'now' of server 'time'") as caught:
        await client.call_tool("time_now", timeout=1.0)
    assert isinstance(caught.value, TimeoutError)
    assert caught.value.started == "unknown"
    await until(lambda: worker.cancels)


@pytest.mark.parametrize("timeout", [0, -1])
async def test_no_time_at_all_is_a_deadline(client: AsyncClient, timeout: float) -> None:
    with pytest.raises(DeadlineExceeded) as caught:
        await client.call_tool("time_now", timeout=timeout)
    assert caught.value.started == "no"


async def test_an_endless_timeout_is_allowed_and_ends_after_a_day(
    client: AsyncClient, worker: FakeWorker
) -> None:
    assert (await client.call_tool("time_now", timeout=float("inf"))).text == "{}"
    assert 0 <= 24 * 3600 * 1000 - worker.calls[-1].timeout_ms < 60_000  # the limit of a worker


async def test_media_are_asked_for_in_place_by_call_and_stream(
    client: AsyncClient, plane: FakeControlPlane, worker: FakeWorker
) -> None:
    await client.call_tool("time_now")
    await client.call_tool("time_now", inline_media=True)
    await client.call_tool("time_now", inline_media=True, on_progress=print)
    async with client.stream_tool("time_now", inline_media=True) as stream:
        assert [event async for event in stream] == []

    def work() -> None:
        with Client(plane.address) as client:
            client.call_tool("time_now", inline_media=True)

    await in_thread(work)
    assert [call.inline_media for call in worker.calls] == [False, True, True, True, True]
    assert [call.wants_progress for call in worker.calls] == [False, False, True, True, False]
