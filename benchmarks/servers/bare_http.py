"""The cost of HTTP alone: an aiohttp handler that echoes an argument in an MCP result."""

import asyncio

import orjson
import uvloop
from aiohttp import web


async def answer(http):
    message = orjson.loads(await http.read())
    if "id" not in message:
        return web.Response(status=202)
    text = message["params"].get("arguments", {}).get("text", "")
    result = {"content": [{"type": "text", "text": text}]}
    body = orjson.dumps({"jsonrpc": "2.0", "id": message["id"], "result": result})
    return web.Response(body=body, content_type="application/json")


async def main():
    server = await asyncio.get_running_loop().create_server(
        web.Server(answer, access_log=None), "127.0.0.1", 0
    )
    print(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", flush=True)
    await server.serve_forever()


uvloop.run(main())
