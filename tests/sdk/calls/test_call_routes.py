"""The choice of a call's worker, and of the next one after a failure."""

from __future__ import annotations

import asyncio

import pytest
from tests.sdk.fakes import FakeControlPlane, FakeWorker, Gate, never, until

from leaseway.sdk import (
    AsyncClient,
    Draining,
    FateUnknown,
    LeasewayError,
    ToolNotFound,
    WorkerLost,
)
from leaseway.sdk.calls import recovery
from leaseway.wire.errors import Fault, Reason
from leaseway.wire.messages.artifact_refs import artifact_reference, incarnation_mark


@pytest.mark.parametrize(
    "reason", [Reason.DRAINING, Reason.NOT_APPLIED, Reason.OVERLOADED, Reason.TOOL_DIFFERS]
)
async def test_a_call_that_did_not_start_runs_on_another_worker(
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


async def test_a_long_wait_before_the_next_try_is_logged_with_its_cause(
    client: AsyncClient,
    worker: FakeWorker,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(recovery, "_LONG_WAIT", 0.001)
    caplog.set_level("INFO", "leaseway.sdk.waits")
    worker.faults = [Fault(Reason.RATE_LIMITED, "No call is left.", retry_delay=0.001)]
    await client.call_tool("time_now")
    assert [record.getMessage() for record in caplog.records] == [
        "time_now is tried again in 0 seconds: No call is left."
    ]


async def test_an_artifact_is_found_at_a_worker_that_serves_the_tool_only_now(
    client: AsyncClient, plane: FakeControlPlane, worker: FakeWorker, second: FakeWorker
) -> None:
    await client.call_tool("time_now")
    mark = incarnation_mark(second.ref.incarnation)
    kept = artifact_reference("desk", "open", "image/png", mark=mark, stored_at=0.0, noise=1)
    plane.workers = [worker, second]
    worker.faults = [Fault(Reason.ARTIFACT_LOST, "Not here.")] * 10
    for _ in range(4):
        await client.call_tool("time_now", {"file": kept})
    assert (len(worker.calls), len(second.calls)) == (2, 4)


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


async def test_an_unreachable_worker_is_skipped(
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
    # The client may notice the restart only after sending the call, hence an idempotent tool.
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
    worker.answer = gate = Gate()
    running = asyncio.create_task(client.call_tool("time_now", {"on": "its way"}))
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
    gate.open()
    assert (await running).text == '{"on":"its way"}'


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


async def test_a_login_goes_to_a_worker_that_serves_the_named_server_or_to_any(
    client: AsyncClient, plane: FakeControlPlane, worker: FakeWorker, second: FakeWorker
) -> None:
    plane.workers = [worker, second]
    plane.add("mcp_admin", "mcp_login", idempotent=True)
    plane.add("mail", "mcp_login", workers=[second])
    for server_id in ("mail", "mail", "mail", "unknown"):
        await client.call_tool("mcp_admin:mcp_login", {"serverId": server_id})
    assert [call.server_id for call in second.calls[:3]] == ["mcp_admin"] * 3
    assert len(worker.calls) + len(second.calls) == 4


async def test_a_tool_of_a_newer_plane_is_not_taken_for_a_release(
    client: AsyncClient, plane: FakeControlPlane, worker: FakeWorker
) -> None:
    plane.add("mcp_admin", "mcp_other")
    await client.call_tool("mcp_admin:mcp_other", {"serverId": "time"})
    assert [call.server_id for call in worker.calls] == ["mcp_admin"]
    assert not plane.finds
