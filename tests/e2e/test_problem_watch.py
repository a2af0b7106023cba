"""`leaseway problems --watch` beside a running system, ended by Ctrl-C."""

from __future__ import annotations

import asyncio
import json
import signal
from pathlib import Path

import pytest
from tests.conftest import BOUND
from tests.e2e.system import LEASEWAY, System, python_server

GOOD = python_server("echo_raw.py", **{"truely-stateless": True})


@pytest.mark.usefixtures("leak_guard")
async def test_an_operator_sees_a_problem_come_and_go_and_ends_the_watch(tmp_path: Path) -> None:
    async with System(tmp_path, {"one": GOOD}) as system:
        watch = await asyncio.create_subprocess_exec(
            *LEASEWAY,
            *("problems", "--watch", "--json", "--address", system.address),
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        assert watch.stdout is not None
        async with asyncio.timeout(BOUND):
            system.write({"one": GOOD | {"comand": "misspelled"}})
            opened = json.loads(await watch.stdout.readline())
            system.write({"one": GOOD})
            cleared = json.loads(await watch.stdout.readline())
            watch.send_signal(signal.SIGINT)
            rest, errors = await watch.communicate()
        assert (opened["event"], cleared["event"]) == ("opened", "cleared")
        assert "comand" in opened["message"]
        assert opened["first_seen"] == cleared["first_seen"]
        assert (watch.returncode, rest, errors) == (0, b"", b"")
