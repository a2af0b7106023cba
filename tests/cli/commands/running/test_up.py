"""`leaseway up`, as a process with real children and a real server.

The command is a fork (`tests/e2e/forking.py`); its control plane and workers are executed.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import socket
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest
from tests.conftest import BOUND
from tests.e2e.forking import Completed, ForkedProcess, fork_leaseway, run_leaseway
from tests.e2e.system import eventually, python_server

from leaseway.telemetry.trace_file import read_spans

_CLOCK = {
    "truely-stateless": True,
    "transport": "stdio",
    "command": sys.executable,
    "args": ["-m", "leaseway.data_plane.kit"],
}
_BROKEN = {"transport": "stdio", "command": "/no/such/program"}
_PROMPT_TRACES = {"OTEL_BSP_SCHEDULE_DELAY": "100"}


@pytest.fixture
def config(tmp_path: Path) -> Path:
    path = tmp_path / "mcp.yaml"
    path.write_text(_text(counter=python_server("counter.py", **{"truely-stateless": True})))
    return path


def _text(**servers: object) -> str:
    return json.dumps({"version": 1, "servers": servers})


class _Up:
    """A `leaseway up` that is ready, or has ended without an address."""

    def __init__(self, process: ForkedProcess) -> None:
        self.process = process
        self.address = ""
        self.err = ""
        self._reading = asyncio.ensure_future(self._read())

    async def _read(self) -> None:
        async for line in self.process.stderr:
            self.err += line.decode()

    async def ready(self) -> None:
        async with asyncio.timeout(2 * BOUND):
            line = (await self.process.stdout.readline()).decode()
        self.address = line.removeprefix("ready ").strip() if line.startswith("ready ") else ""

    async def said(self, text: str) -> None:
        """Wait until a text is on stderr."""
        await eventually(lambda: text in self.err)

    async def run(self, *words: str, **variables: str) -> Completed:
        return await run_leaseway(
            "--address", self.address, *words, environment={**os.environ, **variables}
        )

    async def end(self) -> int:
        if self.process.returncode is None:
            with contextlib.suppress(ProcessLookupError):  # it may have ended by itself just now
                self.process.terminate()
        async with asyncio.timeout(BOUND):
            await self._reading
            return await self.process.wait()


Start = Callable[..., Awaitable[_Up]]


@pytest.fixture(scope="module")
async def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("up")


@pytest.fixture(scope="module")
async def up(folder: Path) -> AsyncIterator[_Up]:
    """Run `leaseway up` with two workers, a broken server and a file of traces."""
    (folder / "mcp.yaml").write_text(_text(clock=_CLOCK, broken=_BROKEN))
    words = ("--config", "mcp.yaml", "--workers", "2", "--trace-file", "trace.jsonl")
    arguments = ("up", "--listen", "127.0.0.1:0", *words)
    up = _Up(await fork_leaseway(arguments, {**os.environ, **_PROMPT_TRACES}, folder))
    await up.ready()
    yield up
    await up.end()


@pytest.fixture
async def start(tmp_path: Path, leak_guard: None) -> AsyncIterator[Start]:
    started: list[_Up] = []

    async def make(*words: str) -> _Up:
        arguments = ("up", "--listen", "127.0.0.1:0", *words)
        started.append(_Up(await fork_leaseway(arguments, os.environ, tmp_path)))
        await started[-1].ready()
        return started[-1]

    yield make
    for up in started:
        await up.end()


async def test_it_serves_calls_when_it_has_printed_ready(up: _Up) -> None:
    assert up.address
    done = await up.run("call", "current_time", "timezone=UTC")
    assert done.status == 0
    assert json.loads(done.stdout)["timezone"] == "UTC"
    workers = json.loads((await up.run("workers", "--json")).stdout)
    assert [worker["id"] for worker in workers] == ["worker-1", "worker-2"]
    assert (await up.run("wait", "--timeout", "60")).stdout == f"ready {up.address}\n"


async def test_a_killed_worker_is_restarted(start: Start, config: Path) -> None:
    up = await start("--config", str(config))
    worker = next(pid for pid in _children(up.process.pid) if b"--capacity" in _command_line(pid))
    os.kill(worker, signal.SIGKILL)
    deadline = time.monotonic() + BOUND
    while (await up.run("call", "next", "--timeout", "20")).status != 0:
        assert time.monotonic() < deadline, up.err
    await up.said("The worker worker-1 exited (SIGKILL)")


async def test_problems_are_printed_to_stderr(up: _Up) -> None:
    await up.said("leaseway: error: ")
    await up.said("broken")


async def test_the_trace_file_has_spans_of_all_processes(up: _Up, folder: Path) -> None:
    trace = folder / "trace.jsonl"
    await up.said("OTEL_EXPORTER_OTLP_HEADERS=")
    printed = {
        name: up.err.partition(f"{name}=")[2].split()[0]
        for name in ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_HEADERS")
    }
    assert (await up.run("call", "current_time", **_PROMPT_TRACES, **printed)).status == 0
    wanted = {"leaseway-cli", "leaseway-worker", "leaseway-kit"}
    await eventually(lambda: _services_of_the_call(trace) == wanted)


def _services_of_the_call(trace: Path) -> set[str]:
    """Return the services that have spans in the trace of the command's call."""
    spans = read_spans(trace)
    roots = [s for s in spans if s.service == "leaseway-cli" and not s.parent_span_id]
    return {span.service for span in spans if span.trace_id in {s.trace_id for s in roots}}


async def test_a_missing_file_is_reported_and_loaded_when_it_appears(
    start: Start, config: Path, tmp_path: Path
) -> None:
    late = tmp_path / "late.yaml"
    up = await start("--config", str(late))
    assert up.address
    await up.said(f"There is no file {late}")
    config.rename(late)
    done = await up.run("wait", "--server", "counter", "--timeout", str(BOUND))
    assert done.status == 0, done.stderr
    assert await up.end() == 0


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--config", "."], ". is a folder"),
        (["--config", "domian=a.yaml"], "Did you mean 'domain=a.yaml'?"),
        (["--workers", "0"], "--workers"),
        (["--trace-file", "/no/such/folder/trace"], "trace file /no/such/folder/trace"),
    ],
)
async def test_an_invalid_option_is_a_usage_error(
    start: Start, config: Path, tmp_path: Path, words: list[str], message: str
) -> None:
    (tmp_path / ".minds").mkdir()
    config.rename(tmp_path / ".minds" / "mcp.yaml")
    up = await start(*words)
    assert await up.end() == 2
    assert message in up.err


async def test_a_worker_that_cannot_start_ends_it_with_the_reason(
    start: Start, config: Path
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        up = await start("--config", str(config), "--mcp", address)
        assert await up.end() == 1
    assert address in up.err
    assert up.err.endswith(
        "leaseway: The worker worker-1 did not start (exit status 1). The reason is above.\n"
    )


def _children(pid: int) -> list[int]:
    text = Path(f"/proc/{pid}/task/{pid}/children").read_text()
    return [int(word) for word in text.split()]


def _command_line(pid: int) -> bytes:
    return Path(f"/proc/{pid}/cmdline").read_bytes()
