"""A server with one RPC, which says the tenant of its caller."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import grpc

from leaseway.identity.interceptor import caller
from leaseway.wire.channels.endpoint import Endpoint
from leaseway.wire.channels.serving import bind, make_server


async def who(_request: bytes, _context: object) -> bytes:
    return (caller().tenant or "nobody").encode()


@asynccontextmanager
async def serving(*interceptors: grpc.aio.ServerInterceptor) -> AsyncIterator[str]:
    server = make_server(interceptors=interceptors)
    handlers: dict[str, Any] = {"GetStatus": grpc.unary_unary_rpc_method_handler(who)}
    service = "leaseway.v1.AdminService"
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(service, handlers),))
    endpoint = bind(server, Endpoint("127.0.0.1", 0))
    await server.start()
    try:
        yield str(endpoint)
    finally:
        await server.stop(None)
