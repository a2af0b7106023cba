"""Calls of shared servers, from name to result, over real streams."""

from __future__ import annotations

import asyncio
import json

import pytest
from tests.sdk.fakes import BOUND, FakeControlPlane, FakeWorker, never, text_result, until

from leaseway.sdk import (
    AsyncClient,
    Cancelled,
    ControlPlaneUnavailable,
    DeadlineExceeded,
    Draining,
    FateUnknown,
    IncompatibleVersion,
    InvalidArguments,
    LeasewayError,
    ResultTooLarge,
    ServerError,
    ServerNotReady,
    ToolNotFound,
    Unauthenticated,
    WorkerLost,
)
from leaseway.v1 import execution_pb2
from leaseway.wire.bounds import BATCH_SIZE, MAX_ARGUMENTS, MAX_CALLS_IN_FLIGHT, MAX_RESULT
from leaseway.wire.fault import Fault
from leaseway.wire.reasons import Reason


async def test_a_call_returns_what_the_server_said(client: AsyncClient, worker: FakeWorker) -> None:
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


async def test_the_first_message_of_a_stream_says_who_calls(
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
    async def late(fake: FakeWorker, call: execution_pb2.Call, arguments: bytes) -> bytes:
        for _ in range(call.id % 7):
            await asyncio.sleep(0)
        return text_result(arguments.decode())

    worker.answer = late
    results = await asyncio.gather(
        *(client.call_tool("time_now", {"n": n}, timeout=BOUND) for n in range(1000))
    )
    assert [json.loads(result.text)["n"] for result in results] == list(range(1000))


async def test_arguments_above_a_batch_travel_in_chunks(
    client: AsyncClient, worker: FakeWorker
) -> None:
    text = "x" * (3 * BATCH_SIZE)
    result = await client.call_tool("time_now", {"text": text}, timeout=BOUND)
    assert json.loads(result.text)["text"] == text
    assert sum(len(batch.chunks) for batch in worker.batches) == 4


async def test_the_largest_arguments_arrive(client: AsyncClient, worker: FakeWorker) -> None:
    worker.answer = lambda fake, call, arguments: text_result(str(len(arguments)))
    text = "x" * (MAX_ARGUMENTS - len('{"text":""}'))
    assert (await client.call_tool("time_now", {"text": text})).text == str(MAX_ARGUMENTS)
    with pytest.raises(InvalidArguments):
        await client.call_tool("time_now", {"text": text + "x"})
    assert len(worker.calls) == 1


async def test_small_calls_pass_a_large_one(client: AsyncClient, worker: FakeWorker) -> None:
    await client.call_tool("time_now")
    large = asyncio.create_task(client.call_tool("time_now", {"text": "x" * (8 * BATCH_SIZE)}))
    await asyncio.sleep(0)
    await client.call_tool("time_now", {"small": 1})
    assert [call.id for call in worker.calls] == [1, 3]
    await large


async def test_results_above_a_batch_travel_in_chunks(
    client: AsyncClient, worker: FakeWorker
) -> None:
    worker.answer = lambda *_: text_result("x" * 5_000_000)
    assert (await client.call_tool("time_now", timeout=BOUND)).text == "x" * 5_000_000


async def test_a_result_over_its_bound_fails_alone(client: AsyncClient, worker: FakeWorker) -> None:
    worker.answer = lambda *_: b'"' + b"x" * MAX_RESULT + b'"'
    with pytest.raises(ResultTooLarge) as caught:
        await client.call_tool("time_now", timeout=BOUND)
    assert caught.value.started == "yes"
    worker.answer = lambda *_: text_result("small")
    assert (await client.call_tool("time_now")).text == "small"


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


async def test_the_timeout_ends_a_call_and_tells_the_worker(
    client: AsyncClient, worker: FakeWorker
) -> None:
    await client.call_tool("time_now")  # what a first call has to look up is known now
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
    assert 0 <= 24 * 3600 * 1000 - worker.calls[-1].timeout_ms < 60_000  # what a worker allows


async def test_at_most_1024_calls_are_in_flight_and_the_others_follow_in_order(
    client: AsyncClient, worker: FakeWorker
) -> None:
    gate = asyncio.Event()

    async def gated(fake: FakeWorker, call: execution_pb2.Call, arguments: bytes) -> bytes:
        await gate.wait()
        return text_result(arguments.decode())

    worker.answer = gated
    total = MAX_CALLS_IN_FLIGHT + 50
    tasks = [
        asyncio.create_task(client.call_tool("time_now", {"n": n}, timeout=BOUND))
        for n in range(total)
    ]
    await until(lambda: len(worker.calls) >= MAX_CALLS_IN_FLIGHT)
    for _ in range(20):
        await asyncio.sleep(0)
    assert len(worker.calls) == MAX_CALLS_IN_FLIGHT
    gate.set()
    results = await asyncio.gather(*tasks)
    assert [json.loads(result.text)["n"] for result in results] == list(range(total))
    assert [json.loads(call.arguments)["n"] for call in worker.calls] == list(range(total))


async def test_a_call_that_finds_no_room_in_time_was_never_sent(
    client: AsyncClient, worker: FakeWorker
) -> None:
    worker.answer = never
    tasks = [asyncio.create_task(client.call_tool("time_now")) for _ in range(MAX_CALLS_IN_FLIGHT)]
    await until(lambda: len(worker.calls) == MAX_CALLS_IN_FLIGHT)
    with pytest.raises(DeadlineExceeded, match="waited for room") as caught:
        await client.call_tool("time_now", timeout=0.02)
    assert caught.value.started == "no"
    tasks[0].cancel()
    worker.answer = lambda *_: text_result("room again")
    assert (await client.call_tool("time_now", timeout=BOUND)).text == "room again"
    for task in tasks:
        task.cancel()


async def test_an_unknown_tool_is_refused_by_name(client: AsyncClient) -> None:
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


@pytest.mark.parametrize(
    "reason", [Reason.DRAINING, Reason.NOT_APPLIED, Reason.OVERLOADED, Reason.TOOL_DIFFERS]
)
async def test_what_did_not_start_is_run_by_another_worker(
    client: AsyncClient,
    plane: FakeControlPlane,
    worker: FakeWorker,
    second: FakeWorker,
    reason: Reason,
) -> None:
    plane.workers = [worker, second]
    worker.faults = [Fault(reason, "Not here.")] * 10
    for _ in range(4):
        assert (await client.call_tool("time_now", {"a": 1})).text == '{"a":1}'
    assert len(second.calls) == 4


async def test_tries_end_after_the_fifth(client: AsyncClient, worker: FakeWorker) -> None:
    worker.faults = [Fault(Reason.DRAINING, "Going.", retry_delay=0.001)] * 10
    with pytest.raises(Draining):
        await client.call_tool("time_now")
    assert len(worker.calls) == 5


async def test_calls_spread_over_workers(
    client: AsyncClient, plane: FakeControlPlane, worker: FakeWorker, second: FakeWorker
) -> None:
    plane.workers = [worker, second]
    await asyncio.gather(*(client.call_tool("time_now") for _ in range(20)))
    assert (len(worker.calls), len(second.calls)) == (10, 10)


async def test_a_busy_worker_gets_no_more_while_another_is_idle(
    client: AsyncClient, plane: FakeControlPlane, worker: FakeWorker, second: FakeWorker
) -> None:
    plane.workers = [worker, second]
    worker.answer = never
    stuck = [asyncio.create_task(client.call_tool("time_now")) for _ in range(2)]
    await until(lambda: worker.calls and second.calls)
    done = len(second.calls)
    for _ in range(5):
        await client.call_tool("time_now")
    assert len(second.calls) == done + 5
    for task in stuck:
        task.cancel()


async def test_a_worker_that_nobody_reaches_is_passed_over(
    client: AsyncClient, plane: FakeControlPlane, worker: FakeWorker, second: FakeWorker
) -> None:
    plane.workers = [worker, second]
    await worker.stop()
    for _ in range(4):
        assert (await client.call_tool("time_now")).text == "{}"


async def test_without_any_worker_a_call_fails_as_not_started(
    client: AsyncClient, worker: FakeWorker
) -> None:
    await worker.stop()
    with pytest.raises(WorkerLost) as caught:
        await client.call_tool("time_now")
    assert caught.value.started == "no"


async def test_the_fate_of_a_call_on_a_lost_stream_is_unknown(
    client: AsyncClient, plane: FakeControlPlane, worker: FakeWorker, second: FakeWorker
) -> None:
    worker.answer = never
    task = asyncio.create_task(client.call_tool("time_now"))
    await until(lambda: worker.calls)
    plane.workers = [second]
    await worker.stop()
    with pytest.raises(FateUnknown) as caught:
        await task
    assert caught.value.started == "unknown"
    assert second.calls == []


@pytest.mark.parametrize("hint", ["idempotent", "read_only"])
async def test_a_harmless_tool_is_repeated_once_after_a_lost_stream(
    client: AsyncClient,
    plane: FakeControlPlane,
    worker: FakeWorker,
    second: FakeWorker,
    hint: str,
) -> None:
    setattr(plane.tools["time_now"], hint, True)
    worker.answer = never
    task = asyncio.create_task(client.call_tool("time_now"))
    await until(lambda: worker.calls)
    plane.workers = [second]
    await worker.stop()
    assert (await task).text == "{}"
    assert len(second.calls) == 1


async def test_a_harmless_tool_is_not_repeated_twice(
    client: AsyncClient, plane: FakeControlPlane, worker: FakeWorker
) -> None:
    plane.tools["time_now"].idempotent = True
    worker.faults = [Fault(Reason.SERVER_LOST, "Died.", "unknown")] * 5
    with pytest.raises(LeasewayError) as caught:
        await client.call_tool("time_now")
    assert caught.value.reason is Reason.SERVER_LOST
    assert len(worker.calls) == 2


async def test_a_restarted_worker_is_called_again(
    client: AsyncClient, plane: FakeControlPlane, worker: FakeWorker
) -> None:
    # The client may notice only when it has sent the call, hence a harmless tool.
    plane.tools["time_now"].idempotent = True
    await client.call_tool("time_now")
    await worker.stop()
    await worker.start("two")
    assert (await client.call_tool("time_now")).text == "{}"
    assert worker.streams == 2


async def test_calls_leave_a_worker_that_goes_away(
    client: AsyncClient, plane: FakeControlPlane, worker: FakeWorker, second: FakeWorker
) -> None:
    await client.call_tool("time_now")
    plane.workers = [worker, second]
    gate = asyncio.Event()

    async def gated(fake: FakeWorker, call: execution_pb2.Call, arguments: bytes) -> bytes:
        await gate.wait()
        return text_result("finished")

    worker.answer = gated
    running = asyncio.create_task(client.call_tool("time_now"))
    await until(lambda: len(worker.calls) == 2)
    worker.go_away()
    worker.faults = [Fault(Reason.DRAINING, "Going away.")] * 10
    for _ in range(3):
        await client.call_tool("time_now")
    refused = len(worker.calls)
    for _ in range(3):
        await client.call_tool("time_now")
    assert len(worker.calls) == refused
    assert len(second.calls) == 6
    gate.set()
    assert (await running).text == "finished"


async def test_a_moved_tool_is_resolved_once_more(
    client: AsyncClient, plane: FakeControlPlane, worker: FakeWorker
) -> None:
    await client.call_tool("time_now")
    plane.tools["time_now"].server_id = "clock"
    worker.faults = [Fault(Reason.TOOL_NOT_FOUND, "No server 'time'.")]
    assert (await client.call_tool("time_now")).text == "{}"
    assert [call.server_id for call in worker.calls] == ["time", "time", "clock"]


async def test_a_removed_tool_is_not_found(
    client: AsyncClient, plane: FakeControlPlane, worker: FakeWorker
) -> None:
    await client.call_tool("time_now")
    worker.faults = [Fault(Reason.TOOL_NOT_FOUND, "No such tool.")] * 5
    with pytest.raises(ToolNotFound):
        await client.call_tool("time_now")
    assert len(worker.calls) == 3
    assert len(plane.resolves) == 2


async def test_the_key_goes_with_every_rpc(plane: FakeControlPlane, worker: FakeWorker) -> None:
    async with AsyncClient(plane.address, key="s3cret") as client:
        await client.list_tools()
        await client.call_tool("time_now")
        assert "s3cret" not in repr(client)
    assert plane.metadata[-1]["authorization"] == "Bearer s3cret"
    assert worker.metadata["authorization"] == "Bearer s3cret"


async def test_a_refused_stream_says_why(client: AsyncClient, worker: FakeWorker) -> None:
    worker.stream_fault = Fault(Reason.UNAUTHENTICATED, "The key is wrong.")
    with pytest.raises(Unauthenticated, match="key is wrong"):
        await client.call_tool("time_now")


async def test_another_protocol_version_is_refused(client: AsyncClient, worker: FakeWorker) -> None:
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
