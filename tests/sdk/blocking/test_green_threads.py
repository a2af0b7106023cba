"""Clients refuse under gevent and eventlet, where they would hang."""

from __future__ import annotations

import subprocess
import sys

import pytest
from tests.conftest import BOUND

pytest.importorskip("gevent")
pytest.importorskip("eventlet")

USE = """
import asyncio
from leaseway.sdk import AsyncClient, Client

async def use():
    async with AsyncClient("127.0.0.1:1"):
        pass

client = Client("127.0.0.1:1")  # at the level of a module, as in applications
for _ in range(2):
    try:
        client.call_tool("echo", {}, timeout=1)
    except RuntimeError as error:
        print(error)
client.close()
try:
    asyncio.run(use())
except RuntimeError as error:
    print(error)
"""
PATCHES = {
    "gevent": "from gevent import monkey; monkey.patch_all()",
    "gevent without threads": "from gevent import monkey; monkey.patch_all(thread=False)",
    "gevent after the import": "import leaseway.sdk\nfrom gevent import monkey; monkey.patch_all()",
    "eventlet": "import eventlet; eventlet.monkey_patch()",
}


def run(script: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-W", "ignore", "-c", script],
        capture_output=True,
        text=True,
        timeout=BOUND,
        check=False,
    )


@pytest.mark.parametrize("patch", PATCHES)
def test_a_client_in_a_patched_process_refuses_at_once_with_advice(patch: str) -> None:
    ended = run(f"{PATCHES[patch]}\n{USE}")
    lines = ended.stdout.splitlines()
    assert len(lines) == 3, ended.stderr
    assert all(f"{patch.split()[0]} has replaced the threads and sockets" in line for line in lines)
    assert "gthread" in lines[0]
    assert "-P threads" in lines[0]


def test_an_imported_but_unused_gevent_does_not_matter() -> None:
    script = """
import eventlet.patcher, gevent.monkey
from leaseway.sdk import Client
from leaseway.sdk.errors import LeasewayError
try:
    Client("127.0.0.1:1").list_tools(timeout=0.2)
except LeasewayError as error:
    print(type(error).__name__)
"""
    assert run(script).stdout.split(), run(script).stderr
