"""The README: its configuration, its commands and its programs work as printed."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from leaseway.cli.app import COMMANDS

REPOSITORY = Path(__file__).resolve().parents[1]
PAGES = [path.relative_to(REPOSITORY) for path in sorted((REPOSITORY / "docs").glob("*.md"))]
README = (REPOSITORY / "README.md").read_text()
SDK_PAGE = (REPOSITORY / "docs" / "sdk.md").read_text()
CLI_PAGE = (REPOSITORY / "docs" / "cli.md").read_text()
DEFAULT = "127.0.0.1:7600"


def _blocks(language: str, page: str = README) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", page, flags=re.MULTILINE | re.DOTALL)


def _environment() -> dict[str, str]:
    # Like an activated environment: `python` and `leaseway` are those of this interpreter.
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    return {**os.environ, "PATH": path}


@pytest.fixture(scope="module")
def system(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, str]]:
    """Run the quick start; yield its folder and address."""
    folder = tmp_path_factory.mktemp("quick-start")
    (folder / ".minds").mkdir()
    [config] = _blocks("yaml")
    (folder / ".minds" / "mcp.yaml").write_text(config)
    up = subprocess.Popen(
        ["leaseway", "up", "--listen", "127.0.0.1:0"],
        cwd=folder,
        env=_environment(),
        stdout=subprocess.PIPE,
        text=True,
    )
    assert up.stdout is not None
    ready = up.stdout.readline()
    assert ready.startswith("ready ")
    yield folder, ready.split()[1]
    up.terminate()
    up.communicate(timeout=60)


def _run(words: list[str], folder: Path, address: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        words,
        cwd=folder,
        env={**_environment(), "LEASEWAY_ADDRESS": address},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_the_configuration_is_valid(system: tuple[Path, str]) -> None:
    folder, address = system
    done = _run(["leaseway", "check", ".minds/mcp.yaml"], folder, address)
    assert (done.returncode, done.stdout) == (0, "")


@pytest.mark.parametrize(
    "line", [line[2:] for block in _blocks("console") for line in block.splitlines()]
)
def test_each_command_of_the_quick_start_works(system: tuple[Path, str], line: str) -> None:
    done = _run(shlex.split(line), *system)
    assert done.returncode == 0, done.stderr
    assert done.stdout


@pytest.mark.parametrize("program", _blocks("python"))
def test_each_program_works(system: tuple[Path, str], program: str) -> None:
    folder, address = system
    assert DEFAULT in program
    done = _run([sys.executable, "-c", program.replace(DEFAULT, address)], folder, address)
    assert done.returncode == 0, done.stderr
    assert done.stdout


@pytest.mark.parametrize("program", _blocks("python", SDK_PAGE))
def test_each_program_of_the_sdk_page_runs(program: str, system: tuple[Path, str]) -> None:
    if "fastapi" in program:
        pytest.importorskip("fastapi")
    folder, address = system
    done = _run([sys.executable, "-c", program.replace(DEFAULT, address)], folder, address)
    assert done.returncode == 0, done.stderr


def test_each_mentioned_command_exists() -> None:
    mentioned = set(re.findall(r"leaseway ([a-z-]+)", "\n".join([*_blocks("sh"), README])))
    assert mentioned - {"is", "runs"} <= set(COMMANDS)
    assert set(COMMANDS) <= set(re.findall(r"[a-z-]+", CLI_PAGE))


@pytest.mark.parametrize("page", [Path("README.md"), Path("CONTRIBUTING.md"), *PAGES], ids=str)
def test_each_linked_file_exists(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", (REPOSITORY / page).read_text()):
        assert (REPOSITORY / page.parent / target).exists(), f"{page}: {target}"


@pytest.mark.parametrize("page", [Path("README.md"), Path("CONTRIBUTING.md"), *PAGES], ids=str)
def test_no_text_becomes_a_row_of_the_table_before_it(page: Path) -> None:
    text = (REPOSITORY / page).read_text()
    assert not re.findall(r"^\|.*\n(?!\||<!--|[ \t]*$).*", text, re.MULTILINE)


def test_every_file_that_contributing_names_exists() -> None:
    named = re.findall(r"`([a-z_/]+\.py)`", (REPOSITORY / "CONTRIBUTING.md").read_text())
    files = [
        path.relative_to(REPOSITORY).as_posix()
        for root in ("sdk", "cli", "front", "control_plane", "data_plane", "docs", "tools", "tests")
        for path in (REPOSITORY / root).rglob("*.py")
    ]
    assert named
    for name in named:
        assert any(file.endswith(f"/{name}") or file == name for file in files), name
