"""Other gateways in front of the same server.

Each has its own environment, made by `install`, and is configured for speed as its documentation
advises. Others are compared by their command (`named`).
"""

from __future__ import annotations

import contextlib
import shlex
import shutil
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from pathlib import Path

import orjson

from benchmarks.http_load import HttpDriver, RawCall, open_mcp
from benchmarks.load import Driver
from benchmarks.processes import SERVERS, run_process
from benchmarks.rows.row import TEXT, Row
from benchmarks.usage import descendants

__all__ = ["NAMED", "ROWS", "install", "named"]

NAMED = "peer:"
"""How the row names of `--peer` begin."""

_HOME = Path(__file__).resolve().parents[2] / ".build" / "peers"
_PACKAGES = {
    "mcp-proxy": ("mcp-proxy==0.13.0", "orjson"),
    "fastmcp": ("fastmcp==4.1.0", "orjson", "uvloop"),
    "mcpo": ("mcpo==0.0.20", "fastapi==0.115.12", "mcp<2", "orjson"),
}
_SUPERGATEWAY = "supergateway@4.0.0"
_MCP_GO = _HOME / "mcp-go-gateway"

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
    go = shutil.which("go") or "go"
    subprocess.run([go, "build", "-o", str(_MCP_GO), "."], cwd=SERVERS / "mcp_go", check=True)


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


def _mcp_go(port: int) -> list[str]:
    return [str(_MCP_GO), str(port), *_server()]


def _mcpo(port: int) -> list[str]:
    command = [str(_HOME / "mcpo" / "bin" / "mcpo"), "--host", "127.0.0.1", "--port", str(port)]
    return [*command, "--", *_server()]


def _mcp_peer(
    command: Callable[[int], Sequence[str]],
) -> Callable[[], AbstractAsyncContextManager[Driver]]:
    @contextlib.asynccontextmanager
    async def open_row() -> AsyncIterator[Driver]:
        async with _listening(command) as (address, pid):
            base = f"http://{address[0]}:{address[1]}"
            urls = [f"{base}/mcp", f"{base}/"]
            yield await open_mcp(urls, "echo", TEXT, _between(pid), is_listed=True)

    return open_row


@contextlib.asynccontextmanager
async def _openapi_peer() -> AsyncIterator[Driver]:
    async with _listening(_mcpo) as (address, pid):
        body = orjson.dumps({"text": TEXT})
        url = f"http://{address[0]}:{address[1]}/echo"
        call = RawCall.of(url, {"Content-Type": "application/json"}, (body, b""), f'"{TEXT}"')
        yield HttpDriver(address, call, _between(pid))


def _between(pid: int) -> list[int]:
    """Return a peer's processes without the server behind it."""
    return descendants(pid, without="echo.py")


@contextlib.asynccontextmanager
async def _listening(
    command: Callable[[int], Sequence[str]],
) -> AsyncIterator[tuple[tuple[str, int], int]]:
    """Run a peer until the block ends; yield its address and its process id."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    async with run_process(command(port), ready_port=port) as (process, _):
        yield ("127.0.0.1", port), process.pid


def named(name: str, command: str) -> Row:
    """Return the row of a gateway that the user has: `--peer NAME=COMMAND`.

    Args:
        name: Its name in the table and the plot.
        command: Its command line, for a process that serves MCP at `/mcp` or `/` of a local port,
            with one tool whose name ends with `echo`. In it, `{port}` stands for that port,
            `{python}` and `{script}` for the two words of the command of the server behind it.
    """

    def words(port: int) -> list[str]:
        python, script = _server()
        values = {"{port}": str(port), "{python}": python, "{script}": script}
        return [_filled(word, values) for word in shlex.split(command)]

    return Row(f"{NAMED}{name}", name, _mcp_peer(words), (1, 32, 128), peer=True)


def _filled(word: str, values: Mapping[str, str]) -> str:
    for name, value in values.items():  # other braces belong to the peer's own options
        word = word.replace(name, value)
    return word


ROWS = (
    Row("supergateway", "supergateway", _mcp_peer(_supergateway), (1, 32, 128), peer=True),
    Row("mcp_proxy", "mcp-proxy", _mcp_peer(_mcp_proxy), (1, 32, 128), peer=True),
    Row("mcp_go", "a gateway on mcp-go (Go)", _mcp_peer(_mcp_go), (1, 32, 128), peer=True),
    Row("mcpo", "mcpo", _openapi_peer, (1, 32, 128), peer=True),
    Row("fastmcp", "FastMCP proxy, tuned", _mcp_peer(_fastmcp), (1, 32, 128), peer=True),
)
