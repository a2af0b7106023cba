"""`leaseway check`: its output and exit status."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import Result

Run = Callable[..., Result]

GOOD = "version: 1\nservers:\n  a:\n    transport: stdio\n    command: python3\n"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "mcp.yaml"


def test_a_file_without_mistakes(run: Run, path: Path) -> None:
    path.write_text(GOOD)
    done = run("check", str(path))
    assert (done.exit_code, done.stdout) == (0, "")
    assert done.stderr == f"{path}: no mistakes.\n"


def test_errors_are_printed_with_their_place_and_exit_with_1(run: Run, path: Path) -> None:
    path.write_text(GOOD.replace("command", "comand"))
    done = run("check", str(path))
    assert done.exit_code == 1
    assert f"{path}:5:" in done.stdout
    assert ": error: " in done.stdout
    assert "command" in done.stdout


def test_warnings_exit_with_0(run: Run, path: Path) -> None:
    path.write_text(GOOD.replace("python3", "no-such-command-anywhere"))
    done = run("check", str(path))
    assert done.exit_code == 0
    assert ": warning: " in done.stdout
    assert "0 errors, 1 warning." in done.stderr


def test_issues_as_json_are_an_array(run: Run, path: Path) -> None:
    path.write_text(GOOD.replace("command", "comand"))
    issues = json.loads(run("check", str(path), "--json").stdout)
    keys = {"file", "line", "column", "key", "severity", "reason", "message"}
    assert all(issue.keys() >= keys for issue in issues)
    path.write_text(GOOD)
    assert json.loads(run("check", str(path), "--json").stdout) == []


def test_a_missing_default_file_points_to_the_quick_start(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    done = run("check")
    assert done.exit_code == 2
    assert "There is no file .minds/mcp.yaml. Write one (see" in done.stderr
    assert done.stderr.endswith("or name another.\n")
    assert run("config").stderr.endswith("or name another with --config.\n")


def test_a_missing_file_is_a_usage_error(run: Run, path: Path) -> None:
    done = run("check", str(path))
    assert done.exit_code == 2
    assert done.stderr == f"leaseway: There is no file {path}.\n"


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (["sytem=a.yaml"], "Did you mean 'system=a.yaml'?"),
        (["."], "domain=. reads a file for each tenant from it."),
        (["--schema", "a.yaml"], "remove PATH"),
    ],
)
def test_an_invalid_path_suggests_a_valid_one(run: Run, words: list[str], why: str) -> None:
    done = run("check", *words)
    assert done.exit_code == 2
    assert why in done.stderr
