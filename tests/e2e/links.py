"""Links between processes of a system that tests cut and restore."""

from __future__ import annotations

import asyncio
import contextlib


class Link:
    """A proxy between a worker and its control plane, which can be cut and restored."""

    def __init__(self, target: str) -> None:
        host, port = target.rsplit(":", 1)
        self._target = host, int(port)
        self._connected = True
        self._writers: set[asyncio.StreamWriter] = set()
        self._server: asyncio.Server | None = None
        self.address = ""

    async def open(self) -> None:
        self._server = await asyncio.start_server(self._carry, "127.0.0.1", 0)
        self.address = f"127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    def cut(self) -> None:
        """Close all connections, and reject new ones."""
        self._connected = False
        for writer in self._writers:
            writer.transport.abort()

    def join(self) -> None:
        self._connected = True

    async def close(self) -> None:
        self.cut()
        assert self._server is not None
        self._server.close()

    async def _carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if not self._connected:
            writer.transport.abort()
            return
        try:
            inward, outward = await asyncio.open_connection(*self._target)
        except OSError:  # the target does not listen at the moment
            writer.transport.abort()
            return
        ends = {writer, outward}
        self._writers |= ends
        await asyncio.gather(_pump(reader, outward), _pump(inward, writer))
        self._writers -= ends


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError):
        while data := await reader.read(1 << 16):
            writer.write(data)
            await writer.drain()
    writer.transport.abort()
