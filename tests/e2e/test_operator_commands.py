"""Whole commands of operators: an archive without secrets, and keys in a terminal."""

from __future__ import annotations

import asyncio
import io
import os
import pty
import tarfile
import termios
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from tests.conftest import BOUND
from tests.e2e.system import LEASEWAY, System, eventually, python_server

from leaseway.sdk import AsyncClient

SECRETS = (
    "hunter2-hunter2", "0123456789abcdef", "s3cret-pw", "sk-0123456789abcdefghij",
    "in-a-json-text", "YW5uOnB3",
    "value-of-the-operator", "a-literal-in-the-file", "another-literal-in-it",
)  # fmt: skip


@pytest.fixture(scope="module")
async def system(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[System]:
    talkative = python_server("planted.py", "talkative", **{"truely-stateless": True})
    talkative["env"] = {"PLAIN": "value-of-the-operator", "DB_PASSWORD": "a-literal-in-the-file"}
    rest = {
        "transport": "http_api",
        "base_url": "http://127.0.0.1:1",
        "security": {"a": {"type": "query", "name": "key", "value": "another-literal-in-it"}},
        "http_tools": [{"name": "get", "method": "GET", "endpoint": "/"}],
    }
    servers = {"talkative": talkative, "rest": rest}
    async with (
        System(tmp_path_factory.mktemp("watched"), servers, workers=1) as system,
        AsyncClient(system.address, agent="test") as client,
    ):
        await eventually(lambda: _serves(client, {"talkative", "rest"}))
        await client.call_tool("echo", {}, timeout=60)
        yield system


async def _serves(client: AsyncClient, wanted: set[str]) -> bool:
    return wanted <= {tool.server_id for tool in await client.list_tools()}


async def test_a_dump_has_everything_and_no_secret(system: System, tmp_path: Path) -> None:
    target = tmp_path / "dump.tar.gz"
    process = await asyncio.create_subprocess_exec(
        *LEASEWAY, "dump", "--output", str(target), "--config", str(system.config),
        env={
            **os.environ,
            "LEASEWAY_ADDRESS": system.address,
            "SOME_TOKEN": "value-of-the-operator",
        },
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )  # fmt: skip
    output, _ = await asyncio.wait_for(process.communicate(), 2 * BOUND)
    assert process.returncode == 0, output.decode()
    with tarfile.open(target) as archive:
        files = {
            entry.name.removeprefix("leaseway-dump/"): _text(archive.extractfile(entry))
            for entry in archive.getmembers()
        }
    assert files.keys() >= {
        "status.json", "servers.json", "workers.json", "leases.json", "problems.json",
        "events.jsonl", "calls-recent.json", "calls-failed.json", "calls-slow.json",
        "traffic.json", "configuration.json", "versions.json", "logs/talkative.txt",
    }  # fmt: skip
    assert "login with password=[redacted]" in files["logs/talkative.txt"]
    assert '"talkative"' in files["calls-recent.json"]
    assert "security.a" in files["configuration.json"]
    for name, text in files.items():
        for secret in SECRETS:
            assert secret not in text, f"{name} has {secret}"


def _text(file: object) -> str:
    assert isinstance(file, io.BufferedReader)
    return file.read().decode()


async def test_a_history_without_events_is_told_beside_the_output(system: System) -> None:
    process = await asyncio.create_subprocess_exec(
        *LEASEWAY, "events", "--server", "nobody", "--json",
        env={**os.environ, "LEASEWAY_ADDRESS": system.address},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )  # fmt: skip
    output, told = await asyncio.wait_for(process.communicate(), 2 * BOUND)
    assert (process.returncode, output) == (0, b"")
    assert b"The history has no events of server 'nobody'." in told


async def test_keys_of_a_terminal_sort_and_end_top(system: System) -> None:
    master, slave = pty.openpty()
    before = termios.tcgetattr(slave)
    shown: list[bytes] = []
    loop = asyncio.get_running_loop()
    loop.add_reader(master, lambda: shown.append(os.read(master, 65_536)))
    process = await asyncio.create_subprocess_exec(
        *LEASEWAY, "top", "--every", "600",
        env={**os.environ, "LEASEWAY_ADDRESS": system.address, "TERM": "xterm", "COLUMNS": "120"},
        stdin=slave,
        stdout=slave,
        stderr=slave,
    )  # fmt: skip
    try:

        def typed(keys: bytes, words: str) -> bool:
            """Type again and again: what comes before the program listens is lost."""
            os.write(master, keys)
            return _has(shown, words)

        # Nothing is drawn anew for 600 s, but for a key.
        await eventually(lambda: typed(b"s", "sorted by server"))
        await eventually(lambda: _has(shown, "talkative"))
        await eventually(lambda: typed(b"te", "sorted by errors"))  # two at once
        os.write(master, b"q")
        assert await asyncio.wait_for(process.wait(), BOUND) == 0
        assert termios.tcgetattr(slave) == before
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
        loop.remove_reader(master)
        os.close(master)
        os.close(slave)


def _has(shown: list[bytes], words: str) -> bool:
    return words in b"".join(shown).decode(errors="replace")
