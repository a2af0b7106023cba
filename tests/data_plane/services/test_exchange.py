"""Calls over an exchange: results, refusals, deadlines, cancellation."""

from __future__ import annotations

import asyncio
from typing import Any

import grpc
import pytest
from tests.calls import call_message
from tests.data_plane.conftest import BOTH_WAYS, read_all, rpc_fault
from tests.stall_finder import Stall, StallFinder

from leaseway.v1 import catalog_pb2, execution_pb2
from leaseway.wire import bounds
from leaseway.wire.errors import Fault, Reason
from leaseway.wire.status import fault_from_status

Bench = Any


async def test_a_result_is_what_the_server_sent(bench: Bench) -> None:
    await bench.serve("time")
    caller = bench.caller()
    result = await caller.call("time", arguments=b'{"text": "hello"}')
    assert result.payload == b'{"content":[{"type":"text","text":"{\\"text\\": \\"hello\\"}"}]}'
    assert not result.is_error
    assert not result.HasField("status")
    assert not result.is_new_lease
    assert caller.frames[0].worker.id == "w1"
    assert caller.frames[0].worker.protocol_version == 1


@BOTH_WAYS
async def test_an_error_of_the_tool_is_a_result(bench: Bench) -> None:
    await bench.hold("time")
    caller = bench.caller()
    call_id = await caller.begin("time")
    (await bench.wait_for_calls())[0].answer(b'{"isError":true}', is_error=True)
    result = await caller.result(call_id)
    assert result.is_error
    assert result.payload == b'{"isError":true}'


async def test_arguments_over_their_bound_are_refused_although_in_chunks(bench: Bench) -> None:
    await bench.serve("time")
    caller = bench.caller()
    caller.results[9] = asyncio.get_running_loop().create_future()
    piece = b"x" * bounds.BATCH_SIZE
    for _ in range(bounds.MAX_ARGUMENTS // bounds.BATCH_SIZE):
        await caller.send(chunks=[execution_pb2.Chunk(call_id=9, data=piece)])
    await caller.send(calls=[call_message(id=9, server_id="time", arguments=b"x")])
    result = await caller.result(9)
    assert "4 MiB" in result.status.message


async def test_cancelling_a_chunked_call_frees_its_place(bench: Bench) -> None:
    await bench.serve("time")
    caller = bench.caller()
    piece = b'{"text": "hi"}'
    for call_id in range(100, 132):
        await caller.send(chunks=[execution_pb2.Chunk(call_id=call_id, data=piece)])
    assert (await caller.call("time", id=9, arguments=piece)).payload  # whole, it needs no room
    caller.results[200] = asyncio.get_running_loop().create_future()
    call = call_message(id=200, server_id="time", tool="echo")
    await caller.send(chunks=[execution_pb2.Chunk(call_id=200, data=piece)], calls=[call])
    assert (await caller.result(200)).status.code == grpc.StatusCode.UNAVAILABLE.value[0]
    await caller.send(cancels=[execution_pb2.Cancel(call_id=100)])
    caller.results[201] = asyncio.get_running_loop().create_future()
    call = call_message(id=201, server_id="time", tool="echo")
    await caller.send(chunks=[execution_pb2.Chunk(call_id=201, data=piece)], calls=[call])
    assert (await caller.result(201)).payload


@BOTH_WAYS
async def test_a_passed_deadline_cancels_the_request_at_the_server(bench: Bench) -> None:
    await bench.serve("time")
    await bench.until(lambda: bench.servers.live and bench.servers.live[0].state == "ready")
    bench.servers.holds = True
    fault = await bench.caller().refused("time", timeout_ms=2_000)
    assert (fault.reason, fault.started) == (Reason.DEADLINE_EXCEEDED, "yes")
    assert "deadline" in bench.servers.opened[0].calls[0].cancelled


async def test_a_call_without_a_deadline_has_the_call_timeout_of_its_server(bench: Bench) -> None:
    await bench.hold("time", call_timeout=0.03)
    fault = await bench.caller().refused("time", timeout_ms=0)
    assert fault.reason is Reason.DEADLINE_EXCEEDED


async def test_a_callers_deadline_overrides_the_call_timeout_of_the_server(bench: Bench) -> None:
    await bench.hold("time", call_timeout=0.03)
    caller = bench.caller()
    patient = await caller.begin("time", timeout_ms=60_000)
    assert (await caller.refused("time", timeout_ms=0)).reason is Reason.DEADLINE_EXCEEDED
    await caller.send(cancels=[execution_pb2.Cancel(call_id=patient)])
    ended = fault_from_status((await caller.result(patient)).status)
    assert ended.reason is Reason.CANCELLED


async def test_a_deadline_passes_while_the_server_is_starting(bench: Bench) -> None:
    bench.servers.gate = asyncio.Event()
    await bench.serve("time")
    fault = await bench.caller().refused("time", timeout_ms=30)
    assert (fault.reason, fault.started) == (Reason.DEADLINE_EXCEEDED, "no")


@BOTH_WAYS
async def test_a_cancelled_call_ends_at_once_and_is_cancelled_at_the_server(bench: Bench) -> None:
    await bench.hold("time")
    caller = bench.caller()
    call_id = await caller.begin("time")
    await bench.wait_for_calls()
    await caller.send(cancels=[execution_pb2.Cancel(call_id=call_id, reason="no need")])
    result = await caller.result(call_id)
    assert result.status.code == grpc.StatusCode.CANCELLED.value[0]
    assert bench.servers.opened[0].calls[0].cancelled == "no need"
    assert bench.worker.executor.in_flight == 0


@BOTH_WAYS
async def test_the_end_of_a_stream_cancels_its_calls(bench: Bench) -> None:
    await bench.hold("time")
    caller = bench.caller()
    await caller.begin("time")
    await bench.wait_for_calls()
    caller.close()
    await bench.until(lambda: bench.servers.opened[0].calls[0].cancelled)
    await bench.until(lambda: bench.worker.executor.in_flight == 0)


@pytest.mark.parametrize("call_id", [0, 1])
async def test_a_zero_or_repeated_call_id_ends_the_stream(bench: Bench, call_id: int) -> None:
    await bench.hold("time")
    caller = bench.caller()
    await caller.begin("time")
    await caller.send(calls=[call_message(id=call_id, server_id="time", tool="echo")])
    await caller.until(lambda: caller.ended)
    fault = await rpc_fault(caller._reader)
    assert fault.reason is Reason.INVALID_REQUEST


@BOTH_WAYS
async def test_a_call_at_a_newer_version_waits_for_it(bench: Bench) -> None:
    await bench.serve("time")
    caller = bench.caller()
    call_id = await caller.begin("files", registry_version=2)
    await bench.serve("files")
    assert (await caller.result(call_id)).payload


async def test_a_call_at_a_version_that_never_arrives_is_refused(
    bench: Bench, monkeypatch: Any
) -> None:
    monkeypatch.setattr(bounds, "BEHIND_WAIT", 0.02)
    await bench.serve("time")
    fault = await bench.caller().refused("time", registry_version=9)
    assert (fault.reason, fault.started) == (Reason.NOT_APPLIED, "no")


async def test_an_unsampled_callers_trace_context_reaches_the_server_untouched(
    bench: Bench,
) -> None:
    await bench.hold("time")
    caller = bench.caller()
    parent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-00"
    await caller.begin("time", traceparent=parent, tracestate="a=b")
    await caller.begin("time")
    first, second = await bench.wait_for_calls(2)
    assert first.request.meta == {"traceparent": parent, "tracestate": "a=b"}
    assert second.request.meta is None


async def test_a_crashed_server_fails_calls_in_flight_and_restarts(bench: Bench) -> None:
    await bench.hold("time")
    caller = bench.caller()
    call_id = await caller.begin("time")
    await bench.wait_for_calls()
    bench.servers.opened[0].crash("exit status 3")
    result = await caller.result(call_id)
    assert "exit status 3" in result.status.message
    bench.servers.holds = False
    await bench.until(lambda: len(bench.servers.live) == 1)
    assert (await caller.call("time")).payload


async def test_calls_of_a_failed_server_are_refused_with_the_reason_and_a_delay(
    bench: Bench,
) -> None:
    bench.servers.faults = [Fault(Reason.SERVER_NOT_READY, "no such file")] * 500
    await bench.serve("time")
    await bench.plane.expect_report(lambda report: report.problems)
    fault = await bench.caller().refused("time")
    assert (fault.reason, fault.started) == (Reason.SERVER_NOT_READY, "no")
    assert "no such file" in fault.message
    assert fault.retry_delay is not None


async def test_a_stream_of_an_unsupported_protocol_version_is_refused(bench: Bench) -> None:
    await bench.serve("time")
    stream = bench.execution.Exchange()
    other = catalog_pb2.ClientInfo(protocol_version=99)
    await stream.write(execution_pb2.ExchangeRequest(client=other))
    fault = await rpc_fault(read_all(stream))
    assert fault.reason is Reason.INCOMPATIBLE_VERSION


HOSTILE = {
    "numbers": b'{"text":[' + b"1," * 90_000 + b"1]}",
    "too many numbers": b'{"text":[' + b"1," * 2_000_000 + b"1]}",
    "lists in lists": b'{"text":' + b"[" * 2_000_000 + b"]" * 2_000_000 + b"}",
    "objects": b'{"text":[' + b'{"":[]},' * 40_000 + b"1]}",
    "keys": b"{" + b",".join(b'"%d":1' % number for number in range(45_000)) + b"}",
    "a long text": b'{"text":["' + b"x" * 4_000_000 + b'"]}',
    "a text of escapes": b'{"text":["' + b"\\u0041" * 600_000 + b'"]}',
    "a long number": b'{"text":' + b"9" * 4_000_000 + b"}",
    "half a document": b'{"text":["' + b"x" * 4_000_000,
}


@pytest.mark.parametrize("document", HOSTILE.values(), ids=HOSTILE)
async def test_no_arguments_stall_the_calls_of_another_caller(
    bench: Bench, document: bytes
) -> None:
    """The worker, both callers and their gRPC share this loop: its work is counted, not time."""
    await bench.serve("time")
    hostile, neighbour = bench.caller(), bench.caller()
    assert (await neighbour.call("time")).payload
    assert len(document) <= bounds.MAX_ARGUMENTS
    stalls: list[Stall] = []
    finder = StallFinder(stalls.append)
    finder.start()
    hostile.results[9] = asyncio.get_running_loop().create_future()
    size = bounds.BATCH_SIZE
    for start in range(0, len(document), size):
        chunk = execution_pb2.Chunk(call_id=9, data=document[start : start + size])
        await hostile.send(chunks=[chunk])
    await hostile.send(calls=[call_message(id=9, server_id="time", tool="echo")])
    while not hostile.results[9].done():
        assert (await neighbour.call("time")).payload
    finder.stop()
    assert hostile.results[9].result().HasField("status")
    assert max((min(stall.seconds, stall.busy) for stall in stalls), default=0.0) < 0.4
