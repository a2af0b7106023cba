"""What tests everywhere rely on: the loop, servers that others wrote, and no process left over."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import settings

pytest_plugins = ["tests.stalls"]

ROOT = Path(__file__).resolve().parents[1]
ServerCommand = Callable[[str], list[str]]
BOUND = 60.0
"""Seconds for what must come, however slow and busy the machine: only a fault takes as long."""

# The same examples at every run, and none too slow for a busy machine: what fails in continuous
# integration fails here too. `--hypothesis-profile default` tries others.
settings.load_profile("ci")

# A shell may have it ignored in what it runs in the background, and all children inherit that.
signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="session")
def anyio_backend() -> str:
    """Run every async test on asyncio: grpc.aio knows no other loop."""
    return "asyncio"


@pytest.fixture(scope="session", autouse=True)
async def one_loop(anyio_backend: str) -> None:
    """Keep one event loop for all tests.

    grpc.aio has one completion queue a process: what ends on it after its loop was closed raises
    in whatever loop runs by then. A session's fixture keeps the loop as long as the session.
    """


def absent(kind: str, reason: str) -> None:
    """Skip a test whose servers are absent, or fail it where LEASEWAY_REQUIRE names them."""
    required = os.environ.get("LEASEWAY_REQUIRE", "").split(",")
    if kind in [name.strip() for name in required]:
        pytest.fail(f"LEASEWAY_REQUIRE={kind}, but {reason}")
    pytest.skip(reason)


@pytest.fixture(scope="session")
def npm_server() -> ServerCommand:
    """Return a function from an npm server's binary to the command that starts it.

    Names: `mcp-server-everything`, `mcp-server-filesystem`, `playwright-mcp`, `supergateway`.
    """
    folder = Path(os.environ.get("LEASEWAY_NPM_SERVERS") or ROOT / ".build" / "npm")

    def command(name: str) -> list[str]:
        binary = folder / "node_modules" / ".bin" / name
        if not binary.exists() or shutil.which("node") is None:
            absent("npm", f"{name} is not in {folder}; run `make npm-servers` (needs npm).")
        return [str(binary)]

    return command


@pytest.fixture(scope="session")
def conformance_folder() -> Path:
    """Return where the official conformance suite and foreign MCP clients are installed."""
    folder = Path(os.environ.get("LEASEWAY_CONFORMANCE") or ROOT / ".build" / "conformance")
    if not (folder / "stamp").exists():
        absent("conformance", f"{folder} is not complete; run `make conformance-suite`.")
    return folder


@pytest.fixture
def legacy_server() -> ServerCommand:
    """Return a function from a PyPI server built on `mcp<2` to the command that starts it.

    Names: `mcp-server-time`, `mcp-server-git`.
    """
    folder = Path(os.environ.get("LEASEWAY_LEGACY_SERVERS") or ROOT / ".build" / "legacy")

    def command(name: str) -> list[str]:
        binary = folder / "bin" / name
        if not binary.exists():
            absent("legacy", f"{name} is not in {folder}; run `make legacy-servers`.")
        return [str(binary)]

    return command


@pytest.fixture
def chromium() -> str:
    """Return the path of Debian's Chromium."""
    program = shutil.which("chromium")
    if program is None:
        absent("chromium", "Chromium is not installed (apt-get install chromium).")
    return str(program)


@pytest.fixture
def bwrap() -> None:
    """Need bubblewrap, and a machine on which it can make a sandbox."""
    program = shutil.which("bwrap")
    if program is None:
        absent("bwrap", "bubblewrap is not installed (apt-get install bubblewrap).")
        return
    trial = [program, "--unshare-pid", "--ro-bind", "/", "/", "--proc", "/proc", "true"]
    outcome = subprocess.run(trial, capture_output=True, check=False, text=True)
    if outcome.returncode:
        pytest.skip(f"No sandbox can be made on this machine: {outcome.stderr.strip()}")


def descendants(pid: int) -> dict[int, str]:
    """Return the live processes below a process, by id, with their command lines (Linux)."""
    parents: dict[int, int] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            try:
                state, parent = (entry / "stat").read_text().rpartition(")")[2].split()[:2]
            except OSError:
                continue
            if state != "Z":
                parents[int(entry.name)] = int(parent)
    found: dict[int, str] = {}
    level = {pid}
    while level := {child for child, parent in parents.items() if parent in level} - set(found):
        found |= {child: _command_line(child) for child in level}
    return found


def _command_line(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode().strip()
    except OSError:
        return ""


@pytest.fixture
def leak_guard() -> Iterator[None]:
    """Fail a test that leaves child processes of this one behind; give them time to go."""
    if not sys.platform.startswith("linux"):
        pytest.skip("Child processes are read from /proc.")
    before = descendants(os.getpid())
    yield
    deadline = time.monotonic() + BOUND
    while left := {p: c for p, c in descendants(os.getpid()).items() if p not in before}:
        if time.monotonic() > deadline:
            pytest.fail(f"Processes are left over: {left}")
        os.sched_yield()
