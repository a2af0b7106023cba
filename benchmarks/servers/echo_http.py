"""The same server over streamable HTTP, hand-written on asyncio: JSON answers, no session.

Run as `python echo_http.py`; prints its URL once it listens.
"""

import asyncio

import orjson
from echo import answer

HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n%b"
ACCEPTED = b"HTTP/1.1 202 Accepted\r\ncontent-length: 0\r\n\r\n"
NOT_ALLOWED = b"HTTP/1.1 405 Method Not Allowed\r\nallow: POST\r\ncontent-length: 0\r\n\r\n"


async def serve(reader, writer):
    """Answer the requests of one connection."""
    try:
        while True:
            head = await reader.readuntil(b"\r\n\r\n")
            length = 0
            for line in head.split(b"\r\n")[1:]:
                name, _, value = line.partition(b":")
                if name.lower() == b"content-length":
                    length = int(value)
            body = await reader.readexactly(length)
            writer.write(reply(body) if head.startswith(b"POST") else NOT_ALLOWED)
            await writer.drain()
    except (asyncio.IncompleteReadError, ConnectionError):
        writer.close()


def reply(body):
    """Return the HTTP response to one message."""
    message = orjson.loads(body)
    if "id" not in message:
        return ACCEPTED
    answered = {"jsonrpc": "2.0", "id": message["id"]}
    answered["result"] = answer(message["method"], message.get("params"))
    payload = orjson.dumps(answered)
    return HEAD % (len(payload), payload)


async def main():
    """Listen until killed."""
    server = await asyncio.start_server(serve, "127.0.0.1", 0, limit=2**20)
    port = server.sockets[0].getsockname()[1]
    print(f"http://127.0.0.1:{port}/mcp", flush=True)
    await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(main())
