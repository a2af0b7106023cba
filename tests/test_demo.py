"""`make demo` prints real calls and one trace, and leaves no process behind."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

DEMO = Path(__file__).resolve().parents[1] / "deploy" / "demo" / "demo.py"


@pytest.mark.usefixtures("leak_guard")
def test_the_demo_makes_real_calls_and_shows_one_trace() -> None:
    done = subprocess.run(
        [sys.executable, str(DEMO)], capture_output=True, text=True, timeout=240, check=False
    )
    assert done.returncode == 0, done.stderr
    shown = done.stdout
    for sentence in (
        "clock_current_time   shared",
        "files_read_file      leased",
        "the call acquired lease",
        "'Hello from a leased server.'",
        "more_current_time(timezone='Asia/Tokyo') ->",
        "The system is stopped.",
    ):
        assert sentence in shown
    tree = shown.partition("\ntrace ")[2].splitlines()[1:6]
    assert [line.split()[-1] for line in tree] == [
        "demo",
        "demo",
        "leaseway-worker",
        "leaseway-worker",
        "leaseway-kit",
    ]
