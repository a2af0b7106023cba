"""Commands of operators: `dump` without secrets, `events`, and `top` in a terminal."""

from __future__ import annotations

import asyncio
import io
import json
import os
import pty
import tarfile
import termios
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from tests.conftest import BOUND
from tests.e2e.forking import Completed, run_leaseway
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


async def test_a_dump_has_all_files_and_no_secret(system: System, tmp_path: Path) -> None:
    target = tmp_path / "dump.tar.gz"
    done = await run_leaseway(
        *("dump", "--output", str(target), "--config", str(system.config)),
        *("--address", system.address),
        environment={**os.environ, "SOME_TOKEN": "value-of-the-operator"},
    )
    assert done.status == 0, done.stderr
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


async def test_an_empty_history_is_reported_on_stderr(system: System) -> None:
    done = await run_leaseway("events", "--server", "nobody", "--address", system.address, "--json")
    assert (done.status, done.stdout) == (0, "")
    assert "The history has no events of server 'nobody'." in done.stderr


async def test_keys_of_a_terminal_sort_and_quit_top(system: System) -> None:
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

        def press(keys: bytes, words: str) -> bool:
            """Press keys; keys are lost until the program reads them."""
            os.write(master, keys)
            return _has(shown, words)

        # Only a key redraws the screen within 600 s.
        await eventually(lambda: press(b"s", "sorted by server"))
        await eventually(lambda: _has(shown, "talkative"))
        await eventually(lambda: press(b"te", "sorted by errors"))  # two keys at once
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


async def test_commands_show_a_running_system(tmp_path: Path) -> None:
    echo = python_server("echo_raw.py", **{"truely-stateless": True})
    servers = {
        "echo": echo,
        "leased": python_server("counter.py", transform=[{"prefix": "leased_"}]),
    }
    async with System(tmp_path, servers) as system:

        async def run(*words: str, status: int = 0) -> Completed:
            done = await run_leaseway(*words, "--address", system.address)
            assert done.status == status, done
            return done

        listed = json.loads((await run("servers", "--json")).stdout)
        assert {server["id"] for server in listed} == {"echo", "leased"}
        listed = json.loads((await run("tools", "--json")).stdout)
        assert {"echo", "leased_next"} <= {tool["name"] for tool in listed}
        assert (await run("call", "echo", '{"text": "json"}')).stdout == "json\n"
        called = json.loads((await run("call", "echo", "text=words", "--json")).stdout)
        assert called["content"][0]["text"] == "words"
        assert "echo" in (await run("call", "ecko", status=1)).stderr
        await run("call", "fail", status=1)
        workers = json.loads((await run("workers", "--json")).stdout)
        assert [worker["state"] for worker in workers] == ["connected"]
        assert (await run("wait", "--timeout", "60")).stdout == f"ready {system.address}\n"
        assert json.loads((await run("problems", "--json")).stdout) == []
    misspelled = await run_leaseway("serverz")
    assert (misspelled.status, "servers" in misspelled.stderr) == (2, True)
    assert (await run_leaseway("tools", "--address", "127.0.0.1:9")).status == 3
