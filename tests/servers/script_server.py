"""The server of `script_tools` over the transport that the first argument names.

`stdio`, `http`, `sse` or `websocket`; all but the first print their port, which a second argument
may choose, then serve. Over http and sse the official package carries the messages.
"""

import contextlib
import socket
import sys

import anyio
import uvicorn
from aiohttp import WSMsgType, web
from mcp.server.sse import SseServerTransport
from mcp.server.stdio import stdio_server
from script_tools import make_server, serve
from starlette.applications import Starlette
from starlette.responses import Response
from starlette.routing import Mount, Route

server = make_server()


async def stdio():
    async with stdio_server() as (reader, writer):
        await server.run(reader, writer, server.create_initialization_options())


def http():
    inner = server.streamable_http_app()

    @contextlib.asynccontextmanager
    async def lifespan(app):
        async with server.session_manager.run():
            yield

    run(Starlette(routes=[Mount("/", inner)], lifespan=lifespan))


def sse():
    carrier = SseServerTransport("/messages/")

    async def stream(request):
        connection = carrier.connect_sse(request.scope, request.receive, request._send)
        async with connection as (reader, writer):
            await server.run(reader, writer, server.create_initialization_options())
        return Response()

    routes = [Route("/sse", stream), Mount("/messages/", app=carrier.handle_post_message)]
    run(Starlette(routes=routes))


def run(app):
    listener = listen()
    config = uvicorn.Config(app, log_level="critical", timeout_graceful_shutdown=1)
    uvicorn.Server(config).run(sockets=[listener])


def listen():
    listener = socket.socket()
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.bind(("127.0.0.1", int(sys.argv[2]) if sys.argv[2:] else 0))
    listener.listen(128)
    print(listener.getsockname()[1], flush=True)
    return listener


async def connection(request):
    frames = web.WebSocketResponse(protocols=("mcp",), max_msg_size=64 << 20)
    await frames.prepare(request)

    async def receive():
        frame = await frames.receive()
        return frame.data if frame.type is WSMsgType.TEXT else None

    await serve(server, receive, frames.send_str)
    return frames


def websocket():
    app = web.Application()
    app.router.add_get("/ws", connection)
    web.run_app(app, sock=listen(), print=None)


if sys.argv[1] == "stdio":
    anyio.run(stdio)
else:
    {"http": http, "sse": sse, "websocket": websocket}[sys.argv[1]]()
