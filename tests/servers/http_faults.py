"""An HTTP server with hand-written responses, which are wrong if a call asks for that.

Standard library only; it speaks MCP 2025-11-25 without sessions, one request per connection, and
prints its port, which its first argument may choose. `echo` answers `text`; `fault` has the fault
that its argument `how` names.
"""

import asyncio
import json
import sys

TOOLS = [{"name": name, "inputSchema": {"type": "object"}} for name in ("echo", "fault")]
left = {"burst": 2}


def head(status, kind, length, *more):
    lines = [f"HTTP/1.1 {status} X", f"Content-Type: {kind}", "Connection: close", *more]
    if length is not None:
        lines.append(f"Content-Length: {length}")
    return ("\r\n".join(lines) + "\r\n\r\n").encode()


def whole(body, status=200, kind="application/json", *more):
    return head(status, kind, len(body), *more) + body


def result(key, value):
    content = {"content": [{"type": "text", "text": value}]}
    return json.dumps({"jsonrpc": "2.0", "id": key, "result": content}).encode()


class Faults:
    """One method per fault, which writes the response; the connection is closed after it."""

    async def slow_head(self, key, writer):
        for letter in head(200, "application/json", 100):
            writer.write(bytes([letter]))
            await asyncio.sleep(0.2)

    async def slow_body(self, key, writer):
        writer.write(head(200, "application/json", 1_000_000))
        while not writer.is_closing():
            writer.write(b" ")
            await asyncio.sleep(0.05)

    async def slow_events(self, key, writer):
        writer.write(head(200, "text/event-stream", None))
        while not writer.is_closing():
            writer.write(b": still here\n\n")
            await asyncio.sleep(0.05)

    async def reset(self, key, writer):
        writer.transport.abort()

    async def reset_body(self, key, writer):
        writer.write(whole(result(key, "x" * 1000))[:-500])
        await writer.drain()
        await asyncio.sleep(0.1)
        writer.transport.abort()

    async def half_body(self, key, writer):
        writer.write(whole(result(key, "x" * 1000))[:-500])

    async def no_http(self, key, writer):
        writer.write(b"220 mail.example ESMTP\r\n")

    async def unavailable(self, key, writer):
        writer.write(whole(b"busy", 503, "text/plain"))

    async def refused(self, key, writer):
        writer.write(whole(b"busy", 503, "text/plain", "Retry-After: 3600"))

    async def burst(self, key, writer):
        if left["burst"] > 0:
            left["burst"] -= 1
            writer.write(whole(b"busy", 503, "text/plain", "Retry-After: 0"))
        else:
            writer.write(whole(result(key, "after the burst")))

    async def html(self, key, writer):
        writer.write(whole(b"<html>hello</html>", 200, "text/html"))

    async def redirect(self, key, writer):
        writer.write(whole(b"", 307, "text/plain", "Location: http://127.0.0.2:1/other"))

    async def huge(self, key, writer):
        writer.write(head(200, "application/json", 64 << 20))
        await flood(writer, b" " * (1 << 20), 64)

    async def endless_line(self, key, writer):
        writer.write(head(200, "text/event-stream", None) + b"data: ")
        await flood(writer, b"x" * (1 << 20), 64)


async def flood(writer, piece, count):
    for _ in range(count):
        writer.write(piece)
        await writer.drain()


async def respond(message, writer):
    method, key, params = message.get("method"), message.get("id"), message.get("params") or {}
    if key is None:
        writer.write(whole(b"", 202))
    elif method == "initialize":
        info = {"name": "http-faults", "version": "0"}
        agreed = {"protocolVersion": "2025-11-25", "capabilities": {"tools": {}}}
        answer(writer, key, result={**agreed, "serverInfo": info})
    elif method == "tools/list":
        answer(writer, key, result={"tools": TOOLS})
    elif method == "ping":
        answer(writer, key, result={})
    elif method == "tools/call" and params["name"] == "echo":
        writer.write(whole(result(key, params["arguments"]["text"])))
    elif method == "tools/call":
        await getattr(Faults(), params["arguments"]["how"])(key, writer)
    else:
        answer(writer, key, error={"code": -32601, "message": "Method not found"})


def answer(writer, key, **outcome):
    writer.write(whole(json.dumps({"jsonrpc": "2.0", "id": key, **outcome}).encode()))


async def serve(reader, writer):
    try:
        lines = (await reader.readuntil(b"\r\n\r\n")).decode().lower().split("\r\n")
        if not lines[0].startswith("post"):
            writer.write(whole(b"", 405))
            return
        (length,) = [line.split(":")[1] for line in lines if line.startswith("content-length:")]
        await respond(json.loads(await reader.readexactly(int(length))), writer)
        await writer.drain()
    except (ConnectionError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
        pass
    finally:
        writer.close()


async def main():
    port = int(sys.argv[1]) if len(sys.argv) > 1 else 0
    server = await asyncio.start_server(serve, "127.0.0.1", port)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()


asyncio.run(main())
