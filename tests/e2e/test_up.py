"""`leaseway up` leaves no process behind."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path

import pytest
from tests.conftest import BOUND, descendants
from tests.e2e.forking import run_leaseway
from tests.e2e.system import eventually
from tests.e2e.up import start_up, stop

from leaseway.sdk import AsyncClient

pytestmark = pytest.mark.usefixtures("leak_guard")


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGKILL])
async def test_no_process_remains_after_a_signal(tmp_path: Path, number: signal.Signals) -> None:
    up = await start_up(tmp_path)
    async with AsyncClient(up.address) as client:
        await client.session("kept").call_tool("leased_next")
        pids = set(descendants(up.process.pid))
        assert len(pids) >= 3  # a control plane, a worker, and a server below it
        if number is signal.SIGINT:  # Ctrl-C reaches the whole foreground group
            os.killpg(up.process.pid, number)
        else:
            up.process.send_signal(number)
    async with asyncio.timeout(BOUND):
        status = await up.process.wait()
        said = (await up.process.stderr.read()).decode()
    assert status == (-number if number is signal.SIGKILL else 0)
    assert "Traceback" not in said
    await eventually(lambda: not any(alive(pid) for pid in pids))


async def test_files_of_the_folder_it_is_started_in_are_not_taken_for_modules(
    tmp_path: Path,
) -> None:
    for name in ("mcp", "grpc", "secrets", "types", "yaml"):
        (tmp_path / f"{name}.py").write_text("raise SystemExit('this is the user's own file')\n")
    up = await start_up(tmp_path, "--mcp", "127.0.0.1:0", within=tmp_path)
    async with AsyncClient(up.address) as client:
        assert (await client.session("s").call_tool("leased_next")).text == "1"
    await stop(up)


async def test_an_address_beyond_loopback_requires_a_key(tmp_path: Path) -> None:
    config = tmp_path / "mcp.yaml"
    config.write_text("version: 1\nservers: {}\n")
    bare = {name: text for name, text in os.environ.items() if name != "LEASEWAY_KEY"}
    arguments = ("control-plane", "--config", str(config), "--listen", "0.0.0.0:0")
    done = await run_leaseway(*arguments, environment=bare)
    assert done.status == 2
    assert "LEASEWAY_KEY" in done.stderr
