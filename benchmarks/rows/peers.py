"""Other gateways in front of the same server, called with a minimal HTTP client.

Each has its own environment, made by `install`, and is configured for speed as its documentation
advises.
"""

from __future__ import annotations

import contextlib
import shutil
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager
from pathlib import Path

import aiohttp
import orjson

from benchmarks.load import AsyncDriver, Driver
from benchmarks.processes import SERVERS, run_process
from benchmarks.rows.row import TEXT, Row, check
from benchmarks.usage import descendants

__all__ = ["ROWS", "install"]

_HOME = Path(__file__).resolve().parents[2] / ".build" / "peers"
_PACKAGES = {
    "mcp-proxy": ("mcp-proxy==0.13.0", "orjson"),
    "fastmcp": ("fastmcp==4.1.0", "orjson", "uvloop"),
    "mcpo": ("mcpo==0.0.20", "fastapi==0.115.12", "mcp<2", "orjson"),
}
_SUPERGATEWAY = "supergateway@4.0.0"
_HEADERS = {
    "content-type": "application/json",
    "accept": "application/json, text/event-stream",
}
_PROTOCOL = "2025-06-18"

_FASTMCP = """
import sys
from fastmcp.client.transports import StdioTransport
from fastmcp.server import create_proxy
proxy = create_proxy(StdioTransport(sys.executable, [sys.argv[1]], keep_alive=True))
proxy.run(transport="http", host="127.0.0.1", port=int(sys.argv[2]), stateless_http=True,
          json_response=True, show_banner=False, log_level="error")
"""


def install() -> None:
    """Create the missing environments of the peers.

    Raises:
        subprocess.CalledProcessError: A package could not be installed.
    """
    for name, packages in _PACKAGES.items():
        home = _HOME / name
        if not (home / "installed").exists():
            subprocess.run([sys.executable, "-m", "venv", str(home)], check=True)
            subprocess.run([str(home / "bin" / "pip"), "install", "-q", *packages], check=True)
            (home / "installed").touch()
    if not (_HOME / "supergateway" / "node_modules").exists():
        npm = shutil.which("npm") or "npm"
        command = [npm, "install", "--silent", "--prefix", str(_HOME / "supergateway")]
        subprocess.run([*command, _SUPERGATEWAY], check=True)


def _python(name: str) -> str:
    return str(_HOME / name / "bin" / "python")


def _server() -> list[str]:
    """Return the echo server's command; the interpreter must have orjson."""
    return [sys.executable, str(SERVERS / "echo.py")]


def _supergateway(port: int) -> list[str]:
    node = shutil.which("node") or "node"
    script = _HOME / "supergateway" / "node_modules" / "supergateway" / "dist" / "index.js"
    options = ["--outputTransport", "streamableHttp", "--stateful", "--logLevel", "none"]
    return [node, str(script), "--stdio", " ".join(_server()), "--port", str(port), *options]


def _mcp_proxy(port: int) -> list[str]:
    command = [str(_HOME / "mcp-proxy" / "bin" / "mcp-proxy"), "--port", str(port), "--stateless"]
    return [*command, "--log-level", "ERROR", "--", *_server()]


def _fastmcp(port: int) -> list[str]:
    return [_python("fastmcp"), "-c", _FASTMCP, str(SERVERS / "echo.py"), str(port)]


def _mcpo(port: int) -> list[str]:
    command = [str(_HOME / "mcpo" / "bin" / "mcpo"), "--host", "127.0.0.1", "--port", str(port)]
    return [*command, "--", *_server()]


class McpCaller:
    """A minimal client for streamable HTTP: a session, then one POST per call."""

    def __init__(self, http: aiohttp.ClientSession, url: str) -> None:
        self._http, self._url = http, url
        self._headers = dict(_HEADERS)
        self._last = 0

    async def open(self) -> None:
        """Initialize the session."""
        params = {
            "protocolVersion": _PROTOCOL,
            "capabilities": {},
            "clientInfo": {"name": "bench", "version": "1"},
        }
        async with await self._post(
            {"id": 0, "method": "initialize", "params": params}
        ) as response:
            await response.read()
            if "mcp-session-id" in response.headers:
                self._headers["mcp-session-id"] = response.headers["mcp-session-id"]
        self._headers["mcp-protocol-version"] = _PROTOCOL
        async with await self._post({"method": "notifications/initialized"}) as response:
            await response.read()

    async def _post(self, message: dict[str, object]) -> aiohttp.ClientResponse:
        body = orjson.dumps({"jsonrpc": "2.0", **message})
        return await self._http.post(self._url, data=body, headers=self._headers)

    async def call(self, _caller: int) -> None:
        """Call the tool and check the result."""
        self._last = number = self._last + 1
        params = {"name": "echo", "arguments": {"text": TEXT}}
        message = {"id": number, "method": "tools/call", "params": params}
        async with await self._post(message) as response:
            body = await response.read()
        if not body.startswith(b"{"):
            body = next(line[5:] for line in body.splitlines() if line.startswith(b"data:"))
        check(orjson.loads(body)["result"]["content"][0]["text"], TEXT)


def _mcp_peer(
    command: Callable[[int], Sequence[str]],
) -> Callable[[], AbstractAsyncContextManager[Driver]]:
    @contextlib.asynccontextmanager
    async def open_row() -> AsyncIterator[Driver]:
        async with _listening(command) as (http, port, pid):
            caller = McpCaller(http, f"http://127.0.0.1:{port}/mcp")
            await caller.open()
            yield AsyncDriver(caller.call, descendants(pid, without="echo.py"))

    return open_row


@contextlib.asynccontextmanager
async def _openapi_peer() -> AsyncIterator[Driver]:
    async with _listening(_mcpo) as (http, port, pid):
        url, body = f"http://127.0.0.1:{port}/echo", orjson.dumps({"text": TEXT})

        async def call(_caller: int) -> None:
            async with http.post(url, data=body, headers=_HEADERS) as response:
                check(orjson.loads(await response.read()), TEXT)

        yield AsyncDriver(call, descendants(pid, without="echo.py"))


@contextlib.asynccontextmanager
async def _listening(
    command: Callable[[int], Sequence[str]],
) -> AsyncIterator[tuple[aiohttp.ClientSession, int, int]]:
    """Run a peer until the block ends; yield a client, its port and its process id."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    connector = aiohttp.TCPConnector(limit=0)
    async with (
        run_process(command(port), ready_port=port) as (process, _),
        aiohttp.ClientSession(connector=connector) as http,
    ):
        yield http, port, process.pid


ROWS = (
    Row("supergateway", "supergateway", _mcp_peer(_supergateway), (1, 32, 128), peer=True),
    Row("mcp_proxy", "mcp-proxy", _mcp_peer(_mcp_proxy), (1, 32, 128), peer=True),
    Row("mcpo", "mcpo", _openapi_peer, (1, 32, 128), peer=True),
    Row("fastmcp", "FastMCP proxy, tuned", _mcp_peer(_fastmcp), (1, 32, 128), peer=True),
)
