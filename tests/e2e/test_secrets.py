"""Secrets of a running system reach their server and are shown nowhere else."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest
from tests.conftest import BOUND
from tests.e2e.forking import run_leaseway
from tests.e2e.system import SERVERS, System, eventually, python_server, running

from leaseway.sdk import AsyncClient
from leaseway.telemetry.trace_file import TraceCollector, otlp_environment

pytestmark = pytest.mark.usefixtures("leak_guard")

KEY = "the key of this test's vault"
FIRST, SECOND = "first-value-9d1c", "second-value-77ab"
SHARED = {"truely-stateless": True}


async def leaseway(*words: str, stdin: str = "", **environment: str) -> None:
    """Run a command with some input."""
    done = await run_leaseway(*words, environment={**os.environ, **environment}, stdin=stdin)
    assert done.status == 0, done.stderr


async def environment_of(client: AsyncClient, name: str) -> Mapping[str, str]:
    """Return the environment of a server's process."""
    found: Mapping[str, str] = json.loads((await client.call_tool(name, timeout=60)).text)
    return found


def command_lines() -> str:
    """Return the command lines of all processes on this machine."""
    lines = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal() and int(entry.name) != os.getpid():
            try:
                lines.append((entry / "cmdline").read_bytes().decode(errors="replace"))
            except OSError:
                continue  # the process has just exited
    return "\n".join(lines)


def uses_db(**settings: object) -> dict[str, object]:
    return python_server("echo_raw.py", env={"DB": {"secret": "db_password"}}, **settings)


async def test_a_changed_vault_secret_reaches_its_server_without_a_failed_call(
    tmp_path: Path,
) -> None:
    vault = {"LEASEWAY_VAULT": str(tmp_path / "vault"), "LEASEWAY_VAULT_KEY": KEY}
    await leaseway("vault", "set", "db_password", stdin=FIRST, **vault)
    spans = tmp_path / "spans.jsonl"
    async with TraceCollector(spans) as collector:
        telemetry = {**otlp_environment(collector.endpoint), "OTEL_BSP_SCHEDULE_DELAY": "100"}
        servers = {"db": uses_db(**SHARED)}
        async with running(tmp_path, servers, environment={**vault, **telemetry}) as (
            system,
            client,
        ):
            before = await environment_of(client, "env")
            version = (await client.list_tools()).registry_version
            assert before["DB"] == FIRST
            assert not [name for name in before if name.startswith("LEASEWAY_VAULT")]
            assert KEY not in before.values()

            stop = asyncio.Event()
            callers = [asyncio.create_task(keep_calling(client, stop)) for _ in range(8)]
            await leaseway("vault", "set", "db_password", stdin=SECOND, **vault)

            async def changed() -> bool:
                return (await environment_of(client, "env"))["DB"] == SECOND

            await eventually(changed)
            stop.set()
            assert min(await asyncio.gather(*callers)) > 0
            assert (await client.list_tools()).registry_version == version
            problems = repr(await client.problems()) + repr(await client.servers())
            logs = repr(await client.logs("db")) + system.logs() + command_lines()
            await eventually(lambda: "tools/call" in spans.read_text())
        shown = problems + logs + spans.read_text() + repr(system.workers)
    for value in (FIRST, SECOND, KEY):
        assert value not in shown


async def keep_calling(client: AsyncClient, stop: asyncio.Event) -> int:
    """Call repeatedly until `stop`; a failed call fails the test."""
    calls = 0
    while not stop.is_set():
        result = await client.call_tool("slow", {"seconds": 0.02}, timeout=60)
        assert not result.is_error
        calls += 1
    return calls


async def test_a_changed_secret_file_is_used_by_new_sessions_only(
    tmp_path: Path,
) -> None:
    file = tmp_path / "token"
    file.write_text(FIRST)
    servers = {"db": python_server("echo_raw.py", env={"DB": {"file": str(file)}})}
    async with running(tmp_path, servers) as (_, client):
        async with client.session("old") as old:
            assert json.loads((await old.call_tool("env")).text)["DB"] == FIRST
            fresh = tmp_path / "fresh"
            fresh.write_text(SECOND)
            fresh.replace(file)

            async def seen_by_a_new_session() -> bool:
                async with client.session(f"new-{os.urandom(4).hex()}") as new:
                    return bool(json.loads((await new.call_tool("env")).text)["DB"] == SECOND)

            await eventually(seen_by_a_new_session)
            assert json.loads((await old.call_tool("env")).text)["DB"] == FIRST
        assert not await client.problems()


async def test_a_missing_secret_is_a_problem_until_the_vault_has_it(
    tmp_path: Path,
) -> None:
    place = ("--vault", str(tmp_path / "v"), "--vault-key-file", str(tmp_path / "k"))
    system = System(tmp_path, {"db": uses_db(**SHARED)})
    try:
        await system.start_control_plane()
        await system.start_worker("worker-1", *place)
        await system.ready()
        async with AsyncClient(system.address) as client:

            async def is_reported() -> bool:
                return any("db_password" in p.message for p in await client.problems())

            await eventually(is_reported)
            await leaseway("vault", "set", "db_password", *place, stdin=FIRST)

            async def serves() -> bool:
                return bool(await client.list_tools()) and not await client.problems()

            await eventually(serves)
            assert (await environment_of(client, "env"))["DB"] == FIRST
    finally:
        await system.stop()


async def test_a_server_keeps_running_with_a_problem_after_its_secret_is_removed(
    tmp_path: Path,
) -> None:
    vault = {"LEASEWAY_VAULT": str(tmp_path / "vault"), "LEASEWAY_VAULT_KEY": KEY}
    await leaseway("vault", "set", "db_password", stdin=FIRST, **vault)
    servers = {"db": uses_db(**SHARED)}
    async with running(tmp_path, servers, environment=vault) as (_, client):
        await leaseway("vault", "rm", "db_password", **vault)

        async def is_reported() -> bool:
            return any(
                p.server_id == "db" and "env.DB refers to the secret db_password" in p.message
                for p in await client.problems()
            )

        await eventually(is_reported)
        assert (await environment_of(client, "env"))["DB"] == FIRST
        await leaseway("vault", "set", "db_password", stdin=SECOND, **vault)

        async def is_fixed() -> bool:
            found = (await environment_of(client, "env"))["DB"]
            return found == SECOND and not await client.problems()

        await eventually(is_fixed)


async def test_a_damaged_vault_is_a_problem_and_stops_no_running_server(tmp_path: Path) -> None:
    vault = {"LEASEWAY_VAULT": str(tmp_path / "vault"), "LEASEWAY_VAULT_KEY": KEY}
    await leaseway("vault", "set", "db_password", stdin=FIRST, **vault)
    servers = {"db": uses_db(**SHARED)}
    async with running(tmp_path, servers, environment=vault) as (system, client):
        (tmp_path / "vault").write_bytes(b"no vault at all")

        async def is_reported() -> bool:
            return {"VAULT_UNREADABLE", "MISSING_REFERENCE"} <= {
                problem.reason for problem in await client.problems()
            }

        await eventually(is_reported)
        assert (await environment_of(client, "env"))["DB"] == FIRST
        assert "Traceback" not in system.logs()


@pytest.mark.parametrize("era", [(), ("--legacy", "--get")], ids=["2026-07-28", "legacy"])
async def test_a_configured_session_id_is_sent_from_the_first_request(
    tmp_path: Path, era: tuple[str, ...]
) -> None:
    log = tmp_path / "requests"
    server = await asyncio.create_subprocess_exec(
        *(sys.executable, str(SERVERS / "http_raw.py"), "--log", str(log), *era),
        stdout=asyncio.subprocess.PIPE,
    )
    try:
        assert server.stdout is not None
        async with asyncio.timeout(BOUND):
            port = int(await server.stdout.readline())
        entry = {
            "transport": "streamable_http",
            "url": f"http://127.0.0.1:{port}/mcp",
            "sessionId": "${TEST_SESSION}",
            **SHARED,
        }
        async with running(
            tmp_path, {"remote": entry}, environment={"TEST_SESSION": "given-by-config"}
        ) as (_, client):
            assert (await client.call_tool("echo", {"text": "hi"})).text == "hi"
    finally:
        server.kill()
        await server.wait()
    requests = [json.loads(line) for line in log.read_text().splitlines()]
    sent = [(r["body"]["method"], r["headers"].get("mcp-session-id")) for r in requests]
    assert sent[0] == ("server/discover", "given-by-config")
    # The legacy server returns a session id from `initialize`, which replaces the configured one.
    opening = ("server/discover", "initialize")
    later = "session-1" if era else "given-by-config"
    for method, session in sent:
        assert session == ("given-by-config" if method in opening else later)
    assert ("tools/call", later) in sent
