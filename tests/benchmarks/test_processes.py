"""The processes of a benchmark end with it."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from tests.conftest import BOUND

_CHILD = "import os, time; print('ready', os.getpid(), flush=True); time.sleep(3600)"
_BENCHMARK = """
import asyncio, sys
from benchmarks.processes import run_process

async def main():
    async with run_process([sys.executable, "-c", sys.argv[1]], ready_text="ready") as (_, line):
        print(line, flush=True)
        await asyncio.sleep(3600)

asyncio.run(main())
"""


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells a child of its parent's end")
@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGKILL])
def test_what_a_benchmark_has_started_ends_when_it_is_killed(how: signal.Signals) -> None:
    root = Path(__file__).parents[2]
    command = [sys.executable, "-c", _BENCHMARK, _CHILD]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=root) as benchmark:
        assert benchmark.stdout is not None
        child = int(benchmark.stdout.readline().split()[1])
        benchmark.send_signal(how)
        benchmark.wait(BOUND)
    until = time.monotonic() + BOUND
    while _lives(child):
        assert time.monotonic() < until
        time.sleep(0.02)


def _lives(pid: int) -> bool:
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False
    return stat.rpartition(")")[2].split()[0] != "Z"  # its new parent may never ask for it
