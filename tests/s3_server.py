"""A real S3 server for tests: moto's, as a process of its own."""

from __future__ import annotations

import asyncio
import contextlib
import re
import sys
from collections.abc import AsyncIterator
from dataclasses import dataclass
from importlib.util import find_spec

import pytest
from tests.conftest import BOUND

BUCKET = "audit"


@dataclass(frozen=True)
class S3Server:
    """A server with one bucket.

    Attributes:
        environment: The variables with which a process reaches it.
        sink: The address of a folder in the bucket.
    """

    environment: dict[str, str]
    sink: str = f"s3://{BUCKET}/fleet"


@contextlib.asynccontextmanager
async def s3_server() -> AsyncIterator[S3Server]:
    """Run a server until the end of the block; skip the test if it is not installed."""
    if find_spec("moto") is None or find_spec("flask") is None:
        pytest.skip("moto's server is not installed")
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", "0"),
        stderr=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.DEVNULL,
    )
    assert process.stderr is not None
    try:
        async with asyncio.timeout(BOUND):
            while (found := re.search(rb"http://127.0.0.1:\d+", await _line(process))) is None:
                pass
        drain = asyncio.create_task(_drain(process.stderr))
        url = found[0].decode()
        await _make_bucket(url)
        yield S3Server(
            {
                "LEASEWAY_AUDIT_AWS_ENDPOINT_URL": url,
                "LEASEWAY_AUDIT_AWS_REGION": "us-east-1",
                "LEASEWAY_AUDIT_AWS_ACCESS_KEY_ID": "testing",
                "LEASEWAY_AUDIT_AWS_SECRET_ACCESS_KEY": "only-for-tests",
            }
        )
        drain.cancel()
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.wait()


async def _line(process: asyncio.subprocess.Process) -> bytes:
    assert process.stderr is not None
    line = await process.stderr.readline()
    assert line, "the S3 server ended"
    return line


async def _drain(stream: asyncio.StreamReader) -> None:
    while await stream.read(65_536):
        pass


async def _make_bucket(url: str) -> None:
    import aiohttp

    async with aiohttp.ClientSession() as http, http.put(f"{url}/{BUCKET}") as response:
        response.raise_for_status()
