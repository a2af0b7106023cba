"""A hand-written streamable HTTP MCP server on aiohttp; prints its port, then serves.

Options: `--sse` answers as event streams; `--legacy` speaks 2025-11-25 with sessions (the default
is 2026-07-28 without); `--strict` cuts the connection at `server/discover`; `--get` offers a GET
stream, `--no-get` answers 404 there; `--log PATH` records every message.
The `text` of a call can select a fault: see `misbehave`. POST /forget drops all sessions, /mute
leaves all further requests unanswered, /full opens no more sessions, /forgetful keeps none,
/closed refuses everything.
"""

import argparse
import asyncio
import itertools
import json
import os
from pathlib import Path

from aiohttp import web

PREFIX = "io.modelcontextprotocol/"
options = argparse.ArgumentParser()
options.add_argument("--sse", action="store_true")
options.add_argument("--legacy", action="store_true")
options.add_argument("--strict", action="store_true")
options.add_argument("--get", action="store_true")
options.add_argument("--no-get", action="store_true")
options.add_argument("--follow", action="store_true")
options.add_argument("--log")
options.add_argument("--port", type=int, default=0)
args = options.parse_args()
log = Path(args.log) if args.log else None
sessions = {}
numbers = itertools.count(1)
streams = set()
seen = {
    "cancelled": [],
    "disconnected": 0,
    "deleted": [],
    "listen": None,
    "mute": False,
    "closed": False,
    "full": False,
}
seen["forgetful"] = False
seen["followed"] = []
PARAM = {"type": "string", "x-mcp-header": "Region"}
TOOLS = [
    {"name": "echo", "inputSchema": {"type": "object"}, "x-unknown": {"kept": 1.0}},
    {
        "name": "region",
        "inputSchema": {"type": "object", "properties": {"region": PARAM}},
    },
    {
        "name": "impossible",
        "inputSchema": {"type": "object", "properties": {"a": {**PARAM, "type": "number"}}},
    },
]


def note(request, message):
    if log:
        kept = ("mcp-", "authorization", "accept", "content-type")
        headers = {k.lower(): v for k, v in request.headers.items() if k.lower().startswith(kept)}
        with log.open("a") as file:
            file.write(json.dumps({"headers": headers, "body": message}) + "\n")


def event(message, event_id=None):
    head = f"id: {event_id}\n" if event_id else ""
    return f"{head}event: message\ndata: {json.dumps(message)}\n\n".encode()


async def misbehave(request, message):
    """Return a faulty response, or None."""
    how = (message["params"].get("arguments") or {}).get("text", "")
    if how.startswith("status "):
        code = int(how.split()[1])
        return web.Response(status=code, text="<html>sorry</html>", headers={"Retry-After": "2"})
    if how == "never":
        return await never()
    if how == "trickle":
        return await trickle(request, "application/json")
    if how == "trickle events":
        return await trickle(request, "text/event-stream")
    if how == "trickle headers":
        await drip(request.transport, b"HTTP/1.1 200 OK\r\nX-Slow: ")
    if how.startswith("stray "):
        return await events(request, message, how.removeprefix("stray "))
    if how == "broken event":
        return await events(request, message, f'{{"jsonrpc":"2.0","id":{message["id"]},"result":')
    if how == "slow":
        await asyncio.sleep(0.3)
    if how == "reset":
        request.transport.abort()
        return web.Response()
    if how == "cut":
        return await cut(request)
    if how.startswith("type "):
        return other_type(message, how.removeprefix("type "))
    return odd_answer(how)


def other_type(message, content_type):
    """Answer as another type than JSON, or as none; as JSON with an event."""
    result = {"content": [{"type": "text", "text": content_type}], "resultType": "complete"}
    body = json.dumps({"jsonrpc": "2.0", "id": message["id"], "result": result}).encode()
    if content_type in ("none; event", "application/json"):
        body = b": hello\nevent: message\ndata: " + body + b"\n\n"
    headers = {} if content_type.startswith("none") else {"Content-Type": content_type}
    return web.Response(body=body, headers=headers)


async def events(request, message, first):
    """Answer after another event, without an empty line at the end."""
    response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
    await response.prepare(request)
    await response.write(f"data: {first}\n\n".encode())
    result = {"content": [{"type": "text", "text": "after it"}], "resultType": "complete"}
    answer = event({"jsonrpc": "2.0", "id": message["id"], "result": result})
    await response.write(answer.removesuffix(b"\n\n"))
    return response


def odd_answer(how):
    if how == "redirect":
        return web.Response(status=307, headers={"Location": "http://127.0.0.2:1/mcp"})
    if how == "redirect here":
        return web.Response(status=307, headers={"Location": "/moved"})
    if how == "rpc error":
        error = {"code": -32022, "message": "no", "data": {"supported": ["2031-01-01"]}}
        return web.json_response({"jsonrpc": "2.0", "id": None, "error": error}, status=400)
    if how == "nameless error":
        error = {"code": -32600, "message": "Bad Request"}
        return web.json_response(
            {"jsonrpc": "2.0", "id": "server-error", "error": error}, status=400
        )
    if how == "html":
        return web.Response(text="<html>hello</html>", content_type="text/html")
    if how == "broken json":
        return web.Response(body=b'{"jsonrpc":', content_type="application/json")
    if how == "accepted":
        return web.Response(status=202)
    if how == "large":
        return web.Response(body=b" " * (33 << 20), content_type="application/json")
    return None


async def never():
    try:
        await asyncio.sleep(600)
    except asyncio.CancelledError:
        seen["disconnected"] += 1
        raise


async def cut(request, begin=b": hello\n\n", content_type="text/event-stream"):
    response = web.StreamResponse(headers={"Content-Type": content_type})
    await response.prepare(request)
    await response.write(begin)
    request.transport.abort()
    return response


async def trickle(request, content_type):
    response = web.StreamResponse(headers={"Content-Type": content_type})
    await response.prepare(request)
    await drip(request.transport, b"ffffff\r\n")  # one chunk, which does not end
    return response


async def drip(transport, begin):
    """Send a byte at intervals, without an end."""
    transport.write(begin)
    while not transport.is_closing():
        await asyncio.sleep(0.02)
        transport.write(b"1")


async def resumable(request, key, left):
    """Close the stream with an event id to resume from: `left` times, always if negative."""
    response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
    await response.prepare(request)
    await response.write(f"id: resume:{key}:{left}\nretry: 10\ndata: \n\n".encode())
    return response


def result_of(request, message):
    params = message["params"]
    name, arguments = params["name"], params.get("arguments") or {}
    if name == "region":
        said = request.headers.get("Mcp-Param-Region", "")
    elif arguments.get("text") == "meta":
        said = json.dumps(params.get("_meta"))
    elif arguments.get("text") == "seen":
        said = json.dumps(seen)
    elif arguments.get("text") == "pid":
        said = str(os.getpid())
    else:
        said = arguments.get("text", "")
    return {"content": [{"type": "text", "text": said}], "isError": False, "unknown": {"a": 1.0}}


def respond(message, modern):
    """Return the result for any method but tools/call, or None if it is unknown."""
    method = message["method"]
    cache = {"ttlMs": 0, "cacheScope": "private"} if modern else {}
    tools = {"tools": {}}
    if method == "initialize" and args.legacy:
        if args.follow:
            tools["resources"] = {"subscribe": True}
        info = {"name": "http-raw", "version": "0"}
        return {"protocolVersion": "2025-11-25", "capabilities": tools, "serverInfo": info}
    if method == "server/discover" and not args.legacy:
        return {"supportedVersions": ["2026-07-28"], "capabilities": tools, **cache}
    if method == "tools/list":
        return {"tools": TOOLS, **cache}
    if method == "ping":
        return {}
    if method == "resources/subscribe" and args.follow:
        seen["followed"].append(message["params"]["uri"])
        return {}
    return None


def in_session(request, method):
    """Return whether a legacy request has a valid session, if it needs one."""
    first = method in ("initialize", "server/discover")
    return not args.legacy or first or request.headers.get("Mcp-Session-Id") in sessions


async def post(request):
    message = json.loads(await request.read())
    note(request, message)
    if seen["closed"]:
        return web.Response(status=409)
    if seen["mute"]:
        await never()
    method, key = message.get("method"), message.get("id")
    if args.strict and method == "server/discover":
        request.transport.abort()
        return web.Response()
    if not in_session(request, method):
        return web.Response(status=404)
    if key is None:
        if method == "notifications/cancelled":
            seen["cancelled"].append(message["params"])
        return web.Response(status=202)
    headers = {}
    if args.legacy and method == "initialize":
        if seen["full"]:
            return web.Response(status=503)
        headers["Mcp-Session-Id"] = f"session-{next(numbers)}"
        if not seen["forgetful"]:
            sessions[headers["Mcp-Session-Id"]] = True
    if method == "tools/call":
        return await call(request, message)
    modern = is_modern(message)
    result = respond(message, modern)
    if result is not None:
        return await deliver(request, message, result, headers)
    error = {"code": -32601, "message": "Method not found"}
    answer = {"jsonrpc": "2.0", "id": key, "error": error}
    return web.json_response(answer, status=404 if modern else 200)


def is_modern(message):
    return PREFIX + "protocolVersion" in ((message.get("params") or {}).get("_meta") or {})


async def call(request, message):
    said = (message["params"].get("arguments") or {}).get("text", "")
    if args.legacy and said.startswith("resume"):
        return await resumable(request, message["id"], int(said.removeprefix("resume") or 0))
    odd = await misbehave(request, message)
    if odd is not None:
        return odd
    named = {"Mcp-Session-Id": request.headers["Mcp-Session-Id"]} if args.legacy else {}
    return await deliver(request, message, result_of(request, message), named)


async def deliver(request, message, result, headers):
    stamp = {"resultType": "complete"} if is_modern(message) else {}
    answer = {"jsonrpc": "2.0", "id": message["id"], "result": {**result, **stamp}}
    if not args.sse:
        return web.json_response(answer, headers=headers)
    response = web.StreamResponse(headers={**headers, "Content-Type": "text/event-stream"})
    await response.prepare(request)
    token = ((message.get("params") or {}).get("_meta") or {}).get("progressToken")
    if token is not None:
        progress = {"progressToken": token, "progress": 1, "total": 2, "message": "half"}
        progress = {"jsonrpc": "2.0", "method": "notifications/progress", "params": progress}
        await response.write(event(progress))
        said = {"level": "warning", "data": "logged"}
        said = {"jsonrpc": "2.0", "method": "notifications/message", "params": said}
        await response.write(event(said))
    await response.write(event(answer))
    await response.write_eof()
    return response


async def get(request):
    resumed = request.headers.get("Last-Event-ID", "")
    response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
    if resumed.startswith("resume:"):
        key, left = (int(part) for part in resumed.split(":")[1:])
        if left:
            return await resumable(request, key, left - 1 if left > 0 else left)
        await response.prepare(request)
        result = {"content": [{"type": "text", "text": "resumed"}]}
        await response.write(event({"jsonrpc": "2.0", "id": key, "result": result}, "last"))
        return response
    if not args.get:
        return web.Response(status=404 if args.no_get else 405)
    await response.prepare(request)
    streams.add(response)
    try:
        await asyncio.sleep(600)
    finally:
        streams.discard(response)
    return response


async def delete(request):
    sessions.pop(request.headers.get("Mcp-Session-Id"), None)
    seen["deleted"].append(request.headers.get("Mcp-Session-Id"))
    return web.Response(status=204)


async def forget(request):
    sessions.clear()
    return web.Response()


async def turn(request):
    seen[request.path.strip("/")] = True
    return web.Response()


async def state(request):
    return web.json_response({**seen, "streams": len(streams), "sessions": list(sessions)})


async def change(request):
    for stream in streams:
        await stream.write(event({"jsonrpc": "2.0", "method": "notifications/tools/list_changed"}))
    return web.Response()


async def update(request):
    params = {"uri": await request.text()}
    changed = {"jsonrpc": "2.0", "method": "notifications/resources/updated", "params": params}
    for stream in streams:
        await stream.write(event(changed))
    return web.Response()


async def main():
    app = web.Application(client_max_size=64 << 20)
    for path in ("/mcp", "/moved"):
        app.router.add_post(path, post)
        app.router.add_get(path, get)
        app.router.add_delete(path, delete)
    app.router.add_post("/forget", forget)
    for path in ("/mute", "/full", "/forgetful", "/closed"):
        app.router.add_post(path, turn)
    app.router.add_post("/change", change)
    app.router.add_post("/update", update)
    app.router.add_get("/state", state)
    runner = web.AppRunner(app, handler_cancellation=True)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", args.port)
    await site.start()
    print(site._server.sockets[0].getsockname()[1], flush=True)
    await asyncio.Event().wait()


asyncio.run(main())
