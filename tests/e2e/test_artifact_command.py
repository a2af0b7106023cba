"""`call --output` and `artifact` save the media of calls to files."""

from __future__ import annotations

import os
import shlex
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from tests.e2e.forking import Completed, run_leaseway
from tests.e2e.system import System, python_server, running
from tests.servers.pictures import SVG, WAV, png

RED = png(255, 0, 0)


class Shell:
    """Runs `leaseway` in a folder with the address of a system."""

    def __init__(self, folder: Path, address: str) -> None:
        self.folder = folder
        self._environment = os.environ | {"LEASEWAY_ADDRESS": address}

    async def run(self, *words: str) -> Completed:
        return await run_leaseway(*words, environment=self._environment, folder=self.folder)


@pytest.fixture(scope="module")
async def system(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[System]:
    """Run a leased server of images."""
    servers = {"pictures": python_server("pictures.py")}
    async with running(tmp_path_factory.mktemp("pictures"), servers, workers=1) as (system, _):
        yield system


@pytest.fixture
def shell(system: System, tmp_path: Path) -> Shell:
    return Shell(tmp_path, system.address)


async def test_output_saves_all_media_of_a_call_without_a_session(shell: Shell) -> None:
    (shell.folder / "shots").mkdir()
    done = await shell.run("call", "gallery", "--output", "shots")
    assert (done.status, done.stdout) == (0, "Look:\n")
    saved = {file.name: file.read_bytes() for file in (shell.folder / "shots").iterdir()}
    assert saved == {"gallery.png": RED, "gallery.wav": WAV, "gallery.svg": SVG}


async def test_the_command_that_a_call_prints_saves_its_artifact(
    shell: Shell,
) -> None:
    called = await shell.run("call", "pixel", "color=[255, 0, 0]", "--session", "my job")
    assert called.status == 0
    [line] = [line for line in called.stderr.splitlines() if line.endswith(" prints it]")]
    command = shlex.split(line.partition("; ")[2].removesuffix(" prints it]"))
    assert command[:2] == ["leaseway", "artifact"]
    assert os.fsencode((await shell.run(*command[1:])).stdout) == RED
    assert (await shell.run(*command[1:], "--output", "red.png")).status == 0
    assert (shell.folder / "red.png").read_bytes() == RED

    again = await shell.run(*command[1:], "--output", "red.png")
    assert (again.status, again.stderr) == (
        2,
        "leaseway: red.png already exists; --force replaces it.\n",
    )


async def test_an_artifact_is_not_found_in_another_session_or_tenant(
    shell: Shell,
) -> None:
    called = await shell.run("call", "pixel", "color=[1, 2, 3]", "--session", "mine")
    ref = called.stderr.partition("leaseway artifact ")[2].split()[0]
    for words in (("--session", "theirs"), ("--session", "mine", "--tenant", "acme")):
        done = await shell.run("artifact", ref, *words, "--output", "stolen.png")
        assert done.status == 1
        assert "There is no artifact" in done.stderr
        assert not (shell.folder / "stolen.png").exists()
