"""Responses over an exchange: chunks, progress, logs, unread results, limits."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Any

import grpc
import pytest
from google.protobuf.struct_pb2 import Struct
from tests.calls import call_message
from tests.conftest import BOUND
from tests.data_plane.conftest import BOTH_WAYS, read_all, rpc_fault, worker_bench

from leaseway.data_plane.services import exchange, replies, streams
from leaseway.identity.principal import Principal, Role
from leaseway.v1 import catalog_pb2, execution_pb2, execution_pb2_grpc
from leaseway.wire import bounds
from leaseway.wire.errors import Fault, Reason
from leaseway.wire.status import fault_from_status

Bench = Any


async def test_large_payloads_are_chunked_and_do_not_delay_small_ones(
    bench: Bench,
) -> None:
    await bench.hold("time")
    caller = bench.caller()
    text = b"x" * (3 * bounds.BATCH_SIZE)
    arguments = b'{"text": "' + text + b'"}'
    caller.results[9] = asyncio.get_running_loop().create_future()
    pieces = [arguments[at : at + bounds.BATCH_SIZE] for at in range(0, len(arguments), 262_144)]
    for piece in pieces[:-1]:
        await caller.send(chunks=[execution_pb2.Chunk(call_id=9, data=piece)])
    await caller.send(
        chunks=[execution_pb2.Chunk(call_id=9, data=pieces[-1], last=True)],
        calls=[call_message(id=9, server_id="time", tool="echo")],
    )
    small = await caller.begin("time")
    large_call, small_call = await bench.wait_for_calls(2)
    assert large_call.request.arguments == arguments
    payload = b'{"content": "' + b"y" * (5 * bounds.BATCH_SIZE) + b'"}'
    large_call.answer(payload)
    small_call.answer(b"{}")
    await caller.result(small)
    assert not caller.results[9].done()
    await caller.result(9)
    assert caller.payloads[9] == payload
    assert all(frame.ByteSize() <= bounds.MAX_MESSAGE for frame in caller.frames)


@BOTH_WAYS
async def test_results_still_arrive_after_the_caller_is_going_away(bench: Bench) -> None:
    await bench.hold("time")
    caller = bench.caller()
    call_id = await caller.begin("time")
    await caller.send(going_away=execution_pb2.GoingAway(reason="done"))
    await bench.wait_for_calls()
    fault = await caller.refused("time")
    assert (fault.reason, fault.started) == (Reason.DRAINING, "no")
    bench.servers.opened[0].calls[0].answer(b"{}")
    assert (await caller.result(call_id)).payload == b"{}"
    await caller.until(lambda: caller.ended)


@BOTH_WAYS
async def test_progress_and_logs_are_sent_only_on_request(bench: Bench) -> None:
    await bench.hold("time")
    caller = bench.caller()
    quiet = await caller.begin("time")
    loud = await caller.begin("time", wants_progress=True, log_level="info")
    first, second = await bench.wait_for_calls(2)
    assert first.request.callbacks.on_progress is None
    assert first.request.callbacks.on_log is None
    assert second.request.callbacks.log_level == "info"
    second.request.callbacks.on_progress(1.0, None, "began")
    second.request.callbacks.on_progress(2.0, 4.0, "half")
    second.request.callbacks.on_log("info", "db", b'"slow"')
    second.answer(b"{}")
    first.answer(b"{}")
    await caller.result(loud)
    await caller.result(quiet)
    seen = [report for frame in caller.frames for report in frame.progress]
    assert [(progress.call_id, progress.progress, progress.message) for progress in seen] == [
        (loud, 1.0, "began"),
        (loud, 2.0, "half"),
    ]
    assert not seen[0].HasField("total")
    assert seen[1].total == 4.0
    (log,) = [log for frame in caller.frames for log in frame.logs]
    assert (log.call_id, log.level, log.logger, log.data) == (loud, "info", "db", b'"slow"')


async def test_a_log_message_above_the_limit_is_dropped_with_a_warning(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    await bench.hold("time")
    caller = bench.caller()
    await caller.begin("time", log_level="info")
    (call,) = await bench.wait_for_calls(1)
    assert call.request.callbacks.on_log is not None
    call.request.callbacks.on_log("info", "", b"1" * bounds.BATCH_SIZE)
    assert "was dropped" not in caplog.text
    call.request.callbacks.on_log("info", "", b"1" * (bounds.BATCH_SIZE + 1))
    assert "of the server time was dropped" in caplog.text
    call.answer(b"{}")


@pytest.mark.parametrize(("count", "size"), [(3, 2 * bounds.MIB), (60, 200 * bounds.KIB)])
async def test_the_stream_of_a_caller_that_does_not_read_is_aborted(
    bench: Bench, monkeypatch: Any, count: int, size: int
) -> None:
    monkeypatch.setattr(replies, "MAX_UNREAD", 4 * bounds.MIB)
    await bench.hold("time")
    stream = bench.execution.Exchange()
    numbers = range(1, count + 2)
    calls = [call_message(id=n, server_id="time", tool="echo") for n in numbers]
    for call in calls:
        call.arguments = b'{"text": "hi"}'
    await stream.write(execution_pb2.ExchangeRequest(calls=calls))
    await bench.until(
        lambda: bench.servers.opened and len(bench.servers.opened[0].calls) == len(calls)
    )
    *answered, left = tuple(bench.servers.opened[0].calls)
    for call in answered:
        call.answer(b'"' + b"x" * size + b'"')
    await bench.until(lambda: left.cancelled)
    assert bench.worker.executor.in_flight == 0

    fault = await rpc_fault(read_all(stream))
    assert (fault.reason, fault.started) == (Reason.OVERLOADED, "unknown")
    assert "does not read" in fault.message


async def unread(bench: Bench, channel: Any, count: int, size: int) -> Any:
    """Open a stream that does not read its results."""
    stream = execution_pb2_grpc.ExecutionServiceStub(channel).Exchange()
    before = len(bench.servers.opened[0].calls)
    calls = [
        call_message(id=n, server_id="time", tool="echo", arguments=b'{"text": "hi"}')
        for n in range(1, count + 2)  # one stays
    ]
    await stream.write(execution_pb2.ExchangeRequest(calls=calls))
    await bench.wait_for_calls(before + len(calls))
    *answered, left = tuple(bench.servers.opened[0].calls)[before:]
    for call in answered:
        call.answer(b'"' + b"x" * size + b'"')
    return left


@pytest.mark.parametrize(("count", "size"), [(8, 3 * bounds.MIB), (100, 240 * bounds.KIB)])
async def test_the_client_with_most_unread_results_loses_its_streams_first(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, count: int, size: int
) -> None:
    monkeypatch.setattr(bounds, "MAX_HELD", 24 * bounds.MIB)
    await bench.serve("time")
    await bench.until(lambda: bench.servers.opened)
    bench.servers.holds = True
    options = (("grpc.use_local_subchannel_pool", 1),)
    async with (
        grpc.aio.insecure_channel(bench.address, options=options) as modest,
        grpc.aio.insecure_channel(bench.address, options=options) as greedy,
    ):
        kept = await unread(bench, modest, 1, bounds.MIB)
        taken = [await unread(bench, greedy, count, size) for _ in range(8)]
        assert not kept.cancelled
        await bench.until(lambda: any(left.cancelled for left in taken))
        exchanges = bench.worker.execution._exchanges
        await bench.until(lambda: exchanges.queued_bytes <= bounds.MAX_HELD)
        assert not kept.cancelled


async def test_unfinished_arguments_count_as_memory_of_a_stream(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bounds, "MAX_HELD", 4 * bounds.MIB)
    stream = bench.execution.Exchange()
    chunk = b"x" * bounds.BATCH_SIZE

    await asyncio.wait_for(stream.read(), BOUND)
    (open_stream,) = bench.worker.execution._exchanges._streams

    async def send() -> None:
        for number in range(20):
            chunks = [execution_pb2.Chunk(call_id=number + 1, data=chunk)]
            await stream.write(execution_pb2.ExchangeRequest(chunks=chunks))

    # Its caller may see another status, as its writes race with the end.
    with suppress(grpc.aio.AioRpcError, asyncio.InvalidStateError):
        await asyncio.wait_for(send(), BOUND)
    replies_of = open_stream._replies
    await bench.until(lambda: replies_of.fault is not None)
    assert replies_of.fault.reason is Reason.OVERLOADED
    assert "unfinished arguments" in replies_of.fault.message


async def test_arguments_of_calls_in_flight_count_as_memory_of_a_stream(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A stream without calls in flight holds no arguments, only the head that it knows again."""
    monkeypatch.setattr(bounds, "MAX_HELD", 4 * bounds.MIB)
    await bench.serve("time")
    await bench.until(lambda: bench.servers.opened)
    bench.servers.holds = True
    stream = bench.execution.Exchange()
    text = b'{"text": "' + b"x" * bounds.BATCH_SIZE + b'"}'
    exchanges = bench.worker.execution._exchanges
    instance = bench.servers.opened[0]

    async def send(numbers: range) -> None:
        for number in numbers:
            call = call_message(id=number, server_id="time", tool="echo", arguments=text)
            await stream.write(execution_pb2.ExchangeRequest(calls=[call]))

    await send(range(1, 11))
    await bench.until(lambda: len(instance.calls) == 10)
    (open_stream,) = exchanges._streams
    assert open_stream.held_bytes >= 10 * len(text)
    for call in tuple(instance.calls):
        call.answer(b"{}")
    await bench.until(lambda: open_stream.held_bytes < bounds.KIB)

    # Its caller may see another status, as its writes race with the end.
    with suppress(grpc.aio.AioRpcError, asyncio.InvalidStateError):
        await asyncio.wait_for(send(range(11, 31)), BOUND)
    replies_of = open_stream._replies
    await bench.until(lambda: replies_of.fault is not None)
    assert replies_of.fault.reason is Reason.OVERLOADED
    assert "arguments of calls in flight" in replies_of.fault.message
    await bench.until(lambda: bench.worker.executor.in_flight == 0)


async def test_the_streams_of_a_connection_are_limited(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Another connection still gets its own."""
    monkeypatch.setattr(bounds, "MAX_STREAMS", 3)
    options = (("grpc.use_local_subchannel_pool", 1),)
    async with (
        worker_bench() as bench,
        grpc.aio.insecure_channel(bench.address, options=options) as greedy,
        grpc.aio.insecure_channel(bench.address, options=options) as modest,
    ):
        stub = execution_pb2_grpc.ExecutionServiceStub(greedy)
        kept = [stub.Exchange() for _ in range(3)]
        for stream in kept:
            first: Any = await asyncio.wait_for(stream.read(), BOUND)
            assert first.HasField("worker")
        fault = await rpc_fault(stub.Exchange().read())
        assert fault.reason is Reason.OVERLOADED
        other = execution_pb2_grpc.ExecutionServiceStub(modest).Exchange()
        first = await asyncio.wait_for(other.read(), BOUND)
        assert first.HasField("worker")


async def test_all_callers_of_a_full_front_have_a_stream_on_its_one_connection() -> None:
    async with worker_bench() as bench, grpc.aio.insecure_channel(bench.address) as channel:
        stub = execution_pb2_grpc.ExecutionServiceStub(channel)
        streams = [stub.Exchange() for _ in range(bounds.MAX_FRONT_CALLERS)]
        async with asyncio.timeout(BOUND):
            greetings: Any = await asyncio.gather(*(stream.read() for stream in streams))
        assert all(greeting.HasField("worker") for greeting in greetings)


async def test_the_calls_on_all_streams_of_a_client_are_limited(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another connection still gets its own; a call that ends makes room for one."""
    monkeypatch.setattr(bounds, "MAX_CLIENT_CALLS", 3)
    await bench.serve("time")
    await bench.until(lambda: bench.servers.opened)
    bench.servers.holds = True
    instance = bench.servers.opened[0]
    options = (("grpc.use_local_subchannel_pool", 1),)

    async def begin(stream: Any, number: int) -> None:
        text = b'{"text": "x"}'
        call = call_message(id=number, server_id="time", tool="echo", arguments=text)
        await stream.write(execution_pb2.ExchangeRequest(calls=[call]))

    async def results(stream: Any) -> list[Any]:
        while True:
            frame = await asyncio.wait_for(stream.read(), BOUND)
            if frame.results:
                return list(frame.results)

    async with (
        grpc.aio.insecure_channel(bench.address, options=options) as greedy,
        grpc.aio.insecure_channel(bench.address, options=options) as modest,
    ):
        stub = execution_pb2_grpc.ExecutionServiceStub(greedy)
        first, second = stub.Exchange(), stub.Exchange()
        await begin(first, 1)
        await begin(first, 2)
        await bench.until(lambda: len(instance.calls) == 2)
        await begin(second, 1)
        await bench.until(lambda: len(instance.calls) == 3)
        await begin(second, 2)
        (refused,) = await results(second)
        fault = fault_from_status(refused.status)
        assert (fault.reason, fault.started) == (Reason.OVERLOADED, "no")

        other = execution_pb2_grpc.ExecutionServiceStub(modest).Exchange()
        await begin(other, 1)
        await bench.until(lambda: len(instance.calls) == 4)

        known = set(instance.calls)
        next(iter(instance.calls)).answer(b"{}")
        await results(first)
        await begin(second, 3)
        await bench.until(lambda: set(instance.calls) - known)
        first.cancel()
        second.cancel()
        other.cancel()
    exchanges = bench.worker.execution._exchanges
    await bench.until(lambda: not exchanges._clients)


async def test_unary_calls_count_towards_the_limit_of_their_client(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bounds, "MAX_CLIENT_CALLS", 2)
    await bench.serve("time")
    await bench.until(lambda: bench.servers.opened)
    bench.servers.holds = True
    instance = bench.servers.opened[0]
    request = execution_pb2.CallToolRequest(
        server_id="time", tool="echo", arguments=_arguments("x"), inline_media=True
    )
    first = bench.execution.CallTool(request)
    await bench.until(lambda: len(instance.calls) == 1)
    streamed = bench.caller()
    await streamed.begin("time")
    await bench.until(lambda: len(instance.calls) == 2)
    fault = await rpc_fault(bench.execution.CallTool(request))
    assert (fault.reason, fault.started) == (Reason.OVERLOADED, "no")
    instance.calls[0].answer(b'{"content":[]}')
    await asyncio.wait_for(first, BOUND)
    again = bench.execution.CallTool(request)
    await bench.until(lambda: len(instance.calls) == 2)
    again.cancel()


def _arguments(text: str) -> Struct:
    arguments = Struct()
    arguments.update({"text": text})
    return arguments


def _caller(tenant: str, agent: str) -> Principal:
    return Principal("key", frozenset({Role.CALLER}), tenant, agent)


def test_the_memory_of_all_agents_of_a_tenant_counts_together(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Two agents of one tenant hold more than the largest stream, which is of another tenant."""
    monkeypatch.setattr(bounds, "MAX_HELD", 10)
    ended: list[str] = []

    class Stream(exchange.ExchangeStream):
        held_bytes = 0
        is_aborted = False

        def __init__(self, who: Principal, held: int) -> None:
            self.name = f"{who.tenant}/{who.agent}"
            self.held_bytes = held
            self.client = streams.client_of(who, "ipv4:127.0.0.1:1")
            self.client_calls = streams.ClientCalls("tenant")

        def abort(self, why: Fault) -> None:
            ended.append(self.name)

    exchanges = exchange.Exchanges(None, None, lambda lease: lease, catalog_pb2.WorkerRef())  # type: ignore[arg-type]
    exchanges._streams = {
        Stream(_caller("modest", "only"), 5),
        Stream(_caller("greedy", "a"), 3),
        Stream(_caller("greedy", "b"), 4),
    }
    exchanges.enforce_memory_limits()
    assert ended == ["greedy/b"]


def test_the_memory_of_all_streams_is_counted_only_after_much_growth(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(bounds, "MAX_CLIENT_HELD", 6_400)
    exchanges = exchange.Exchanges(None, None, lambda lease: lease, catalog_pb2.WorkerRef())  # type: ignore[arg-type]
    counts: list[None] = []
    monkeypatch.setattr(exchanges, "enforce_memory_limits", lambda: counts.append(None))
    for _ in range(7):
        exchanges.record_growth(30)
    assert len(counts) == 1


async def test_results_after_the_writer_has_ended_are_harmless(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The stream's writer has ended, or not begun; its calls still end."""
    monkeypatch.setattr(replies, "MAX_UNREAD", 100)

    class Gone:
        async def write(self, message: bytes) -> None:
            raise asyncio.CancelledError

    for has_ended in (False, True):
        sink = replies.StreamWriter(Gone(), None, lambda lease: lease, None)  # type: ignore[arg-type]
        if has_ended:
            with pytest.raises(asyncio.CancelledError):
                await sink.write(catalog_pb2.WorkerRef())
        for number in range(20):
            sink.reject_call(number, Fault(Reason.OVERLOADED, "x" * 20))
        sink._check(0)
        assert sink.fault is not None
        assert sink.fault.reason is Reason.OVERLOADED
