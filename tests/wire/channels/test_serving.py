"""Listening: ports, message sizes, health and reflection."""

from __future__ import annotations

import asyncio
import sys
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc
from tests.conftest import BOUND

from leaseway.wire import bounds
from leaseway.wire.channels.endpoint import Endpoint
from leaseway.wire.channels.health import HealthService, enable_reflection
from leaseway.wire.channels.serving import CHANNEL_OPTIONS, bind, make_server, rpcs_ended

LOOPBACK = Endpoint("127.0.0.1", 0)


async def _size(request: bytes, _context: object) -> bytes:
    return str(len(request)).encode()


def _sizes() -> grpc.GenericRpcHandler:
    handler: Any = grpc.unary_unary_rpc_method_handler(_size)
    return grpc.method_handlers_generic_handler("t.Sizes", {"Size": handler})


async def test_port_zero_becomes_a_real_port() -> None:
    server = make_server()

    endpoint = bind(server, LOOPBACK)

    assert endpoint.host == "127.0.0.1"
    assert endpoint.port > 0
    await server.stop(None)


async def test_a_taken_port_is_an_error() -> None:
    first, second = make_server(), make_server()
    endpoint = bind(first, LOOPBACK)
    await first.start()

    with pytest.raises(OSError, match=f"Cannot listen on {endpoint}: the port is taken"):
        bind(second, endpoint)

    await first.stop(None)
    await second.stop(None)


async def test_rpcs_of_a_stopped_server_end_before_the_loop_does() -> None:
    has_begun = asyncio.Event()

    async def wait(_request: bytes, _context: object) -> None:
        has_begun.set()
        await asyncio.Event().wait()

    handler: Any = grpc.unary_unary_rpc_method_handler(wait)
    server = make_server()
    handlers = grpc.method_handlers_generic_handler("t.Waits", {"Wait": handler})
    server.add_generic_rpc_handlers((handlers,))
    endpoint = bind(server, LOOPBACK)
    await server.start()
    async with grpc.aio.insecure_channel(str(endpoint)) as channel, asyncio.timeout(BOUND):
        waiting: Any = channel.unary_unary("/t.Waits/Wait")
        call = waiting(b"")
        await has_begun.wait()
        await server.stop(0)
        await rpcs_ended()
        running = [str(task.get_coro()) for task in asyncio.all_tasks()]
        call.cancel()
    assert not [coroutine for coroutine in running if "rpc" in coroutine]


async def test_thousands_of_concurrent_rpcs_are_answered() -> None:
    server = make_server()
    server.add_generic_rpc_handlers((_sizes(),))
    endpoint = bind(server, LOOPBACK)
    await server.start()
    # In its own process: a client in the same event loop would alternate with the server.
    client = await asyncio.create_subprocess_exec(
        sys.executable, "-c", _MANY, str(endpoint), stdout=asyncio.subprocess.PIPE
    )
    async with asyncio.timeout(BOUND):
        output, _ = await client.communicate()
    await server.stop(None)

    assert output.decode().split() == ["2500"]


_MANY = """
import asyncio, collections, grpc, sys

async def main():
    async with grpc.aio.insecure_channel(sys.argv[1]) as channel:
        size = channel.unary_unary("/t.Sizes/Size")
        ended = await asyncio.gather(*(size(b"x") for _ in range(2500)), return_exceptions=True)
    print(sum(answer == b"1" for answer in ended))

asyncio.run(main())
"""


async def test_a_peer_that_stalls_during_the_connection_is_awaited() -> None:
    server = make_server()
    server.add_generic_rpc_handlers((_sizes(),))
    endpoint = bind(server, LOOPBACK)
    await server.start()
    came, go_on = asyncio.Event(), asyncio.Event()

    async def stall(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        came.set()
        await go_on.wait()
        inward, outward = await asyncio.open_connection(endpoint.host, endpoint.port)
        await asyncio.gather(_carry(reader, outward), _carry(inward, writer))

    gate = await asyncio.start_server(stall, "127.0.0.1", 0)
    port = gate.sockets[0].getsockname()[1]
    async with (
        asyncio.timeout(BOUND),
        grpc.aio.insecure_channel(f"127.0.0.1:{port}", options=CHANNEL_OPTIONS) as channel,
    ):
        size: Any = channel.unary_unary("/t.Sizes/Size")
        answer = asyncio.ensure_future(size(b"four"))
        await came.wait()
        await asyncio.wait({answer}, timeout=1.0)  # ten times gRPC's minimum timeout of an attempt
        assert not answer.done()
        go_on.set()
        assert await answer == b"4"
    gate.close()
    await server.stop(None)


async def _carry(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while data := await reader.read(65536):
        writer.write(data)
    writer.close()


async def test_a_message_at_the_bound_passes_and_one_beyond_it_does_not() -> None:
    server = make_server()
    server.add_generic_rpc_handlers((_sizes(),))
    address = str(bind(server, LOOPBACK))
    await server.start()
    async with (
        asyncio.timeout(BOUND),
        grpc.aio.insecure_channel(address, options=CHANNEL_OPTIONS) as channel,
    ):
        call: Any = channel.unary_unary("/t.Sizes/Size")
        assert await call(bytes(bounds.MAX_GRPC_MESSAGE)) == str(bounds.MAX_GRPC_MESSAGE).encode()
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await call(bytes(bounds.MAX_GRPC_MESSAGE + 1))
    assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    await server.stop(None)


async def test_a_silent_call_is_not_closed_because_of_its_pings() -> None:
    server = make_server()

    async def wait(_request: bytes, context: Any) -> bytes:
        await asyncio.Event().wait()  # the caller times out first
        return b""

    method: Any = grpc.unary_unary_rpc_method_handler(wait)
    server.add_generic_rpc_handlers(
        (grpc.method_handlers_generic_handler("t.T", {"Wait": method}),)
    )
    address = str(bind(server, LOOPBACK))
    await server.start()
    # As often as a server allows; a server that treats them as abuse closes within 5 s.
    options = list({**dict(CHANNEL_OPTIONS), "grpc.keepalive_time_ms": 1_100}.items())
    async with grpc.aio.insecure_channel(address, options=options) as channel:
        call: Any = channel.unary_unary("/t.T/Wait")
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await call(b"", timeout=6)
    assert caught.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED
    await server.stop(None)


async def test_health_reports_the_status_of_each_service() -> None:
    server = make_server()
    health = HealthService(server)
    address = str(bind(server, LOOPBACK))
    await server.start()
    async with asyncio.timeout(BOUND), grpc.aio.insecure_channel(address) as channel:
        stub: Any = health_pb2_grpc.HealthStub(channel)

        async def status(service: str) -> int:
            answer = await stub.Check(health_pb2.HealthCheckRequest(service=service))
            return int(answer.status)

        await health.set_serving("", "a")
        await health.set_not_serving("b")
        assert await status("a") == health_pb2.HealthCheckResponse.SERVING
        assert await status("b") == health_pb2.HealthCheckResponse.NOT_SERVING
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await status("c")
        assert caught.value.code() is grpc.StatusCode.NOT_FOUND

        await health.shut_down()
        assert await status("a") == health_pb2.HealthCheckResponse.NOT_SERVING
    await server.stop(None)


async def test_reflection_lists_the_services() -> None:
    server = make_server()
    enable_reflection(server, ["leaseway.v1.CatalogService"])
    address = str(bind(server, LOOPBACK))
    await server.start()
    async with asyncio.timeout(BOUND), grpc.aio.insecure_channel(address) as channel:
        make_stub: Any = reflection_pb2_grpc.ServerReflectionStub
        stub = make_stub(channel)
        request = reflection_pb2.ServerReflectionRequest(list_services="")
        stream = stub.ServerReflectionInfo(iter([request]))
        answer = await stream.read()
        stream.cancel()
    names = [service.name for service in answer.list_services_response.service]
    assert "leaseway.v1.CatalogService" in names
    assert "grpc.health.v1.Health" in names
    await server.stop(None)


async def test_pings_that_a_stall_has_delayed_end_no_connection() -> None:
    server = make_server()
    endpoint = bind(server, LOOPBACK)
    await server.start()
    reader, writer = await asyncio.open_connection(endpoint.host, endpoint.port)
    writer.write(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + _frame(_SETTINGS, b""))
    async with asyncio.timeout(BOUND):
        for number in range(20):
            writer.write(_frame(_PING, bytes([number] * 8)))
            while True:
                head = await reader.readexactly(9)
                payload = await reader.readexactly(int.from_bytes(head[:3]))
                assert head[3] != _GOAWAY, payload
                if (head[3], head[4]) == (_PING, 1):
                    assert payload[0] == number
                    break
    writer.close()
    await server.stop(None)


_SETTINGS, _PING, _GOAWAY = 4, 6, 7


def _frame(kind: int, payload: bytes) -> bytes:
    """Return an HTTP/2 frame of the connection itself (RFC 9113, section 4.1)."""
    return len(payload).to_bytes(3) + bytes([kind, 0]) + bytes(4) + payload
