"""The same server over streamable HTTP, written with asyncio: JSON responses, no session.

Run as `python echo_http.py`; prints its URL once it listens.
"""

import asyncio

import orjson
from echo import answer

HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n%b"
ACCEPTED = b"HTTP/1.1 202 Accepted\r\ncontent-length: 0\r\n\r\n"
NOT_ALLOWED = b"HTTP/1.1 405 Method Not Allowed\r\nallow: POST\r\ncontent-length: 0\r\n\r\n"


async def listen(reply, path):
    """Serve HTTP until killed; `reply` returns the response for a request's head and body."""

    async def serve(reader, writer):
        try:
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                length = 0
                for line in head.split(b"\r\n")[1:]:
                    name, _, value = line.partition(b":")
                    if name.lower() == b"content-length":
                        length = int(value)
                writer.write(reply(head, await reader.readexactly(length)))
                await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0, limit=2**20)
    print(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}{path}", flush=True)
    await server.serve_forever()


def reply(head, body):
    """Return the HTTP response to one message."""
    if not head.startswith(b"POST"):
        return NOT_ALLOWED
    message = orjson.loads(body)
    if "id" not in message:
        return ACCEPTED
    result = answer(message["method"], message.get("params"))
    payload = orjson.dumps({"jsonrpc": "2.0", "id": message["id"], "result": result})
    return HEAD % (len(payload), payload)


if __name__ == "__main__":
    asyncio.run(listen(reply, "/mcp"))
