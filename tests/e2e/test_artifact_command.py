"""Saving what calls return from a shell: `call --output` and `artifact`, as a user types them."""

from __future__ import annotations

import asyncio
import os
import shlex
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import NamedTuple

import pytest
from tests.e2e.system import System, python_server, running
from tests.servers.pictures import SVG, WAV, png

RED = png(255, 0, 0)


class Done(NamedTuple):
    """How a command ended."""

    status: int
    stdout: bytes
    stderr: str


class Shell:
    """Runs `leaseway` in a folder, against a system."""

    def __init__(self, folder: Path, address: str) -> None:
        self.folder = folder
        self._environment = os.environ | {"LEASEWAY_ADDRESS": address}

    async def run(self, *words: str) -> Done:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "leaseway.cli", *words),
            cwd=self.folder,
            env=self._environment,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        async with asyncio.timeout(60):
            out, err = await process.communicate()
        return Done(process.returncode or 0, out, err.decode())


@pytest.fixture(scope="module")
async def system(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[System]:
    """A leased server of pictures."""
    servers = {"pictures": python_server("pictures.py")}
    async with running(tmp_path_factory.mktemp("pictures"), servers, workers=1) as (system, _):
        yield system


@pytest.fixture
def shell(system: System, tmp_path: Path) -> Shell:
    return Shell(tmp_path, system.address)


async def test_all_media_of_a_call_outside_of_sessions_are_saved(shell: Shell) -> None:
    (shell.folder / "shots").mkdir()
    done = await shell.run("call", "gallery", "--output", "shots")
    assert (done.status, done.stdout) == (0, b"Look:\n")
    saved = {file.name: file.read_bytes() for file in (shell.folder / "shots").iterdir()}
    assert saved == {"gallery.png": RED, "gallery.wav": WAV, "gallery.svg": SVG}


async def test_the_artifact_of_an_earlier_call_is_got_with_the_command_that_the_call_names(
    shell: Shell,
) -> None:
    called = await shell.run("call", "pixel", "color=[255, 0, 0]", "--session", "my job")
    assert called.status == 0
    [line] = [line for line in called.stderr.splitlines() if line.endswith(" prints it]")]
    command = shlex.split(line.partition("; ")[2].removesuffix(" prints it]"))
    assert command[:2] == ["leaseway", "artifact"]
    assert (await shell.run(*command[1:])).stdout == RED
    assert (await shell.run(*command[1:], "--output", "red.png")).status == 0
    assert (shell.folder / "red.png").read_bytes() == RED

    again = await shell.run(*command[1:], "--output", "red.png")
    assert (again.status, again.stderr) == (
        2,
        "leaseway: red.png already exists; --force replaces it.\n",
    )


async def test_another_session_or_tenant_is_told_that_there_is_no_such_artifact(
    shell: Shell,
) -> None:
    called = await shell.run("call", "pixel", "color=[1, 2, 3]", "--session", "mine")
    ref = called.stderr.partition("leaseway artifact ")[2].split()[0]
    for words in (("--session", "theirs"), ("--session", "mine", "--tenant", "acme")):
        done = await shell.run("artifact", ref, *words, "--output", "stolen.png")
        assert done.status == 1
        assert "There is no artifact" in done.stderr
        assert not (shell.folder / "stolen.png").exists()
