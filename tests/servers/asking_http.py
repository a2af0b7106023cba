"""The server of `asking` over streamable HTTP; `--legacy` selects the legacy era.

It sends requests on the response stream of the call, or with `--get` on the session's GET stream,
like servers that do not relate requests to calls. It prints its port.
"""

import asyncio
import json
import sys

from aiohttp import web
from asking import Asking

LEGACY = "--legacy" in sys.argv
streams = []
soon = lambda work: asyncio.get_running_loop().call_later(0.05, work)  # noqa: E731


def event(message):
    return f"data: {json.dumps({'jsonrpc': '2.0', **message})}\n\n".encode()


async def post(request):
    message = json.loads(await request.read())
    if "method" not in message or "id" not in message:
        server.take(message, streams[-1].put_nowait if streams else None)
        return web.Response(status=202)
    headers = {"Content-Type": "text/event-stream"}
    if LEGACY:
        headers["Mcp-Session-Id"] = "one"
    response = web.StreamResponse(headers=headers)
    await response.prepare(request)
    out = asyncio.Queue()

    def send(sent):
        elsewhere = "--get" in sys.argv and "method" in sent and streams
        (streams[-1] if elsewhere else out).put_nowait(sent)

    server.take(message, send)
    while True:
        sent = await out.get()
        await response.write(event(sent))
        if sent.get("id") == message["id"] and "method" not in sent:
            return response


async def get(request):
    if "--get" not in sys.argv:
        return web.Response(status=405)
    response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
    await response.prepare(request)
    streams.append(asyncio.Queue())
    while True:
        await response.write(event(await streams[-1].get()))


async def delete(request):
    return web.Response(status=204)


async def main():
    app = web.Application(client_max_size=8 << 20)
    app.router.add_post("/mcp", post)
    app.router.add_get("/mcp", get)
    app.router.add_delete("/mcp", delete)
    runner = web.AppRunner(app, handler_cancellation=True)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    print(site._server.sockets[0].getsockname()[1], flush=True)
    await asyncio.Event().wait()


server = Asking(LEGACY, soon)
asyncio.run(main())
