"""`leaseway new server`: the written files work, and it overwrites no file."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml
from click.testing import Result
from tests.conftest import BOUND

from leaseway.control_plane.config.formats.detection import parse_text

Run = Callable[..., Result]


def test_the_written_server_passes_its_test(run: Run, tmp_path: Path) -> None:
    done = run("new", "server", "weather-station", "-C", str(tmp_path / "made"))
    assert done.exit_code == 0, done.stderr
    assert {path.name for path in (tmp_path / "made").iterdir()} == {
        "weather_station.py",
        "test_weather_station.py",
    }
    tried = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_weather_station.py"],
        cwd=tmp_path / "made",
        capture_output=True,
        text=True,
        timeout=3 * BOUND,
    )
    assert "3 passed" in tried.stdout, tried.stdout + tried.stderr


def test_the_printed_entry_is_valid(run: Run, tmp_path: Path) -> None:
    done = run("new", "server", "weather-station", "-C", str(tmp_path))
    parsed = parse_text(f"version: 1\nservers:\n{done.stdout}", "mcp.yaml")
    assert parsed.issues == ()
    entry = yaml.safe_load(done.stdout)["weather-station"]
    assert (entry["module"], entry["class"]) == ("weather_station", "WeatherStation")
    assert "PYTHONPATH" in done.stderr


def test_an_existing_file_is_replaced_only_with_force(run: Run, tmp_path: Path) -> None:
    mine = tmp_path / "test_weather.py"
    mine.write_text("mine")
    done = run("new", "server", "weather", "-C", str(tmp_path))
    assert done.exit_code == 1
    assert f"{mine} already exists" in done.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["test_weather.py"]
    assert run("new", "server", "weather", "-C", str(tmp_path), "--force").exit_code == 0
    assert mine.read_text() != "mine"


def test_a_full_disk_is_told_with_the_file(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object, **__: object) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))  # a write names no file

    monkeypatch.setattr(Path, "write_text", fail)
    done = run("new", "server", "weather", "-C", str(tmp_path))
    assert f"Can't write {tmp_path / 'weather.py'}: No space left on device." in done.stderr


@pytest.mark.parametrize("name", ["1st", "class", "a b", "../up", "", "ä", "a.b"])
def test_a_name_that_is_not_a_module_name_is_rejected(run: Run, tmp_path: Path, name: str) -> None:
    done = run("new", "server", "-C", str(tmp_path), "--", name)
    assert done.exit_code == 2
    assert "can't name a server and a Python module" in done.stderr
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", ["json", "mcp", "leaseway"])
def test_the_name_of_an_existing_module_is_rejected(run: Run, tmp_path: Path, name: str) -> None:
    done = run("new", "server", name, "-C", str(tmp_path))
    assert done.exit_code == 2
    assert f"A Python module '{name}' already exists" in done.stderr
    assert list(tmp_path.iterdir()) == []
