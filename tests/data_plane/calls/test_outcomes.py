"""The recorded outcome of a call is the one that its caller saw, whoever noticed it first."""

from __future__ import annotations

import grpc
import pytest
from tests.data_plane.conftest import Bench, Caller

from leaseway.data_plane.calls.recent import PastCall
from leaseway.v1 import execution_pb2
from leaseway.wire.errors import Reason

_TIMED_OUT = "DEADLINE_EXCEEDED"


def failed(bench: Bench) -> list[PastCall]:
    recent = bench.worker.executor.recent
    assert recent is not None
    return recent.select("failed", limit=100, now=0.0)


async def outcome(bench: Bench) -> str:
    """Return how the only failed call ended, once it has."""
    await bench.until(lambda: failed(bench))
    (call,) = failed(bench)
    return call.outcome


async def jam(bench: Bench) -> Caller:
    """Occupy the only turn of a server."""
    await bench.serve("time", max_calls=1)
    caller = bench.caller()
    await bench.hold_call(caller, "time")
    return caller


@pytest.mark.parametrize("waits", [True, False])
async def test_a_call_whose_caller_timed_out_is_recorded_as_timed_out(
    bench: Bench, waits: bool
) -> None:
    if waits:
        caller = await jam(bench)
        call_id = await caller.begin("time", timeout_ms=60_000)
        await bench.until(lambda: bench.worker.executor.waiting == 1)
    else:
        await bench.serve("time")
        caller = bench.caller()
        call_id, _ = await bench.hold_call(caller, "time", timeout_ms=60_000)
    cancel = execution_pb2.Cancel(call_id=call_id, reason="It timed out.", timed_out=True)
    await caller.send(cancels=[cancel])
    assert await outcome(bench) == _TIMED_OUT


async def test_a_call_that_its_caller_gives_up_is_recorded_as_cancelled(bench: Bench) -> None:
    caller = await jam(bench)
    call_id = await caller.begin("time", timeout_ms=60_000)
    await bench.until(lambda: bench.worker.executor.waiting == 1)
    await caller.send(cancels=[execution_pb2.Cancel(call_id=call_id)])
    assert await outcome(bench) == "CANCELLED"


async def test_a_unary_call_whose_deadline_passes_is_recorded_as_timed_out(bench: Bench) -> None:
    await jam(bench)
    call = execution_pb2.CallToolRequest(server_id="time", tool="echo")
    call.arguments.update({"text": "x"})
    with pytest.raises(grpc.aio.AioRpcError) as raised:
        await bench.execution.CallTool(call, timeout=0.3)
    assert raised.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED
    assert await outcome(bench) == _TIMED_OUT


async def test_a_call_that_timed_out_in_a_queue_did_not_work_on_its_server(bench: Bench) -> None:
    caller = await jam(bench)
    fault = await caller.refused("time", timeout_ms=30)
    assert (fault.reason, fault.started) == (Reason.DEADLINE_EXCEEDED, "no")
    (call,) = failed(bench)
    assert "waiting for its turn" in [phase.name for phase in call.phases]
    assert "the server works" not in [phase.name for phase in call.phases]


async def test_calls_of_a_stream_that_the_worker_ends_have_the_reason_of_its_end(
    bench: Bench,
) -> None:
    await bench.hold("time")
    caller = bench.caller()
    await caller.begin("time", id=7)
    await bench.wait_for_calls()
    await caller.begin("time", id=7)  # an id in use ends the stream
    assert await outcome(bench) == "INVALID_REQUEST"
