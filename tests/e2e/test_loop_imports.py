"""A serving plane imports no module on its event loop: an import would delay calls."""

from __future__ import annotations

import contextlib
import importlib
import sys
from pathlib import Path

import pytest
from tests.e2e.servers import PREFIX, http_server
from tests.e2e.system import SERVERS, python_server, running
from tests.servers import rest_api

HOOK = """
import os, sys, threading

with open("/proc/self/cmdline", "rb") as file:
    words = file.read().split(b"\\0")
plane = next((name for name in (b"worker", b"control-plane") if name in words), None)
if b"leaseway.cli.main" in words and plane is not None:
    main = threading.main_thread().ident
    found = open(os.environ["IMPORTS"], "a", buffering=1)

    def record(event, details):
        if event == "import" and threading.get_ident() == main:
            running = getattr(sys.modules.get("asyncio"), "_get_running_loop", None)
            if running is not None and running() is not None:
                found.write(f"{plane.decode()} {details[0]}\\n")

    sys.addaudithook(record)
"""
SMALL = ("encodings", "stringprep")
"""Codecs: two milliseconds, once."""
TOOL = {
    "name": "user",
    "method": "GET",
    "endpoint": "/users/{id}",
    "parameters": [{"name": "id", "type": "string", "position": "path", "required": True}],
}


@pytest.mark.usefixtures("leak_guard")
async def test_no_kind_of_server_causes_an_import_on_the_loop(tmp_path: Path) -> None:
    (tmp_path / "hook").mkdir()
    (tmp_path / "hook" / "sitecustomize.py").write_text(HOOK)
    found = tmp_path / "imports"
    environment = {"PYTHONPATH": str(tmp_path / "hook"), "IMPORTS": str(found)}
    shared = {"truely-stateless": True, "transform": PREFIX}
    async with contextlib.AsyncExitStack() as stack:
        raw = http_server(sys.executable, str(SERVERS / "http_raw.py"))
        http = f"http://127.0.0.1:{await stack.enter_async_context(raw)}/mcp"
        streams = importlib.import_module("tests.servers.stream_raw").RawServer()
        await streams.start()
        stack.push_async_callback(streams.stop)
        api = await stack.enter_async_context(rest_api.serve())
        servers = {
            "stdio": python_server("counter.py", transform=PREFIX),
            "http": {"transport": "streamable_http", "url": http, **shared},
            "sse": {"transport": "sse", "url": f"http://{streams.base}/sse/good", **shared},
            "ws": {"transport": "websocket", "url": f"ws://{streams.base}/ws/good", **shared},
            "rest": {"transport": "http_api", "base_url": api.url, "http_tools": [TOOL], **shared},
        }
        system = running(tmp_path, servers, environment=environment)
        _, client = await stack.enter_async_context(system)
        assert (await client.session("s").call_tool("stdio:next")).new_lease is not None
        await client.call_tool("rest:user", {"id": "1"})
        assert servers.keys() <= {tool.server_id for tool in await client.list_tools()}
    late = [line.split() for line in found.read_text().splitlines()]
    assert [(plane, name) for plane, name in late if not name.startswith(SMALL)] == []
