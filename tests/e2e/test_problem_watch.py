"""`leaseway problems --watch` with a running system, until Ctrl-C."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from pathlib import Path

import pytest
from tests.conftest import BOUND
from tests.e2e.forking import fork_leaseway
from tests.e2e.system import System, python_server

GOOD = python_server("echo_raw.py", **{"truely-stateless": True})


@pytest.mark.usefixtures("leak_guard")
async def test_problems_watch_prints_opened_and_cleared_problems(tmp_path: Path) -> None:
    async with System(tmp_path, {"one": GOOD}) as system:
        arguments = ("problems", "--watch", "--json", "--address", system.address)
        watch = await fork_leaseway(arguments, os.environ, None)
        async with asyncio.timeout(BOUND):
            system.write({"one": GOOD | {"comand": "misspelled"}})
            opened = json.loads(await watch.stdout.readline())
            system.write({"one": GOOD})
            cleared = json.loads(await watch.stdout.readline())
            watch.send_signal(signal.SIGINT)
            assert await watch.wait() == 0
            assert await watch.stdout.read() == b""
            # It says so if it started before the problem opened.
            said = (await watch.stderr.read()).replace(b"No problems. Watching until Ctrl-C.", b"")
            assert said.strip() in (b"", b"leaseway:")
        assert (opened["event"], cleared["event"]) == ("opened", "cleared")
        assert "comand" in opened["message"]
        assert opened["first_seen"] == cleared["first_seen"]
