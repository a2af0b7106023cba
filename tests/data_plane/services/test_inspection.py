"""What a worker tells operators about its calls in flight."""

from __future__ import annotations

from tests.data_plane.conftest import Bench

from leaseway.v1 import admin_pb2, sync_pb2
from leaseway.wire.errors import Reason


async def traffic(bench: Bench) -> dict[str, admin_pb2.Traffic]:
    bench.plane.send(inspect=sync_pb2.Inspect(id=1, traffic=True))
    inspected: sync_pb2.Inspected = await bench.plane.expect("inspected")
    return {each_traffic.server_id: each_traffic for each_traffic in inspected.traffic}


async def test_a_jammed_server_is_reported_before_any_of_its_calls_has_ended(bench: Bench) -> None:
    await bench.serve("time", max_calls=1)
    await bench.serve("idle")
    caller = bench.caller()
    await bench.hold_call(caller, "time")
    for _ in range(3):
        await caller.begin("time")
    await bench.until(lambda: bench.worker.executor.waiting == 3)
    found = await traffic(bench)
    assert list(found) == ["time"]
    assert (found["time"].in_flight, found["time"].waiting, found["time"].calls) == (4, 3, 0)
    assert found["time"].oldest_wait.ToNanoseconds() > 0
    [held] = bench.servers.opened[0].calls
    held.answer(b"{}")
    await bench.until(lambda: bench.worker.executor.in_flight == 3)
    found = await traffic(bench)
    assert (found["time"].in_flight, found["time"].waiting, found["time"].calls) == (3, 2, 1)


async def test_a_server_that_a_refused_call_invents_is_not_told(bench: Bench) -> None:
    caller = bench.caller()
    fault = await caller.refused("invented", session="x" * 5_000)
    assert fault.reason is Reason.INVALID_REQUEST
    assert await traffic(bench) == {}
