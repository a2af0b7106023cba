"""How the calls on an exchange stream end with it, when its worker has said that it goes away."""

from __future__ import annotations

import asyncio
from typing import Any

import grpc
import pytest
from tests.sdk.helpers import BOUND, until

from leaseway.sdk.transport.exchange import Exchange
from leaseway.v1 import catalog_pb2, execution_pb2
from leaseway.wire.errors import Fault, Reason

HEAD = execution_pb2.Call(server_id="time", tool="now").SerializeToString()


class Stream:
    """A stream of gRPC whose ends and writes a test decides; stands for its channel too."""

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
        if isinstance(message, Exception):
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
    """Return what gRPC reports to the reader where a write met the end of the stream."""
    nothing = grpc.aio.Metadata()
    return grpc.aio.AioRpcError(
        grpc.StatusCode.INTERNAL, nothing, nothing, details="Internal error from Core"
    )


GOODBYE = execution_pb2.ExchangeResponse(going_away=execution_pb2.GoingAway(reason="test"))


class Calls:
    """An exchange on such a stream."""

    def __init__(self) -> None:
        self.stream = Stream()
        channel: Any = self.stream
        ended = asyncio.Event()
        self.exchange = Exchange(
            channel, (), catalog_pb2.ClientInfo(), "w1", lambda exchange: ended.set()
        )

    def begin(self) -> asyncio.Task[Any]:
        deadline = asyncio.get_running_loop().time() + 10 * BOUND
        return asyncio.ensure_future(self.exchange.call(HEAD, b"{}", deadline, "time_now"))


async def fault_of(call: asyncio.Task[Any]) -> Fault:
    async with asyncio.timeout(BOUND):
        with pytest.raises(Fault) as caught:
            await call
    return caught.value


async def test_a_call_that_was_sent_may_have_run_where_a_leaving_worker_is_cut_off() -> None:
    calls = Calls()
    call = calls.begin()
    await until(lambda: calls.stream.calls == [1])
    calls.stream.say(GOODBYE)
    calls.stream.say(write_error())
    fault = await fault_of(call)
    assert (fault.reason, fault.started) == (Reason.FATE_UNKNOWN, "unknown")


async def test_a_call_beyond_the_last_result_of_an_orderly_end_was_not_begun() -> None:
    calls = Calls()
    call = calls.begin()
    await until(lambda: calls.stream.calls == [1])
    calls.stream.say(GOODBYE)
    calls.stream.say(grpc.aio.EOF)
    fault = await fault_of(call)
    assert (fault.reason, fault.started) == (Reason.DRAINING, "no")


async def test_a_call_that_has_not_left_is_kept_from_a_worker_that_goes_away() -> None:
    calls = Calls()
    await until(lambda: len(calls.stream.written) == 1)  # the greeting
    calls.stream.writable.clear()
    first = calls.begin()
    # Its write has begun, and stands still.
    await until(lambda: calls.exchange.pending and not calls.exchange._outbox)
    second = calls.begin()
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
