"""`leaseway up`: one command, and nothing left of it afterwards."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from pathlib import Path

import pytest
import yaml
from tests.conftest import BOUND, descendants
from tests.e2e.system import LEASEWAY, eventually, kit, python_server

pytestmark = pytest.mark.usefixtures("leak_guard")


class Up:
    """A running `leaseway up`."""

    def __init__(self, process: asyncio.subprocess.Process, address: str) -> None:
        self.process = process
        self.address = address

    async def run(self, *arguments: str) -> tuple[int, str, str]:
        """Run another command against it; return its status, stdout and stderr."""
        process = await asyncio.create_subprocess_exec(
            *LEASEWAY,
            *arguments,
            env=os.environ | {"LEASEWAY_ADDRESS": self.address},
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        async with asyncio.timeout(BOUND):
            out, error = await process.communicate()
        assert process.returncode is not None
        return process.returncode, out.decode(), error.decode()


async def start_up(folder: Path, *options: str, servers: dict[str, object] | None = None) -> Up:
    """Start `leaseway up` and wait until it is ready."""
    config = folder / "mcp.yaml"
    chosen = servers or {
        "kit": kit(folder, **{"truely-stateless": True}),
        "leased": python_server("counter.py", transform=[{"prefix": "leased_"}]),
    }
    config.write_text(yaml.safe_dump({"version": 1, "servers": chosen}))
    log = folder / "up.log"
    with log.open("wb") as stderr:
        process = await asyncio.create_subprocess_exec(
            *LEASEWAY,
            *("up", "--config", str(config), "--listen", "127.0.0.1:0", *options),
            stdout=asyncio.subprocess.PIPE,
            stderr=stderr,
            start_new_session=True,
        )
    assert process.stdout is not None
    async with asyncio.timeout(2 * BOUND):
        line = (await process.stdout.readline()).decode()
    assert line.startswith("ready "), log.read_text()
    return Up(process, line.removeprefix("ready ").strip())


async def ended(up: Up, pids: set[int], within: float) -> None:
    """Wait until `up` and all that was below it are gone."""
    async with asyncio.timeout(within):
        await up.process.wait()
    await eventually(lambda: not any(alive(pid) for pid in pids), within=within)


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
async def test_no_process_is_left_however_it_ends(tmp_path: Path, number: signal.Signals) -> None:
    up = await start_up(tmp_path, "--workers", "2")
    status, _, _ = await up.run("call", "leased_next", "--session", "kept")
    assert status == 0
    pids = set(descendants(up.process.pid))
    assert len(pids) >= 5  # a control plane, two workers, and servers below them
    if number is signal.SIGINT:  # Ctrl-C reaches the whole foreground group
        os.killpg(up.process.pid, number)
    else:
        up.process.send_signal(number)
    await ended(up, pids, within=60)


async def test_the_commands_show_a_running_system(tmp_path: Path) -> None:
    up = await start_up(tmp_path)
    try:
        status, out, _ = await up.run("servers", "--json")
        assert status == 0
        assert {server["id"] for server in json.loads(out)} == {"kit", "leased"}
        status, out, _ = await up.run("tools", "--json")
        assert "current_time" in {tool["name"] for tool in json.loads(out)}
        status, out, _ = await up.run("call", "current_time", '{"timezone": "UTC"}')
        assert (status, "UTC" in out) == (0, True)
        status, out, _ = await up.run("call", "current_time", "timezone=UTC", "--json")
        assert json.loads(out)["structuredContent"]["timezone"] == "UTC"
        status, _, error = await up.run("call", "curent_time")
        assert (status, "current_time" in error) == (1, True)
        status, _, _ = await up.run("call", "read_file", "path=../..")
        assert status == 1
        status, out, _ = await up.run("workers", "--json")
        assert [worker["state"] for worker in json.loads(out)] == ["connected"]
        status, out, _ = await up.run("wait", "--timeout", "60")
        assert (status, out.strip()) == (0, f"ready {up.address}")
        status, out, _ = await up.run("problems", "--json")
        assert json.loads(out) == []
        status, _, error = await up.run("serverz")
        assert (status, "servers" in error) == (2, True)
        status, _, error = await up.run("tools", "--address", "127.0.0.1:9")
        assert status == 3
    finally:
        up.process.terminate()
        await up.process.wait()


async def test_beyond_loopback_a_key_is_needed_and_then_checked(tmp_path: Path) -> None:
    config = tmp_path / "mcp.yaml"
    config.write_text("version: 1\nservers: {}\n")
    bare = {name: text for name, text in os.environ.items() if name != "LEASEWAY_KEY"}
    process = await asyncio.create_subprocess_exec(
        *LEASEWAY,
        *("control-plane", "--config", str(config), "--listen", "0.0.0.0:0"),
        env=bare,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    _, error = await process.communicate()
    assert process.returncode == 2
    assert b"LEASEWAY_KEY" in error
