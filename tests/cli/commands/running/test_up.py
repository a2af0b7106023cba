"""`leaseway up`, as a process with real children and a real server."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from leaseway.telemetry.trace_file import read_spans

pytestmark = pytest.mark.usefixtures("leak_guard")

LEASEWAY = (sys.executable, "-m", "leaseway.cli.main")
CONFIG = """
version: 1
servers:
  clock:
    truely-stateless: true
    transport: stdio
    command: {python}
    args: ['-m', 'leaseway.data_plane.kit']
"""
BOUND = 120


@pytest.fixture
def config(tmp_path: Path) -> Path:
    path = tmp_path / "mcp.yaml"
    path.write_text(CONFIG.format(python=sys.executable))
    return path


class _Up:
    """A running `leaseway up`."""

    def __init__(self, folder: Path, *words: str) -> None:
        self.err = folder / "err"
        with self.err.open("wb") as err:
            self.process = subprocess.Popen(
                [*LEASEWAY, "up", "--listen", "127.0.0.1:0", *words],
                stdout=subprocess.PIPE,
                stderr=err,
                text=True,
                cwd=folder,
            )
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        self.address = line.removeprefix("ready ").strip() if line.startswith("ready ") else ""

    def run(self, *words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [*LEASEWAY, "--address", self.address, *words],
            capture_output=True,
            text=True,
            timeout=BOUND,
            check=False,
        )

    def end(self, number: signal.Signals = signal.SIGTERM) -> int:
        self.process.send_signal(number)
        self.process.communicate(timeout=BOUND)
        return self.process.returncode


Start = Callable[..., _Up]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    started: list[_Up] = []

    def make(*words: str) -> _Up:
        started.append(_Up(tmp_path, *words))
        return started[-1]

    yield make
    for up in started:
        if up.process.poll() is None:
            up.end()


def test_it_serves_calls_when_it_has_printed_ready(start: Start, config: Path) -> None:
    up = start("--config", str(config), "--workers", "2")
    assert up.address
    done = up.run("call", "current_time", "timezone=UTC")
    assert done.returncode == 0
    assert json.loads(done.stdout)["timezone"] == "UTC"
    workers = json.loads(up.run("workers", "--json").stdout)
    assert [worker["id"] for worker in workers] == ["worker-1", "worker-2"]
    assert up.run("wait", "--timeout", "60").stdout == f"ready {up.address}\n"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_stops_all_processes(start: Start, config: Path, number: signal.Signals) -> None:
    up = start("--config", str(config))
    assert up.end(number) == 0
    assert "Traceback" not in up.err.read_text()


def test_a_killed_worker_is_restarted(start: Start, config: Path) -> None:
    up = start("--config", str(config))
    worker = next(pid for pid in _children(up.process.pid) if b"--capacity" in _command_line(pid))
    os.kill(worker, signal.SIGKILL)
    deadline = time.monotonic() + BOUND
    while up.run("call", "current_time", "--timeout", "20").returncode != 0:
        assert time.monotonic() < deadline, up.err.read_text()
    assert "The worker worker-1 exited (SIGKILL)" in up.err.read_text()


def test_problems_are_printed_to_stderr(start: Start, config: Path) -> None:
    config.write_text(
        config.read_text() + "  broken:\n    transport: stdio\n    command: /no/such/program\n"
    )
    up = start("--config", str(config))
    assert up.address
    assert "leaseway: error: " in up.err.read_text()
    assert "broken" in up.err.read_text()


def test_the_trace_file_has_spans_of_all_processes(
    start: Start, config: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "100")
    trace = tmp_path / "trace.jsonl"
    up = start("--config", str(config), "--trace-file", str(trace))
    stderr = up.err.read_text()
    endpoint = stderr.partition("OTEL_EXPORTER_OTLP_ENDPOINT=")[2].split()[0]
    headers = stderr.partition("OTEL_EXPORTER_OTLP_HEADERS=")[2].split()[0]
    done = subprocess.run(
        [*LEASEWAY, "--address", up.address, "call", "current_time"],
        env={
            **os.environ,
            "OTEL_EXPORTER_OTLP_ENDPOINT": endpoint,
            "OTEL_EXPORTER_OTLP_HEADERS": headers,
        },
        capture_output=True,
        timeout=BOUND,
        check=False,
    )
    assert done.returncode == 0
    wanted = {"leaseway-cli", "leaseway-worker", "leaseway-kit"}
    deadline = time.monotonic() + BOUND
    while (services := _services_of_the_call(trace)) != wanted:
        assert time.monotonic() < deadline, services
        time.sleep(0.05)
    assert up.end() == 0


def _services_of_the_call(trace: Path) -> set[str]:
    """Return the services that have spans in the trace of the command's call."""
    spans = read_spans(trace)
    roots = [s for s in spans if s.service == "leaseway-cli" and not s.parent_span_id]
    return {span.service for span in spans if span.trace_id in {s.trace_id for s in roots}}


def test_a_missing_file_is_reported_and_loaded_when_it_appears(
    start: Start, config: Path, tmp_path: Path
) -> None:
    late = tmp_path / "late.yaml"
    up = start("--config", str(late))
    assert up.address
    assert f"There is no file {late}" in up.err.read_text()
    config.rename(late)
    done = subprocess.run(
        [*LEASEWAY, "--address", up.address, "wait", "--server", "clock", "--timeout", str(BOUND)],
        capture_output=True,
        timeout=2 * BOUND,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert up.end() == 0


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--config", "."], ". is a folder"),
        (["--config", "domian=a.yaml"], "Did you mean 'domain=a.yaml'?"),
        (["--workers", "0"], "--workers"),
        (["--trace-file", "/no/such/folder/trace"], "trace file /no/such/folder/trace"),
    ],
)
def test_an_invalid_option_is_a_usage_error(
    start: Start, config: Path, tmp_path: Path, words: list[str], message: str
) -> None:
    (tmp_path / ".minds").mkdir()
    config.rename(tmp_path / ".minds" / "mcp.yaml")
    up = start(*words)
    up.process.communicate(timeout=BOUND)
    assert up.process.returncode == 2
    assert message in up.err.read_text()


def _children(pid: int) -> list[int]:
    text = Path(f"/proc/{pid}/task/{pid}/children").read_text()
    return [int(word) for word in text.split()]


def _command_line(pid: int) -> bytes:
    return Path(f"/proc/{pid}/cmdline").read_bytes()
