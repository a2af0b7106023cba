"""A hand-written legacy server over event streams and websockets, on the test's loop.

Its one tool, `say`, answers its `text`, or has the fault of that name in `Deeds`. The names of the
paths in `STREAMS` and `SOCKETS` name their faults. `cookies` are those of posts and websockets.
"""

import asyncio
import itertools
import json

from aiohttp import web

TOOLS = [{"name": "say", "inputSchema": {"type": "object"}}]
FOREIGN = "http://127.0.0.2:1/messages"


def event(data, kind="message"):
    return f"event: {kind}\ndata: {data}\n\n".encode()


def result(key, text):
    content = {"content": [{"type": "text", "text": text}]}
    return json.dumps({"jsonrpc": "2.0", "id": key, "result": content})


class Deeds:
    """One method per text, called instead of an answer. `line` is the connection."""

    async def never(self, line, key):
        pass

    async def garbage(self, line, key):
        await line.say("a log line")
        await line.say("[]")
        await line.say(result(key, "after it"))

    async def broken(self, line, key):
        await line.say(f'{{"jsonrpc":"2.0","id":{key},"result":{{"content":[}}')

    async def oversize(self, line, key):
        await line.say(result(key, "x" * (2 << 20)))

    async def end(self, line, key):
        await line.end()

    async def abort(self, line, key):
        line.request.transport.abort()

    async def binary(self, line, key):
        await line.response.send_bytes(result(key, "in bytes").encode())

    async def deaf(self, line, key):
        line.deaf = True

    async def refuse(self, line, key):
        line.refuses = True
        await line.refuse(key)

    async def seen(self, line, key):
        await line.say(result(key, json.dumps(line.headers)))


class Line:
    """One client: its stream or socket."""

    def __init__(self, request, response):
        self.request, self.response = request, response
        kept = ("authorization", "sec-websocket-protocol", "cookie")
        self.headers = {k.lower(): v for k, v in request.headers.items() if k.lower() in kept}
        self.over = asyncio.Event()
        self.deaf = False
        self.refuses = False
        self.pings = 0

    async def take(self, text):
        if self.deaf:
            return
        message = json.loads(text)
        method, key = message.get("method"), message.get("id")
        if method == "server/discover" and self.request.match_info["how"] == "strict":
            await self.end()
        elif self.refuses:
            await self.refuse(key)
        elif method == "initialize":
            info = {"capabilities": {"tools": {}}, "serverInfo": {"name": "raw", "version": "0"}}
            await self.answer(key, {"protocolVersion": "2024-11-05", **info})
        elif method == "tools/list":
            await self.answer(key, {"tools": TOOLS})
        elif method == "ping":
            self.pings += 1
            await self.answer(key, {})
        elif method == "tools/call":
            said = message["params"]["arguments"]["text"]
            deed = getattr(Deeds(), said, None)
            await (deed(self, key) if deed else self.say(result(key, said)))

    async def refuse(self, key):
        error = {"code": -32000, "message": "who are you?"}
        await self.say(json.dumps({"jsonrpc": "2.0", "id": key, "error": error}))

    async def answer(self, key, value):
        await self.say(json.dumps({"jsonrpc": "2.0", "id": key, "result": value}))


class Stream(Line):
    async def say(self, text):
        await self.response.write(event(text))

    async def end(self):
        self.over.set()


class Socket(Line):
    async def say(self, text):
        await self.response.send_str(text)

    async def end(self):
        await self.response.close(code=1011, message=b"out of paper")


class RawServer:
    """The server; `base` is its address once started; `posts` are the posted messages."""

    def __init__(self):
        self.numbers = itertools.count(1)
        self.lines = {}
        self.posts = []
        self.cookies = []
        self.busy = 0
        self.most_busy = 0
        self.hold = asyncio.Event()
        self.runner = None
        self.base = ""

    async def start(self):
        app = web.Application(client_max_size=64 << 20)
        app.router.add_get("/sse/{how}", self.stream)
        app.router.add_get("/ws/{how}", self.socket)
        app.router.add_post("/messages/{number}", self.post)
        app.router.add_get("/a/proxy/sse/{how}", self.stream)  # the proxy takes `/a/proxy` off
        app.router.add_post("/a/proxy/sse/posts/{number}", self.post)
        self.runner = web.AppRunner(app, shutdown_timeout=0.1)
        await self.runner.setup()
        site = web.TCPSite(self.runner, "127.0.0.1", 0)
        await site.start()
        self.base = f"127.0.0.1:{self.runner.addresses[0][1]}"

    async def stop(self):
        self.hold.set()
        for line in self.lines.values():
            line.over.set()
        await self.runner.cleanup()

    async def stream(self, request):
        how = request.match_info["how"]
        refused = self.refusal(how)
        if refused is not None:
            return refused
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        response.set_cookie("affinity", "one")
        await response.prepare(request)
        if how == "early-end":
            return response
        line, number = Stream(request, response), next(self.numbers)
        self.lines[number] = line
        endpoints = {"foreign": FOREIGN, "no-url": "http://[::1", "silent": None}
        endpoints |= {"mail": "mailto:me", "prefixless": f"/sse/posts/{number}?of=%2F"}
        endpoint = endpoints.get(how, f"../messages/{number}")
        if endpoint is not None:
            await response.write(b": hello\n\n" + event(endpoint, "endpoint"))
        await line.over.wait()
        return response

    def refusal(self, how):
        if how.isdigit():
            return web.Response(status=int(how))
        if how == "html":
            return web.Response(text="<html>hi</html>", content_type="text/html")
        if how == "moved":
            return web.Response(status=307, headers={"Location": "good"})
        if how == "astray":
            return web.Response(status=307, headers={"Location": "http://[::1"})
        if how == "away":
            return web.Response(status=307, headers={"Location": "http://127.0.0.2:1/other"})
        return None

    async def post(self, request):
        message = await request.json()
        self.cookies.append(request.headers.get("cookie"))
        self.posts.append(message)
        said = (message.get("params") or {}).get("arguments", {}).get("text", "")
        if said.startswith("status "):
            status = int(said.split()[1])
            return web.Response(status=status, text="out of ink", headers={"Retry-After": "2"})
        if said == "endless":
            response = web.StreamResponse(status=500)
            await response.prepare(request)
            await response.write(b"out of ink")
            await self.hold.wait()
            return response
        if said == "reset":
            request.transport.abort()
            return web.Response()
        if said == "redirect":
            return web.Response(status=307, headers={"Location": FOREIGN})
        if said == "hold":
            self.busy += 1
            self.most_busy = max(self.most_busy, self.busy)
            await self.hold.wait()
        await self.lines[int(request.match_info["number"])].take(json.dumps(message))
        return web.Response(status=202, text="Accepted")

    async def socket(self, request):
        how = request.match_info["how"]
        refused = self.refusal(how)
        if refused is not None:
            return refused
        if how == "early-end":
            request.transport.abort()
            return web.Response()
        response = web.WebSocketResponse(protocols=("mcp",), max_msg_size=64 << 20)
        response.set_cookie("affinity", "one")
        self.cookies.append(request.headers.get("cookie"))
        await response.prepare(request)
        line = self.lines[next(self.numbers)] = Socket(request, response)
        if how == "mute":
            await line.over.wait()
            return response
        async for frame in response:
            await line.take(frame.data)
        return response
