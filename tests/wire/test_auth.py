"""The shared key: who gets in, and where listening without one is refused."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import grpc
import pytest
from tests.conftest import BOUND

from leaseway.wire.auth import bearer_metadata, check_listen, read_key
from leaseway.wire.endpoint import Endpoint, parse_endpoint
from leaseway.wire.errors import Reason
from leaseway.wire.serving import HealthService, bind, make_server
from leaseway.wire.status import fault_from_rpc_error

KEY = "correct-horse"


async def _answer(_request: bytes, _context: object) -> bytes:
    return b"answer"


async def _answers(requests: AsyncIterator[bytes], _context: object) -> AsyncIterator[bytes]:
    async for request in requests:
        yield request


@pytest.fixture
async def address() -> AsyncIterator[str]:
    server = make_server(key=KEY)
    handlers: dict[str, grpc.RpcMethodHandler[Any, Any]] = {
        "Unary": grpc.unary_unary_rpc_method_handler(_answer),
        "Stream": grpc.stream_stream_rpc_method_handler(_answers),
    }
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("t.Echo", handlers),))
    health = HealthService(server)
    endpoint = bind(server, Endpoint("127.0.0.1", 0))
    await server.start()
    await health.set_serving("")
    yield str(endpoint)
    await server.stop(None)


def _unary(channel: grpc.aio.Channel, method: str) -> Any:
    return channel.unary_unary(method)


async def _refusal(address: str, metadata: tuple[tuple[str, str], ...]) -> grpc.aio.AioRpcError:
    async with asyncio.timeout(BOUND), grpc.aio.insecure_channel(address) as channel:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await _unary(channel, "/t.Echo/Unary")(b"", metadata=metadata)
        return caught.value


async def test_the_right_key_gets_in(address: str) -> None:
    async with asyncio.timeout(BOUND), grpc.aio.insecure_channel(address) as channel:
        call = _unary(channel, "/t.Echo/Unary")
        assert await call(b"", metadata=bearer_metadata(KEY)) == b"answer"


@pytest.mark.parametrize(
    "metadata",
    [(), bearer_metadata("wrong"), bearer_metadata(KEY + "x"), (("authorization", KEY),)],
)
async def test_any_other_credential_is_refused_with_its_reason(
    address: str, metadata: tuple[tuple[str, str], ...]
) -> None:
    error = await _refusal(address, metadata)

    fault = fault_from_rpc_error(error)
    assert error.code() is grpc.StatusCode.UNAUTHENTICATED
    assert fault is not None
    assert fault.reason is Reason.UNAUTHENTICATED
    assert "LEASEWAY_KEY" in fault.message
    assert KEY not in fault.message


async def test_a_wrong_key_is_told_from_none(address: str) -> None:
    assert "wants a shared key" in str((await _refusal(address, ())).details())
    wrong = await _refusal(address, bearer_metadata("wrong"))
    assert "The key that was sent is not the one" in str(wrong.details())


async def test_streams_are_refused_as_well(address: str) -> None:
    async with asyncio.timeout(BOUND), grpc.aio.insecure_channel(address) as channel:
        stream: Any = channel.stream_stream("/t.Echo/Stream")()
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await stream.read()
        assert caught.value.code() is grpc.StatusCode.UNAUTHENTICATED


async def test_health_checks_need_no_key(address: str) -> None:
    async with asyncio.timeout(BOUND), grpc.aio.insecure_channel(address) as channel:
        assert await _unary(channel, "/grpc.health.v1.Health/Check")(b"") == b"\x08\x01"


def test_without_a_key_no_metadata_is_sent() -> None:
    assert bearer_metadata(None) == ()


@pytest.mark.parametrize("address", ["127.0.0.1:1", "localhost:1", "[::1]:1", "127.8.8.8:0"])
def test_loopback_needs_no_key(address: str) -> None:
    check_listen(parse_endpoint(address), None)


@pytest.mark.parametrize("address", ["0.0.0.0:1", "[::]:1", "10.0.0.1:1", "example.org:1"])
def test_listening_beyond_loopback_without_a_key_is_refused(address: str) -> None:
    check_listen(parse_endpoint(address), KEY)
    with pytest.raises(ValueError, match="LEASEWAY_KEY"):
        check_listen(parse_endpoint(address), None)


def test_an_unusable_key_is_refused_without_showing_it() -> None:
    assert read_key({"LEASEWAY_KEY": KEY}) == KEY
    assert read_key({"LEASEWAY_KEY": ""}) is None
    with pytest.raises(ValueError, match="visible ASCII") as caught:
        read_key({"LEASEWAY_KEY": "geheim üml"})
    assert "geheim" not in str(caught.value)
