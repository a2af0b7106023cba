"""A shutdown finishes calls in flight and announces itself (design.md#calls, leaving)."""

from __future__ import annotations

import asyncio
from typing import Any

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc
from tests.conftest import BOUND
from tests.data_plane.conftest import BOTH_WAYS

from leaseway.v1 import execution_pb2, sync_pb2
from leaseway.wire.errors import Reason

Bench = Any


@BOTH_WAYS
async def test_calls_in_flight_finish_and_new_ones_are_refused(bench: Bench) -> None:
    await bench.serve("time")
    caller = bench.caller()
    call_id, call = await bench.hold_call(caller, "time")
    bench.shutdown.request("a test wants it")
    await caller.until(lambda: any(frame.HasField("going_away") for frame in caller.frames))
    fault = await caller.refused("time")
    assert (fault.reason, fault.started) == (Reason.DRAINING, "no")
    assert call.instance.state == "ready"
    call.answer(b"{}")
    assert (await caller.result(call_id)).payload == b"{}"
    await caller.until(lambda: caller.ended)
    await bench.until(lambda: not bench.servers.live)


def _is_last(caller: Any) -> bool:
    return any(frame.going_away.last for frame in caller.frames)


async def test_a_call_that_crosses_the_goodbye_is_refused_on_an_open_stream(bench: Bench) -> None:
    await bench.serve("time")
    caller = bench.caller()
    caller.says_goodbye = False
    assert (await caller.call("time")).payload
    bench.shutdown.request("a test wants it")
    await caller.until(lambda: _is_last(caller))
    fault = await caller.refused("time")
    assert (fault.reason, fault.started) == (Reason.DRAINING, "no")
    await caller.send(going_away=execution_pb2.GoingAway())
    await caller.until(lambda: caller.ended)
    assert (await caller.stream.code()) is grpc.StatusCode.OK


async def test_a_caller_that_says_no_goodbye_holds_up_no_shutdown(bench: Bench) -> None:
    await bench.serve("time")
    caller = bench.caller()
    caller.says_goodbye = False
    assert (await caller.call("time")).payload
    bench.shutdown.request("a test wants it")
    await caller.until(lambda: caller.ended)
    assert (await caller.stream.code()) is grpc.StatusCode.OK


async def test_an_exchange_opened_during_shutdown_gets_going_away(bench: Bench) -> None:
    await bench.serve("time")
    first = bench.caller()
    await bench.hold_call(first, "time")
    bench.shutdown.request("a test wants it")
    await first.until(lambda: any(frame.HasField("going_away") for frame in first.frames))
    late = bench.caller()
    await late.until(lambda: late.ended)
    assert any(frame.HasField("going_away") for frame in late.frames)
    assert (await bench.acquire_fault(server_id="time")).reason is Reason.DRAINING


async def test_leases_are_revoked_after_the_calls_and_reported(
    bench: Bench,
) -> None:
    await bench.serve("db", shared=False)
    lease = await bench.acquire()
    caller = bench.caller()
    call_id, call = await bench.hold_call(caller, "db", session="s1", lease_id=lease.id)
    bench.shutdown.request("a test wants it")
    await bench.plane.expect_report(lambda report: report.draining)
    assert bench.worker.leases.get(lease.id) is not None
    call.answer(b"{}")
    assert (await caller.result(call_id)).payload == b"{}"
    await bench.until(lambda: not bench.servers.live)


async def test_a_control_plane_that_restarts_meanwhile_gets_no_leases(bench: Bench) -> None:
    await bench.serve("db", shared=False)
    await bench.acquire()
    caller = bench.caller()
    call_id, call = await bench.hold_call(caller, "db", session="s1")
    bench.shutdown.request("a test wants it")
    await caller.until(lambda: any(frame.HasField("going_away") for frame in caller.frames))
    bench.plane.end_stream()
    hello = await bench.plane.hello()
    assert (list(hello.leases), hello.capacity) == ([], 0)
    await bench.plane.expect_report(lambda report: report.draining)
    call.answer(b"{}")
    assert (await caller.result(call_id)).payload == b"{}"


async def test_a_second_signal_does_not_wait_for_calls(bench: Bench) -> None:
    await bench.serve("time")
    caller = bench.caller()
    call_id, _ = await bench.hold_call(caller, "time")
    bench.shutdown.request("once")
    bench.shutdown.request("twice")
    result = await caller.result(call_id)
    assert result.HasField("status")
    await bench.until(lambda: not bench.servers.live)


async def test_a_repeated_drain_and_one_signal_do_not_hurry(bench: Bench) -> None:
    await bench.serve("time")
    caller = bench.caller()
    call_id, call = await bench.hold_call(caller, "time")
    for _ in range(2):
        bench.plane.send(drain=sync_pb2.Drain(reason="an operator asked for it"))
    await caller.until(lambda: any(frame.HasField("going_away") for frame in caller.frames))
    bench.shutdown.request("it received SIGTERM")
    assert not bench.shutdown.hurry.is_set()
    assert bench.shutdown.reason == "drained: an operator asked for it"
    call.answer(b"{}")
    assert (await caller.result(call_id)).payload == b"{}"


async def test_a_worker_is_healthy_from_the_first_delta_to_the_shutdown(
    bench: Bench,
) -> None:
    stub: Any = health_pb2_grpc.HealthStub(bench.channel)
    watching: Any = stub.Watch(
        health_pb2.HealthCheckRequest(service="leaseway.v1.ExecutionService")
    )
    serving = health_pb2.HealthCheckResponse.ServingStatus.Value("SERVING")
    async with asyncio.timeout(BOUND):
        assert (await watching.read()).status != serving
        await bench.serve("time")
        while (await watching.read()).status != serving:
            pass
        await bench.hold_call(bench.caller(), "time")
        bench.shutdown.request("a test wants it")
        while (await watching.read()).status == serving:
            pass
