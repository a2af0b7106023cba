"""The cost of HTTP and one gRPC call: `bare_http` with results from a gRPC server.

Run as `python bare_http_grpc.py ADDRESS` with the address of `grpc_echo.py`.
"""

import asyncio
import sys

import grpc
import orjson
import uvloop
from aiohttp import web


async def main():
    """Serve until killed."""
    channel = grpc.aio.insecure_channel(sys.argv[1])
    fetch = channel.unary_unary("/Floor/EchoOnce")

    async def answer(http):
        message = orjson.loads(await http.read())
        if "id" not in message:
            return web.Response(status=202)
        text = message["params"].get("arguments", {}).get("text", "")
        result = {"content": [{"type": "text", "text": text}]}
        result = orjson.Fragment(await fetch(orjson.dumps(result)))
        body = orjson.dumps({"jsonrpc": "2.0", "id": message["id"], "result": result})
        return web.Response(body=body, content_type="application/json")

    server = await asyncio.get_running_loop().create_server(
        web.Server(answer, access_log=None), "127.0.0.1", 0
    )
    print(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", flush=True)
    await server.serve_forever()


uvloop.run(main())
