"""Choose the tests of `make test-fast`: quick ones that together run 90 % of the lines of all.

    python tools/fast_tests.py [PYTEST_OPTIONS]        writes tests/fast.txt (half an hour)

It runs the tests that need no process of their own and records which lines each of them runs. Then
it takes, again and again, the test that adds the most lines for its time. Lines that run at imports
do not count: every test has them. All cases of a test with parameters are one test here.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections import defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import coverage
import pytest

ROOT: Final = Path(__file__).resolve().parents[1]
LIST: Final = ROOT / "tests" / "fast.txt"
SHARE: Final = 0.9
"""Share of the lines that all tests run."""
_FOLDERS: Final = (
    *("cli", "control_plane", "data_plane", "front", "identity", "runbook", "sdk", "server"),
    *("spec", "telemetry", "templates", "vault", "wire"),
)
_LEAST_SECONDS: Final = 0.02
"""What every test costs, whatever was measured."""
_LONGEST: Final = 2.0
"""Seconds; slower tests are not chosen."""

Line = tuple[str, int]


class Recorder:
    """Records the lines and the time of each test, as a plugin of pytest.

    Args:
        folder: Where each process of pytest writes its measurements.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._times: dict[str, float] = defaultdict(float)
        self._failed: set[str] = set()
        self._coverage: coverage.Coverage | None = None

    def pytest_configure(self, config: pytest.Config) -> None:
        worker = getattr(config, "workerinput", {}).get("workerid")
        if worker is None and config.getoption("numprocesses", None):
            return
        self._name = worker or "only"
        roots = [
            str(ROOT / name) for name in ("sdk", "cli", "front", "control_plane", "data_plane")
        ]
        self._coverage = coverage.Coverage(
            data_file=str(self._folder / f"{self._name}.coverage"),
            source=roots,
            config_file=False,
        )
        self._coverage.start()

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        if self._coverage is not None:
            self._coverage.switch_context(_test(item.nodeid))
        return (yield)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self._times[_test(report.nodeid)] += report.duration
        if not report.passed:
            self._failed.add(_test(report.nodeid))

    def pytest_unconfigure(self) -> None:
        if self._coverage is None:
            return
        self._coverage.stop()
        self._coverage.save()
        times = {name: time for name, time in self._times.items() if name not in self._failed}
        (self._folder / f"{self._name}.json").write_text(json.dumps(times))


def _test(node_id: str) -> str:
    return node_id.partition("[")[0]


def pytest_configure(config: pytest.Config) -> None:
    """Register the recorder in each process of pytest; this module is a plugin, too."""
    config.pluginmanager.register(Recorder(Path(os.environ["LEASEWAY_FAST_TESTS"])))


def read(folder: Path) -> tuple[dict[str, float], dict[str, set[Line]]]:
    """Return the seconds and the lines of each test that passed."""
    times: dict[str, float] = {}
    lines: dict[str, set[Line]] = defaultdict(set)
    for path in folder.glob("*.json"):
        for name, seconds in json.loads(path.read_text()).items():
            times[name] = times.get(name, 0.0) + seconds
    for path in folder.glob("*.coverage"):
        data = coverage.CoverageData(str(path))
        data.read()
        for file in data.measured_files():
            for line, contexts in data.contexts_by_lineno(file).items():
                for context in contexts:
                    if context in times:
                        lines[context].add((file, line))
    return times, lines


def chosen(times: Mapping[str, float], lines: Mapping[str, set[Line]]) -> tuple[list[str], float]:
    """Return the chosen tests, and which share of the lines they run."""
    missing = set[Line]().union(*lines.values())
    total, names = len(missing), list[str]()
    allowed = (1 - SHARE) * total
    rest = {name: set(of_test) for name, of_test in lines.items() if times[name] <= _LONGEST}
    while len(missing) > allowed and rest:
        best = max(rest, key=lambda name: len(rest[name]) / max(times[name], _LEAST_SECONDS))
        found = rest.pop(best)
        names.append(best)
        missing -= found
        rest = {name: left for name, of_test in rest.items() if (left := of_test - found)}
    return names, 1 - len(missing) / max(1, total)


def main() -> None:
    """Run the tests, choose and write the list."""
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        command: list[Any] = [sys.executable, "-m", "pytest", "-q", "-p", "tools.fast_tests"]
        command += [*sys.argv[1:], *(ROOT / "tests" / name for name in _FOLDERS)]
        environment = {**os.environ, "LEASEWAY_FAST_TESTS": made}
        subprocess.run(command, cwd=ROOT, env=environment, check=False)
        times, lines = read(folder)
    names, share = chosen(times, lines)
    LIST.write_text("".join(f"{name}\n" for name in sorted(names)))
    seconds = sum(times[name] for name in names)
    print(f"{len(names)} of {len(times)} tests run {share:.1%} of the lines in {seconds:.0f} s")


if __name__ == "__main__":
    main()
