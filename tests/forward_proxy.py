"""A forward proxy for tests: CONNECT, and requests in absolute form.

Whatever host a client names is 127.0.0.1 behind it, as names of a company's network are known only
to its proxy.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import re
from collections.abc import AsyncIterator


class ForwardProxy:
    """A proxy that records its requests.

    Attributes:
        credential: The `user:password` that it requires; empty for none.
        seen: The method and target of each request.
        headers: The header lines of each request.
    """

    def __init__(self, credential: str = "") -> None:
        self.credential = credential
        self.seen: list[str] = []
        self.headers: list[str] = []
        self.port = 0
        self._tasks: set[asyncio.Task[None]] = set()

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[ForwardProxy]:
        """Run the proxy on a free port."""
        server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.port = server.sockets[0].getsockname()[1]
        try:
            yield self
        finally:
            server.close()
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        try:
            with contextlib.suppress(OSError, asyncio.IncompleteReadError):
                await self._forward(reader, writer)
        finally:
            self._tasks.discard(task)
            writer.close()

    async def _forward(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        method, target, _ = head.split(" ", 2)
        self.seen.append(f"{method} {target}")
        self.headers.append(head)
        given = re.search(r"(?im)^proxy-authorization: basic (\S+)", head)
        decoded = base64.b64decode(given[1]).decode() if given else ""
        if decoded != self.credential:
            writer.write(b"HTTP/1.1 407 Proxy Authentication Required\r\nContent-Length: 0\r\n\r\n")
            await writer.drain()
            return
        place = re.fullmatch(r"(?:http://)?[^/]*?:(\d+)(/.*)?", target)
        assert place is not None, target
        inward, outward = await asyncio.open_connection("127.0.0.1", int(place[1]))
        if method == "CONNECT":
            writer.write(b"HTTP/1.1 200 Connection established\r\n\r\n")
        else:
            outward.write(self._origin_form(head, target, place[2] or "/").encode())
        await asyncio.gather(self._pump(reader, outward), self._pump(inward, writer))

    @staticmethod
    def _origin_form(head: str, target: str, path: str) -> str:
        head = re.sub(r"(?im)^proxy-\S+: .*\r\n", "", head.replace(target, path, 1))
        if re.search(r"(?im)^upgrade:", head):
            return head
        head = re.sub(r"(?im)^connection: .*\r\n", "", head)
        return head.replace("\r\n", "\r\nConnection: close\r\n", 1)

    @staticmethod
    async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            while data := await reader.read(1 << 16):
                writer.write(data)
                await writer.drain()
        writer.close()
