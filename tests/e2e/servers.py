"""Servers for tests of whole systems: entries of programs, and running HTTP servers."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import sys
from collections.abc import AsyncIterator

from tests.conftest import BOUND
from tests.e2e.system import SERVERS, eventually

PREFIX = [{"prefix": "{server}_"}]


def entry(command: list[str], *args: str, **settings: object) -> dict[str, object]:
    return {"transport": "stdio", "command": command[0], "args": [*command[1:], *args], **settings}


@contextlib.asynccontextmanager
async def http_server(*command: str, port: int = 0, **environment: str) -> AsyncIterator[int]:
    """Run an HTTP server; without a port it must print the port that it chose."""
    process = await asyncio.create_subprocess_exec(
        *command,
        env=os.environ | environment,
        stdout=asyncio.subprocess.PIPE if port == 0 else asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.DEVNULL,
    )
    try:
        if port == 0:
            assert process.stdout is not None
            async with asyncio.timeout(BOUND):
                port = int(await process.stdout.readline())
        await eventually(lambda: _accepts(port))
        yield port
    finally:
        process.send_signal(signal.SIGKILL)
        await process.wait()


def _accepts(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


@contextlib.asynccontextmanager
async def raw_http_server(*args: str) -> AsyncIterator[str]:
    """Run the hand-written HTTP server and return its address."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, str(SERVERS / "http_raw.py"), *args, stdout=asyncio.subprocess.PIPE
    )
    assert process.stdout is not None
    try:
        async with asyncio.timeout(BOUND):
            port = int(await process.stdout.readline())
        yield f"http://127.0.0.1:{port}"
    finally:
        process.kill()
        await process.wait()
