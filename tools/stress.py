"""Run tests again and again on a busy machine, and list those that do not hold.

    python tools/stress.py [--times N] [--loops N] [--no-stops] [PYTEST_ARGUMENTS]

A test that waits for less than it needs holds on an idle machine, and fails the one time in
hundreds in which another process gets the processor first. Here others always do: beside the tests,
processes compute without end, and children of the tests are stopped at random for a moment. A
failed test is not run again. The output of each run is kept in `.build/stress`.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import random
import signal
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Final
from xml.etree import ElementTree as Xml

ROOT: Final = Path(__file__).resolve().parents[1]
OUTPUT: Final = ROOT / ".build" / "stress"
_PAUSE: Final = (0.2, 1.0)
"""Seconds between two stops, least and most."""
_STOP: Final = (0.05, 0.6)
"""Seconds that a process is stopped: shorter than any bound of a test on processes."""


def _children(pid: int) -> Iterator[int]:
    """Yield the processes below a process."""
    with contextlib.suppress(OSError):
        for task in Path(f"/proc/{pid}/task").iterdir():
            for child in map(int, (task / "children").read_text().split()):
                yield child
                yield from _children(child)


def _runs(pid: int) -> bool:
    """Return whether a process runs; one that a test has stopped must stay so."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state in "RSD"


def _stop_children(of: int, over: threading.Event) -> None:
    """Stop one child after the other for a moment, until `over`."""
    draw = random.Random()
    while not over.wait(draw.uniform(*_PAUSE)):
        running = [pid for pid in _children(of) if _runs(pid)]
        if running:
            chosen = draw.choice(running)
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(chosen, signal.SIGSTOP)
                over.wait(draw.uniform(*_STOP))
                os.kill(chosen, signal.SIGCONT)


@contextlib.contextmanager
def _computing(loops: int) -> Iterator[None]:
    """Run processes that compute without end."""
    command = [sys.executable, "-c", "while True: pass"]
    processes = [subprocess.Popen(command) for _ in range(loops)]
    try:
        yield
    finally:
        for process in processes:
            process.kill()
            process.wait()


def _failed(report: Path) -> Iterator[str]:
    """Yield the tests of a report that failed."""
    for case in Xml.parse(report).iter("testcase"):
        if case.find("failure") is not None or case.find("error") is not None:
            yield f"{case.get('classname', '').replace('.', '/')}.py::{case.get('name')}"


def _run(number: int, *, stops: bool, arguments: list[str]) -> list[str]:
    """Run the tests once; return those that failed, or that pytest could not report."""
    report, log = OUTPUT / f"run-{number}.xml", OUTPUT / f"run-{number}.log"
    report.unlink(missing_ok=True)
    command = [
        sys.executable,
        "-m",
        "pytest",
        *arguments,
        "--reruns",
        "0",
        "-p",
        "no:cacheprovider",
    ]
    with log.open("w") as output:
        tests = subprocess.Popen(
            [*command, f"--junitxml={report}"], cwd=ROOT, stdout=output, stderr=subprocess.STDOUT
        )
        over = threading.Event()
        stopping = threading.Thread(target=_stop_children, args=(tests.pid, over))
        if stops:
            stopping.start()
        try:
            status = tests.wait()
        finally:
            over.set()
            if stops:
                stopping.join()
            if tests.poll() is None:  # this program is being ended: they stop their processes
                tests.send_signal(signal.SIGINT)
                tests.wait()
    failed = list(_failed(report)) if report.exists() else []
    if status not in (0, 5) and not failed:
        failed = [f"pytest ended with status {status}"]
    print(f"run {number}: {len(failed)} failed, {log.relative_to(ROOT)}", flush=True)
    return failed


def _end(*_: object) -> None:
    """End as after Ctrl-C: a test run leaves no processes."""
    raise KeyboardInterrupt


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--times", type=int, default=5, help="how often (5)")
    parser.add_argument(
        "--loops", type=int, default=os.cpu_count(), help="processes that compute (one a processor)"
    )
    parser.add_argument("--no-stops", action="store_true", help="stop no process of the tests")
    options, arguments = parser.parse_known_args()
    signal.signal(signal.SIGTERM, _end)
    OUTPUT.mkdir(parents=True, exist_ok=True)
    failures: Counter[str] = Counter()
    with _computing(options.loops):
        for number in range(1, options.times + 1):
            failures.update(_run(number, stops=not options.no_stops, arguments=arguments))
    for test, times in failures.most_common():
        print(f"{times} of {options.times}: {test}")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
