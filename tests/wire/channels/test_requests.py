"""Reading of requests, and what failed RPCs leave in memory."""

from __future__ import annotations

import asyncio
import gc
import weakref
from typing import Any

import grpc
import pytest
from tests.conftest import BOUND

from leaseway.v1 import catalog_pb2
from leaseway.wire.channels.requests import OpenReads, read_request, release
from leaseway.wire.errors import Fault, Reason
from leaseway.wire.messages.decoding import DEFAULT_LIMIT, MessageDecoder

DECODE = MessageDecoder("Check", catalog_pb2.ListToolsRequest.FromString, DEFAULT_LIMIT)
REQUEST = catalog_pb2.ListToolsRequest(tenant="acme")


class Sender:
    """A context whose client sends when the test says so."""

    def __init__(self) -> None:
        self.sent: asyncio.Future[Any] = asyncio.get_running_loop().create_future()

    async def read(self) -> Any:
        return await self.sent


async def test_clients_that_send_slowly_keep_no_other_client_out() -> None:
    reads = OpenReads(limit=2, timeout=BOUND)
    slow = [Sender() for _ in range(5)]
    waiting = [asyncio.create_task(reads.read(read, DECODE)) for read in slow]  # type: ignore[arg-type]
    await asyncio.sleep(0)
    fast = Sender()
    fast.sent.set_result(REQUEST.SerializeToString())
    assert await reads.read(fast, DECODE) == REQUEST  # type: ignore[arg-type]
    given_up = await asyncio.gather(*waiting[:4], return_exceptions=True)
    assert [getattr(read, "reason", None) for read in given_up] == [Reason.OVERLOADED] * 4
    slow[4].sent.set_result(REQUEST.SerializeToString())
    async with asyncio.timeout(BOUND):
        assert await waiting[4] == REQUEST


async def test_a_client_that_sends_nothing_is_given_up() -> None:
    with pytest.raises(Fault, match="too slowly") as raised:
        await OpenReads(timeout=0.01).read(Sender(), DECODE)  # type: ignore[arg-type]
    assert raised.value.reason is Reason.OVERLOADED


async def test_a_stream_without_a_request_is_an_invalid_request() -> None:
    sender = Sender()
    sender.sent.set_result(grpc.aio.EOF)
    with pytest.raises(Fault) as raised:
        await read_request(sender, DECODE)  # type: ignore[arg-type]
    assert raised.value.reason is Reason.INVALID_REQUEST


class Request:
    """A request that can be referred to weakly."""


def test_a_released_error_keeps_no_request() -> None:
    def handle(request: Request, holder: list[BaseException]) -> None:
        try:
            raise KeyError
        except KeyError as cause:
            error = ValueError()
            holder.append(error)
            raise error from cause

    request: Request | None = Request()
    watched, holder = weakref.ref(request), list[BaseException]()
    gc.disable()
    try:
        with pytest.raises(ValueError):
            handle(request, holder)  # type: ignore[arg-type]
        request = None
        assert watched() is not None
        release(holder[0])
        assert watched() is None
    finally:
        gc.enable()
