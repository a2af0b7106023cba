"""Lower bounds: a raw pipe and a gRPC stream that echoes."""

from __future__ import annotations

import asyncio
import contextlib
import struct
import sys
from collections.abc import AsyncIterator, Callable
from typing import Any

import grpc
import orjson

from benchmarks.load import AsyncDriver, Driver
from benchmarks.processes import SERVERS, run_process
from benchmarks.rows.row import SESSIONS, TEXT, Row, check

__all__ = ["ROWS", "raw_pipe"]

_MAX_LINE = 32 * 2**20
_HEAD = struct.Struct("<QI")


class _Pipe:
    """One server behind two pipes, with responses matched by id."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        assert process.stdin is not None
        assert process.stdout is not None
        self._in, self._out = process.stdin, process.stdout
        self._waiting: dict[int, asyncio.Future[Any]] = {}
        self._last = 0

    async def read(self) -> None:
        """Match responses until the server's standard output ends."""
        while line := await self._out.readline():
            message = orjson.loads(line)
            self._waiting.pop(message["id"]).set_result(message["result"])

    async def request(self, method: str, params: dict[str, object]) -> Any:
        """Return the result of one request."""
        self._last = number = self._last + 1
        future = self._waiting[number] = asyncio.get_running_loop().create_future()
        message = {"jsonrpc": "2.0", "id": number, "method": method, "params": params}
        self._in.write(orjson.dumps(message) + b"\n")
        return await future


@contextlib.asynccontextmanager
async def _open_pipe() -> AsyncIterator[_Pipe]:
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        str(SERVERS / "echo.py"),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        limit=_MAX_LINE,
    )
    pipe = _Pipe(process)
    reading = asyncio.create_task(pipe.read())
    try:
        yield pipe
    finally:
        reading.cancel()
        process.kill()
        await process.wait()


@contextlib.asynccontextmanager
async def raw_pipe(size: int = 0, servers: int = 1) -> AsyncIterator[Driver]:
    """Servers behind pipes, which the callers share, with results of `size` bytes or echoes."""
    arguments: dict[str, object] = {"text": "", "size": size} if size else {"text": TEXT}
    params: dict[str, object] = {"name": "echo", "arguments": arguments}
    expected = "x" * (size or len(TEXT))
    async with contextlib.AsyncExitStack() as stack:
        pipes = [await stack.enter_async_context(_open_pipe()) for _ in range(servers)]

        async def call(caller: int) -> None:
            result = await pipes[caller % servers].request("tools/call", params)
            check(result["content"][0]["text"], expected)

        yield AsyncDriver(call)


class _Echo:
    """One stream with batched writes: each message contains all queued payloads."""

    def __init__(self, stream: grpc.aio.StreamStreamCall[bytes, bytes]) -> None:
        self._stream = stream
        self._waiting: dict[int, asyncio.Future[bytes]] = {}
        self._queued: list[bytes] = []
        self._more = asyncio.Event()
        self._last = 0

    async def write(self) -> None:
        """Send queued payloads until cancelled."""
        while True:
            await self._more.wait()
            self._more.clear()
            batch, self._queued = b"".join(self._queued), []
            await self._stream.write(batch)

    async def read(self) -> None:
        """Match echoes until the stream ends."""
        while True:
            batch = await self._stream.read()
            if not isinstance(batch, bytes):
                return
            at = 0
            while at < len(batch):
                number, length = _HEAD.unpack_from(batch, at)
                at += _HEAD.size + length
                self._waiting.pop(number).set_result(batch[at - length : at])

    async def request(self, payload: bytes) -> bytes:
        """Return the echo of a payload."""
        self._last = number = self._last + 1
        future: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        self._waiting[number] = future
        self._queued.append(_HEAD.pack(number, len(payload)) + payload)
        self._more.set()
        return await future


@contextlib.asynccontextmanager
async def _grpc_stream() -> AsyncIterator[Driver]:
    command = [sys.executable, str(SERVERS / "grpc_echo.py")]
    payload = orjson.dumps({"text": TEXT})
    async with (
        run_process(command) as (process, address),
        grpc.aio.insecure_channel(address) as channel,
    ):
        echo = _Echo(channel.stream_stream("/Floor/Echo")())
        tasks = [asyncio.create_task(direction) for direction in (echo.write(), echo.read())]

        async def call(_caller: int) -> None:
            if await echo.request(payload) != payload:
                raise RuntimeError("An echo differs from its payload.")

        yield AsyncDriver(call, [process.pid])
        for task in tasks:
            task.cancel()


def _pipe_of(
    size: int = 0, servers: int = 1
) -> Callable[[], contextlib.AbstractAsyncContextManager[Driver]]:
    return lambda: raw_pipe(size, servers)


ROWS = (
    Row("raw_pipe", "the server behind a raw pipe", raw_pipe),
    Row("raw_pipes", "32 servers behind raw pipes", _pipe_of(servers=SESSIONS)),
    Row("raw_pipe_1m", "the same, 1 MiB results", _pipe_of(2**20), (1, 8)),
    Row("grpc_stream", "echoing gRPC stream, batched writes", _grpc_stream),
)
