"""Fixtures for all tests: the event loop, third-party servers, and a check for leaked processes."""

from __future__ import annotations

import gc
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

import pytest
from hypothesis import settings

from leaseway.spec.rules import expressions

pytest_plugins = ["tests.stalls"]

ROOT = Path(__file__).resolve().parents[1]
ROOTS: Final = ("sdk", "cli", "front", "control_plane", "data_plane")
ServerCommand = Callable[[str], list[str]]
_BEGIN_OF_2020: Final = 1_577_836_800.0
BOUND = 60.0
"""Timeout in seconds of waits, long enough for a slow and busy machine."""

# The same examples in every run, without deadlines: failures in continuous integration are
# reproducible. `--hypothesis-profile default` generates others.
settings.load_profile("ci")

# A shell may ignore SIGINT for background processes, and all children inherit that.
signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="session")
def anyio_backend() -> str:
    """Run every async test on asyncio: grpc.aio supports no other loop."""
    return "asyncio"


@pytest.fixture(scope="session", autouse=True)
async def one_loop(anyio_backend: str) -> None:
    """Keep one event loop for all tests.

    grpc.aio has one completion queue per process: calls that end on it after their loop was closed
    raise in the next loop. A session fixture keeps the loop as long as the session.
    """


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[None]:
    """Keep the garbage collector from the tests' modules and items, which stay to the end.

    It would walk them again and again: half of the time in which tests are found, in each process.
    """
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()
        gc.freeze()


def pytest_make_parametrize_id(val: object, argname: str) -> None:
    """Refuse a time of the clock as the name of a test: each process would have other tests."""
    if isinstance(val, float) and val > _BEGIN_OF_2020:
        raise pytest.UsageError(
            f"A time in {argname} would name the test: write pytest.param(..., id=...)."
        )


def absent(kind: str, reason: str) -> None:
    """Skip a test whose servers are missing, or fail it if LEASEWAY_REQUIRE names them."""
    required = os.environ.get("LEASEWAY_REQUIRE", "").split(",")
    if kind in [name.strip() for name in required]:
        pytest.fail(f"LEASEWAY_REQUIRE={kind}, but {reason}")
    pytest.skip(reason)


@pytest.fixture
def no_cel(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Run a test as if the package that evaluates rules were not installed."""
    expressions.cel_environment.cache_clear()
    with monkeypatch.context() as patch:
        patch.setitem(sys.modules, "cel_expr_python", None)
        yield
    expressions.cel_environment.cache_clear()


@pytest.fixture(scope="session")
def npm_folder() -> Path:
    """Return the folder of npm servers and of the TypeScript SDK for servers."""
    return Path(os.environ.get("LEASEWAY_NPM_SERVERS") or ROOT / ".build" / "npm")


@pytest.fixture(scope="session")
def npm_server(npm_folder: Path) -> ServerCommand:
    """Return a function from an npm server's binary to the command that starts it.

    Names: `mcp-server-everything`, `mcp-server-filesystem`, `mcp-server-memory`, `playwright-mcp`,
    `supergateway`.
    """

    def command(name: str) -> list[str]:
        binary = npm_folder / "node_modules" / ".bin" / name
        if not binary.exists() or shutil.which("node") is None:
            absent("npm", f"{name} is not in {npm_folder}; run `make npm-servers` (needs npm).")
        return [str(binary)]

    return command


@pytest.fixture(scope="session")
def conformance_folder() -> Path:
    """Return the folder of the official conformance suite and third-party MCP clients."""
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
    """Require bubblewrap, and a machine on which it can create a sandbox."""
    program = shutil.which("bwrap")
    if program is None:
        absent("bwrap", "bubblewrap is not installed (apt-get install bubblewrap).")
        return
    check = [program, "--unshare-pid", "--ro-bind", "/", "/", "--proc", "/proc", "true"]
    outcome = subprocess.run(check, capture_output=True, check=False, text=True)
    if outcome.returncode:
        pytest.skip(f"bubblewrap cannot create a sandbox on this machine: {outcome.stderr.strip()}")


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
    """Fail a test whose child processes do not exit."""
    if not sys.platform.startswith("linux"):
        pytest.skip("Child processes are read from /proc.")
    before = descendants(os.getpid())
    yield
    deadline = time.monotonic() + BOUND
    while remaining := {p: c for p, c in descendants(os.getpid()).items() if p not in before}:
        if time.monotonic() > deadline:
            pytest.fail(f"These processes have not exited: {remaining}")
        time.sleep(0.02)  # reading /proc without a pause would keep a processor busy
