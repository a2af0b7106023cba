"""The end of exchange streams, and of the calls on them."""

from __future__ import annotations

import asyncio
from typing import Any, NoReturn

import grpc
import pytest
from tests.calls import call_message
from tests.sdk.fakes import BOUND, FakeWorker, until

from leaseway.sdk import AsyncClient
from leaseway.sdk.transport.exchange import GrpcExchange
from leaseway.sdk.transport.workers import WorkerRun
from leaseway.v1 import catalog_pb2, execution_pb2, leases_pb2
from leaseway.wire.errors import Fault, Reason

HEAD = call_message(server_id="time", tool="now").SerializeToString()


class Stream:
    """A gRPC stream whose reads and writes the test controls; also used as its channel."""

    def __init__(self) -> None:
        self.written: list[execution_pb2.ExchangeRequest] = []
        self.writable = asyncio.Event()
        self.writable.set()
        self._to_read: asyncio.Queue[Any] = asyncio.Queue()

    def stream_stream(self, *how: object, **more: object) -> Any:
        return lambda metadata: self

    async def wait_for_connection(self) -> None:
        pass

    async def initial_metadata(self) -> None:
        pass

    def say(self, message: Any) -> None:
        self._to_read.put_nowait(message)

    async def read(self) -> Any:
        message = await self._to_read.get()
        if isinstance(message, BaseException):
            raise message
        return message

    async def write(self, data: bytes) -> None:
        await self.writable.wait()
        self.written.append(execution_pb2.ExchangeRequest.FromString(data))

    def cancel(self) -> None:
        pass

    @property
    def calls(self) -> list[int]:
        return [call.id for message in self.written for call in message.calls]


def write_error() -> grpc.aio.AioRpcError:
    """Return the error that the reader gets if a write met the end of the stream."""
    nothing = grpc.aio.Metadata()
    return grpc.aio.AioRpcError(
        grpc.StatusCode.INTERNAL, nothing, nothing, details="Internal error from Core"
    )


GOODBYE = execution_pb2.ExchangeResponse(going_away=execution_pb2.GoingAway(reason="test"))


class Calls:
    """An exchange on a controlled stream."""

    def __init__(self) -> None:
        self.stream = Stream()
        channel: Any = self.stream
        ended = asyncio.Event()
        self.exchange = GrpcExchange(
            channel, (), catalog_pb2.ClientInfo(), "w1", lambda exchange: ended.set()
        )

    def start(self) -> asyncio.Task[Any]:
        deadline = asyncio.get_running_loop().time() + 10 * BOUND
        return asyncio.ensure_future(self.exchange.call(HEAD, b"{}", deadline, "time_now"))


async def fault_of(call: asyncio.Task[Any]) -> Fault:
    async with asyncio.timeout(BOUND):
        with pytest.raises(Fault) as caught:
            await call
    return caught.value


async def test_a_sent_call_may_have_run_if_the_stream_of_a_draining_worker_broke() -> None:
    calls = Calls()
    call = calls.start()
    await until(lambda: calls.stream.calls == [1])
    calls.stream.say(GOODBYE)
    calls.stream.say(write_error())
    fault = await fault_of(call)
    assert (fault.reason, fault.started) == (Reason.FATE_UNKNOWN, "unknown")


async def test_a_call_without_a_result_was_not_started_if_the_stream_ended_normally() -> None:
    calls = Calls()
    call = calls.start()
    await until(lambda: calls.stream.calls == [1])
    calls.stream.say(GOODBYE)
    calls.stream.say(grpc.aio.EOF)
    fault = await fault_of(call)
    assert (fault.reason, fault.started) == (Reason.DRAINING, "no")


async def test_a_stream_that_ends_with_a_replaced_connection_closes_no_client() -> None:
    calls = Calls()
    call = calls.start()
    await until(lambda: calls.stream.calls == [1])
    calls.stream.say(asyncio.CancelledError())  # as gRPC says it
    fault = await fault_of(call)
    assert (fault.reason, fault.started) == (Reason.FATE_UNKNOWN, "unknown")


async def test_after_the_last_result_the_client_says_goodbye_and_sends_nothing_more() -> None:
    calls = Calls()
    crossing = calls.start()
    await until(lambda: calls.stream.calls == [1])
    last = execution_pb2.GoingAway(last=True)
    calls.stream.say(execution_pb2.ExchangeResponse(going_away=last))
    await until(lambda: calls.stream.written[-1].HasField("going_away"))
    with pytest.raises(Fault) as caught:
        await calls.exchange.keep_alive(["lease"], ["session"])
    assert caught.value.reason is Reason.DRAINING
    assert not crossing.done()
    crossing.cancel()
    await asyncio.wait([crossing])
    calls.stream.say(grpc.aio.EOF)
    await until(lambda: calls.exchange.ended)
    assert calls.stream.written[-1].HasField("going_away")


def renewed(*leases: str) -> execution_pb2.ExchangeResponse:
    """Return the answer to keep-alives of leases."""
    renewals = [leases_pb2.LeaseRenewal(lease_id=lease) for lease in leases]
    return execution_pb2.ExchangeResponse(
        keep_alive=leases_pb2.KeepAliveResponse(renewals=renewals)
    )


@pytest.mark.parametrize("at_once", [False, True])
async def test_the_late_answer_to_a_keep_alive_that_was_given_up_is_none_to_the_next(
    at_once: bool,
) -> None:
    calls = Calls()
    given_up = asyncio.create_task(calls.exchange.keep_alive(["a", "b"], ["s", "s"]))
    await until(lambda: len(calls.stream.written) == 2)  # the greeting, the keep-alive
    given_up.cancel()
    await asyncio.wait([given_up])
    renewal = asyncio.create_task(calls.exchange.keep_alive(["b", "c"], ["s", "s"]))
    await until(lambda: len(calls.stream.written) == 3)
    if at_once:  # as one batch of the worker arrives
        calls.stream.say(renewed("a", "b", "b", "c"))
    else:
        calls.stream.say(renewed("a", "b"))
        calls.stream.say(renewed("b", "c"))
    async with asyncio.timeout(BOUND):
        answer = await renewal
    assert [item.lease_id for item in answer.renewals] == ["b", "c"]
    assert calls.exchange.idle


async def test_an_unsent_call_is_not_sent_to_a_draining_worker() -> None:
    calls = Calls()
    await until(lambda: len(calls.stream.written) == 1)  # the greeting
    calls.stream.writable.clear()
    first = calls.start()
    # Its write has started, and blocks.
    await until(lambda: calls.exchange.pending and not calls.exchange._outbox)
    second = calls.start()
    await until(lambda: len(calls.exchange.pending) == 2)
    calls.stream.say(GOODBYE)
    fault = await fault_of(second)
    assert (fault.reason, fault.started) == (Reason.DRAINING, "no")
    calls.stream.writable.set()
    await until(lambda: calls.stream.calls == [1])
    assert not first.done()
    await calls.exchange.close()
    assert (await fault_of(first)).started == "unknown"
    assert calls.stream.calls == [1]


def fail() -> NoReturn:
    raise RuntimeError("no bytes today")


@pytest.mark.usefixtures("plane")
async def test_calls_use_another_stream_after_a_failed_write(
    client: AsyncClient,
    worker: FakeWorker,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    await client.call_tool("time_now")
    ref = worker.ref
    link = client._runtime().pool.link(WorkerRun(ref.id, ref.incarnation, ref.address))
    broken = link.exchange
    assert isinstance(broken, GrpcExchange)
    monkeypatch.setattr(broken._outbox, "next_batch", fail)
    async with asyncio.timeout(BOUND):
        assert (await client.call_tool("time_now", timeout=BOUND)).text == "{}"
    assert broken.ended
    assert link.exchange is not broken
    assert "The stream to worker w1 failed in this client." in caplog.text
