"""Checks a command repeatedly in a process like a worker's: uvloop, with gRPC running.

Prints the set of results.
"""

from __future__ import annotations

import asyncio
import sys

import grpc
import uvloop

from leaseway.data_plane.kinds.process.sandbox.checks import run_check


async def main() -> None:
    server = grpc.aio.server()
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        await channel.channel_ready()
        method: grpc.aio.UnaryUnaryMultiCallable[bytes, bytes] = channel.unary_unary("/no/such")
        call = method(b"")
        print({await run_check(sys.argv[2:]) for _ in range(int(sys.argv[1]))})
        await asyncio.wait([asyncio.ensure_future(call.code())])
    await server.stop(None)


uvloop.run(main())
